"""States: killed anywhere, cut, altered or without room, training goes on from the last whole one to the same bits."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models import TaperedTransformer
from geowidth.tensors import read_tensors, write_tensors
from geowidth.train import checkpoint, state, train
from geowidth.train.optimise import make_optimizers

CLOCK = ("seconds", "tokens_per_second")
ARGUMENTS = {"widths": (30, 18), "seed": 4, "watch": lambda *_: None}


def lines(folder):
    found = records.read_json_lines(folder / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in found]


def same_end(one, two):
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert lines(one) == lines(two)
    a, b = checkpoint.read_result(one), checkpoint.read_result(two)
    assert {**a, "seconds": 0, "tokens_per_second": 0} == {**b, "seconds": 0, "tokens_per_second": 0}


def stopped(tiny, text, folder, at, **changes):
    """A training stopped after step `at`, with a state after every step."""
    steps = iter(range(1, 100))
    arguments = {**ARGUMENTS, "corpus": text, "save_seconds": 0, **changes}
    with pytest.raises(KeyboardInterrupt):
        train(tiny, out=folder, stop=lambda: next(steps) == at, **arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """The folder of an uninterrupted training."""
    from tiny_preset import TINY

    folder = tmp_path_factory.mktemp("whole")
    train(TINY, out=folder, corpus=text, **ARGUMENTS)
    return folder


# Forks once for every folder; child number i kills itself (SIGKILL) at the moment that is i's share of all moments. A
# moment is a call from the package's code of a function written in C: every write, flush, fsync, rename and removal is
# one, and so is every product and sum between them.
KILLED = """
import os, random, signal, sys
sys.path.insert(0, {tests!r})
from tiny_preset import TINY
import torch
from geowidth.train import loop, load_corpus

corpus = load_corpus({text!r})
torch.set_num_threads(1)

def run(folder, moment):
    left = [moment]
    def count(frame, event, argument):
        if event == "c_call" and {package!r} in frame.f_code.co_filename:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)
    loop.train(TINY, (30, 18), 4, folder, steps=6, corpus=corpus, save_seconds=0, watch=lambda *_: None)
    sys.setprofile(None)
    return moment - left[0]

def forked(folder, moment):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(run(folder, moment)).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    return os.read(reading, 100).decode(), status

