"""The elementwise op: values, slopes, names, strides, every dtype and instruction set."""

import os
import subprocess
import sys

import pytest
import torch

from geowidth.errors import UserError
from geowidth.ops import activate
from geowidth.ops.activation.functions import ALIASES, FUNCTIONS, GATED_ALIASES, activation_function
from geowidth.ops.activation.native import NativeElementwise
from geowidth.ops.activation.reference import activate_reference

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Rounding to the storage type, and a little for the arithmetic where that is itself the storage type.
UNIT = {torch.float32: 4e-7, torch.float64: 2e-14, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def both(gate, up, name):
    """[hidden, gradients] with a fixed random output gradient."""
    present = [t for t in (gate, up) if t is not None]
    hidden = activate(gate, up, name)
    gradient = torch.linspace(-2, 2, hidden.numel()).reshape(hidden.shape).to(hidden.dtype)
    return [hidden.detach(), *torch.autograd.grad(hidden, present, gradient)], gradient


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("gated", (True, False))
def test_value_and_gradients_against_float64(name, gated, dtype):
    generator = torch.Generator().manual_seed(1)
    up = (torch.randn(7, 613, generator=generator) * 3).to(dtype).requires_grad_()
    gate = (torch.randn(7, 613, generator=generator) * 3).to(dtype).requires_grad_() if gated else None
    found, gradient = both(gate, up, name)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in (gate, up)]
    hidden = activate_reference(*wide, name)
    expected = [hidden, *torch.autograd.grad(hidden, [t for t in wide if t is not None], gradient.double())]
    # Relative to the entry or, for entries near a zero of function or slope, to the factors that multiply it.
    factors = (0.2 + up.detach().double().abs()) * (1 + gradient.double().abs())
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == dtype
        assert ((f.double() - e).abs() / (e.abs() + factors)).max() < UNIT[dtype]


@pytest.mark.parametrize("name", ("silu", "gelu", "gelu_tanh"))
def test_tails_keep_relative_precision(name):
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    expected = x * torch.sigmoid(x)
    if name == "gelu":
        expected = x * 0.5 * torch.special.erfc(-x * 0.5**0.5)
    if name == "gelu_tanh":
        expected = x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    near = expected.abs() > 1e-300
    found = activate(None, x, name)
    assert ((found - expected).abs() / expected.abs())[near].max() < 1e-12
    found = activate(None, x.float(), name).double()
    near &= expected.abs() > 1e-35
    assert ((found - expected).abs() / expected.abs())[near & (x > -6)].max() < 2e-5


# Values from the definitions: x Phi(x), and x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
@pytest.mark.parametrize(
    "names,values",
    [
        (("gelu", "gelu_python"), (0.8413447, -0.0455003, -0.0040497)),
        (("gelu_tanh", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), (0.8411920, -0.0454023, -0.0036374)),
        (("silu", "swish"), (0.7310586, -0.2384058, -0.1422776)),
        (("relu",), (1.0, 0.0, 0.0)),
        (("relu2", "relu_squared"), (1.0, 0.0, 0.0)),
    ],
)
def test_each_name_has_one_formula(names, values):
    x = torch.tensor([1.0, -2.0, -3.0])
    for name in names:
        for backend in ("native", "torch"):
            for found in (activate(None, x, name, backend=backend), activate(x, torch.ones(3), name, backend=backend)):
                torch.testing.assert_close(found, torch.tensor(values), atol=1e-6, rtol=0)


