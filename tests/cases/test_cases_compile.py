"""Cases of torch's machinery (H7): every registered op passes opcheck, every differentiable one compiles as one graph.

An op of the namespace that has no row in CALLS fails the first test.
"""

import importlib
import pkgutil

import pytest
import torch

import geowidth.ops
from geowidth.ops import activate, ffn, pairwise_distances
from geowidth.ops.feed_forward.problem import padded

for module in pkgutil.iter_modules(geowidth.ops.__path__):
    if "triton" not in module.name:
        importlib.import_module(f"geowidth.ops.{module.name}")

SIZES = (0, 1, 7, 13)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROWS, DIMENSION = 5, 6


def _randn(*shape, dtype=torch.float32, gradient=False):
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    made = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return made.requires_grad_(gradient and made.numel() > 0)


def _distances(size, gated, dtype):
    """`gated` stands for a second cloud."""
    y = _randn(3, DIMENSION, dtype=dtype) if gated else None
    return _randn(size, DIMENSION, dtype=dtype, gradient=True), y, "raw,hyperbolic", 0.5, None, None


def _distances_backward(size, gated, dtype):
    x, y, *settings = _distances(size, gated, dtype)
    result = torch.float64 if dtype == torch.float64 else torch.float32
    gradients = [_randn(size, 3 if gated else size, dtype=result) for _ in range(2)]
    return gradients, x.detach(), y, *settings


def _activation(size, gated, dtype):
    gate = _randn(ROWS, size, dtype=dtype, gradient=True) if gated else None
    return gate, _randn(ROWS, size, dtype=dtype, gradient=True), "gelu", None


def _activation_backward(size, gated, dtype):
    gate, up, *settings = (t.detach() if isinstance(t, torch.Tensor) else t for t in _activation(size, gated, dtype))
    return _randn(ROWS, size, dtype=dtype), gate, up, *settings


def _layer(size, gated, dtype, gradient=True):
    weights = [_randn(size, DIMENSION, dtype=dtype, gradient=gradient) for _ in range(3)]
    biases = [_randn(n, dtype=dtype, gradient=gradient) for n in (size, size, DIMENSION)]
    if not gated:
        weights[0] = biases[0] = None
    return _randn(ROWS, DIMENSION, dtype=dtype, gradient=gradient), *weights, *biases


def _ffn(size, gated, dtype):
    return *_layer(size, gated, dtype), "silu", True, False, None, "ieee"


def _ffn_backward(size, gated, dtype):
    hidden = torch.zeros(ROWS, padded(size), dtype=dtype)[:, :size]
    needs = [True, gated, True, True, gated, True]
    kept = (hidden if gated else None), hidden
    return (
        _randn(ROWS, DIMENSION, dtype=dtype),
        *_layer(size, gated, dtype, False)[:6],
        *kept,
        "silu",
        needs,
        None,
        "ieee",
    )


CALLS = {
    "pairwise_distances": _distances,
    "pairwise_distances_backward": _distances_backward,
    "ffn_activation": _activation,
    "ffn_activation_backward": _activation_backward,
    "ffn": _ffn,
    "ffn_backward": _ffn_backward,
}


def test_H7_every_registered_op_has_a_row():
    names = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("geowidth::")}
    assert names == set(CALLS)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_H7_registered_ops_pass_opcheck(name, size, gated):
    op = getattr(torch.ops.geowidth, name).default
    torch.library.opcheck(op, CALLS[name](size, gated, torch.float32))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_H7_meta_tensors_have_the_right_shapes_strides_and_dtypes(name, dtype, gated):
    def flat(found):
        found = found if isinstance(found, (tuple, list)) else [found]
        return [(t.shape, t.stride(), t.dtype) for t in found]

    def meta(value):
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [meta(v) for v in value]
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    op = getattr(torch.ops.geowidth, name)
    for size in SIZES:
        arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in CALLS[name](size, gated, dtype)]
        assert flat(op(*map(meta, arguments))) == flat(op(*arguments)), size


def test_H7_unused_rows_of_gradient_buffers_are_zero(monkeypatch):
    poisoned = lambda *shape, **options: empty(*shape, **options).fill_(float("nan"))  # noqa: E731
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", poisoned)
    for size in SIZES:
        results = torch.ops.geowidth.ffn_backward(*_ffn_backward(size, True, torch.float32))
        assert not any(t.isnan().any() for t in results), size


def _first(found):
    return list(found.values()) if isinstance(found, dict) else [found]


COMPILED = {
    "raw": lambda x: pairwise_distances(x),
    "two clouds": lambda x: pairwise_distances(x, x + 1, geometry="spherical"),
    "every geometry": lambda x: pairwise_distances(x, geometry="all", radius=0.5),
    "threads": lambda x: pairwise_distances(x, geometry=["raw"], threads=2, backend="torch"),
    "whole numbers": lambda x: pairwise_distances(x.long()),
    "gated activation": lambda x: activate(x, x + 1, "swiglu"),
    "activation": lambda x: activate(None, x, "relu2", backend="torch"),
    "gated layer": lambda x: ffn(x, x + 1, x + 2, x + 3, "geglu"),
    "layer": lambda x: ffn(x, None, x + 2, x + 3, "gelu", recompute="gate_up"),
}


@pytest.mark.parametrize("name", COMPILED)
def test_H7_differentiable_ops_compile_as_one_graph(name):
    """With gradients and without, at sizes that differ, in every dtype."""
    torch._dynamo.reset()
    call = COMPILED[name]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    cases = [(size, torch.float32) for size in SIZES] + [(7, dtype) for dtype in DTYPES[1:3]]
    for size, dtype in cases:
        x = _randn(size, DIMENSION, dtype=dtype, gradient=size == 7 and name != "whole numbers")
        found, expected = _first(compiled(x)), _first(call(x))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride(), (size, dtype)
        if x.requires_grad:
            gradients = [torch.autograd.grad(sum(t.sum() for t in results), x)[0] for results in (found, expected)]
            assert torch.equal(*gradients), dtype
    torch._dynamo.reset()


@pytest.mark.parametrize("name", COMPILED)
def test_H7_fake_tensors_have_the_right_shapes(name):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = _randn(7, DIMENSION)
    with FakeTensorMode() as mode:
        found = _first(COMPILED[name](mode.from_tensor(x)))
    for fake, expected in zip(found, _first(COMPILED[name](x)), strict=True):
        assert (fake.shape, fake.stride(), fake.dtype) == (expected.shape, expected.stride(), expected.dtype)
