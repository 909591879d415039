"""The gated activation between the products."""

import pytest
import torch

from geowidth.ops import activate


@pytest.mark.parametrize("provider", ["geowidth", "geowidth, plain torch", "torch, eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_swiglu(timed, provider, dtype):
    generator = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(1024, 683, generator=generator).to(dtype) for _ in range(2))
    timed(
        f"activation, {dtype}",
        {
            "geowidth": lambda: activate(gate, up, "silu"),
            "geowidth, plain torch": lambda: activate(gate, up, "silu", backend="torch"),
            "torch, eager": lambda: torch.nn.functional.silu(gate) * up,
        },
    )
