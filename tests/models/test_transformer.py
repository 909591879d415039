"""The tapered transformer against a float64 re-implementation, and the promises of its initial values."""

import math

import numpy as np
import pytest
import torch

from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.config import training_flops
from geowidth.models.transformer import drawn

CONFIG = ModelConfig(vocabulary=19, layers=3, dimension=12, heads=2, widths=(17, 5, 0), context=11)


def spread_norms(model, generator):
    """Give norm gains values other than 1, so that a forgotten gain shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def reference_logits(model, tokens):
    """Logits (length, vocabulary) of one sequence, float64, written out token by token and head by head."""
    c = model.config
    p = {name: value.detach().double().numpy() for name, value in model.named_parameters()}

    def norm(x, gain):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c.norm_epsilon) * gain

    def turn(vector, position):
        half = len(vector) // 2
        angle = position * c.rope_base ** (-np.arange(half) / half)
        first, second = vector[:half], vector[half:]
        return np.concatenate(
            (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle))
        )

    x = p["embedding"][tokens]
    size = c.head_dimension
    for layer in range(c.layers):
        b = f"blocks.{layer}."
        q, k, v = np.split(norm(x, p[b + "attention_norm.weight"]) @ p[b + "attention.qkv"].T, 3, -1)
        mixed = np.zeros_like(x)
        for head in range(c.heads):
            part = slice(head * size, (head + 1) * size)
            queries = [turn(q[t, part], t) for t in range(len(tokens))]
            keys = [turn(k[t, part], t) for t in range(len(tokens))]
            for t in range(len(tokens)):
                score = np.array([queries[t] @ keys[s] for s in range(t + 1)]) / math.sqrt(size)
                weight = np.exp(score - score.max())
                mixed[t, part] = (weight / weight.sum()) @ v[: t + 1, part]
        x = x + mixed @ p[b + "attention.out"].T
        h = norm(x, p[b + "ffn_norm.weight"])
        g = h @ p[b + "ffn.gate"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ p[b + "ffn.up"].T)) @ p[b + "ffn.down"]
    return norm(x, p["norm.weight"]) @ p["embedding"].T


@pytest.mark.parametrize("length", [1, 7, 11])
def test_forward_is_the_written_out_model(length, generator):
    model = spread_norms(TaperedTransformer(CONFIG, seed=3), generator)
    tokens = torch.randint(19, (2, length), generator=generator)
    wanted = np.stack([reference_logits(model, row.numpy()) for row in tokens])
    np.testing.assert_allclose(model.double()(tokens).detach().numpy(), wanted, rtol=1e-5, atol=2e-6)
    got = model.float()(tokens)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_later_tokens_do_not_reach_earlier_ones(generator):
    model = TaperedTransformer(CONFIG, seed=1).double()
    tokens = torch.randint(19, (1, 11), generator=generator)
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 19
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-14)
    assert (before[:, 6:] - after[:, 6:]).abs().max() > 1e-6


def test_attention_sees_distances_between_positions_only(generator):
    """Theorem of rotary positions: scores depend on the difference of the positions."""
    from geowidth.models.rotary import rotary_tables, rotate

    cosine, sine = rotary_tables(32, 8, 10000.0)
    q, k = torch.randn(1, 1, 1, 8, generator=generator), torch.randn(1, 1, 1, 8, generator=generator)
    q, k = (rotate(x.expand(1, 32, 1, 8), cosine, sine)[0, :, 0].double() for x in (q, k))
    scores = q @ k.T
    for offset in (0, 3, 20):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=2e-5)


def test_parameter_count_is_exact():
    model = TaperedTransformer(CONFIG)
    d = 12
    assert model.parameter_count() == 19 * d + d + 3 * (4 * d * d + 2 * d) + 3 * d * (17 + 5 + 0)
    assert [block.ffn.width for block in model.blocks] == [17, 5, 0]
    for block, width in zip(model.blocks, CONFIG.widths, strict=True):
        shapes = {name: tuple(p.shape) for name, p in block.ffn.named_parameters()}
        assert shapes == dict.fromkeys(("gate", "up", "down"), (width, d))


def test_flops_count_every_product():
    tokens, d = 22, 12
    weights = 3 * 4 * d * d + 3 * d * 22 + 19 * d
    pairs = sum(range(1, 12)) * tokens // 11  # query-key pairs of two sequences of 11
    assert training_flops(CONFIG, tokens) == 3 * (2 * weights * tokens + 3 * 2 * 2 * d * pairs)


def test_same_seed_same_values_and_another_seed_others():
    one, two, other = (TaperedTransformer(CONFIG, seed=s).state_dict() for s in (5, 5, 6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embedding"], other["embedding"])
    assert not torch.equal(one["blocks.0.attention.out"], one["blocks.1.attention.out"])


@pytest.mark.parametrize("widths", [(17, 5, 0), (16, 29, 1), (3, 3, 3)])
def test_paired_seeds_start_equal_where_shapes_agree(widths):
    from dataclasses import replace

    wide = TaperedTransformer(replace(CONFIG, widths=(31, 31, 31)), seed=7).state_dict()
    for name, value in TaperedTransformer(replace(CONFIG, widths=widths), seed=7).state_dict().items():
        assert torch.equal(value, wide[name][: value.shape[0]]), name
        if ".ffn." not in name:
            assert value.shape == wide[name].shape


def test_initial_spread():
    """Unit variance through inner products, and outputs into the residual stream shrunk by sqrt(2 L)."""
    config = ModelConfig(vocabulary=64, layers=4, dimension=64, heads=2, widths=(256,) * 4, context=8)
    model = TaperedTransformer(config, seed=0)
    inner = 64**-0.5
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            factor = 8**-0.5 if name.endswith((".out", ".down")) else 1
            assert parameter.std().item() == pytest.approx(inner * factor, rel=0.05), name
    assert drawn(0, "x", (3, 0)).shape == (3, 0)


def test_zero_tokens_leave_zero_gradients():
    model = TaperedTransformer(CONFIG)
    out = model(torch.zeros(0, 4, dtype=torch.int64))
    assert out.shape == (0, 4, 19)
    x = torch.zeros(0, 12, requires_grad=True)
    ffn = model.blocks[0].ffn
    y = ffn(x)
    y.sum().backward()
    assert y.shape == (0, 12)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in ffn.parameters())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"widths": (1, 2)}, "2 widths"),
        ({"widths": (1, 2, -1)}, "layer 2"),
        ({"widths": (1, 2.0, 3)}, "layer 1"),
        ({"widths": (1, True, 3)}, "layer 1"),
        ({"heads": 5}, "dimension 12"),
        ({"heads": 4}, "even"),
        ({"layers": 0}, "layers"),
        ({"rope_base": math.nan}, "rope_base"),
        ({"norm_epsilon": 0}, "norm_epsilon"),
    ],
)
def test_bad_shapes_are_refused_by_name(change, word):
    with pytest.raises(UserError, match=word):
        ModelConfig(**{**CONFIG.to_json(), **change})


def test_too_long_a_sequence_is_refused():
    with pytest.raises(UserError, match="context is 11"):
        TaperedTransformer(CONFIG)(torch.zeros(1, 12, dtype=torch.int64))


def test_config_survives_json():
    from geowidth import records

    assert ModelConfig.from_json(records.loads(records.dumps(CONFIG.to_json()))) == CONFIG
    with pytest.raises(UserError, match="width_list"):
        ModelConfig.from_json({**CONFIG.to_json(), "width_list": 1})
    with pytest.raises(UserError, match="widths"):
        ModelConfig.from_json({**CONFIG.to_json(), "widths": 17})
