"""Pretrained models that Python packages carry, opened by name and measured for real."""

import json

import numpy as np
import pytest
import torch

from geowidth.artifacts.clouds import Clouds
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export
from geowidth.measure import opening
from geowidth.measure.opening import PACKAGED, cache_folder, converted, open_model, packaged_path
from geowidth.measure.states import capture
from geowidth.models import ModelConfig, TaperedTransformer, save_model

PARIS = [504, 3575, 282, 4649, 314]  # "The capital of France is", by the model's own tokenizer


def packaged(name):
    for package in ("transformers", "gguf"):
        pytest.importorskip(package, reason=f"{package} is not installed; `make test` installs it")
    try:
        return packaged_path(name)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.real_model
def test_smollm2_end_to_end(cache, tmp_path, capsys):
    """`geowidth measure smollm2`: nine signals for 30 layers, with the sink tokens told apart."""
    packaged("smollm2")
    out, saved = tmp_path / "work.json", tmp_path / "clouds.safetensors"
    arguments = ["--tokens", "48", "--windows", "6", "--context", "96", "--cache", str(cache)]
    arguments += ["--out", str(out), "--save-clouds", str(saved), "--plot", str(tmp_path / "work.svg")]
    assert main(["measure", "smollm2", *arguments]) == 0
    profile = WorkProfile.read(out)
    assert profile.layers == 30 and profile.widths == (1536,) * 30 and profile.model_dimension == 576
    signals = [profile.signal(s, g) for g in profile.work for s in profile.work[g]]
    assert len(signals) == 9 and all(np.isfinite(signal).all() and min(signal) >= 0 for signal in signals)
    source = {"name": "smollm2", "model_type": "llama", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    assert profile.settings["clouds"]["source"] == source
    assert "layer" in capsys.readouterr().out and (tmp_path / "work.svg").read_text().startswith("<svg")
    for layer, details in enumerate(profile.details):
        flagged = details["large_norm_tokens"]["before"] + details["large_norm_tokens"]["after"]
        same = profile.raw_without_large_norms["gw"][layer] == profile.work["raw"]["gw"][layer]
        assert same == (not flagged)
    clouds = Clouds.read(saved)
    assert clouds.before.shape == (30, 48, 576) and (clouds.positions > 0).all()


@pytest.mark.real_model
def test_smollm2_is_the_model_it_says(cache):
    """Queries and keys un-permuted rightly: it knows a capital; and our own model computes the same logits."""
    from transformers import AutoModelForCausalLM

    from geowidth.exchange.checkpoint import read_checkpoint
    from geowidth.exchange.convert import model_from

    folder = converted(packaged("smollm2"), cache)
    opened = open_model(folder)
    assert opened.tokenizer.encode("The capital of France is").ids == PARIS
    stock = AutoModelForCausalLM.from_pretrained(folder)
    ours = model_from(read_checkpoint(folder))
    with torch.no_grad():
        theirs, own = stock(torch.tensor([PARIS])).logits, ours(torch.tensor([PARIS]))
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-3)
    assert opened.tokenizer.decode([int(own[0, -1].argmax())]) == " Paris"


@pytest.mark.real_model
def test_smollm2_first_positions_are_sinks(cache):
    """What the default leaves out: the first token of a sequence stands at 36 to 154 times the median norm."""
    packaged("smollm2")
    opened = open_model("smollm2", cache=cache)
    text = torch.frombuffer(bytearray(b"The quick brown fox jumps over the lazy dog. " * 40), dtype=torch.uint8)
    sequences = opened.sequences(text, 32)[:2]
    clouds = capture(opened.model, sequences, None, skip=0)
    norms = clouds.before[12:29].norm(dim=-1)
    ratio = norms / norms.median(dim=1, keepdim=True).values
    assert (ratio[:, clouds.positions == 0] > 20).all() and (ratio[:, clouds.positions > 0] < 5).all()


@pytest.mark.real_model
def test_minilm_is_an_encoder(tmp_path):
    packaged("minilm")
    opened = open_model("minilm")
    text = torch.frombuffer(bytearray(b"Some words about nothing much. " * 60), dtype=torch.uint8)
    sequences = opened.sequences(text, 32)
    assert all(int(row[0]) == opened.prefix[0] and int(row[-1]) == opened.suffix[0] for row in sequences)
    clouds = capture(opened.model, sequences, 20, skip=1, tail=1)
    assert clouds.settings["form"] == "post-norm" and clouds.before.shape == (6, 20, 384)
    assert not {*opened.prefix, *opened.suffix} & set(clouds.token_ids.tolist())