run({folder!r} + "/first", 10**9)  # what is loaded at first use is loaded once, not in every child
total, status = forked({folder!r} + "/counted", 10**9)
assert status == 0
drawn = random.Random(7)
for i in range(20):
    _, status = forked({folder!r} + f"/killed-{{i}}", drawn.randrange(1, int(total)))
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
print(total)
"""


def test_killed_at_20_random_moments_it_goes_on_to_the_same_bits(tiny, text, tmp_path, capsys):
    here = Path(__file__).resolve().parents[1]
    package = os.path.dirname(checkpoint.__file__)
    code = KILLED.format(tests=str(here), text=str(text), folder=str(tmp_path), package=os.path.dirname(package))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2000  # moments of a training: there is something to draw from
    reached = set()
    for i in range(20):
        folder = tmp_path / f"killed-{i}"
        finished = (folder / "result.json").exists()
        reached.add(state.saved_step(folder))
        train(tiny, out=folder, corpus=text, steps=6, **ARGUMENTS)
        same_end(tmp_path / "counted", folder)
        assert finished or not (folder / "states").exists()
    assert len(reached) > 4  # early, late and between
    assert "warning" not in capsys.readouterr().err  # a kill tears nothing: each found its state whole, or none


def test_the_last_states_are_kept_and_none_in_the_end(tiny, text, tmp_path):
    for keep in (1, 3):
        folder = tmp_path / str(keep)
        stopped(tiny, text, folder, 5, keep=keep)
        assert [step for step, _ in state.saved_states(folder)] == [5, 4, 3][:keep]
        assert len(list((folder / "states").iterdir())) == keep
        train(tiny, out=folder, corpus=text, keep=2, **ARGUMENTS)  # how many are kept is no part of the run
        assert not (folder / "states").exists()


TEARS = {
    "cut": lambda data: data[:-5],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "zeros": lambda data: bytes(len(data)),
    "gone": None,
}


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_newest_state_gives_way_to_the_one_before(tiny, text, tmp_path, whole, capsys, tear, name):
    if (tear, name) == ("one bit", "state.json"):
        pytest.skip("a changed blank in JSON changes nothing")
    stopped(tiny, text, tmp_path, 5)
    path = tmp_path / "states" / "step-00000005" / name
    path.write_bytes(TEARS[tear](path.read_bytes())) if TEARS[tear] else path.unlink()
    capsys.readouterr()
    steps = []
    train(tiny, out=tmp_path, corpus=text, **{**ARGUMENTS, "watch": lambda step, *_: steps.append(step)})
    assert steps == list(range(5, 13))
    same_end(whole, tmp_path)
    warned = capsys.readouterr().err
    assert warned.count("\n") == (0 if (tear, name) == ("gone", "state.json") else 1)
    assert not warned or ("warning: " in warned and "step-00000005" in warned)


def test_states_that_are_all_torn_are_refused_in_one_line(tiny, text, tmp_path, whole):
    stopped(tiny, text, tmp_path, 5)
    for _, path in state.saved_states(tmp_path):
        with open(path / "tensors.safetensors", "ab") as file:
            file.write(b"more")
    with pytest.raises(UserError, match=r"is damaged: it has .* bytes of .*; no whole state .*: delete .*states"):
        train(tiny, out=tmp_path, corpus=text, **ARGUMENTS)
    shutil.rmtree(tmp_path / "states")  # the advice is followed
    train(tiny, out=tmp_path, corpus=text, **ARGUMENTS)
    same_end(whole, tmp_path)


def rewritten(path, change):
    """Change tensors and record of a state, and let it say the new hashes."""
    tensors, _ = read_tensors(path / "tensors.safetensors")
    record = json.loads((path / "state.json").read_text())
    change(tensors, record)
    write_tensors(path / "tensors.safetensors", tensors)
    record["files"]["tensors.safetensors"] = state.fingerprint(path / "tensors.safetensors")
    (path / "state.json").write_text(json.dumps(record))


WRONG = {
    "a tensor too few": lambda t, r: t.pop("exp_avg/embedding"),
    "a tensor too many": lambda t, r: t.update(more=torch.ones(1)),
    "a NaN": lambda t, r: t.update({"parameter/embedding": t["parameter/embedding"] * float("nan")}),
    "half precision": lambda t, r: t.update({"parameter/embedding": t["parameter/embedding"].half()}),
    "a generator of floats": lambda t, r: t.update({"generator/cpu": torch.ones(8)}),
    "a generator too short": lambda t, r: t.update({"generator/cpu": torch.ones(8, dtype=torch.uint8)}),
    "another kind": lambda t, r: r.update(kind="geowidth.model"),
    "a newer schema": lambda t, r: r.update(schema=99),
    "a step that is a text": lambda t, r: r.update(step="5"),
    "the last step": lambda t, r: r.update(step=12, tokens=12 * 64),
    "tokens of another step": lambda t, r: r.update(tokens=1),
    "a file elsewhere": lambda t, r: r["files"].update({"../../config.json": {"bytes": 1, "sha256": ""}}),
    "a file that is not there": lambda t, r: r["files"].update({"other": {"bytes": 1, "sha256": ""}}),
    "a hash that is a number": lambda t, r: r["files"].update(other={"bytes": 1, "sha256": 5}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_says_what_cannot_be_gives_way_too(tiny, text, tmp_path, whole, capsys, name):
    stopped(tiny, text, tmp_path, 5)
    rewritten(tmp_path / "states" / "step-00000005", WRONG[name])
    capsys.readouterr()
    train(tiny, out=tmp_path, corpus=text, **ARGUMENTS)
    same_end(whole, tmp_path)
    assert capsys.readouterr().err.count("warning: ") == 1


def test_a_full_disk_keeps_the_states_and_names_them(tiny, text, tmp_path, whole, monkeypatch):
    stopped(tiny, text, tmp_path, 5)
    writing = state.write_tensors

    def full(path, tensors):
        writing(path, dict(list(tensors.items())[:2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_tensors", full)
    with pytest.raises(UserError, match="cannot write .*step-00000006: No space left on device.*make room"):
        train(tiny, out=tmp_path, corpus=text, save_seconds=0, **ARGUMENTS)
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["step-00000004", "step-00000005"]
    train(tiny, out=tmp_path, corpus=text, **ARGUMENTS)
    same_end(whole, tmp_path)


def test_a_diverged_model_is_not_saved(tiny, text, tmp_path):
    stopped(tiny, text, tmp_path, 5)
    model = TaperedTransformer(tiny.with_widths((30, 18)))
    optimizers = make_optimizers(model, tiny.training)
    with torch.no_grad():
        model.embedding[3, 4] = float("inf")
    with pytest.raises(UserError, match="state of step 6: tensor parameter/embedding holds .*; lower the learning"):
        state.save_state(tmp_path, model, optimizers, {"step": 6, "tokens": 1, "seconds": 0.0, "best": 1.0})
    assert state.saved_step(tmp_path) == 5


def test_divergence_names_the_step_the_rate_and_the_last_good_state(tiny, text, tmp_path):
    with pytest.raises(UserError, match="became .* at step [0-9]+, at a learning rate of") as error:
        train(tiny, out=tmp_path, corpus=text, steps=50, learning_rate=1e30, save_seconds=0, **ARGUMENTS)
    saved = state.saved_step(tmp_path)
    assert (f"the last good state, of step {saved}, stays in {tmp_path}" if saved else "no state") in str(error.value)
    assert "\n" not in str(error.value)


def test_muon_goes_on_to_the_same_bits(tiny, text, tmp_path):
    changes = {**ARGUMENTS, "corpus": text, "optimizer": "muon", "decay": "wsd", "dtype": "bfloat16"}
    train(tiny, out=tmp_path / "whole", **changes)
    stopped(tiny, text, tmp_path / "cut", 7, optimizer="muon", decay="wsd", dtype="bfloat16")
    tensors, _ = state.read_state(tmp_path / "cut" / "states" / "step-00000007")
    assert {"momentum_buffer/blocks.0.ffn.up", "exp_avg/embedding", "exp_avg_sq/norm.weight"} < set(tensors)
    assert "exp_avg/blocks.0.ffn.up" not in tensors
    train(tiny, out=tmp_path / "cut", **changes)
    same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_layer_that_draws_numbers_draws_the_same_after_a_stop(tiny, text, tmp_path, monkeypatch):
    """Generators are part of a state, are seeded by the run, and are put back for whoever called."""
    from geowidth.models import transformer

    class Noisy(transformer.RMSNorm):
        def forward(self, x):
            return torch.nn.functional.dropout(super().forward(x), 0.1, torch.is_grad_enabled())

    monkeypatch.setattr(transformer, "RMSNorm", Noisy)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(tiny, out=tmp_path / "whole", corpus=text, **ARGUMENTS)
    stopped(tiny, text, tmp_path / "cut", 6)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    train(tiny, out=tmp_path / "cut", corpus=text, **ARGUMENTS)
    same_end(tmp_path / "whole", tmp_path / "cut")
