"""The training loop: gradients, schedules, order, and the same bits however often it is killed."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from geowidth import records
from geowidth.errors import UserError
from geowidth.models import load_model
from geowidth.train import checkpoint, load_corpus, state, train
from geowidth.train.losses import mean_loss

# What the subprocesses run: `train` with the tiny preset. Arguments: folder, corpus, steps.
CHILD = """
import sys
sys.path.insert(0, {tests!r})
from tiny_preset import TINY
from geowidth.train import train
train(TINY, (30, 18), 4, sys.argv[1], steps=int(sys.argv[3]), corpus=sys.argv[2], save_seconds=0)
"""


def start_child(*arguments):
    code = CHILD.format(tests=str(Path(__file__).resolve().parents[1]))
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stderr=subprocess.PIPE, text=True)


def wait_for_step(folder, step, process):
    until = time.monotonic() + 120
    while state.saved_step(folder) < step:
        assert process.poll() is None and time.monotonic() < until, process.stderr.read()
        time.sleep(0.01)


def losses(folder):
    return [(m["step"], m["split"], m["loss"], m["tokens"]) for m in records.read_json_lines(folder / "metrics.jsonl")]


def same_run(one, two):
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert losses(one) == losses(two)
    a, b = checkpoint.read_result(one), checkpoint.read_result(two)
    for name in ("loss", "best_loss", "bits_per_byte", "tokens", "flops", "parameters", "widths"):
        assert a[name] == b[name], name


def test_training_learns_and_writes_what_it_says(tiny, text, tmp_path):
    result = train("tiny", None, 1, tmp_path, steps=120, corpus=text)
    lines = records.read_json_lines(tmp_path / "metrics.jsonl")
    first, last = (m["loss"] for m in (lines[0], lines[-1]))
    assert 4.5 < first < 7 and last < 2.0
    assert [m["step"] for m in lines if m["split"] == "train"] == list(range(1, 121))
    assert [m["step"] for m in lines if m["split"] == "validation"] == [40, 80, 120]
    assert all({"step", "split", "loss", "tokens", "seconds"} <= set(m) for m in lines)
    assert result == checkpoint.read_result(tmp_path)
    assert result["kind"] == "geowidth.training_result" and result["arm"] == "uniform"
    assert result["tokens"] == 120 * 4 * 16 == lines[-1]["tokens"]
    assert result["bits_per_byte"] == pytest.approx(result["loss"] / math.log(2))
    model = load_model(tmp_path)
    assert result["parameters"] == model.parameter_count()
    corpus = load_corpus(text)
    assert result["corpus"]["digest"] == corpus.digest
    held_out = corpus.validation[: 16 * ((len(corpus.validation) - 1) // 16) + 1]
    assert len(held_out) > 8 * 16  # the set is 8 windows spread over all of it
    starts = [len(held_out) // 16 * k // 8 * 16 for k in range(8)]
    batch = torch.stack([held_out[s : s + 17] for s in starts]).long()
    with torch.no_grad():
        wanted = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).item()
    assert result["loss"] == pytest.approx(wanted, rel=1e-5)
    assert mean_loss(model, batch, 3) == pytest.approx(wanted, rel=1e-5)
    assert not (tmp_path / "states").exists()


def test_equal_seeds_give_equal_bits_and_threads_are_put_back(tiny, text, tmp_path):
    torch.set_num_threads(2)
    for name in ("a", "b"):
        train(tiny, (30, 18), 4, tmp_path / name, corpus=text, watch=lambda *_: None)
    same_run(tmp_path / "a", tmp_path / "b")
    assert torch.get_num_threads() == 2
    other = train(tiny, (30, 18), 5, tmp_path / "c", corpus=text, watch=lambda *_: None)
    assert other["loss"] != checkpoint.read_result(tmp_path / "a")["loss"] and other["arm"] == "custom"


def test_killed_and_resumed_is_uninterrupted(tiny, text, tmp_path):
    train(tiny, (30, 18), 4, tmp_path / "whole", steps=150, corpus=text, watch=lambda *_: None)
    child = start_child(tmp_path / "killed", text, 150)
    wait_for_step(tmp_path / "killed", 20, child)
    child.kill()
    child.communicate()
    assert not (tmp_path / "killed" / "result.json").exists()
    with open(tmp_path / "killed" / "metrics.jsonl", "a") as file:
        file.write('{"step": 149, "spl')  # a line cut short
    steps = []
    train(tiny, (30, 18), 4, tmp_path / "killed", steps=150, corpus=text, watch=lambda step, *_: steps.append(step))
    assert steps[0] > 20 and steps[-1] == 150
    same_run(tmp_path / "whole", tmp_path / "killed")
    again = train(tiny, (30, 18), 4, tmp_path / "killed", steps=150, corpus=text, watch=pytest.fail)
    assert again == checkpoint.read_result(tmp_path / "killed")


def test_interrupted_by_control_c(tiny, text, tmp_path):
    child = start_child(tmp_path / "cut", text, 5000)
    wait_for_step(tmp_path / "cut", 5, child)
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=120)[1]
    done = state.saved_step(tmp_path / "cut")
    assert 5 <= done < 5000
    assert records.read_json_lines(tmp_path / "cut" / "metrics.jsonl")[-1]["step"] == done


def test_a_stop_leaves_the_state_of_its_step(tiny, text, tmp_path):
    train(tiny, None, 4, tmp_path / "whole", corpus=text)
    seen = []
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(tiny, None, 4, tmp_path / "cut", corpus=text, watch=lambda s, *_: seen.append(s), stop=lambda: True)
    assert seen == [1, 2, 3]
    train(tiny, None, 4, tmp_path / "cut", corpus=text)
    same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 13}, "steps 12, not 13"),
        ({"widths": (24, 25)}, r"widths \[24, 24\], not \[24, 25\]"),
        ({"learning_rate": 0.5}, "learning_rate 0.01, not 0.5"),
        ({"arm": "cosine"}, "arm uniform, not cosine"),
        ({"seed": 1}, "seed 0, not 1"),
        ({"corpus": __file__}, "corpus digest"),
    ],
)
def test_a_folder_is_not_continued_with_other_settings(tiny, text, tmp_path, change, words):
    arguments = {"preset": tiny, "out": tmp_path, "corpus": text, "watch": lambda *_: None, "arm": "uniform"}
    with pytest.raises(KeyboardInterrupt):
        train(**arguments, stop=lambda: True)
    with pytest.raises(UserError, match=words):
        train(**{**arguments, **change})


def test_two_processes_do_not_share_a_folder(tiny, text, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "WAIT_FOR_HOLDER", 0.0)
    with checkpoint.held(tmp_path), pytest.raises(UserError, match="another process"):
        train(tiny, out=tmp_path, corpus=text)


def test_a_diverging_run_says_so(tiny, text, tmp_path):
    with pytest.raises(UserError, match="the (loss|norm of the gradient) became .* lower the learning rate"):
        train(tiny, out=tmp_path, corpus=text, steps=400, learning_rate=1e30, watch=lambda *_: None)


def test_a_model_that_diverges_in_its_last_step_is_not_finished(tiny, text, tmp_path):
    with pytest.raises(
        UserError, match="the validation loss became nan at step 1, at a learning rate of 1e[+]39; no state"
    ):
        train(tiny, out=tmp_path, corpus=text, steps=1, learning_rate=1e39, watch=lambda *_: None)
    assert checkpoint.read_result(tmp_path) is None


def test_bad_arguments_stop_before_work(tiny, text, tmp_path):
    (tmp_path / "file").touch()
    for words, change in {
        "it is a file": {"out": tmp_path / "file"},
        "a file, not a folder": {"out": tmp_path / "file" / "run"},
        "3 widths": {"widths": (1, 2, 3)},
        "seed is -1": {"seed": -1},
        "no folder": {"out": None},
        "training setting": {"nonsense": 1},
    }.items():
        with pytest.raises(UserError, match=words):
            train(**{"preset": tiny, "corpus": text, "out": tmp_path / "run", **change})
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with pytest.raises(UserError, match="one window takes 17"):
        train(tiny, corpus=short, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_fused_op_trains_as_plain_torch_does(tmp_path, monkeypatch):
    """Equal losses to 1e-5 at odd widths, with the native backend of the FFN op and with plain torch."""
    losses = {}
    for backend in ("native", "torch"):
        monkeypatch.setenv("GEOWIDTH_BACKEND", backend)
        folder = tmp_path / backend
        train("pico", (67, 61, 43, 5), seed=3, out=folder, steps=25)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses[backend] = [record["loss"] for record in map(records.loads, lines)]
    assert len(losses["native"]) > 5
    assert losses["native"] == pytest.approx(losses["torch"], rel=1e-5)


INTERPRETED = """
import sys
sys.path.insert(0, {tests!r})
from tiny_preset import TINY
from geowidth.train import train
few = {{"steps": 2, "evaluations": 1, "evaluation_windows": 1, "batch": 1, "microbatch": 1, "watch": lambda *_: None}}
print(train(TINY, (24, 17), 2, sys.argv[1], corpus=sys.argv[2], **few)["loss"])
"""


def test_the_triton_kernels_are_reached_by_the_loop(tiny, text, tmp_path):
    """Forward and backward of the fused FFN in Triton's interpreter, asked for by name: the losses of the CPU's op."""
    pytest.importorskip("triton")
    code = INTERPRETED.format(tests=str(Path(__file__).resolve().parents[1]))
    more = {"GEOWIDTH_BACKEND": "triton", "TRITON_INTERPRET": "1", "GEOWIDTH_FFN_FUSED": "always"}
    command = [sys.executable, "-c", code, str(tmp_path / "triton"), str(text)]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    few = {"steps": 2, "evaluations": 1, "evaluation_windows": 1, "batch": 1, "microbatch": 1, "watch": lambda *_: None}
    wanted = train(tiny, (24, 17), 2, tmp_path / "cpu", corpus=text, **few)["loss"]
    assert float(done.stdout) == pytest.approx(wanted, rel=1e-5)