def tapered():
    return TaperedTransformer(ModelConfig(256, 3, 32, 4, (24, 0, 33), 48, key_heads=2), seed=1)


def test_open_own_exported_and_gguf(tmp_path):
    """A trained folder, its hf export (whose code is not run) and its GGUF give the same states."""
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    save_model(tapered(), tmp_path / "own")
    for form in ("hf", "gguf", "geowidth"):
        export(checkpoint_from(tapered()), form, tmp_path / form)
    text = torch.frombuffer(bytearray(b"abcdefghijklmnopqrstuvwxyz" * 30), dtype=torch.uint8)
    found = {}
    for name in ("own", "hf", "geowidth", "gguf/model.gguf"):
        opened = open_model(tmp_path / name, cache=tmp_path / "cache")
        found[name] = capture(opened.model, opened.sequences(text, 26), 20)
        torch.testing.assert_close(found[name].after, found["own"].after, rtol=0, atol=1e-5)
    assert found["hf"].widths == (24, 0, 33) and found["gguf/model.gguf"].widths == (24, 32, 33)
    kept = next((tmp_path / "cache").iterdir())
    before = (kept / "model.safetensors").stat().st_mtime_ns
    open_model(tmp_path / "gguf/model.gguf", cache=tmp_path / "cache")  # the second time nothing is converted
    assert (kept / "model.safetensors").stat().st_mtime_ns == before


def test_transformers_folders_are_read_strictly(tmp_path):
    """What transformers would fill with random values, or drop, is refused."""
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    from safetensors.torch import load_file, save_file

    model = TaperedTransformer(ModelConfig(256, 2, 32, 4, (24, 24), 48), seed=1)
    export(checkpoint_from(model), "hf-padded", tmp_path / "stock")
    weights = tmp_path / "stock" / "model.safetensors"
    whole = load_file(weights)
    assert open_model(tmp_path / "stock").model.config.model_type == "llama"
    up = "layers.1.mlp.up_proj.weight"
    for change, message in (
        ({f"model.{up}": None}, f"tensor {up} is missing"),
        ({f"model.{up}": torch.full((24, 32), float("inf"))}, f"tensor {up} holds NaN or infinity"),
        ({"model.layers.7.mlp.up_proj.weight": torch.ones(2, 2)}, "tensor model.layers.7.mlp.up_proj.weight belongs"),
        ({f"model.{up}": torch.ones(9, 32)}, "cannot be loaded|another shape"),
    ):
        save_file({n: t for n, t in {**whole, **change}.items() if t is not None}, weights, {"format": "pt"})
        with pytest.raises(UserError, match=message):
            open_model(tmp_path / "stock")
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(UserError, match="cannot be loaded"):
        open_model(tmp_path / "stock")


def test_names_that_stand_for_nothing(tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, message in (
        ("nobody/nothing-of-the-kind", "--download fetches it"),
        (str(tmp_path / "no where"), "does not exist"),
        (str(tmp_path / "no.gguf"), "does not exist"),
    ):
        assert main(["measure", name, "--out", str(tmp_path / "work.json")]) == 2
        told = capsys.readouterr().err
        assert message in told and told.count("\n") == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="cannot read .*config.json"):
        open_model(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "empty" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="pytorch_model.bin is pickled"):
        open_model(tmp_path / "empty")
    (tmp_path / "empty" / "pytorch_model.bin").rename(tmp_path / "empty" / "model.safetensors")
    remote = {"model_type": "odd", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (tmp_path / "empty" / "config.json").write_text(json.dumps(remote))
    (tmp_path / "empty" / "code.py").write_text("raise SystemExit('code from a model folder was run')\n")
    with pytest.raises(UserError, match="cannot be loaded"):
        open_model(tmp_path / "empty")
    assert set(PACKAGED) == {"smollm2", "minilm"}


def test_two_processes_may_convert_the_same_file(monkeypatch, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    model = TaperedTransformer(ModelConfig(256, 2, 32, 4, (16, 24), 48), seed=3)
    export(checkpoint_from(model), "gguf", tmp_path / "out")
    other = opening.export

    def slower(checkpoint, form, folder):
        other(checkpoint, form, folder)  # what another process did meanwhile
        return other(checkpoint, form, folder)

    monkeypatch.setattr(opening, "export", slower)
    folder = opening.converted(tmp_path / "out" / "model.gguf", tmp_path / "cache")
    assert (folder / "config.json").is_file() and [*(tmp_path / "cache").iterdir()] == [folder]


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GEOWIDTH_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a" and cache_folder(tmp_path / "b") == tmp_path / "b"
    monkeypatch.delenv("GEOWIDTH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c" / "geowidth"
