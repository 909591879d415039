"""Many processes of one training: the losses of one, in every way to share the work; all end when one fails."""

import json
import shutil
from pathlib import Path

import pytest
import ranked_training
import torch
from launching import own_lines, torchrun

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.config import ModelConfig
from geowidth.models.storage import load_model
from geowidth.models.transformer import TaperedTransformer, drawn
from geowidth.train import checkpoint, distributed, shards, state

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def begun(text, tmp_path_factory):
    """The folder of a training that one process began."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    ranked_training.run_until(30, folder, text, "none")
    return folder


@pytest.fixture(scope="module")
def alone(begun, text, tmp_path_factory):
    """The folder of the training that one process does."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    shutil.copytree(begun, folder)
    ranked_training.run(folder, text, "none")
    return folder


def losses(folder):
    lines = records.read_json_lines(folder / "metrics.jsonl")
    return [(line["step"], line["split"], line["tokens"], line["loss"]) for line in lines]


def assert_agree(folder, other):
    """Losses to five decimals, everything else to the letter."""
    left, right = losses(folder), losses(other)
    assert [line[:3] for line in left] == [line[:3] for line in right]
    assert max(abs(a[3] - b[3]) for a, b in zip(left, right, strict=True)) < 5e-6
    parameters = dict(load_model(other).named_parameters())
    for name, parameter in load_model(folder).named_parameters():
        torch.testing.assert_close(parameter, parameters[name], rtol=0, atol=1e-4)


def test_two_processes_give_the_losses_of_one_in_every_way_and_go_on_from_each_other(begun, alone, text, tmp_path):
    chain = tmp_path / "chain"
    shutil.copytree(begun, chain)
    done = torchrun(2, HERE / "ranked_training.py", tmp_path, text, "ddp", "fsdp", "chain", "measure")
    assert (tmp_path / "clouds.safetensors").exists(), done.stderr  # written last; how processes end is not asked
    assert done.stderr.count("measure: 3/3 layers") == 1
    torch.set_num_threads(1)
    work, clouds = ((tmp_path / name).read_bytes() for name in ("work.json", "clouds.safetensors"))
    assert ranked_training.measured(tmp_path, tmp_path / "fsdp", text) == (work, clouds)
    for way in ("ddp", "fsdp"):
        assert_agree(tmp_path / way, alone)
        facts = records.read_json(tmp_path / way / "result.json")["environment"]
        assert (facts["processes"], facts["parallel"]) == (2, way)
    assert [step for step, _ in state.saved_states(chain)] == [80, 60]
    assert set(records.read_json(chain / "kept.json")) == {"step-00000060", "step-00000030"}
    sharded = chain / "states" / "step-00000060"
    assert len(list(sharded.glob("shard-*.safetensors"))) == 2
    names = {path.name for path in sharded.iterdir()}
    assert all(name.endswith((".safetensors", ".json")) for name in names)
    shutil.rmtree(chain / "states" / "step-00000080")  # so that one process goes on from the sharded one
    check_damage(sharded, tmp_path / "damaged")
    ranked_training.run(chain, text, "none")
    assert_agree(chain, alone)


def check_damage(sharded, copy):
    """A sharded state that lacks a file, or has one of other rows, is refused; never read with holes."""
    model = TaperedTransformer(
        ModelConfig.from_json(json.loads((sharded.parents[1] / "config.json").read_text())["model"])
    )
    wanted = {f"parameter/{name}": parameter for name, parameter in model.named_parameters()}
    moments = {f"{part}/{name}": p for part in ("exp_avg", "exp_avg_sq") for name, p in model.named_parameters()}
    shards.read_parts(sharded, wanted | moments, also=state.GENERATORS)
    shutil.copytree(sharded, copy)
    second = copy / "shard-00002-model-00001-of-00001.safetensors"
    data = second.read_bytes()
    second.unlink()
    with pytest.raises(UserError, match="says|holds|lacks"):
        shards.read_parts(copy, wanted | moments, also=state.GENERATORS)
    second.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="holds no whole tensors"):
        shards.read_parts(copy, wanted | moments, also=state.GENERATORS)
    with pytest.raises(UserError, match="damaged: it has"):
        state.read_state(copy)


def test_three_processes_with_too_few_rows_with_parts_that_rest_and_with_one_that_refuses(text, tmp_path, alone):
    """cases.md F3: a process with fewer rows, a layer that only one microbatch uses, bad input in one process."""
    ended = torchrun(3, HERE / "ranked_training.py", tmp_path, text, "fsdp", "resting", "refuse")
    assert ended.returncode, ended.stderr
    assert own_lines(ended) == ["geowidth: the disk of this process is gone"], ended.stderr
    assert "traceback : the disk of this process is gone" in ended.stderr
    assert_agree(tmp_path / "fsdp", alone)
    right = ranked_training.resting_alone()
    for found in records.read_json(tmp_path / "resting.json"):
        assert found["loss"] == pytest.approx(right["loss"], rel=1e-6)
        for name, gradient in right["gradients"].items():
            torch.testing.assert_close(torch.tensor(found["gradients"][name]), torch.tensor(gradient))


def test_one_process_that_dies_ends_all_and_the_last_state_goes_on(text, tmp_path, alone):
    ended = torchrun(2, HERE / "ranked_training.py", tmp_path, text, "die")
    assert ended.returncode, ended.stderr
    (line,) = own_lines(ended)
    assert "another process of this job ended" in line
    folder = tmp_path / "die"
    assert checkpoint.read_result(folder) is None
    assert state.saved_step(folder) == ranked_training.FAULT_AT
    ranked_training.run(folder, text, "none")
    assert_agree(folder, alone)


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


def test_rows_drawn_alone_are_those_of_the_whole(monkeypatch):
    from geowidth.models import transformer

    monkeypatch.setattr(transformer, "DRAWN_AT_ONCE", 13)
    whole = drawn(5, "a", (11, 3))
    for first, last in ((0, 11), (0, 4), (4, 7), (7, 11), (11, 11)):
        assert torch.equal(drawn(5, "a", (11, 3), range(first, last)), whole[first:last])
