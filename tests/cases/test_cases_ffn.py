"""The feed-forward op: strides (D1), the meaning of names (D3), autocast and checkpoints (D5), zero tokens (D7)."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from geowidth.errors import UserError
from geowidth.models.ffn import FeedForward
from geowidth.ops import activate, ffn

NAN = float("nan")


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(function, tensors, grad_output=None):
    """[output, gradient of each tensor] of function(*tensors)."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = function(*leaves)
    grad_output = torch.ones((), dtype=output.dtype).expand(output.shape) if grad_output is None else grad_output
    return [output.detach(), *torch.autograd.grad(output, leaves, grad_output)]


def same_bits(found, expected):
    return all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_D1_halves_of_a_chunk_are_read_where_they_lie(backend, dtype):
    gate, up = draw(2, 5, 2 * 96, dtype=dtype).chunk(2, -1)
    run = lambda g, u: activate(g, u, "silu", backend=backend)  # noqa: E731
    upstream = draw(2, 96, 5, seed=1, dtype=dtype).transpose(1, 2)
    for grad_output in (None, upstream):
        copies = None if grad_output is None else grad_output.contiguous()
        assert same_bits(
            gradients(run, (gate, up), grad_output), gradients(run, (gate.contiguous(), up.contiguous()), copies)
        )


def strided_layer():
    """Arguments of a layer of width 48 at d 8, none with the strides of a fresh tensor."""
    return {
        "x": draw(16, 3, 10).transpose(0, 2)[:, :, ::2],
        "up": draw(48, 16, seed=2)[:, ::2],
        "down": draw(8, 96, seed=3).T[::2],
        "up_bias": draw(96, seed=4)[::2],
        "down_bias": draw(8, 2, seed=5)[:, 0],
        "gate": draw(8, 48, seed=1).T,
        "gate_bias": draw(144, seed=6)[::3],
    }


@pytest.mark.parametrize("gated", [True, False])
def test_D1_odd_strides_give_the_bits_of_their_copies(gated):
    layer = strided_layer()
    names = list(layer)[: 7 if gated else 5]

    def run(*tensors):
        arguments = dict(zip(names, tensors, strict=True))
        return ffn(**{"gate": None, **arguments}, activation="gelu")

    tensors = [layer[name] for name in names]
    found = gradients(run, tensors)
    assert not any(t.is_contiguous() for t in tensors)
    assert same_bits(found, gradients(run, [t.contiguous() for t in tensors]))
    assert found[0].shape == (10, 3, 8)
    torch.testing.assert_close(found[1 + names.index("down_bias")], torch.full((8,), 30.0))


@pytest.mark.parametrize("leading", [(), (7,), (2, 3), (2, 1, 3, 2)])
def test_D1_leading_shapes(leading):
    layer = FeedForward(8, 13, bias=True)
    x = draw(*leading, 8)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.shape and layer.up_bias.grad.shape == (13,) and layer.down_bias.grad.shape == (8,)
    rows = layer(x.reshape(-1, 8))
    assert torch.equal(rows.view(y.shape), y)


EXACT = {1.0: 0.8413447, -2.0: -0.0455003, -3.0: -0.0040497}
TANH = {1.0: 0.8411920, -2.0: -0.0454023, -3.0: -0.0036374}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("names", "values"), [(("gelu",), EXACT), (("gelu_new", "gelu_pytorch_tanh", "gelu_tanh"), TANH)]
)
def test_D3_each_gelu_is_its_own_formula(backend, names, values):
    x = torch.tensor(list(values))
    for name in names:
        found = activate(None, x, name, backend=backend)
        torch.testing.assert_close(found, torch.tensor(list(values.values())), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu"])
def test_D3_fused_equals_unfused_with_slopes(name):
    x = torch.linspace(-6, 6, 97)
    native, torch_ = (gradients(lambda u, b=b: activate(None, u, name, backend=b), [x]) for b in ("native", "torch"))
    for fused, unfused in zip(native, torch_, strict=True):
        torch.testing.assert_close(fused, unfused, rtol=1e-6, atol=1e-6)


def test_D3_an_unknown_name_lists_the_choices():
    for call in (lambda: activate(None, torch.ones(3), "swishy"), lambda: FeedForward(8, 8, "swishy")):
        with pytest.raises(UserError, match="'swishy'.*gelu_pytorch_tanh"):
            call()


@pytest.mark.parametrize("gated", [True, False])
def test_D5_backward_outside_autocast_in_three_checkpoint_modes(gated):
    """The pre-activation is 80000: finite in bfloat16, infinite in float16."""
    found = []
    for mode in (None, True, False):
        x = torch.full((4, 8), 100.0, requires_grad=True)
        weights = [torch.full((16, 8), v, requires_grad=True) for v in (100.0, 100.0, 1e-4)]
        gate = weights[0] if gated else None

        def run(x, gate=gate, weights=weights):
            return ffn(x, gate, weights[1], weights[2], "silu")

        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = run(x) if mode is None else checkpoint(run, x, use_reentrant=mode)
        y.float().sum().backward()
        trained = weights if gated else weights[1:]
        assert y.dtype == torch.bfloat16 and y.isfinite().all()
        assert all(t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in (x, *trained))
        found.append([y.detach(), x.grad, *(w.grad for w in trained)])
    assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])


def poison(*shapes):
    """Fill buffers of these shapes with NaN and free them, so that the allocator may hand them out again."""
    for shape in shapes * 3:
        torch.full(shape, NAN)


@pytest.mark.parametrize("gated", [True, False])
def test_D7_zero_tokens_give_zero_gradients(gated):
    layer = FeedForward(64, 96, gated=gated, activation="silu", bias=True)
    poison((96, 64), (192, 64), (96,), (192,), (64,))
    y = layer(torch.empty(0, 64))
    y.sum().backward()
    assert y.shape == (0, 64)
    for parameter in layer.parameters():
        assert parameter.grad.shape == parameter.shape and bool((parameter.grad == 0).all())


def test_D7_a_real_batch_then_an_empty_one():
    layer, x = FeedForward(64, 96), draw(5, 64)
    layer(x).square().sum().backward()
    alone = [p.grad.clone() for p in layer.parameters()]
    poison((96, 64), (192, 64))
    layer(x[:0]).square().sum().backward()
    assert same_bits([p.grad for p in layer.parameters()], alone)


def test_D7_a_frozen_matrix_gets_no_gradient():
    layer = FeedForward(64, 96)
    layer.gate.requires_grad_(False)
    layer.up.requires_grad_(False)
    poison((96, 64), (192, 64))
    layer(torch.empty(0, 64)).sum().backward()
    assert layer.gate.grad is None and layer.up.grad is None
    assert bool((layer.down.grad == 0).all())
