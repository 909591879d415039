"""What a TaperedTransformer may be beside SwiGLU with equal heads: activations, heads per layer, documents in a row."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from geowidth import records
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer, load_model, save_model
from geowidth.models.config import training_flops
from geowidth.ops.activation.functions import ALIASES, GATED_ALIASES

CONFIG = ModelConfig(vocabulary=19, layers=3, dimension=24, heads=3, widths=(17, 8, 5), context=12)
GROUPED = replace(CONFIG, heads=6, key_heads=3, head_size=4)
FORMULAS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x) ** 2,
}


def with_activation(name, gated=None):
    return replace(CONFIG, activation=name, gated=gated)


@pytest.mark.parametrize(
    ("name", "gated", "meaning"),
    [
        *((name, None, (meaning, True)) for name, meaning in GATED_ALIASES.items()),
        *((name, None, (meaning, False)) for name, meaning in ALIASES.items()),
        *((name, True, (meaning, True)) for name, meaning in ALIASES.items()),
    ],
)
def test_every_activation_is_the_layer_it_names(name, gated, meaning, generator, tmp_path):
    config = with_activation(name, gated)
    model = TaperedTransformer(config, seed=1)
    layer, x = model.blocks[0].ffn, torch.randn(5, 24, generator=generator)
    act, up = FORMULAS[meaning[0]], x @ layer.up.T
    hidden = act(x @ layer.gate.T) * up if meaning[1] else act(up)
    torch.testing.assert_close(layer(x), hidden @ layer.down)
    assert config.is_gated is meaning[1] and config.projections == 2 + meaning[1]
    assert model.parameter_count() == config.parameters
    assert ModelConfig.from_json(records.loads(records.dumps(config.to_json()))) == config
    save_model(model, tmp_path)
    tokens = torch.randint(19, (1, 6), generator=generator)
    assert torch.equal(load_model(tmp_path)(tokens), model(tokens))


def test_names_of_one_meaning_make_one_config():
    assert with_activation("silu", True) == with_activation("swish", True) == with_activation("swiglu", True) == CONFIG
    assert with_activation("gelu_new") == with_activation("gelu_pytorch_tanh") == with_activation("gelu_tanh", False)
    assert with_activation("relu2", True) != with_activation("relu2")
    assert "activation" not in CONFIG.to_json() and "layer_heads" not in CONFIG.to_json()
    assert replace(CONFIG, layer_heads=(3, 3, 3)) == CONFIG


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"activation": "tanh"}, "activation is 'tanh'; allowed: .*swiglu"),
        ({"activation": "swiglu", "gated": False}, "use 'silu' for a layer without"),
        ({"gated": "yes"}, "gated is 'yes'"),
        ({"layer_heads": (3, 3)}, "2 layer_heads came for 3 layers"),
        ({"layer_heads": (3, 0, 3)}, "heads of layer 1 is 0"),
        ({"layer_heads": (3, 2.5, 3)}, "heads of layer 1"),
        ({"heads": 6, "key_heads": 3, "head_size": 4, "layer_heads": (6, 3, 6)}, "layer 1 has 3 heads.*multiples of 2"),
        ({"layer_heads": 3}, "layer_heads is 3; needed: a list"),
    ],
)
def test_options_that_make_no_model_are_refused(change, words):
    with pytest.raises(UserError, match=words):
        ModelConfig.from_json({**CONFIG.to_json(), **change})


HEADS = [(CONFIG, (5, 3, 1)), (GROUPED, (8, 6, 2))]


@pytest.mark.parametrize(("base", "heads"), HEADS)
def test_parameters_with_heads_by_layer(base, heads):
    config = replace(base, layer_heads=heads)
    model = TaperedTransformer(config, seed=None)
    assert config.parameters == sum(p.numel() for p in model.parameters())
    assert [block.attention.heads for block in model.blocks] == list(heads)
    assert ModelConfig.from_json(records.loads(records.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("base", "heads"), HEADS)
def test_a_layer_with_fewer_heads_starts_as_the_first_heads_of_one_with_more(base, heads):
    """Silencing the further heads of the wider layer (their output columns) must give the narrower layer's output."""
    few, usual, many = (
        TaperedTransformer(config, seed=4)
        for config in (replace(base, layer_heads=heads), base, replace(base, layer_heads=(10, 10, 10)))
    )
    for name, value in usual.state_dict().items():
        if "attention.qkv" not in name and "attention.out" not in name:
            assert torch.equal(value, few.state_dict()[name]) and torch.equal(value, many.state_dict()[name]), name
    x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(0))
    tables = usual.cosine[:7], usual.sine[:7]
    for layer in range(3):
        pair = sorted((model.blocks[layer].attention for model in (few, usual, many)), key=lambda part: part.heads)
        for narrow, wide in zip(pair, pair[1:], strict=False):
            kept, silenced = narrow.heads * narrow.head_dimension, deepcopy(wide)
            assert torch.equal(wide.out[:, :kept], narrow.out)
            with torch.no_grad():
                silenced.out[:, kept:] = 0
                torch.testing.assert_close(silenced(x, *tables), narrow(x, *tables))


def test_further_heads_are_drawn_like_the_first():
    config = ModelConfig(vocabulary=8, layers=1, dimension=64, heads=2, widths=(8,), context=8, layer_heads=(6,))
    attention = TaperedTransformer(config, seed=0).blocks[0].attention
    for values, scale in ((attention.qkv, 1.0), (attention.out, 2**-0.5)):
        assert values.std().item() == pytest.approx(64**-0.5 * scale, rel=0.05)
    rows = attention.qkv.unflatten(0, (18, 32)).flatten(1)
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.15  # no head is a copy of another


@pytest.mark.parametrize("config", [CONFIG, replace(GROUPED, layer_heads=(8, 6, 2))])
def test_documents_in_one_row_are_as_if_alone(config, generator):
    model = TaperedTransformer(config, seed=2).double()
    tokens = torch.randint(19, (2, 12), generator=generator)
    lengths = [(5, 1, 6), (12,)]
    documents = torch.stack([torch.repeat_interleave(torch.arange(len(n)), torch.tensor(n)) for n in lengths])
    found = model(tokens, documents)
    for row, counts in enumerate(lengths):
        alone = [model(part[None])[0] for part in tokens[row].split(counts)]
        torch.testing.assert_close(found[row], torch.cat(alone), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[0], model(tokens)[0])
    torch.testing.assert_close(found[1], model(tokens)[1])
    with pytest.raises(UserError, match=r"documents has shape \(12,\), tokens \(2, 12\)"):
        model(tokens, documents[0])


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, tied=False, activation="gelu"),
        replace(CONFIG, activation="relu2", gated=True, layer_heads=(5, 3, 1)),
        replace(GROUPED, layer_heads=(8, 6, 2)),
    ],
)
@pytest.mark.parametrize("length", [1, 12])
def test_flops_are_those_of_the_matrix_products(config, length, generator):
    """Oracle: torch's own counter. It counts attention without the causal half: length x length pairs."""
    model = TaperedTransformer(config, seed=0)
    tokens = torch.randint(19, (2, length), generator=generator)
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(tokens)
    queries = sum(block.attention.heads for block in model.blocks) * config.head_dimension
    skipped = 4 * queries * 2 * (length * length - length * (length + 1) // 2)
    assert 3 * (counter.get_total_flops() - skipped) == training_flops(config, 2 * length, length)
