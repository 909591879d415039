"""Many processes of one training: the losses of one, in every way to share the work."""

from pathlib import Path

import pytest
import ranked_training
import torch
from launching import torchrun

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.storage import load_model
from geowidth.train import distributed

SCRIPT = Path(__file__).resolve().parent / "ranked_training.py"


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    """The folder of the training that one process does."""
    folder = tmp_path_factory.mktemp("alone")
    ranked_training.run(folder, text, "alone")
    return folder / "alone"


def losses(folder):
    lines = records.read_json_lines(folder / "metrics.jsonl")
    return [(line["step"], line["split"], line["tokens"], line["loss"]) for line in lines]


def assert_agree(left, right):
    """Losses to five decimals, everything else to the letter."""
    assert [line[:3] for line in left] == [line[:3] for line in right]
    assert max(abs(a[3] - b[3]) for a, b in zip(left, right, strict=True)) < 5e-6


@pytest.mark.parametrize("processes", [2, 3])
def test_every_way_gives_the_losses_of_one_process(processes, alone, text, tmp_path):
    done = torchrun(processes, SCRIPT, tmp_path, text, "ddp", "fsdp")
    assert done.returncode == 0, done.stderr
    for way in ("ddp", "fsdp"):
        assert_agree(losses(tmp_path / way), losses(alone))
        parameters = dict(load_model(alone).named_parameters())
        for name, parameter in load_model(tmp_path / way).named_parameters():
            torch.testing.assert_close(parameter, parameters[name], rtol=0, atol=1e-4)


def test_what_cannot_be_shared_is_refused(monkeypatch):
    assert distributed.chosen("auto", "cpu") == ("none", "cpu")
    with pytest.raises(UserError, match="no launcher started the processes; use torchrun"):
        distributed.chosen("ddp", "cpu")
    with pytest.raises(UserError, match="parallel is 'all'; allowed: auto, none, ddp, fsdp"):
        distributed.chosen("all", "cpu")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert distributed.chosen("auto", "cpu") == ("ddp", "cpu")
    with pytest.raises(UserError, match="a launcher started 2 processes"):
        distributed.chosen("none", "cpu")
