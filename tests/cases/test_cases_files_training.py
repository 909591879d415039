"""Cases of files: what the files of models and trainings may say (H8), and a disk that fills while training (H2)."""

import json
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from geowidth import cli, forms, memory, records
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer, load_model, save_model
from geowidth.models.presets import Preset, RunSettings
from geowidth.models.training import TrainingSettings
from geowidth.tensors import read_tensors, write_tensors
from geowidth.train import checkpoint, state, train

CONFIG = ModelConfig(vocabulary=256, layers=2, dimension=16, heads=2, widths=(24, 24), context=16)
TINY = Preset(
    "tiny",
    CONFIG,
    TrainingSettings(steps=12, batch=4, microbatch=4, learning_rate=1e-2, evaluations=3, evaluation_windows=8),
    RunSettings(seeds=(0, 1), arms=("uniform", "cosine"), measured_tokens=16, multiple=1),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    path.write_text(" ".join(f"{word} {word * 7 % 31}" for word in range(2500)))
    return path


@pytest.fixture
def model_folder(tmp_path):
    save_model(TaperedTransformer(CONFIG, seed=2), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, **changes):
    record = records.read_json(folder / "model.json")
    record["config"] |= changes
    (folder / "model.json").write_text(json.dumps(record))


# H8: model.json


def test_H8_memory_is_taken_for_sequences_not_for_a_context_in_a_file(model_folder):
    import resource

    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        before = load_model(model_folder)(tokens[:, :16])
    rewrite(model_folder, context=2**26)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = load_model(model_folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200_000  # kilobytes; whole tables take millions
    assert model.config.context == 2**26
    with torch.inference_mode():
        assert torch.equal(model(tokens[:, :16]), before) and model(tokens).shape == (1, 20, 256)


def test_H8_tables_that_grow_hold_what_tables_of_the_whole_context_hold(monkeypatch):
    from geowidth.models import transformer

    long = replace(CONFIG, context=100)
    tokens = torch.randint(256, (1, 90), generator=torch.Generator().manual_seed(0))
    whole = TaperedTransformer(long, seed=1)(tokens)
    monkeypatch.setattr(transformer, "FIRST_POSITIONS", 16)
    model = TaperedTransformer(long, seed=1)
    with torch.inference_mode():
        model(tokens[:, :40])
    assert torch.equal(model(tokens), whole) and len(model.cosine) <= 100
    model(tokens).sum().backward()  # after tables grown in inference mode
    with pytest.raises(UserError, match="context is 100"):
        model(torch.zeros(1, 101, dtype=torch.int64))


@pytest.mark.parametrize(
    "changes",
    [
        {"context": 2**50},
        {"context": 10**300},
        {"context": -1},
        {"context": True},
        {"context": 16.0},
        {"context": "16"},
        {"layers": 2**40, "widths": [24, 24]},
        {"layers": 1000, "widths": [24] * 1000},
        {"vocabulary": 2**62},
        {"dimension": 2**40},
        {"dimension": 2**62, "head_size": 8},
        {"heads": 2**61, "head_size": 8},
        {"head_size": 2**62},
        {"widths": [24, 2**62]},
        {"widths": [24, -1]},
        {"widths": [24, 2.5]},
        {"widths": {"0": 24}},
        {"widths": "ab"},
        {"widths": None},
        {"rope_base": True},
        {"rope_base": 0},
        {"norm_epsilon": None},
        {"key_heads": 0},
        {"key_heads": 1},
        {"tied": 1},
        {"tied": False},
        {"rope_scaling": []},
        {"rope_scaling": [1]},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"rope_type": "linear", "factor": True}},
        {"rope_scaling": {"rope_type": "linear", "factor": {"$float": "inf"}}},
        {"rope_scaling": {"rope_type": ["linear"], "factor": 1}},
        {
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 8,
            }
        },
        {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_H8_sizes_in_model_json_are_held_against_the_tensors_and_the_machine(
    model_folder, capsys, monkeypatch, changes
):
    monkeypatch.setattr(memory, "available", lambda: 8 << 30)
    rewrite(model_folder, **changes)
    with pytest.raises(UserError) as error:
        load_model(model_folder)
    assert len(str(error.value)) < 1000 and str(model_folder) in str(error.value)
    assert cli.main(["measure", str(model_folder), "--tokens", "8"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# safetensors


def header_of(data):
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def with_header(data, change):
    header, body = header_of(data)
    changed = change(header)
    header = header if changed is None else changed
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def change_first(**new):
    def change(header):
        name = next(n for n in header if n != "__metadata__")
        header[name] |= new

    return change


DAMAGED_TENSORS = {
    "empty": lambda data: b"",
    "seven bytes": lambda data: data[:7],
    "a header length of 2**63": lambda data: struct.pack("<Q", 2**63) + data[8:],
    "a header longer than the file": lambda data: struct.pack("<Q", len(data)) + data[8:],
    "a header too short": lambda data: struct.pack("<Q", 10) + data[8:],
    "cut": lambda data: data[:-3],
    "longer": lambda data: data + b"1234",
    "text": lambda data: b"not a tensor file at all" * 10,
    "a header that is a list": lambda data: struct.pack("<Q", 2) + b"[]" + data,
    "a header nested deep": lambda data: struct.pack("<Q", 100_000) + b"[" * 100_000,
    "an unknown dtype": lambda data: with_header(data, change_first(dtype="Q7")),
    "a dtype we do not use": lambda data: with_header(data, change_first(dtype="I32")),
    "a shape of another size": lambda data: with_header(data, change_first(shape=[1])),
    "a shape of 2**62": lambda data: with_header(data, change_first(shape=[2**62, 4])),
    "a negative shape": lambda data: with_header(data, change_first(shape=[-1, 16])),
    "offsets backwards": lambda data: with_header(data, change_first(data_offsets=[8, 0])),
    "offsets outside": lambda data: with_header(data, change_first(data_offsets=[0, 2**40])),
    "no tensors": lambda data: with_header(data, lambda header: {k: v for k, v in header.items() if k[0] == "_"}),
}


@pytest.mark.parametrize("name", DAMAGED_TENSORS)
def test_H8_damaged_tensor_files_are_refused_in_one_line(model_folder, name):
    path = model_folder / "model.safetensors"
    path.write_bytes(DAMAGED_TENSORS[name](path.read_bytes()))
    with pytest.raises(UserError, match=r"model\.safetensors") as error:
        load_model(model_folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_H8_a_folder_in_place_of_a_file_of_a_model(model_folder, name):
    (model_folder / name).unlink()
    with pytest.raises(UserError, match="does not exist"):
        load_model(model_folder)
    (model_folder / name).mkdir()
    with pytest.raises(UserError, match="it is a folder"):
        load_model(model_folder)


# states, and state.safetensors as 0.2.0 wrote it


def half_trained(folder, text, stop_at=5):
    """A folder with the state of an interrupted training; returns the arguments that go on with it."""
    arguments = {"preset": TINY, "seed": 3, "out": folder, "corpus": text, "watch": lambda *_: None}
    steps = iter(range(100))
    with pytest.raises(KeyboardInterrupt):
        train(**arguments, stop=lambda: next(steps) == stop_at - 1)
    assert state.saved_step(folder) == stop_at
    return arguments


def progress_with(**changes):
    def change(tensors, metadata):
        metadata["progress"] = records.dumps(records.loads(metadata["progress"]) | changes)

    return change


def tensor_with(part, make):
    def change(tensors, metadata):
        name = next(n for n in sorted(tensors) if n.startswith(part))
        tensors[name] = make(tensors[name])

    return change


def first_value(value):
    def make(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return make


DAMAGED_STATES = {
    "a missing parameter": lambda t, m: t.pop("parameter/embedding"),
    "a missing moment": lambda t, m: t.pop("exp_avg_sq/embedding"),
    "an extra tensor": lambda t, m: t.update(extra=torch.ones(1)),
    "a shape that broadcasts": tensor_with("parameter/", lambda x: x[:1]),
    "a moment of another shape": tensor_with("exp_avg/", lambda x: x.flatten()[:3]),
    "a moment without axes": tensor_with("exp_avg/", lambda x: torch.tensor(1.0)),
    "half precision": tensor_with("parameter/", torch.Tensor.half),
    "whole numbers": tensor_with("exp_avg_sq/", lambda x: torch.ones_like(x, dtype=torch.int64)),
    "complex numbers": tensor_with("exp_avg/", lambda x: x.to(torch.complex64)),
    "a NaN": tensor_with("parameter/", first_value(float("nan"))),
    "an infinite moment": tensor_with("exp_avg/", first_value(float("inf"))),
    "a negative square": tensor_with("exp_avg_sq/", first_value(-1.0)),
    "no metadata": lambda t, m: m.clear(),
    "progress that is not JSON": lambda t, m: m.update(progress="{"),
    "progress that is a list": lambda t, m: m.update(progress="[]"),
    "progress that is null": lambda t, m: m.update(progress="null"),
    "a step that is a text": progress_with(step="5"),
    "a step that is true": progress_with(step=True),
    "a step of 5.0": progress_with(step=5.0),
    "a negative step": progress_with(step=-5),
    "step 0": progress_with(step=0, tokens=0),
    "the last step": progress_with(step=12, tokens=12 * 64),
    "a step of 10**300": progress_with(step=10**300),
    "an infinite step": progress_with(step=float("inf")),
    "tokens of another step": progress_with(tokens=64),
    "no seconds": progress_with(seconds=None),
    "endless seconds": progress_with(seconds=float("inf")),
    "a best loss that is a text": progress_with(best="low"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("begun")
    half_trained(folder, text)
    tensors, progress = state.read_state(folder / "states" / "step-00000005")
    tensors = {name: tensor for name, tensor in tensors.items() if name != "generator/cpu"}
    write_tensors(folder / "state.safetensors", tensors, {"progress": records.dumps(progress)})
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_folder_of_0_2_0_goes_on_to_the_same_bits(begun, tmp_path, text):
    old, free = tmp_path / "old", tmp_path / "free"
    old.mkdir()
    arguments = copy_of(begun, old, text)
    config = json.loads((old / "config.json").read_text())
    for name in (
        "optimizer",
        "momentum",
        "decay",
        "decay_share",
        "dtype",
        "recompute",
        "compile",
        "document_mask",
        "keep",
    ):
        del config["training"][name]
    (old / "config.json").write_text(json.dumps(config))
    steps = []
    train(**arguments | {"watch": lambda step, *_: steps.append(step)}, save_seconds=0)
    assert steps == list(range(6, 13)) and not (old / "state.safetensors").exists()
    train(**arguments | {"out": free})
    assert (old / "model.safetensors").read_bytes() == (free / "model.safetensors").read_bytes()


def copy_of(begun, folder, text):
    for name, data in begun.items():
        (folder / name).write_bytes(data)
    return {"preset": TINY, "seed": 3, "out": folder, "corpus": text, "watch": lambda *_: None}


@pytest.mark.parametrize("name", DAMAGED_STATES)
def test_H8_a_damaged_state_is_refused_in_one_line(begun, tmp_path, text, name):
    arguments = copy_of(begun, tmp_path, text)
    tensors, metadata = read_tensors(tmp_path / "state.safetensors")
    DAMAGED_STATES[name](tensors, metadata)
    write_tensors(tmp_path / "state.safetensors", tensors, metadata or None)
    with pytest.raises(UserError, match=r"state\.safetensors.*delete .*state\.safetensors to begin again") as error:
        train(**arguments)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    assert state.saved_step(tmp_path) in range(13)
    (tmp_path / "state.safetensors").unlink()  # the advice is followed
    assert train(**arguments)["steps"] == 12


@pytest.mark.parametrize("name", DAMAGED_TENSORS)
def test_H8_a_damaged_state_file_is_refused_in_one_line(begun, tmp_path, text, name):
    arguments = copy_of(begun, tmp_path, text)
    path = tmp_path / "state.safetensors"
    path.write_bytes(DAMAGED_TENSORS[name](path.read_bytes()))
    with pytest.raises(UserError, match=r"state\.safetensors") as error:
        train(**arguments)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


# metrics.jsonl

BAD_LINES = {
    "a number": "7",
    "a list": "[1, 2]",
    "null": "null",
    "no step": '{"split": "train", "loss": 1.0, "tokens": 64, "seconds": 1.0}',
    "a step that is a text": '{"step": "1", "split": "train", "loss": 1.0, "tokens": 64, "seconds": 1.0}',
    "a loss that is a text": '{"step": 1, "split": "train", "loss": "1", "tokens": 64, "seconds": 1.0}',
    "a loss that is true": '{"step": 1, "split": "train", "loss": true, "tokens": 64, "seconds": 1.0}',
    "a step of 10**300": f'{{"step": 1{"0" * 300}, "split": "train", "loss": 1.0, "tokens": 64, "seconds": 1.0}}',
    "a split that is a number": '{"step": 1, "split": 1, "loss": 1.0, "tokens": 64, "seconds": 1.0}',
    "nested": "[" * 50_000,
    "bytes": "\x00\x01\x02",
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_damaged_metrics_are_refused_when_a_training_goes_on(begun, tmp_path, text, name):
    arguments = copy_of(begun, tmp_path, text)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], BAD_LINES[name], *lines[1:]]) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is"):
        train(**arguments)


def test_metrics_that_go_back_or_are_a_folder_are_refused(begun, tmp_path, text):
    arguments = copy_of(begun, tmp_path, text)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[0]]) + "\n")
    with pytest.raises(UserError, match=rf"metrics\.jsonl line {len(lines) + 1} is damaged: step 1 comes after step 5"):
        train(**arguments)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="it is a folder"):
        train(**arguments)


# config.json and result.json


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_damaged_records_of_a_training_are_refused_when_it_goes_on(tmp_path, text, name):
    arguments = {"preset": TINY, "seed": 3, "out": tmp_path, "corpus": text, "watch": lambda *_: None, "steps": 1}
    train(**arguments)
    whole = (tmp_path / name).read_text()
    record = json.loads(whole)
    keys = checkpoint.CONFIG if name == "config.json" else checkpoint.RESULT
    for key in ("kind", "schema", *keys):
        for value in (None, [], "x", -1, True):
            changed = record | {key.removesuffix("?"): value}
            (tmp_path / name).write_text(json.dumps(changed))
            if key in keys and not forms.fault(changed, {key: keys[key]}) and name == "result.json":
                continue  # another loss is a result too
            with pytest.raises(UserError):
                train(**arguments)
    for data in (b"", b"{", b"[]", b"null", b"\xff\xfe"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=name):
            train(**arguments)


# H2: a disk that fills while metrics grow

CHILD = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({free}, {free}))
from geowidth import cli
from geowidth.models.presets import PRESETS
from test_cases_files_training import TINY
PRESETS.register(TINY)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_H2_a_disk_full_of_metrics_ends_a_training_in_one_line_and_it_goes_on(tmp_path, text):
    import os

    words = ["train", "--preset", "tiny", "--corpus", str(text), "--steps", "40", "--out"]
    code = CHILD.format(tests=os.path.dirname(__file__), free=2500)
    done = subprocess.run(
        [sys.executable, "-c", code, *words, str(tmp_path / "full")], capture_output=True, text=True, timeout=120
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("train ")]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done
    assert "metrics.jsonl: File too large" in lines[0] and "make room" in lines[0]
    assert not [path for path in (tmp_path / "full").iterdir() if path.name.endswith(".tmp")]
    arguments = {"preset": TINY, "corpus": text, "steps": 40, "watch": lambda *_: None}
    one, two = (train(out=tmp_path / name, **arguments) for name in ("full", "free"))
    assert one["loss"] == two["loss"]
    assert (tmp_path / "full" / "model.safetensors").read_bytes() == (
        tmp_path / "free" / "model.safetensors"
    ).read_bytes()


def test_H2_a_disk_that_takes_no_state_leaves_the_last_one(tmp_path, text, monkeypatch):
    from geowidth import files

    arguments = half_trained(tmp_path, text)
    before = state.read_state(tmp_path / "states" / "step-00000005")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        train(**arguments, save_seconds=0)
    monkeypatch.undo()
    after = state.read_state(tmp_path / "states" / "step-00000005")
    assert after[1] == before[1] and all(torch.equal(after[0][name], tensor) for name, tensor in before[0].items())
    assert [step for step, _ in state.saved_states(tmp_path)] == [5]
    assert train(**arguments)["steps"] == 12
    assert train(**arguments | {"out": tmp_path / "free"})["loss"] == checkpoint.read_result(tmp_path)["loss"]


def test_H2_a_killed_training_leaves_nothing_once_it_goes_on(tmp_path, text):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    arguments = half_trained(tmp_path, text)
    for name in ("metrics.jsonl", "model.safetensors", "config.json"):
        (tmp_path / f".{name}.{child.pid}.tmp").write_bytes(b"half")
    half = tmp_path / "states" / f".step-00000006.{child.pid}.tmp"
    half.mkdir()
    (half / "tensors.safetensors").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        train(**arguments, stop=lambda: True)
    assert sorted(p.name for p in (tmp_path / "states").iterdir()) == ["step-00000005", "step-00000006"]
    train(**arguments)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".lock", "config.json", "metrics.jsonl", "model.json", "model.safetensors", "result.json",
    ]  # fmt: skip
