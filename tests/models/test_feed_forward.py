"""The FFN module: shapes, initial values, and loading from other libraries' layouts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from geowidth.errors import UserError
from geowidth.models.config import ModelConfig
from geowidth.models.ffn import FeedForward
from geowidth.models.transformer import TaperedTransformer
from geowidth.ops.feed_forward.reference import ffn_plain


class LinearSwiGLU(nn.Module):
    """What Llama-like models have."""

    def __init__(self, dimension, width):
        super().__init__()
        self.gate_proj = nn.Linear(dimension, width, bias=False)
        self.up_proj = nn.Linear(dimension, width, bias=False)
        self.down_proj = nn.Linear(width, dimension, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def test_parameters_are_width_by_dimension():
    module = FeedForward(8, 5)
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == dict.fromkeys(("gate", "up", "down"), (5, 8))
    module = FeedForward(8, 5, "gelu", bias=True, dtype=torch.bfloat16)
    assert set(module.state_dict()) == {"up", "down", "up_bias", "down_bias"}
    assert module.down_bias.shape == (8,) and module.up.dtype == torch.bfloat16
    assert FeedForward(8, 5, "silu", gated=True).gate is not None
    assert "8, 5, geglu, gated" in repr(FeedForward(8, 5, "geglu"))


def test_to_and_from_linear_layers():
    torch.manual_seed(0)
    theirs, ours = LinearSwiGLU(8, 5), FeedForward(8, 5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    back = LinearSwiGLU(8, 5)
    back.load_state_dict(ours.linear_state_dict())
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), theirs.parameters(), strict=True))
    wrapped = nn.ModuleDict({"mlp": FeedForward(8, 5)})
    wrapped.load_state_dict({f"mlp.{n}": t for n, t in theirs.state_dict().items()})
    assert torch.equal(wrapped["mlp"].down, ours.down)


def test_from_conv1d_layers_with_biases():
    """GPT-2 stores weights [inputs, outputs]."""
    torch.manual_seed(0)
    state = {"c_fc.weight": torch.randn(8, 5), "c_fc.bias": torch.randn(5)}
    state |= {"c_proj.weight": torch.randn(5, 8), "c_proj.bias": torch.randn(8)}
    module = FeedForward(8, 5, "gelu_new", bias=True)
    module.load_state_dict(dict(state))
    x = torch.randn(4, 8)
    hidden = functional.gelu(x @ state["c_fc.weight"] + state["c_fc.bias"], approximate="tanh")
    torch.testing.assert_close(module(x), hidden @ state["c_proj.weight"] + state["c_proj.bias"])


def test_foreign_shapes_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        FeedForward(8, 5).load_state_dict(LinearSwiGLU(8, 6).state_dict())


def test_width_zero_and_seeded_start():
    module = FeedForward(8, 0)
    assert torch.equal(module(torch.ones(3, 8)), torch.zeros(3, 8))
    torch.manual_seed(1)
    first = FeedForward(8, 5)
    torch.manual_seed(1)
    assert torch.equal(first.down, FeedForward(8, 5).down)
    assert first.down.abs().max() <= 5**-0.5


def test_state_dict_round_trip():
    module = FeedForward(8, 5, "geglu", bias=True)
    other = FeedForward(8, 5, "geglu", bias=True)
    other.load_state_dict(module.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("arguments", [(0, 5), (8, -1), (8, 2.5), (8, True), (8, 5, "swishy")])
def test_bad_sizes_are_named(arguments):
    with pytest.raises(UserError):
        FeedForward(*arguments)


def test_training_matches_plain_torch():
    """Ten steps of AdamW with the op and with nn.Linear layers: the same losses."""
    losses = []
    for make in (LinearSwiGLU, FeedForward):
        torch.manual_seed(0)
        start = LinearSwiGLU(16, 37).state_dict()
        layers = nn.ModuleList([make(16, 37), make(16, 37)])
        for layer in layers:
            layer.load_state_dict(dict(start))
        optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
        x, losses_here = torch.randn(64, 16, generator=torch.Generator().manual_seed(2)), []
        for _ in range(10):
            y = x
            for layer in layers:
                y = y + layer(functional.rms_norm(y, (16,)))
            loss = (y - x.roll(1, 0)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses_here.append(loss.item())
        losses.append(torch.tensor(losses_here))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)


class PlainFeedForward(FeedForward):
    """The same parameters, computed by plain torch."""

    def forward(self, x):
        return ffn_plain(x, self.gate, self.up, self.down, self.activation)


def test_a_tapered_transformer_trains_alike():
    """Ten steps of a transformer whose layers have widths 61, 37, 13 and 0: the same losses as with plain torch."""
    config = ModelConfig(vocabulary=64, layers=4, dimension=32, heads=2, widths=(61, 37, 13, 0), context=24)
    tokens = torch.randint(64, (4, 25), generator=torch.Generator().manual_seed(0))
    losses = {}
    for kind in (PlainFeedForward, FeedForward):
        model = TaperedTransformer(config, seed=1)
        for block, width in zip(model.blocks, config.widths, strict=True):
            layer = kind(config.dimension, width)
            layer.load_state_dict(block.ffn.state_dict())
            block.ffn = layer
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses[kind] = []
        for _ in range(10):
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[kind].append(loss.item())
    torch.testing.assert_close(*(torch.tensor(v) for v in losses.values()), rtol=1e-5, atol=0)
    assert losses[FeedForward][-1] < losses[FeedForward][0]
