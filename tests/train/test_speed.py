"""Tokens a second, MFU, and TensorBoard beside metrics.jsonl."""

import sys

import pytest
import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.config import training_flops
from geowidth.train import checkpoint, speed, train
from geowidth.train.metrics import Board
from geowidth.train.trainer import describe
from geowidth.train.world import World, training_device


def test_mfu_is_the_models_flops_over_the_peaks():
    assert speed.utilisation(30.0, 2.0, 100.0) == 0.15
    assert speed.utilisation(30.0, 2.0, 100.0, devices=3) == pytest.approx(0.05)
    assert speed.utilisation(30.0, 2.0, None) is None and speed.utilisation(1.0, 0.0, 1.0) is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("A card of another year", None),
    ],
)
def test_peaks_of_gpus_by_name(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert speed.peak_flops(torch.device("cuda"), "bfloat16") == peak
    assert speed.peak_flops(torch.device("cuda"), "float32") is None
    assert speed.peak_flops(torch.device("cpu"), "bfloat16") is None


def test_speed_and_mfu_are_in_metrics_result_and_progress(tiny, text, tmp_path, capsys):
    result = train(tiny, out=tmp_path, corpus=text, peak_flops=1e9)
    flops = training_flops(tiny.model, result["tokens"]) / result["tokens"]
    assert result["mfu"] == pytest.approx(flops * result["tokens_per_second"] / 1e9, abs=1e-4)
    lines = [line for line in records.read_json_lines(tmp_path / "metrics.jsonl") if line["split"] == "train"]
    assert all(line["tokens_per_second"] > 0 and line["mfu"] > 0 and line["gradient_norm"] > 0 for line in lines)
    assert "tokens/s, MFU " in capsys.readouterr().err
    assert "mfu" not in train(tiny, out=tmp_path / "unknown", corpus=text)
    assert describe(2.3456, 9876.4, 0.4123, 4) == "loss 2.346, 9,876 tokens/s, MFU 41.2 %, 4 graphs"
    assert describe(2.3456, 9876.4) == "loss 2.346, 9,876 tokens/s"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peak_flops": 0}, "peak_flops is 0; allowed: a finite number above 0"),
        ({"save_seconds": -1}, "save_seconds is -1; allowed: numbers from 0 up"),
        ({"tensorboard": "no"}, "tensorboard is 'no'; allowed: True or False"),
        ({"device": "tpu"}, "device is 'tpu'; allowed: cpu, cuda, cuda:N, auto"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but this machine has [0-9]+ CUDA devices; use cpu"),
        ({"dtype": "float16"}, "dtype is 'float16'; allowed: float32, bfloat16"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; allowed: adamw, muon, sgd"),
        ({"recompute": True}, "recompute is True; allowed: none, ffn, block"),
        ({"compile": 1}, "compile is 1; allowed: True or False"),
        ({"keep": 0}, "keep is 0; allowed: whole numbers from 1"),
        ({"decay_share": 0}, "decay_share is 0; allowed: positive numbers"),
        ({"momentum": 1.0}, "momentum is 1.0; allowed: numbers from 0 to 1"),
    ],
)
def test_bad_arguments_stop_before_work(tiny, text, tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        train(tiny, out=tmp_path / "run", corpus=text, **change)
    assert not (tmp_path / "run").exists()


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch):
    assert training_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert World("cpu").to_json() == {"device": "cpu"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert training_device("auto").type == "cuda"


def scalars(folder):
    """{tag: [(step, value)]} as TensorBoard reads a folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_metrics_say_also_after_a_stop(tiny, text, tmp_path):
    arguments = {"corpus": text, "tensorboard": True, "watch": lambda *_: None}
    steps = iter(range(1, 100))
    with pytest.raises(KeyboardInterrupt):
        train(tiny, out=tmp_path, **arguments, save_seconds=1e6, stop=lambda: next(steps) == 5)
    late = Board(tmp_path / "tensorboard", 5)  # one that was killed at step 7 leaves a step that is trained again
    late.write({"step": 7, "split": "train", "loss": -1.0, "tokens": 0, "seconds": 0.0})
    late.close()
    train(tiny, out=tmp_path, **arguments)
    found = scalars(tmp_path / "tensorboard")
    lines = records.read_json_lines(tmp_path / "metrics.jsonl")
    for name in ("loss", "learning_rate", "gradient_norm"):
        wanted = [(line["step"], line[name]) for line in lines if line["split"] == "train"]
        assert [step for step, _ in found[f"{name}/train"]] == [step for step, _ in wanted]
        assert [v for _, v in found[f"{name}/train"]] == pytest.approx([v for _, v in wanted], rel=1e-6)
    assert [step for step, _ in found["loss/validation"]] == [4, 8, 12]
    assert checkpoint.read_result(tmp_path)["steps"] == 12


def test_without_tensorboard_one_line_names_the_extra(tiny, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"tensorboard is not installed; pip install 'geowidth\[log\]'"):
        train(tiny, out=tmp_path / "run", corpus=text, tensorboard=True)
    assert not (tmp_path / "run").exists()
