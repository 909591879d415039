"""Random legal models of every supported family, exported in every format and read back by its consumer.

GEOWIDTH_EXPORT_CASES=1000 tries more of them; with transformers 4 on PYTHONPATH they are read by that version. A format
may refuse a model, by name, before it writes anything.
"""

import json
import os

import pytest
import torch

from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_checkpoint
from geowidth.exchange.convert import model_from
from geowidth.exchange.formats import export
from geowidth.exchange.gguf_read import read_gguf
from geowidth.models.storage import load_model
from geowidth.text.tokenizer import byte_vocabulary

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
CASES = int(os.environ.get("GEOWIDTH_EXPORT_CASES", "24"))
LENGTH = 20
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
# What a format states its own way; every other field must come back as it was.
TRANSLATED = {"model_type", "architectures", "auto_map", "intermediate_sizes", "block_configs", "intermediate_size"}
TRANSLATED |= {"rope_parameters", "rope_theta", "rope_scaling", "_name_or_path"}
WORDS = "qwen|window|norms on queries|qkv_bias|qk_norm|has no form|bias|end tokens"


class Draw:
    """Random choices of one case, the same every time."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def one(self, *values):
        return values[int(torch.randint(len(values), (1,), generator=self.generator))]

    def some(self, name, *values):
        """{name: one of the values}, or nothing: an absent field."""
        return {name: self.one(*values)} if self.one(True, False) else {}


def drawn_fields(draw):
    """(class of the config, fields that its config.json will state)."""
    kind = draw.one("Llama", "Mistral", "Qwen2", "Qwen3")
    heads, layers = draw.one(2, 4), draw.one(1, 2, 3)
    fields = {"vocab_size": 256, "hidden_size": draw.one(16, 32), "num_hidden_layers": layers}
    fields |= {"num_attention_heads": heads, "num_key_value_heads": draw.one(1, 2, heads)}
    fields |= {"intermediate_size": draw.one(8, 24, 33), "max_position_embeddings": draw.one(LENGTH, 64)}
    fields |= draw.some("head_dim", 4, 10) if kind != "Qwen3" else {"head_dim": draw.one(4, 10)}
    fields |= draw.some("rms_norm_eps", 1e-3, 1e-5) | draw.some("tie_word_embeddings", True, False)
    fields |= draw.some("rope_theta", 500, 1e6) | draw.some(
        "rope_scaling", None, {"rope_type": "linear", "factor": 4.0}, LLAMA3
    )
    fields |= draw.some("initializer_range", 0.1, 0.3) | draw.some("attention_dropout", 0.0, 0.5)
    fields |= draw.some("bos_token_id", None, 3) | draw.some("eos_token_id", None, 0, 7, [7, 9])
    fields |= draw.some("pad_token_id", None, -1, 5) | draw.some("use_cache", True, False)
    fields |= draw.some("something_new", None, [1, {"a": None}], 0.5) | draw.some("torch_dtype", "float32", None)
    if kind == "Llama":
        fields |= draw.some("attention_bias", True, False) | draw.some("mlp_bias", True, False)
    if kind == "Mistral":
        fields |= draw.some("sliding_window", None, 6, LENGTH, 4096)
    if kind.startswith("Qwen"):
        fields |= draw.some("use_sliding_window", True, False) | draw.some("sliding_window", None, 6)
        fields |= draw.some("max_window_layers", 0, 1, 2)
    if kind == "Qwen3":
        fields |= draw.some("attention_bias", True, False)
    return kind, fields


def saved_model(folder, kind, fields):
    """The source model, random in every tensor, in a folder whose config.json states exactly `fields`."""
    config = getattr(transformers, f"{kind}Config")(**json.loads(json.dumps(fields)))
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.generation_config = transformers.GenerationConfig()  # version 4 does not save one with an id of -1
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": config.model_type} | fields))
    for name, content in byte_vocabulary().files().items():
        (folder / name).write_text(content)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def logits(model, ids):
    with torch.no_grad():
        found = model(ids)
    return getattr(found, "logits", found)


def check_library_format(checkpoint, source, form, out, ids, wanted):
    export(checkpoint, form, out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)
    stated = json.loads((out / "config.json").read_text())
    for name in set(checkpoint.config) - TRANSLATED:
        assert stated[name] == checkpoint.config[name], name
    if form != "nemotron-nas":  # another family, whose defaults for absent fields are not the source's
        assert set(stated) - TRANSLATED <= set(checkpoint.config)
    ours, theirs = model.config.to_dict(), source.config.to_dict()
    for name in set(theirs) - TRANSLATED - ({"head_dim"} if form == "nemotron-nas" else set()):
        assert ours.get(name) == theirs[name], name
    assert ours.get("rope_parameters") == theirs.get("rope_parameters")
    assert model.generation_config.to_dict() == source.generation_config.to_dict()


def check_gguf(checkpoint, out, ids, wanted):
    export(checkpoint, "gguf", out)
    if checkpoint.shape.rope_scaling is not None and checkpoint.shape.rope_scaling["rope_type"] == "llama3":
        return  # its table of factors is written for llama.cpp and not read again
    back = read_gguf(out / "model.gguf")
    ends = checkpoint.config.get("eos_token_id")
    assert back.config["eos_token_id"] == ends
    assert back.config["bos_token_id"] == checkpoint.config.get("bos_token_id")
    export(back, "hf-padded", out / "again")
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "again").eval()
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)


def check_own(checkpoint, out, ids, wanted):
    export(checkpoint, "geowidth", out)
    model = load_model(out)
    reach = checkpoint.shape.reach
    assert model.config.context == reach
    torch.testing.assert_close(logits(model, ids[:, :reach]), wanted[:, :reach], rtol=1e-4, atol=1e-4)
    assert model_from(checkpoint).config == model.config


@pytest.mark.parametrize("seed", range(CASES))
def test_random_models_come_back_whole(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    kind, fields = drawn_fields(Draw(seed))
    source = saved_model(tmp_path / "m", kind, fields)
    checkpoint = read_checkpoint(tmp_path / "m")
    ids = torch.randint(0, 256, (1, LENGTH))
    wanted = logits(source, ids)
    for form in ("hf", "hf-padded"):
        check_library_format(checkpoint, source, form, tmp_path / form, ids, wanted)
    for form, check in (
        ("nemotron-nas", lambda out: check_library_format(checkpoint, source, "nemotron-nas", out, ids, wanted)),
        ("gguf", lambda out: check_gguf(checkpoint, out, ids, wanted)),
        ("geowidth", lambda out: check_own(checkpoint, out, ids, wanted)),
        ("megatron", lambda out: export(checkpoint, "megatron", out)),
    ):
        try:
            check(tmp_path / form)
        except UserError as error:
            assert any(word in str(error) for word in WORDS.split("|")), error
            assert not (tmp_path / form).exists()
