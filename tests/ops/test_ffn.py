"""The feed-forward op: values, gradients, what it keeps, and every shape and dtype."""

import gc

import pytest
import torch
from ffn_cases import DEVICES, call, errors, make, outputs, plain, reference

from geowidth.errors import UserError
from geowidth.ops import ffn, products
from geowidth.ops.feed_forward import blockwise
from geowidth.ops.feed_forward.problem import padded

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
GATED = ("swiglu", "geglu", "geglu_tanh", "reglu")
UNGATED = ("gelu", "gelu_tanh", "silu", "relu2", "relu")


@pytest.fixture
def poisoned():
    """torch.empty hands out NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", GATED + UNGATED)
@pytest.mark.parametrize("device", DEVICES)
def test_error_at_most_twice_that_of_plain_torch(activation, dtype, device, poisoned):
    inputs = make(67, 40, 37, dtype, gated=activation in GATED, bias=True, device=device)
    expected = outputs(reference, inputs, activation)
    ours = errors(outputs(call, inputs, activation), expected)
    theirs = errors(outputs(plain, inputs, activation), expected)
    floor = 1e-6 if dtype != torch.float64 else 1e-14
    assert all(o <= 2 * t + floor for o, t in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("backend", (None, "torch"))
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens,d,width", [(1, 1, 1), (3, 8, 1), (2, 8, 0), (5, 3, 2), (13, 24, 131), (4099, 8, 11)])
def test_sizes(tokens, d, width, device, backend, poisoned):
    inputs = make(tokens, d, width, device=device)
    found = outputs(call, inputs, "swiglu", backend=backend)
    assert all(torch.isfinite(f).all() for f in found)
    assert max(errors(found, outputs(reference, inputs, "swiglu"))) < 3e-6


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3, 2)])
def test_leading_shapes_and_bias_gradients(leading):
    inputs = make(1, 8, 5, bias=True)
    inputs["x"] = torch.randn(*leading, 8, requires_grad=True)
    found = outputs(call, inputs, "swiglu")
    assert found[0].shape == (*leading, 8)
    assert found[5].shape == found[6].shape == (5,) and found[7].shape == (8,)
    assert max(errors(found, outputs(reference, inputs, "swiglu"))) < 3e-6


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("bias", (False, True))
def test_recomputing_gives_the_same_bits(dtype, bias):
    inputs = make(37, 16, 13, dtype, bias=bias)
    kept, again = outputs(call, inputs, "geglu"), outputs(call, inputs, "geglu", recompute="gate_up")
    assert all(torch.equal(k, a) for k, a in zip(kept, again, strict=True))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_without_gradients_the_same_bits(dtype):
    inputs = make(4099, 16, 13, dtype, bias=True)
    with torch.no_grad():
        y = call(inputs, "swiglu")
    assert torch.equal(y, call(inputs, "swiglu").detach())


@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_both_ways_to_multiply_two_byte_numbers(dtype, native, monkeypatch):
    monkeypatch.setattr(products, "has_native_product", lambda _: native)
    inputs = make(33, 16, 13, dtype, bias=True)
    expected = outputs(reference, inputs, "swiglu")
    ours = errors(outputs(call, inputs, "swiglu"), expected)
    theirs = errors(outputs(plain, inputs, "swiglu"), expected)
    assert all(o <= 2 * t + 1e-6 for o, t in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("rows", (1, 7, 64))
def test_blocks_of_rows_change_nothing_but_rounding(rows, monkeypatch):
    inputs = make(64, 16, 13, torch.float64, bias=True)
    whole = outputs(call, inputs, "swiglu", recompute="gate_up")
    monkeypatch.setattr(blockwise, "CPU_ROWS", rows)
    for recompute in (None, "gate_up"):
        assert max(errors(outputs(call, inputs, "swiglu", recompute=recompute), whole)) < 1e-13


def saved_bytes(inputs, activation, **options):
    """Bytes kept for backward, parameters not counted, each tensor by its own shape."""
    parameters = {t.data_ptr() for n, t in inputs.items() if t is not None and n != "x"}
    total = []

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            total.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call(inputs, activation, **options)
    return sum(total)


@pytest.mark.parametrize("width", (1387, 1408))
def test_memory_contract(width):
    tokens, d = 11, 64
    inputs = make(tokens, d, width, torch.bfloat16)
    assert saved_bytes(inputs, "swiglu") == 4 * tokens * width + 2 * tokens * d
    assert saved_bytes(inputs, "swiglu", recompute="gate_up") == 2 * tokens * d
    ungated = make(tokens, d, width, torch.bfloat16, gated=False)
    assert saved_bytes(ungated, "gelu") == 2 * tokens * width + 2 * tokens * d
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        plain(inputs, "swiglu")
    ptrs = {t.data_ptr(): t.numel() * t.element_size() for t in kept}
    eager = sum(size for p, size in ptrs.items() if p not in {inputs[n].data_ptr() for n in ("gate", "up", "down")})
    # Plain torch keeps g, act(g), u and h besides x.
    assert eager == 8 * tokens * width + 2 * tokens * d


def test_without_gradients_no_full_hidden_buffer_exists(monkeypatch):
    """On a CPU one block of rows is all that lives between the products, both projections of it in one buffer."""
    inputs = {n: None if t is None else t.detach() for n, t in make(8200, 8, 37).items()}
    buffers = []

    def watched(tokens, width, like, count=1):
        buffers.append((tokens, count * padded(width)))
        return torch.empty(buffers[-1], dtype=like.dtype)

    monkeypatch.setattr(blockwise, "hidden_buffer", watched)
    call(inputs, "swiglu")
    assert buffers == [(912, 80)]
    blocks = [blockwise.blocks(1500, rows) for rows in (1500, 1000)]
    assert blocks == [[slice(None)], [slice(0, 1000), slice(1000, 1500)]] and blockwise.blocks(0, 0) == []


def test_zero_tokens_give_zero_gradients(poisoned):
    for activation, gated in (("swiglu", True), ("gelu", False)):
        inputs = make(0, 64, 96, gated=gated, bias=True)
        y, *gradients = outputs(call, inputs, activation)
        assert y.shape == (0, 64)
        present = [t for t in inputs.values() if t is not None]
        assert all(g.shape == t.shape and (g == 0).all() for g, t in zip(gradients, present, strict=True))


def test_a_real_batch_then_an_empty_one(poisoned):
    inputs, empty = make(6, 16, 24), make(0, 16, 24)
    empty |= {n: inputs[n] for n in ("gate", "up", "down")}
    call(inputs, "swiglu").sum().backward()
    before = {n: inputs[n].grad.clone() for n in ("gate", "up", "down")}
    gc.collect()
    call(empty, "swiglu").sum().backward()
    assert all(torch.equal(inputs[n].grad, g) for n, g in before.items())


def test_layouts_give_the_same_bits():
    def grow(t):  # the same numbers: transposed storage, every second column, a slice of a larger matrix
        big = torch.zeros(2 * t.shape[0] + 3, 2 * t.shape[1])
        big[1 : t.shape[0] + 1, ::2] = t
        return [t.T.contiguous().T, big[1 : t.shape[0] + 1, ::2]]

    inputs = {n: None if t is None else t.detach() for n, t in make(10, 12, 9).items()}
    expected = outputs(call, {n: None if t is None else t.clone().requires_grad_() for n, t in inputs.items()}, "geglu")
    for index in range(2):
        strided = {n: None if t is None else grow(t)[index].requires_grad_() for n, t in inputs.items()}
        found = outputs(call, strided, "geglu")
        assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_expanded_gradients_and_inputs():
    inputs = make(7, 12, 9)
    present = [t for t in inputs.values() if t is not None]
    expanded = torch.autograd.grad(call(inputs, "swiglu").sum(), present)
    dense = torch.autograd.grad(call(inputs, "swiglu"), present, torch.ones(7, 12))
    assert all(torch.equal(e, d) for e, d in zip(expanded, dense, strict=True))
    row = inputs["x"][:1].detach()
    assert torch.equal(
        ffn(row.expand(7, 12), *present[1:], "swiglu"), ffn(row.expand(7, 12).contiguous(), *present[1:], "swiglu")
    )


def test_gated_layers_take_plain_names():
    inputs = make(5, 8, 6)
    assert torch.equal(call(inputs, "silu"), call(inputs, "swiglu"))
    assert torch.equal(call(inputs, "gelu_pytorch_tanh"), call(inputs, "geglu_tanh"))
    assert not torch.equal(call(inputs, "geglu"), call(inputs, "geglu_tanh"))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"x": torch.ones(5, 9)}, "x has 9 columns, up 8"),
        ({"gate": torch.ones(7, 8)}, r"gate has shape \(7, 8\)"),
        ({"down": torch.ones(8, 6)}, r"down has shape \(8, 6\).*\(6, 8\)"),
        ({"up": torch.ones(6, 8, dtype=torch.float64)}, "up is torch.float64.*autocast"),
        ({"x": torch.ones(5, 8, dtype=torch.int64)}, "int64"),
        ({"up": None}, "ungated layer has gate=None"),
        ({"up": "up"}, "up is str"),
        ({"gate": None, "gate_bias": torch.ones(6), "activation": "gelu"}, "gate_bias came without a gate"),
        ({"gate": None}, "needs a gate"),
        ({"activation": "swishy"}, "allowed: swiglu"),
        ({"recompute": True}, "gate_up"),
        ({"input_precision": "bf16"}, "ieee, tf32, tf32x3"),
        ({"backend": "cuda"}, "native, triton, torch"),
        ({"backend": "triton"}, "Triton"),
        ({"up_bias": torch.ones(5)}, "up_bias"),
    ],
)
def test_bad_inputs_are_named(change, message, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    arguments = {n: None if t is None else t.detach() for n, t in make(5, 8, 6).items()}
    arguments |= {"activation": "swiglu"} | change
    with pytest.raises(UserError, match=message):
        ffn(**arguments)


def test_backend_by_environment(monkeypatch):
    inputs = make(5, 8, 6)
    monkeypatch.setenv("GEOWIDTH_BACKEND", "torch")
    assert torch.equal(call(inputs, "swiglu"), call(inputs, "swiglu", backend="torch"))
    monkeypatch.setenv("GEOWIDTH_BACKEND", "nothing")
    with pytest.raises(UserError, match="nothing"):
        call(inputs, "swiglu")


def test_the_switch_for_float32_products_goes_back():
    before = torch.backends.cuda.matmul.fp32_precision
    for wanted, tf32 in (("tf32", True), ("ieee", False)):
        with products.matmul_switch(tf32):
            assert torch.backends.cuda.matmul.fp32_precision == wanted
        assert torch.backends.cuda.matmul.fp32_precision == before
    x = torch.ones(1)
    with products.float32_products(x, "tf32"):  # nothing to switch on a CPU
        assert torch.backends.cuda.matmul.fp32_precision == before
