"""The feed-forward op among torch's machinery: opcheck, compile, autocast, checkpoints, frozen inputs, DDP, FSDP2."""

import inspect
import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from ffn_cases import NAMES, call, errors, make, outputs
from torch.utils.checkpoint import checkpoint

import geowidth
from geowidth.ops import ffn
from geowidth.ops.feed_forward.reference import ffn_plain


@pytest.mark.parametrize("gated,bias,recompute", [(True, False, False), (False, True, True)])
def test_opcheck(gated, bias, recompute):
    inputs = make(5, 8, 3, gated=gated, bias=bias)
    arguments = (*inputs.values(), "silu", True, recompute, None, "ieee")
    torch.library.opcheck(torch.ops.geowidth.ffn.default, arguments)


def test_opcheck_of_backward():
    inputs = {n: None if t is None else t.detach() for n, t in make(5, 8, 3).items()}
    hidden = torch.randn(5, 8)[:, :3]
    arguments = (torch.randn(5, 8), *list(inputs.values())[:6], hidden, hidden.clone(), "silu")
    for needs in ([True] * 4 + [False] * 2, [False, True, False, False, False, False]):
        torch.library.opcheck(
            torch.ops.geowidth.ffn_backward.default, (*arguments, needs, None, "ieee"),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip


@pytest.mark.parametrize("gated,bias,recompute", [(True, False, False), (False, True, True), (True, True, False)])
def test_eager_calls_and_the_custom_op_give_the_same_bits(gated, bias, recompute):
    """Eager calls go past the dispatcher; compiled and transformed code does not."""
    inputs = make(7, 11, 13, gated=gated, bias=bias)

    def through_the_op(inputs, activation):
        return torch.ops.geowidth.ffn(*inputs.values(), activation, True, recompute, None, "ieee")[0]

    direct = outputs(call, inputs, "silu", recompute="gate_up" if recompute else None)
    for found, expected in zip(direct, outputs(through_the_op, inputs, "silu"), strict=True):
        assert torch.equal(found, expected)
    with torch.no_grad():
        assert torch.equal(call(inputs, "silu"), direct[0])


def test_compile_whole_graph_without_recompiling():
    """Token counts are dynamic from the first batch on; one graph serves them all, gradients and no_grad apart."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, *w: ffn(x, *w, "swiglu") * 2, fullgraph=True, backend="aot_eager", dynamic=True)
    inputs = make(6, 8, 5)
    weights = [inputs[n] for n in ("gate", "up", "down")]
    compiled(inputs["x"], *weights).sum().backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (9, 13):
            x = torch.randn(tokens, 8, requires_grad=True)
            y = compiled(x, *weights)
            expected = ffn(x, *weights, "swiglu") * 2
            assert torch.equal(y, expected)
            gradients = torch.autograd.grad(y.sum(), [x, *weights])
            for found, wanted in zip(gradients, torch.autograd.grad(expected.sum(), [x, *weights]), strict=True):
                assert torch.equal(found, wanted)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch 2.13 warns of itself on import
def test_compile_with_inductor_and_recompute():
    torch._dynamo.reset()
    inputs = make(6, 8, 5, gated=False, bias=True)
    compiled = torch.compile(lambda: call(inputs, "gelu", recompute="gate_up").square().sum(), fullgraph=True)
    found = torch.autograd.grad(compiled(), [t for t in inputs.values() if t is not None])
    eager = call(inputs, "gelu").square().sum()
    expected = torch.autograd.grad(eager, [t for t in inputs.values() if t is not None])
    assert max(errors(found, expected)) < 1e-6


def test_autocast_and_the_three_checkpoint_modes():
    """The pre-activation is 80000: finite in bfloat16, infinite in float16."""
    torch.manual_seed(0)
    results = []
    for mode in ("none", "reentrant", "non-reentrant"):
        x = torch.full((4, 8), 100.0, requires_grad=True)
        weights = [torch.full((16, 8), v, requires_grad=True) for v in (100.0, 0.5, 1e-4)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run = lambda x, w=weights: ffn(x, *w, "swiglu")  # noqa: E731
            y = run(x) if mode == "none" else checkpoint(run, x, use_reentrant=mode == "reentrant")
        assert y.dtype == torch.bfloat16 and y.isfinite().all()
        y.float().square().sum().backward()  # outside autocast
        results.append([y.detach(), x.grad, *(w.grad for w in weights)])
        assert all(t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in (x, *weights))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_autocast_is_the_cast_layer(dtype):
    inputs = make(5, 8, 6, bias=True)
    with torch.autocast("cpu", dtype=dtype):
        found = outputs(lambda i: call(i, "geglu").float(), inputs)
    cast = {n: None if t is None else t.detach().to(dtype).requires_grad_() for n, t in inputs.items()}
    expected = outputs(lambda i: call(i, "geglu"), cast)
    assert all(torch.equal(f, e.float()) for f, e in zip(found, expected, strict=True))
    with torch.autocast("cpu", dtype=dtype):
        double = {n: None if t is None else t.detach().double() for n, t in inputs.items()}
        assert call(double, "geglu").dtype == torch.float64
        assert call(cast, "geglu").dtype == dtype


@pytest.mark.parametrize("gated", (True, False))
def test_every_subset_of_frozen_inputs(gated):
    whole = make(7, 8, 5, gated=gated, bias=True)
    names = [n for n, t in whole.items() if t is not None]
    expected = dict(zip(names, outputs(call, whole, "silu")[1:], strict=True))
    gradient = torch.randn(7, 8, generator=torch.Generator().manual_seed(9))
    for frozen in itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names))):
        inputs = {n: None if t is None else t.detach().requires_grad_(n not in frozen) for n, t in whole.items()}
        call(inputs, "silu").backward(gradient)
        for name in names:
            found = inputs[name].grad
            assert (found is None) if name in frozen else torch.equal(found, expected[name]), (frozen, name)


def test_no_buffer_for_frozen_weights():
    inputs = {n: None if t is None else t.detach() for n, t in make(5, 8, 3).items()}
    needs = [True, False, False, True, False, False]
    hidden = torch.randn(5, 8)[:, :3]
    results = torch.ops.geowidth.ffn_backward(
        torch.ones(5, 8), *list(inputs.values())[:6], hidden, hidden, "silu", needs, None, "ieee"
    )
    assert [r.numel() for r in results] == [40, 0, 24, 0]


def test_one_tensor_in_two_places():
    w = torch.randn(5, 8, requires_grad=True)
    x = torch.randn(3, 8, requires_grad=True)
    found = torch.autograd.grad(ffn(x, w, w, w, "swiglu").sum(), [x, w])
    wide = [x.detach().double().requires_grad_(), w.detach().double().requires_grad_()]
    expected = torch.autograd.grad(ffn_plain(wide[0], wide[1], wide[1], wide[1], "swiglu").sum(), wide)
    assert max(errors(found, expected)) < 1e-6
    stacked = ffn(ffn(x, w, w, w, "silu"), w, w, w, "silu") + ffn(x, w, w, w, "silu")
    stacked.sum().backward(retain_graph=True)
    once = w.grad.clone()
    stacked.sum().backward()
    assert torch.equal(w.grad, 2 * once)


@pytest.mark.parametrize("gated,bias", [(True, False), (False, True)])
def test_gradcheck_and_double_backward(gated, bias):
    inputs = make(3, 4, 5, torch.float64, gated=gated, bias=bias)
    names = [n for n, t in inputs.items() if t is not None]

    def function(*tensors):
        return call(dict.fromkeys(NAMES) | dict(zip(names, tensors, strict=True)), "silu")

    present = [inputs[n] for n in names]
    assert torch.autograd.gradcheck(function, present)
    assert torch.autograd.gradgradcheck(function, present)
    w = inputs["up"]
    assert torch.autograd.gradgradcheck(lambda x, w: ffn(x, w, w, w, "swiglu"), (inputs["x"], w))


def test_double_backward_under_autocast_keeps_the_dtype_of_forward():
    """Autocast around the backward pass alone does not round what a float32 forward pass computed."""
    inputs = make(6, 8, 5)
    wanted = [t for t in inputs.values() if t is not None]

    y = call(inputs, "swiglu")
    plain = torch.autograd.grad(y.square().sum(), wanted[0], create_graph=True, retain_graph=True)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(y.square().sum(), wanted[0], create_graph=True)[0]
    assert found.dtype == torch.float32 and torch.equal(found, plain)


def test_eager_calls_look_up_no_signature(monkeypatch):
    """torch binds an autograd function's arguments by its signature if that has a `setup_context`: 50 us a call."""
    inputs = make(6, 8, 5)
    monkeypatch.setattr(inspect, "signature", None)
    call(inputs, "swiglu").sum().backward()


def test_inputs_and_kept_tensors_are_not_written():
    inputs = make(9, 8, 5, bias=True)
    before = {n: t.detach().clone() for n, t in inputs.items()}
    y = call(inputs, "swiglu")
    gradient = torch.randn(9, 8)
    copy = gradient.clone()
    first = torch.autograd.grad(y, list(inputs.values()), gradient, retain_graph=True)
    second = torch.autograd.grad(y, list(inputs.values()), gradient)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(gradient, copy) and all(torch.equal(inputs[n], t) for n, t in before.items())


def test_a_changed_input_is_noticed():
    inputs = make(3, 8, 5)
    y = call(inputs, "swiglu")
    with torch.no_grad():
        inputs["down"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


DISTRIBUTED = """
    import os, sys, tempfile
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from geowidth.models.ffn import FeedForward

    def stack():
        torch.manual_seed(0)
        return torch.nn.Sequential(FeedForward(8, 5), FeedForward(8, 11, "gelu", bias=True))

    def work(rank, path):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
        data = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))
        alone = stack()
        alone(data).square().mean().backward()
        expected = {n: p.grad for n, p in alone.named_parameters()}
        mine = data[2 * rank:2 * rank + 2] if rank == 0 else data[2:]
        parallel = torch.nn.parallel.DistributedDataParallel(stack())
        parallel(mine).square().mean().backward()
        for name, parameter in parallel.module.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name])
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        sharded, mesh = stack(), init_device_mesh("cpu", (2,))
        for layer in sharded:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        sharded(mine).square().mean().backward()
        for name, parameter in sharded.named_parameters():
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[name])
        dist.barrier()
        # Gradients are compared: leave without torch's teardown, whose communication threads may abort a process that
        # ends while they still let go of Python objects ("terminate called without an active exception").
        os._exit(0)

    if __name__ == "__main__":
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, (os.path.join(folder, "rendezvous"),), nprocs=2)
        print("equal")
"""


def test_data_parallel_and_fully_sharded(tmp_path):
    """Two processes: gradients of DDP and of FSDP2 equal those of one process on the joined batch."""
    script = tmp_path / "distributed.py"
    script.write_text(textwrap.dedent(DISTRIBUTED))
    environment = os.environ | {"PYTHONPATH": str(Path(geowidth.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and "equal" in done.stdout, done.stdout + done.stderr
