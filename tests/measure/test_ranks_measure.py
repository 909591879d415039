"""The work profile does not depend on how many processes share the work; one that fails ends all."""

import pytest
import torch
from launching import own_lines, torchrun

from geowidth import files
from geowidth.measure import measure
from geowidth.measure.states import capture
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.storage import save_model
from geowidth.ranks import Ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that is quick to measure."""
    path = tmp_path_factory.mktemp("model")
    config = ModelConfig(vocabulary=256, layers=3, dimension=16, heads=2, widths=(20, 7, 3), context=16)
    save_model(TaperedTransformer(config, seed=1), path)
    return path


def test_two_processes_give_the_bytes_of_one_and_a_fault_ends_both(folder, text, tmp_path):
    torch.set_num_threads(1)
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    measure(folder, corpus=text, tokens=48, out=one, save_clouds=tmp_path / "one.safetensors")
    given = ["-m", "geowidth", "measure", folder, "--corpus", text, "--tokens", 48]
    done = torchrun(2, *given, "--out", two, "--save-clouds", tmp_path / "two.safetensors")
    assert done.returncode == 0, done.stderr
    assert two.read_bytes() == one.read_bytes()
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert done.stdout.count("work profile:") == 1 and "measure: 3/3 layers" in done.stderr
    wrong = torchrun(2, *given[:3], tmp_path / "nothing", "--corpus", text, "--out", tmp_path / "three.json")
    (line,) = own_lines(wrong)
    assert wrong.returncode and "nothing does not exist" in line
    assert not files.exists(tmp_path / "three.json")


class Half(Ranks):
    """The first of two processes, seen from inside: the other one's part stays zero."""

    size = 2


def test_whole_batches_are_dealt(folder):
    from geowidth.measure.opening import open_model

    model = open_model(folder).model
    tokens = torch.arange(16 * 64).remainder(251)
    whole, half = (capture(model, tokens, None, batch=8, ranks=ranks) for ranks in (Ranks(), Half()))
    own = (half.before != 0).any(-1).any(0)
    assert own.sum() == len(own) / 2
    assert torch.equal(half.before[:, own], whole.before[:, own])
    assert torch.equal(half.token_ids, whole.token_ids)
