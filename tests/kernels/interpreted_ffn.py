"""Run by test_ffn_triton.py in a process of its own, with TRITON_INTERPRET=1: the Triton kernels on CPU tensors.

Each name on the command line is one check; it prints "name ok", or fails loudly.
"""

import os
import sys
import warnings
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "ops")]

from ffn_cases import call, errors, make, outputs, plain, reference  # noqa: E402

from geowidth.kernels import tiles  # noqa: E402
from geowidth.ops import activate  # noqa: E402
from geowidth.ops.feed_forward import triton as ffn_triton  # noqa: E402

# numpy, which stands in for the GPU, reports what a GPU does silently with padding that nobody reads.
warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
TINY = tiles.Tile(16, 16, 16, 4, 2)


def use(tile, products=tiles.PRODUCTS):
    """Fuse exactly `products`, with this tile."""
    ffn_triton.choose = lambda product, problem: tile if product in products else None


def compare(inputs, activation, factor=2.0, floor=1e-6, **options):
    expected = outputs(reference, inputs, activation)
    ours = errors(outputs(call, inputs, activation, backend="triton", **options), expected)
    theirs = errors(outputs(plain, inputs, activation), expected)
    assert all(o <= factor * t + floor for o, t in zip(ours, theirs, strict=True)), (activation, ours, theirs)


def every_activation():
    use(TINY)
    for dtype in (torch.float32, torch.float16):
        for activation in ("swiglu", "geglu", "geglu_tanh", "reglu"):
            compare(make(19, 24, 13, dtype, bias=True), activation)
        for activation in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
            compare(make(19, 24, 13, dtype, gated=False), activation)


def bfloat16():
    # The interpreter cuts bfloat16 off instead of rounding: half a unit in the last place more at each step.
    use(TINY)
    compare(make(19, 24, 13, torch.bfloat16), "swiglu", factor=4.0)
    compare(make(19, 24, 13, torch.bfloat16, gated=False, bias=True), "gelu", factor=4.0)


def prime_sizes():
    for tile in (TINY, tiles.Tile(32, 16, 32, 4, 2, group=1), tiles.Tile(16, 64, 16, 4, 2, group=3, slices=2)):
        use(tile)
        for tokens, d, width in ((1, 8, 1), (2, 8, 3), (37, 40, 31), (17, 16, 67)):
            compare(make(tokens, d, width, torch.float32), "swiglu")
            compare(make(tokens, d, width, torch.float32), "geglu", recompute="gate_up")


def slices():
    for count in (4, 8):
        use(tiles.Tile(16, 128, 16, 4, 2, slices=count), ("grad_hidden",))
        compare(make(21, 16, 131, torch.float32), "swiglu")


def each_product_alone():
    for product in tiles.PRODUCTS:
        use(TINY, (product,))
        compare(make(23, 16, 29, torch.float32, bias=True), "swiglu")
    use(TINY, ())
    compare(make(23, 16, 29, torch.float32, gated=False, bias=True), "gelu")


def frozen_and_empty():
    use(TINY)
    whole = make(9, 16, 5, torch.float32)
    full = dict(zip(whole, outputs(call, whole, "swiglu", backend="triton")[1:], strict=False))
    for frozen in ("x", "gate", "up", "down"):
        inputs = {n: None if t is None else t.detach().requires_grad_(n != frozen) for n, t in whole.items()}
        gradient = torch.randn(9, 16, generator=torch.Generator().manual_seed(9))
        call(inputs, "swiglu", backend="triton").backward(gradient)
        for name in ("x", "gate", "up", "down"):
            found = inputs[name].grad
            assert found is None if name == frozen else torch.allclose(found, full[name], atol=1e-6)
    for tokens, width in ((0, 5), (3, 0)):
        inputs = make(tokens, 16, width, bias=True)
        found = outputs(call, inputs, "swiglu", backend="triton")
        assert max(errors(found, outputs(reference, inputs, "swiglu"))) < 1e-6
    with torch.no_grad():
        assert torch.equal(call(whole, "swiglu", backend="triton"), call(whole, "swiglu", backend="triton").clone())


def gradcheck():
    use(TINY)
    for gated, activation in ((True, "swiglu"), (True, "geglu"), (False, "gelu_tanh")):
        inputs = make(3, 8, 5, torch.float64, gated=gated, bias=True)
        names = [n for n, t in inputs.items() if t is not None]

        def function(*tensors, names=names, inputs=inputs, activation=activation):
            given = dict.fromkeys(inputs) | dict(zip(names, tensors, strict=True))
            return call(given, activation, backend="triton")

        assert torch.autograd.gradcheck(function, [inputs[n] for n in names], fast_mode=True)


def elementwise():
    whole = torch.randn(2, 5, 2 * 37, generator=torch.Generator().manual_seed(2))
    for dtype in (torch.float32, torch.float16):
        gate, up = whole.to(dtype).chunk(2, -1)
        for name in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
            for g in (gate, None):
                leaves = [t.detach().requires_grad_() for t in (g, up) if t is not None]
                results = []
                for backend in ("triton", "native"):
                    hidden = activate(*([None] if g is None else []), *leaves, name, backend=backend)
                    results.append([hidden.detach(), *torch.autograd.grad(hidden.sum(), leaves)])
                for found, expected in zip(*results, strict=True):
                    torch.testing.assert_close(found, expected)
        x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0]).to(dtype)
        for name in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
            found = activate(None, x, name, backend="triton")
            assert found[0] == float("inf") and found[1].abs() < 1e-6 and found[2].isnan() and found[3] == 0


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, "ok", flush=True)