def test_unknown_names_list_the_choices():
    with pytest.raises(UserError, match="swishy.*swiglu.*gelu_pytorch_tanh"):
        activate(None, torch.ones(3), "swishy")
    with pytest.raises(UserError, match="needs a gate"):
        activate(None, torch.ones(3), "swiglu")
    assert {activation_function(n, True).name for n in [*ALIASES, *GATED_ALIASES]} == set(FUNCTIONS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_halves_equal_their_copies(dtype):
    whole = torch.randn(2, 5, 2 * 96, generator=torch.Generator().manual_seed(2)).to(dtype)
    layouts = [
        whole.chunk(2, -1),
        (whole.transpose(0, 1)[..., :96], whole.transpose(0, 1)[..., 96:]),
        (whole[..., ::2], whole[..., 1::2]),
        (whole.mT[:, :5], whole.mT[:, 7:12]),
        (whole[:1, :1, :96].expand(2, 5, 96), whole[..., :96]),
        (whole[0, 0], whole[0, 1]),
    ]
    for gate, up in layouts:
        strided, _ = both(gate.detach().requires_grad_(), up.detach().requires_grad_(), "silu")
        copied, _ = both(gate.contiguous().requires_grad_(), up.contiguous().requires_grad_(), "silu")
        assert all(torch.equal(s, c) for s, c in zip(strided, copied, strict=True))
        leaf = gate.detach().requires_grad_()
        activate(leaf, up, "gelu").sum().backward()  # its gradient is expanded: stride 0
        slope = torch.autograd.grad(activate(leaf, up.contiguous(), "gelu"), leaf, torch.ones(up.shape, dtype=dtype))
        assert torch.equal(leaf.grad, slope[0])


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (1,), (1, 1), (257, 1), (1, 40961)])
def test_small_and_large_shapes(shape):
    x = torch.linspace(-3, 3, torch.Size(shape).numel()).reshape(shape).requires_grad_()
    hidden = activate(x, x, "geglu")  # one tensor in both places
    torch.testing.assert_close(hidden.double(), activate_reference(x, x, "geglu"), atol=1e-6, rtol=1e-6)
    hidden.sum().backward()
    double = x.detach().double().requires_grad_()
    activate_reference(double, double, "geglu").sum().backward()
    torch.testing.assert_close(x.grad.double(), double.grad, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(name, dtype):
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 60000.0, -60000.0]).to(dtype)
    x.requires_grad_()
    hidden = activate(None, x, name)
    (slope,) = torch.autograd.grad(hidden, x, torch.ones_like(x))
    hidden, slope = hidden.detach().double(), slope.double()
    assert hidden[0] == float("inf") and hidden[2].isnan() and slope[2].isnan()
    assert hidden[[1, 3, 4, 6]].abs().max() < 1e-30 and slope[[1, 6]].abs().max() < 1e-30
    assert slope[0] == (float("inf") if name == "relu2" else 1)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_rounding_of_every_two_byte_number(dtype):
    """relu passes numbers through, so widening then rounding must give each back; doubling tests ties and overflow."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    positive = x[(x >= 0) & ~x.isnan()]
    assert torch.equal(activate(None, positive, "relu"), positive.abs())
    factor = torch.full_like(positive, 1.2421875)
    wide = (positive.float() * factor.float()).to(dtype)
    assert torch.equal(activate(positive, factor, "relu"), wide)
    assert activate(None, x[x.isnan()], "relu").isnan().all()


def test_same_bits_for_any_thread_count():
    x = torch.randn(301, 613, generator=torch.Generator().manual_seed(3))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(both(x.clone().requires_grad_(), x.flip(0).requires_grad_(), "geglu")[0])
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(results[0], r, strict=True))


def test_backward_may_write_hidden_over_its_gradient():
    gate, up, gradient = (torch.randn(9, 17, generator=torch.Generator().manual_seed(i)) for i in range(3))
    apart = [torch.full((9, 17), float("nan")) for _ in range(3)]
    function = FUNCTIONS["silu"]
    NativeElementwise.backward(function, gate, up, gradient, *apart)
    over = [torch.empty(9, 17), torch.empty(9, 17)]
    NativeElementwise.backward(function, gate, up, gradient, *over, gradient)
    assert all(torch.equal(a, b) for a, b in zip(apart, [*over, gradient], strict=True))


def test_double_backward_and_gradcheck():
    up = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    gate = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    for name in ("silu", "gelu", "gelu_tanh", "relu2"):
        assert torch.autograd.gradcheck(lambda g, u, n=name: activate(g, u, n), (gate, up))
        assert torch.autograd.gradgradcheck(lambda g, u, n=name: activate(g, u, n), (gate, up))
    assert torch.autograd.gradgradcheck(lambda u: activate(u, u, "silu"), (up,))
    assert torch.autograd.gradgradcheck(lambda u: activate(None, u, "gelu"), (up,))


def test_opcheck():
    gate, up = torch.randn(4, 6).chunk(2, -1)
    for arguments in ((gate, up), (None, up.requires_grad_()), (gate.clone().requires_grad_(), up)):
        torch.library.opcheck(torch.ops.geowidth.ffn_activation.default, (*arguments, "silu", None))


def test_bad_inputs_are_named():
    x = torch.ones(3)
    for gate, up, message in [
        (x, torch.ones(4), "both must agree"),
        (x.double(), x, "both must agree"),
        (None, torch.ones(3, dtype=torch.int32), "int32"),
        (None, [1.0], "list"),
        (None, torch.tensor(1.0), "width"),
    ]:
        with pytest.raises(UserError, match=message):
            activate(gate, up, "silu")
    with pytest.raises(UserError, match="native, triton, torch"):
        activate(None, x, "silu", backend="cuda")


@pytest.mark.parametrize("variant", ("portable", "avx2"))
def test_other_instruction_sets(variant):
    """The same tests of values in a process that uses another build of the same file."""
    chosen = "test_value or test_extremes or test_rounding"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", chosen, "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"GEOWIDTH_CPU_VARIANT": variant}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
