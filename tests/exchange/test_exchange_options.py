"""Activations, FFNs without a gate and heads by layer leave and come back, or are refused by the format's name."""

from dataclasses import replace

import pytest
import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_checkpoint
from geowidth.exchange.convert import checkpoint_from, model_from
from geowidth.exchange.formats import export
from geowidth.exchange.gguf_read import read_gguf
from geowidth.measure import capture
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.plan.models import model_sizes

BASE = ModelConfig(61, 3, 32, 4, (24, 7, 0), 48)
OPTIONS = {
    "geglu": {"activation": "geglu"},
    "gelu without a gate": {"activation": "gelu"},
    "relu2 with a gate": {"activation": "relu2", "gated": True},
    "relu2 without a gate": {"activation": "relu2"},
    "geglu_tanh": {"activation": "geglu_tanh"},
    "heads": {"layer_heads": (6, 4, 1)},
    "grouped heads": {"layer_heads": (6, 4, 2), "key_heads": 2},
    "all": {"layer_heads": (6, 4, 2), "key_heads": 2, "activation": "gelu_tanh", "tied": False},
}
HEADS = ("heads", "grouped heads")
TOKENS = torch.arange(20)[None] % 61


def model_of(name):
    return TaperedTransformer(replace(BASE, **OPTIONS[name]), seed=2).eval()


@pytest.mark.parametrize("name", OPTIONS)
def test_hf_and_back_keeps_every_bit(name, tmp_path):
    model = model_of(name)
    export(checkpoint_from(model), "hf", tmp_path / "hf")
    found = model_from(read_checkpoint(tmp_path / "hf"))
    assert found.config == model.config
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in found.state_dict().items())
    sizes = model_sizes(tmp_path / "hf")
    assert sizes.config.projections == model.config.projections
    assert sizes.parameters == model.config.parameters
    assert sizes.config.heads_by_layer == model.config.heads_by_layer


@pytest.mark.parametrize("name", OPTIONS)
def test_transformers_gives_the_same_logits(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    model = model_of(name)
    export(checkpoint_from(model), "hf", tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=1e-4, atol=1e-5)
        ours = TOKENS[:, :12]
        for _ in range(4):  # without a cache, where theirs has one with heads of every layer's own
            ours = torch.cat([ours, model(ours)[:, -1:].argmax(-1)], 1)
    assert torch.equal(theirs.generate(TOKENS[:, :12], max_new_tokens=4, do_sample=False), ours)
    assert sum(p.numel() for p in theirs.parameters()) == model.config.parameters - 32  # no norm of the empty FFN


@pytest.mark.parametrize("name", ["relu2 without a gate", "geglu", "heads"])
def test_capture_counts_the_matrices(name):
    model = model_of(name)
    clouds = capture(model, TOKENS[0].repeat(3), 20)
    assert clouds.projections == model.config.projections and clouds.widths == (24, 7, 0)


@pytest.mark.parametrize("name", HEADS)
def test_gguf_holds_heads_by_layer(name, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    model = TaperedTransformer(replace(BASE, widths=(24, 7, 33), **OPTIONS[name]), seed=2).eval()
    export(checkpoint_from(model), "gguf", tmp_path / "gguf")
    found = model_from(read_gguf(tmp_path / "gguf" / "model.gguf"))
    assert found.config.heads_by_layer == model.config.heads_by_layer
    assert found.config.key_heads_by_layer == model.config.key_heads_by_layer
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in found.state_dict().items())


@pytest.mark.parametrize(
    ("form", "able"),
    [
        ("hf-padded", ("geglu", "relu2 with a gate", "geglu_tanh")),
        ("gguf", HEADS),
        ("nemotron-nas", ()),
        ("megatron", ("gelu without a gate", "relu2 without a gate")),
    ],
)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_format_states_it_or_refuses(form, able, name, tmp_path):
    checkpoint = checkpoint_from(model_of(name))
    if name in able:
        if form == "gguf":
            pytest.importorskip("gguf", reason="the extra gguf is not installed")
        export(checkpoint, form, tmp_path / "out")
        return
    with pytest.raises(UserError, match=f"no form in .*{'deci' if form == 'gguf' else form}; take hf"):
        export(checkpoint, form, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_padded_models_keep_their_activation(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    model = model_of("geglu_tanh")
    export(checkpoint_from(model), "hf-padded", tmp_path / "hf")
    assert records.read_json(tmp_path / "hf" / "config.json")["hidden_act"] == "gelu_pytorch_tanh"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=1e-4, atol=1e-5)


def test_megatron_is_told_the_activation(tmp_path):
    export(checkpoint_from(model_of("relu2 without a gate")), "megatron", tmp_path / "out")
    arguments = records.read_json(tmp_path / "out" / "heterogeneous_layers.json")["arguments"]
    assert arguments["--squared-relu"] is True and arguments["--swiglu"] is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_attention_heads": [4, 4]}, "each of 3 layers"),
        ({"layer_attention_heads": [4, 0, 4]}, r"layer_attention_heads\[1\] is 0"),
        ({"layer_attention_heads": [4, 3, 4], "num_key_value_heads": 2}, "use multiples of 2"),
        ({"mlp_gated": "no"}, "mlp_gated is 'no'"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
    ],
)
def test_configs_that_state_no_model_are_refused(change, words, tmp_path):
    export(checkpoint_from(model_of("geglu")), "hf", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    records.write_json(path, records.read_json(path) | change)
    with pytest.raises(UserError, match=words):
        read_checkpoint(tmp_path / "hf")
