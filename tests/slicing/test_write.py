"""Sliced models written and read back: by ourselves here, by transformers in a process that knows nothing of us."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sliced_folders import ENCODERS, FAMILIES, PADDED, TAPERED, exported_folder, library_folder, own_folder

from geowidth import records
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_config
from geowidth.measure.opening import open_model
from geowidth.models import TaperedTransformer
from geowidth.slicing import ffns_of, slice_in_place
from geowidth.slicing.judge import last_states
from geowidth.slicing.write import file_name, reopened, write_sliced

IDS = torch.tensor([[1, 5, 3, 9, 2, 2, 11, 7]])
UNEQUAL, EQUAL = (24, 9, 14), (9, 9, 9)
READER = Path(__file__).with_name("sliced_reader.py")


def opened(folder):
    kind = str(read_config(folder).get("model_type")) if (folder / "config.json").exists() else "ours"
    return open_model(folder, causal=kind not in ENCODERS).model.float()


def sliced(folder, widths, bias=False):
    """(model sliced in memory to `widths`, every second neuron of the last ones among them; its last states)."""
    model = opened(folder)
    ffns = ffns_of(model)
    kept = [torch.randperm(own)[:width].sort().values for own, width in zip(ffns.widths, widths, strict=True)]
    slice_in_place(ffns, kept)
    if bias:
        for ffn in ffns:
            ffn.add_bias(torch.linspace(-1, 1, ffns.dimension))
    with torch.no_grad():
        return model.eval(), last_states(model, IDS)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """{family: (folder with unequal widths, folder with equal ones, states of both)}."""
    home, found = tmp_path_factory.mktemp("written"), {}
    for kind in FAMILIES:
        source = library_folder(home / f"{kind}-whole", kind)
        for name, widths in (("unequal", UNEQUAL), ("equal", EQUAL)):
            model, states = sliced(source, widths)
            folder = home / f"{kind}-{name}"
            said = write_sliced(source, model, widths, folder)
            found[kind, name] = (folder, states, said, model)
    return home, found


@pytest.mark.parametrize("name", ["unequal", "equal"])
@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_read_back_by_ourselves(written, kind, name):
    _, found = written
    folder, states, said, model = found[kind, name]
    again = reopened(folder, model, kind not in ENCODERS)
    torch.testing.assert_close(last_states(again, IDS), states, rtol=1e-5, atol=1e-6)
    if name == "equal":
        assert said == [] or kind == "llama" and "trust" in said[0]
        assert read_config(folder)["model_type"] == kind and not (folder / "modeling_tapered.py").exists()
        assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())
    elif kind in TAPERED:
        assert "trust_remote_code=True" in said[0]
        assert read_config(folder)["intermediate_sizes"] == list(UNEQUAL)
        assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())
    else:
        assert f"{kind} has no form with one FFN width a layer: every FFN is 24 wide here, 35% of that" in said[0]
        assert ffns_of(again).widths == (24, 24, 24)
    assert (folder / "tokenizer.json").read_bytes() == (
        folder.with_name(f"{kind}-whole") / "tokenizer.json"
    ).read_bytes()


def test_read_back_by_transformers(written):
    """In a process without geowidth: the same states, and eight tokens are generated."""
    home, found = written
    found = {pair: value for pair, value in found.items() if pair[1] == "unequal" or pair[0] in ("phi3", "gpt2")}
    names = [f"{kind}-{name}" for kind, name in found]
    (home / "job.json").write_text(
        json.dumps({"ids": IDS.tolist(), "folders": {n: str(home / n) for n in names}, "encoders": list(ENCODERS)})
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(home / "modules"), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, str(READER), str(home / "job.json"), str(home / "answers.json")]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads((home / "answers.json").read_text())
    for (kind, name), (_, states, *_) in found.items():
        answer = answers[f"{kind}-{name}"]
        torch.testing.assert_close(torch.tensor(answer["states"]).double(), states, rtol=1e-4, atol=1e-5)
        assert answer["generated"] == (None if kind in ENCODERS else 8)


@pytest.mark.parametrize("widths", [(24, 5, 11), (7, 7, 7)])
@pytest.mark.parametrize("make", [own_folder, exported_folder])
@torch.no_grad()
def test_models_of_ours(make, widths, tmp_path):
    source = make(tmp_path / "whole")
    model, states = sliced(source, widths)
    write_sliced(source, model, widths, tmp_path / "out")
    again = reopened(tmp_path / "out", model, True)
    assert torch.allclose(last_states(again, IDS), states, rtol=1e-5, atol=1e-6)
    if make is own_folder:
        assert isinstance(again, TaperedTransformer) and again.config.widths == widths
    else:
        assert read_config(tmp_path / "out")["model_type"].endswith("llama")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2"])
def test_dtypes(kind, tmp_path):
    """Weights keep the dtype of their source, or get the one asked for, which the config then states."""
    source = library_folder(tmp_path / "whole", kind, torch.bfloat16)
    model, _ = sliced(source, UNEQUAL)
    write_sliced(source, model, UNEQUAL, tmp_path / "kept")
    stored, before = (load_file(tmp_path / name / "model.safetensors") for name in ("kept", "whole"))
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    same = [name for name in before if ".mlp." not in name]
    assert len(same) > 10 and all(torch.equal(before[name], stored[name]) for name in same)
    write_sliced(source, model, UNEQUAL, tmp_path / "asked", torch.float16)
    asked = load_file(tmp_path / "asked" / "model.safetensors")
    assert {tensor.dtype for tensor in asked.values()} == {torch.float16}
    assert read_config(tmp_path / "asked")["dtype"] == "float16"


def test_files_of_a_backbone_alone(tmp_path):
    """GPT-2's own files lack the prefix that the language model's names have."""
    source = library_folder(tmp_path / "whole", "gpt2")
    tensors = {
        name.removeprefix("transformer."): tensor for name, tensor in load_file(source / "model.safetensors").items()
    }
    from safetensors.torch import save_file

    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    model, states = sliced(source, EQUAL)
    write_sliced(source, model, EQUAL, tmp_path / "out")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(tensors)
    torch.testing.assert_close(last_states(opened(tmp_path / "out"), IDS), states, rtol=1e-5, atol=1e-6)


def test_file_names():
    assert file_name("a.b", {"a.b": 0, "x.a.b": 0}) == "a.b"
    assert file_name("a.b", {"x.a.b": 0}) == "x.a.b" and file_name("x.a.b", {"a.b": 0}) == "a.b"
    assert file_name("a.b", {"x.a.b": 0, "y.a.b": 0}) is None and file_name("a.b", {"xa.b": 0}) is None


@torch.no_grad()
def test_a_bias_of_a_llama_is_stated(tmp_path):
    """A bias that slicing made: the config says that there are some, and those of gate and up are zero."""
    source = library_folder(tmp_path / "whole", "llama")
    model, states = sliced(source, EQUAL, bias=True)
    write_sliced(source, model, EQUAL, tmp_path / "out")
    assert read_config(tmp_path / "out")["mlp_bias"] is True
    torch.testing.assert_close(last_states(opened(tmp_path / "out"), IDS), states, rtol=1e-5, atol=1e-6)


def test_weights_under_unknown_names_are_refused(tmp_path):
    source = library_folder(tmp_path / "whole", "gpt2")
    model, _ = sliced(source, EQUAL)
    model.extra = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="hold extra under a name that is not known"):
        write_sliced(source, model, EQUAL, tmp_path / "out")


def test_padding_is_nowhere_but_in_the_ffn(written):
    _, found = written
    folder, *_ = found["gpt2", "unequal"]
    before, after = (load_file(p / "model.safetensors") for p in (folder.with_name("gpt2-whole"), folder))
    assert {n for n in before if not torch.equal(before[n], after[n])} == {
        f"transformer.h.{layer}.mlp.{name}"
        for layer in (1, 2)
        for name in ("c_fc.weight", "c_fc.bias", "c_proj.weight")
    }
    assert after["transformer.h.1.mlp.c_fc.weight"][:, 9:].abs().sum() == 0
    assert after["transformer.h.1.mlp.c_proj.weight"][9:].abs().sum() == 0


def test_tables_say_what_is_tapered():
    from geowidth.exchange.remote_code import CLASSES

    assert set(TAPERED) == set(CLASSES) and not set(PADDED) & set(CLASSES)


def test_an_own_model_keeps_what_it_was_made_from(tmp_path):
    source = own_folder(tmp_path / "whole")
    records.write_json(source / "source_config.json", {"model_type": "llama"})
    model, _ = sliced(source, (5, 5, 5))
    write_sliced(source, model, (5, 5, 5), tmp_path / "out")
    assert records.read_json(tmp_path / "out" / "source_config.json") == {"model_type": "llama"}
