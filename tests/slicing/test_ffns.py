"""FFNs as lists of neurons: what is found in every family, and what is refused."""

import pytest
import torch
import transformers
from slicing_models import ENCODERS, GROUPED, HEADS, NAMES, OWN, made, output, text_of

from geowidth.errors import UserError
from geowidth.measure.families import Family
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.ffn import FeedForward
from geowidth.slicing import ffns_of

TEXT = text_of(windows=2)
PLAIN = ("ours, plain", "phi", "gpt2", "gpt_neox parallel", "gpt_neox sequential", "opt", "opt post-norm", *ENCODERS)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_every_family(name):
    ffns = ffns_of(made(name))
    assert ffns.widths == {"ours, a layer without FFN": (24, 0)}.get(name, (24, 19) if name in OWN else (24, 24))
    assert ffns.dimension == 16 and len(ffns) == 2 and ffns.projections == (2 if name in PLAIN else 3)
    assert ffns.biases == (name not in OWN and name in (*PLAIN, "llama with biases"))
    for ffn in ffns:
        assert ffn.columns().shape == (16, ffn.width)
        torch.testing.assert_close(ffn.column_norms(), ffn.columns().norm(dim=0))
        names = [weight.name for weight in ffn.rows]
        assert sum(weight.stacked for weight in ffn.rows if "bias" not in weight.name) == ffns.projections - 1, names


@pytest.mark.parametrize("name", NAMES)
def test_the_hidden_vector_is_what_the_down_projection_reads(name):
    """Put in place of it, W_d h + bias is what the FFN adds: here every h is 0 but one neuron's."""
    model = made(name)
    ffns = ffns_of(model)
    seen = {}

    def read(layer, h):
        seen[layer] = h
        return None

    whole = output(model, TEXT.tokens)
    with ffns.reading(read):
        torch.testing.assert_close(output(model, TEXT.tokens), whole, rtol=1e-12, atol=1e-12)
    assert {layer: h.shape[-1] for layer, h in seen.items()} == dict(enumerate(ffns.widths))
    assert all(h.numel() == TEXT.tokens.numel() * width for h, width in zip(seen.values(), ffns.widths, strict=True))
    assert torch.equal(output(model, TEXT.tokens), whole) and not any(m._forward_pre_hooks for m in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_pass_ends_at_the_last_layer_asked_for():
    model = made("llama")
    ffns, seen = ffns_of(model), []
    model.lm_head = None  # is not reached
    ffns.run(TEXT.tokens, lambda layer, _: seen.append(layer), last=0)
    ffns.run(TEXT.tokens, lambda layer, _: seen.append(layer))
    assert seen == [0, 0, 1]


def test_layers_that_are_not_reached_are_named():
    model = made("llama")
    ffns = ffns_of(model)
    model.model.layers[0].mlp.forward = lambda x: x
    with pytest.raises(UserError, match="layer 0 of LlamaForCausalLM ran without passing through its llama FFN"):
        ffns.run(TEXT.tokens, lambda *_: None)


def test_modules_state_their_sizes():
    model = made("gpt2")
    ffns = ffns_of(model)
    for ffn in ffns:
        ffn.keep(torch.arange(7))
    assert model.transformer.h[0].mlp.c_fc.nf == model.transformer.h[0].mlp.c_proj.nx == 7
    llama = made("llama")
    with ffns_of(llama).restored():
        ffns_of(llama)[1].keep(torch.arange(5))
        assert llama.model.layers[1].mlp.down_proj.in_features == llama.model.layers[1].mlp.up_proj.out_features == 5
    assert llama.model.layers[1].mlp.down_proj.in_features == 24


def test_a_bias_is_made_where_there_is_none():
    for name in ("ours", "llama", "gpt2"):
        model = made(name)
        ffns = ffns_of(model)
        old = [torch.zeros(16) if not ffn.has_bias else getattr(ffn.home, ffn.bias).detach() for ffn in ffns]
        with ffns.restored():
            ffns[0].add_bias(torch.ones(16))
            assert ffns[0].has_bias and ffns[0].parameters[-1].dtype == torch.float64
            torch.testing.assert_close(ffns[0].parameters[-1].detach(), (old[0] + 1).double())
        assert ffns[0].has_bias == (name == "gpt2")


def test_our_layer_with_biases():
    """None of our configs states them; FeedForward has them."""
    model = made("ours")
    for block in model.blocks:
        layer = FeedForward(16, 24, bias=True, dtype=torch.float64)
        block.ffn = layer
    ffns, whole = ffns_of(model), output(model, TEXT.tokens)
    assert [weight.name for weight in ffns[0].rows] == ["gate", "up", "gate_bias", "up_bias"] and ffns.biases
    with ffns.reading(lambda *_: None):
        torch.testing.assert_close(output(model, TEXT.tokens), whole, rtol=1e-12, atol=1e-12)


def test_repeated_blocks_are_sliced_once():
    model = TaperedTransformer(ModelConfig(31, 2, 16, 2, (24, 24), 16, repeat_last=1, repeat_times=2), seed=3).eval()
    ffns, seen = ffns_of(model), []
    ffns.run(TEXT.tokens, lambda layer, _: seen.append(layer))
    assert ffns.widths == (24, 24) and seen[:2] == [0, 1]


def experts():
    values = HEADS | {"num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**values))


def quantised():
    model = made("llama")
    linear = model.model.layers[1].mlp.up_proj
    linear.weight = torch.nn.Parameter(torch.zeros(24, 8, dtype=torch.uint8), requires_grad=False)
    return model


def adapted():
    model = made("llama")
    model.model.layers[0].mlp.down_proj.base_layer = torch.nn.Linear(24, 16)
    return model


def uneven():
    model = made("llama")
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(16, 23)
    return model


def empty():
    return TaperedTransformer(ModelConfig(31, 2, 16, 2, (0, 0), 16))


REFUSED = {
    experts: "a MixtralForCausalLM has experts in place of FFNs",
    quantised: "layer 1: a Linear holds Parameter of torch.uint8, not a plain floating-point matrix",
    adapted: "layer 0 has adapters; merge them first",
    uneven: "layer 1: a Linear makes 23 features for 24 neurons",
    torch.nn.Identity: "a Identity",
    lambda: 3: "the model is a int; needed: a torch module",
}


@pytest.mark.parametrize("make", REFUSED)
def test_other_models_are_refused_in_one_line(make):
    with pytest.raises(UserError, match=REFUSED[make]) as caught:
        ffns_of(make())
    assert "\n" not in str(caught.value)


def test_a_model_without_neurons_is_left_alone():
    ffns = ffns_of(empty())
    assert ffns.widths == (0, 0)


def test_a_family_from_outside_says_where_its_neurons_are():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))
    for layer in model.model.layers:
        layer.ff = layer.mlp
    family = Family("mine", down="ff.down_proj", inner=("ff.gate_proj", "ff.up_proj"))
    assert ffns_of(model, family).widths == (24, 24)
    with pytest.raises(UserError, match="cannot find the projections of a other FFN: looked for ff.w1"):
        ffns_of(model, Family("other", down="ff.down_proj", inner=("ff.w1",)))
