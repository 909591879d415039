"""Cases of exports and imports: every field carried, translated or refused by name, and files that lie."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from geowidth.errors import UserError
from geowidth.models.exchange.checkpoint import read_checkpoint
from geowidth.models.exchange.convert import model_from
from geowidth.models.exchange.formats import export

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
TINY = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 24}
TINY |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
TRANSFORMERS_4 = Path(os.environ.get("GEOWIDTH_TRANSFORMERS_4", Path(sys.prefix) / "transformers-4"))
HF_FORMATS = ("hf", "hf-padded", "nemotron-nas")


def saved(folder, kind="Llama", seed=0, **fields):
    """A random model of transformers, saved; its config.json then states exactly TINY and `fields`."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**TINY | fields)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    stated = TINY | {"model_type": config.model_type, "tie_word_embeddings": False, "head_dim": 8} | fields
    (folder / "config.json").write_text(json.dumps(stated))
    return model


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def logits(model, ids):
    with torch.no_grad():
        found = model(ids)
    return getattr(found, "logits", found)


def some_ids(length, vocabulary=61):
    return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))


def written(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


# ---------------------------------------------------------------------------------------------- N8: windows


def test_N8_null_window_means_no_window(tmp_path):
    small = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "head_dim": 8,
    }
    source = saved(tmp_path / "m", "Mistral", **small, sliding_window=None, max_position_embeddings=8192)
    checkpoint = read_checkpoint(tmp_path / "m")
    assert checkpoint.shape.reach == 8192
    ids = some_ids(4200)
    wanted = logits(source, ids)
    for form in HF_FORMATS:
        export(checkpoint, form, tmp_path / form)
        assert "sliding_window" in written(tmp_path / form) and written(tmp_path / form)["sliding_window"] is None
        torch.testing.assert_close(logits(loaded(tmp_path / form), ids), wanted, rtol=0, atol=1e-5)
    own = model_from(checkpoint)
    assert own.config.context == 8192
    torch.testing.assert_close(logits(own, ids), wanted, rtol=0, atol=1e-5)
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    export(checkpoint, "gguf", tmp_path / "gguf")


@pytest.mark.parametrize("fields, windows", [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 7}, 7)])
def test_N8_absent_null_and_value_are_three_states(tmp_path, fields, windows):
    saved(tmp_path / "m", "Mistral", **fields)
    assert read_checkpoint(tmp_path / "m").shape.windows == (windows,) * 4
    export(read_checkpoint(tmp_path / "m"), "hf-padded", tmp_path / "out")
    assert {k: v for k, v in written(tmp_path / "out").items() if k == "sliding_window"} == fields


QWEN_WINDOWS = {
    "mixed by max_window_layers": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, 2),
    "all": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, 4),
    "the default of 28 layers": ({"use_sliding_window": True, "sliding_window": 5}, 0),
    "not in use": ({"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}, 0),
    "absent flag": ({"sliding_window": 5, "max_window_layers": 0}, 0),
    "null window in use": ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, 0),
    "null layer_types": (
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3, "layer_types": None}, 1,
    ),
    "layer_types": (
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 9}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
@pytest.mark.parametrize("name", QWEN_WINDOWS)
def test_N8_windows_of_qwen(tmp_path, family, name):
    """Logits beyond the window are the source's in hf and hf-padded; formats without windows refuse by name."""
    fields, windowed = QWEN_WINDOWS[name]
    source = saved(tmp_path / "m", family, **fields, head_dim=8)
    checkpoint = read_checkpoint(tmp_path / "m")
    assert sum(window is not None for window in checkpoint.shape.windows) == windowed
    ids = some_ids(40)
    for form in ("hf", "hf-padded"):
        export(checkpoint, form, tmp_path / form)
        assert torch.equal(logits(loaded(tmp_path / form), ids), logits(source, ids))
    if windowed:
        for form in ("gguf", "nemotron-nas") + (("megatron",) if windowed < 4 else ()):
            with pytest.raises(UserError, match="sliding_window|qwen|norms|windows of some layers"):
                export(checkpoint, form, tmp_path / f"no-{form}")
            assert not (tmp_path / f"no-{form}").exists()


def test_N8_what_cannot_be_meant_is_refused_by_name(tmp_path):
    for family, fields, word in (
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "layer_types must be a list"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "layer_types must be a list"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "layer_types has sliding_attention, but"),
        ("qwen3", {"use_sliding_window": None}, "use_sliding_window is null"),
        ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types in a mistral model"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("llama", {"rms_norm_eps": None}, "rms_norm_eps is null"),
        ("llama", {"attention_bias": None}, "attention_bias is null"),
        ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ("qwen3", {"head_dim": None}, "head_dim is null"),
        ("llama", {"hidden_act": None}, "hidden_act is null"),
        ("llama", {"rope_theta": None}, "rope_theta is null"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 lacks low_freq_factor"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}, "and type 'dynamic'"),
        ("qwen2", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "of its own for full_attention"),
        ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is stated in"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config is stated"),
        ("llama", {"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config is stated"),
        ("llama", {"auto_map": {"AutoModelForCausalLM": "mine.Model"}}, "auto_map names code"),
    ):
        folder = tmp_path / f"{family}-{len(list(tmp_path.iterdir()))}"
        saved(folder, family.capitalize())
        (folder / "config.json").write_text(json.dumps(TINY | {"model_type": family, "head_dim": 8} | fields))
        with pytest.raises(UserError, match=word) as caught:
            read_checkpoint(folder)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------- N10: ids and fields


@pytest.mark.parametrize("form", HF_FORMATS)
def test_N10_ids_of_begin_end_and_padding(tmp_path, form):
    saved(tmp_path / "m", bos_token_id=3, eos_token_id=7, pad_token_id=9)
    export(read_checkpoint(tmp_path / "m"), form, tmp_path / "out")
    model = loaded(tmp_path / "out")
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (3, 7, 9)
    assert model.generation_config.eos_token_id == 7 and model.generation_config.bos_token_id == 3
    assert not (tmp_path / "out" / "generation_config.json").exists()
