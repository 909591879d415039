"""A slicing stopped after any stage, or killed, goes on from there and gives the same bits; another is refused."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from sliced_folders import library_folder, own_folder

from geowidth import files, records
from geowidth.errors import UserError
from geowidth.slicing import pipeline
from geowidth.slicing.healing import Healing
from geowidth.slicing.judge import ranges
from geowidth.slicing.pipeline import slice_model
from geowidth.slicing.request import SliceRequest
from geowidth.slicing.targets import Keep

STAGES = ["whole", "widths", "neurons", "sliced", "not-healed", "healed", "model", "judged"]
FACTS = ("kept", "widths", "loss_before", "loss_after", "difference", "parameters", "bytes", "correction", "settings")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)  # put back by a fixture of all tests


def request(text, **changes):
    sizes = {"corpus": str(text), "windows": 3, "calibration_windows": 10, "context": 16}
    asked = {"by": "cosine", "healing": Healing(2, batch=2, distil=True), **sizes, **changes}
    return SliceRequest(Keep(asked.pop("keep", 0.6)), **asked)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return library_folder(tmp_path_factory.mktemp("whole") / "model", "llama")


def stopping_after(stage):
    def watch(name):
        if name == stage:
            raise KeyboardInterrupt

    return watch


def same(one, other):
    first, second = (records.read_json(path / "slice.json") for path in (one, other))
    assert all(first[name] == second[name] for name in FACTS)
    assert {**first["heal"], "seconds": 0} == {**second["heal"], "seconds": 0}
    tensors, others = (load_file(path / "model.safetensors") for path in (one, other))
    assert set(tensors) == set(others) and all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_stopped_after_every_stage(whole, text, tmp_path):
    plain, stopped = tmp_path / "plain", tmp_path / "stopped"
    seen = []
    slice_model(whole, plain, request(text), watch=seen.append)
    assert seen == STAGES
    for number, stage in enumerate(STAGES):
        with pytest.raises(KeyboardInterrupt):
            slice_model(whole, stopped, request(text), watch=stopping_after(stage))
        assert not stopped.exists() and (tmp_path / "stopped.unfinished").is_dir()
        if number < len(STAGES) - 1:
            continue
        again = []
        slice_model(whole, stopped, request(text), watch=again.append)
        assert again == [], "all stages were done"
    same(plain, stopped)
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "stopped"}


@pytest.mark.parametrize("stage", ["neurons", "sliced"])
def test_only_what_is_missing_is_done(stage, tmp_path, text):
    source = own_folder(tmp_path / "whole")
    asked = request(text, healing=None)
    with pytest.raises(KeyboardInterrupt):
        slice_model(source, tmp_path / "out", asked, watch=stopping_after(stage))
    again = []
    slice_model(source, tmp_path / "out", asked, watch=again.append)
    left = [name for name in STAGES if "heal" not in name]
    assert again == left[left.index(stage) + 1 :]


KILLED = """
import os, signal, sys
from geowidth.slicing.pipeline import slice_model
from geowidth.slicing.request import SliceRequest
from geowidth.slicing.healing import Healing
from geowidth.slicing.targets import Keep
source, out, text, stage = sys.argv[1:]
asked = SliceRequest(Keep(0.6), by="cosine", healing=Healing(2, batch=2, distil=True), corpus=text, windows=3,
                     calibration_windows=10, context=16)
slice_model(source, out, asked, watch=lambda name: name == stage and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_killed(whole, text, tmp_path):
    command = [sys.executable, "-c", KILLED, str(whole), str(tmp_path / "killed"), str(text), "sliced"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    for name in ("killed", "plain"):
        slice_model(whole, tmp_path / name, request(text))
    same(tmp_path / "plain", tmp_path / "killed")
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "killed"}


def test_a_different_command_is_refused(whole, text, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        slice_model(whole, tmp_path / "out", request(text), watch=stopping_after("neurons"))
    for changes, words in (
        ({"keep": 0.7}, "target"),
        ({"by": "linear"}, "by"),
        ({"seed": 1}, "seed"),
        ({"healing": None}, "healing"),
    ):
        with pytest.raises(UserError, match=f"holds a slicing that is not finished, with {words} .*name another"):
            slice_model(whole, tmp_path / "out", request(text, **changes))
    other = own_folder(tmp_path / "other")
    with pytest.raises(UserError, match="with model "):
        slice_model(other, tmp_path / "out", request(text))
    with files.holding(tmp_path / "out.unfinished"), pytest.raises(UserError, match="another process is slicing"):
        slice_model(whole, tmp_path / "out", request(text))
    assert slice_model(whole, tmp_path / "out", request(text))["settings"]["by"] == "cosine"
    with pytest.raises(UserError, match="exists already"):
        slice_model(whole, tmp_path / "out", request(text))


def test_it_goes_on_streamed_or_in_memory_as_it_began(whole, text, tmp_path, monkeypatch):
    asked = request(text, healing=None)
    for name, streams in (("streamed", True), ("piece", False)):
        monkeypatch.setattr(pipeline, "wants_streaming", lambda folder, streams=streams: streams)
        with pytest.raises(KeyboardInterrupt):
            slice_model(whole, tmp_path / name, asked, watch=stopping_after("neurons"))
        with pytest.raises(UserError, match=f"with streamed {streams}, not {not streams}"):
            slice_model(whole, tmp_path / name, asked, stream=not streams)
        monkeypatch.setattr(pipeline, "wants_streaming", lambda folder, streams=streams: not streams)
        assert ("states" in slice_model(whole, tmp_path / name, asked)) == streams


def test_ranges():
    assert ranges(torch.tensor([0, 1, 2, 5, 7, 8])) == "0-2 5 7-8" and ranges(torch.tensor([], dtype=int)) == ""
