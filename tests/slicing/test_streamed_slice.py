"""`geowidth slice --stream`: the same model as in one piece, block by block; what it cannot do is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from sliced_folders import library_folder, own_folder

from geowidth import cli, memory, records
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_folder_tensors
from geowidth.slicing import streamed as streamed_module
from geowidth.slicing.pipeline import slice_model
from geowidth.slicing.request import SliceRequest
from geowidth.slicing.targets import Keep

FEW = ("--windows", "3", "--calibration-windows", "10", "--context", "16", "--keep", "0.6", "--by", "cosine")


@pytest.fixture
def sliced(text, capsys):
    torch.set_num_threads(1)  # put back by a fixture of all tests

    def run(model, out, *more):
        code = cli.main(["slice", str(model), "--out", str(out), "--corpus", str(text), *FEW, *map(str, more)])
        return code, capsys.readouterr()

    return run


def in_two_files(folder):
    """As large models lie on a disk."""
    tensors = load_file(folder / "model.safetensors")
    names, places = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2"])
def test_the_same_as_in_one_piece(kind, sliced, tmp_path):
    source = library_folder(tmp_path / "whole", kind)
    assert sliced(source, tmp_path / "piece")[0] == 0
    in_two_files(source)
    code, said = sliced(source, tmp_path / "streamed", "--stream")
    assert code == 0, said.err
    assert "block by block" in said.err and "last states on 3 windows of 16 tokens" in said.out
    one, other = (records.read_json(tmp_path / name / "slice.json") for name in ("piece", "streamed"))
    same = ("widths", "kept", "parameters", "ffn_parameters", "schedule", "widths_before", "layers")
    assert all(one[name] == other[name] for name in same)
    tensors, others = (read_folder_tensors(tmp_path / name) for name in ("piece", "streamed"))
    others = {name: tensor for name, tensor in others.items() if name in tensors}
    assert set(tensors) == set(others)
    for name, tensor in tensors.items():
        torch.testing.assert_close(others[name], tensor, rtol=1e-3, atol=1e-5)
    assert 0 < other["states"]["mean"] < 1 and other["time"] is None


def test_it_is_chosen_where_there_is_no_room(sliced, tmp_path, monkeypatch):
    source, ours = library_folder(tmp_path / "whole", "llama"), own_folder(tmp_path / "ours")
    assert not streamed_module.wants_streaming(source)
    monkeypatch.setattr(memory, "available", lambda: 40_000)
    assert streamed_module.wants_streaming(source)
    assert not streamed_module.wants_streaming(library_folder(tmp_path / "gpt2", "gpt2"))
    assert not streamed_module.wants_streaming(ours)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--heal", "3"], "--heal came, and a model that is streamed has no place for it"),
        (["--bias"], "--bias came"),
        (["--dtype", "float16"], "--dtype came"),
        (["--neurons", "taylor"], "taylor needs gradients of the whole model"),
    ],
)
def test_what_needs_the_whole_model_is_refused(more, words, sliced, tmp_path):
    source = library_folder(tmp_path / "whole", "llama")
    code, said = sliced(source, tmp_path / "out", "--stream", *more)
    assert code == 2 and words in said.err, said.err
    assert {path.name for path in tmp_path.iterdir()} == {"whole"}


def test_rules_that_measure_are_refused(sliced, tmp_path, text, capsys):
    source = library_folder(tmp_path / "whole", "llama")
    command = ["slice", str(source), "--out", str(tmp_path / "out"), "--keep", "0.5", "--corpus", str(text), "--stream"]
    assert cli.main([*command, "--by", "geometry"]) == 2
    assert "rule geometry measures the whole model" in capsys.readouterr().err


def request(text, **changes):
    sizes = {"corpus": str(text), "windows": 3, "calibration_windows": 10, "context": 16}
    return SliceRequest(Keep(0.6), **{**sizes, **changes})


def test_text_and_memory_are_checked_before_a_pass(tmp_path, text, monkeypatch):
    source = library_folder(tmp_path / "whole", "llama")
    monkeypatch.setattr(streamed_module, "stages_of", None)
    with pytest.raises(UserError, match="leave 8 to fit 23 neurons"):
        few = request(text, by="threshold", calibration_windows=2, context=8)
        slice_model(source, tmp_path / "out", few, stream=True)
    monkeypatch.setattr(memory, "available", lambda: 40_000)
    with pytest.raises(UserError, match="slicing block by block takes"):
        slice_model(source, tmp_path / "out", request(text, by="threshold"), stream=True)


def test_judged_windows_in_passes_of_the_calibrations_size(tmp_path, text, monkeypatch):
    source = library_folder(tmp_path / "whole", "llama")
    sizes, usual = [], streamed_module.last_states
    monkeypatch.setattr(streamed_module, "last_states", lambda m, t: sizes.append(len(t)) or usual(m, t))
    found = []
    for count in (2, 10):
        asked = request(text, correct=False, neurons="magnitude", calibration_windows=count)
        found.append(slice_model(source, tmp_path / str(count), asked, stream=True)["states"]["mean"])
    assert sizes == [2, 1, 2, 1, 3, 3] and found[0] == pytest.approx(found[1], rel=1e-5)
