"""One gated feed-forward layer of an odd width, forward and backward."""

import pytest
import torch

from geowidth.models.ffn import FeedForward

TOKENS, DIMENSION, WIDTH = 256, 256, 683


class Eager(torch.nn.Module):
    """The same layer as three nn.Linear modules."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(DIMENSION, WIDTH, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(WIDTH, DIMENSION, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("provider", ["geowidth", "torch, eager"])
@pytest.mark.parametrize("pass_", ["forward", "forward and backward"])
def test_layer(timed, provider, pass_):
    x = torch.randn(TOKENS, DIMENSION, generator=torch.Generator().manual_seed(0))

    def task(layer):
        if pass_ == "forward":
            return lambda: layer(x).detach()
        return lambda: layer(x).sum().backward()

    with torch.set_grad_enabled(pass_ != "forward"):
        timed(
            f"feed-forward, {pass_}",
            {"geowidth": task(FeedForward(DIMENSION, WIDTH, "swiglu")), "torch, eager": task(Eager())},
        )
