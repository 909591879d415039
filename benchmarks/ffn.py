"""The feed-forward layer against plain torch, torch.compile, Liger-Kernel (on a GPU) and the bare products.

    python -m benchmarks.ffn --device cpu
    python -m benchmarks.ffn --explain --dimensions 1024 --tokens 8192 --widths 1387

Providers take turns within every round. "products" multiplies the same matrices and does nothing else: the ceiling, in
the same run. Before anything is timed, every provider's result and gradients are compared with float64.
"""

import argparse
import sys
from functools import partial

import torch

from benchmarks.schema import Row, device_name
from benchmarks.timing import interleave, ratio
from geowidth.errors import UserError
from geowidth.ops.feed_forward.operation import explain, ffn
from geowidth.ops.feed_forward.reference import ffn_plain, ffn_reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODES = ("forward", "no gradients", "forward and backward")


def add_arguments(parser):
    """Options beside the common ones of benchmarks.run."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: %(default)s)")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[128, 512], help="sizes d of the residual stream")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024], help="numbers of tokens")
    parser.add_argument("--widths", type=int, nargs="+", default=[341, 352, 1387, 1408], help="FFN widths")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"], help="number formats")
    parser.add_argument("--activation", default="swiglu", help="a gated activation (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each provider (default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it compiles for a minute")
    parser.add_argument("--explain", action="store_true", help="say what is chosen at each size, and time nothing")


def products(leaves, mode):
    """A function that makes the layer's matrix products alone: three forward, six more backward."""
    x, gate, up, down = (t.detach() for t in leaves)
    hidden = torch.nn.functional.linear(x, up)

    def forward():
        torch.mm(x, gate.T), torch.mm(x, up.T), torch.mm(hidden, down)

    def both():
        forward()
        torch.mm(x, down.T), torch.mm(hidden.T, x), torch.mm(hidden.T, x), torch.mm(hidden.T, x)
        torch.mm(hidden, gate), torch.mm(hidden, up)

    return both if mode == "forward and backward" else forward


def providers(device, compiled):
    """{name: function(x, gate, up, down, activation)}."""
    found = {"geowidth": ffn, "eager": ffn_plain}
    if compiled:
        found["torch.compile"] = torch.compile(ffn_plain, dynamic=False)
    if device == "cuda":
        liger = _liger()
        if liger:
            found["liger-kernel"] = liger
    return found


def _liger():
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        return None

    def layer(x, gate, up, down, activation):
        if activation not in ("swiglu", "silu"):
            raise UserError("Liger-Kernel is compared for swiglu only")
        linear = torch.nn.functional.linear
        return LigerSiLUMulFunction.apply(linear(x, gate), linear(x, up)) @ down

    return layer


def inputs(tokens, d, width, dtype, device, seed=0):
    """[x, gate, up, down] as leaves, with activations of unit scale."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((tokens, d, 1.0), (width, d, d**-0.5), (width, d, d**-0.5), (width, d, width**-0.5))
    return [
        (torch.randn(a, b, generator=generator) * scale).to(device, dtype).requires_grad_() for a, b, scale in shapes
    ]


def saved_bytes(function, leaves, activation):
    """Bytes that one forward keeps for backward, weights not counted, shared memory counted once."""
    weights = {t.untyped_storage().data_ptr() for t in leaves[1:]}
    kept = {}

    def pack(tensor):
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        function(*leaves, activation)
    return sum(kept.values())


def peak_bytes(run, device):
    """Most bytes that lived at once during run(), beyond those before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    changes = [(e.start_ns(), e.nbytes()) for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def error(function, leaves, activation, reference):
    """Largest error of output and gradients against float64, each in units of its largest entry."""
    y = function(*leaves, activation)
    found = [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]
    return max(((f.double() - r).abs().max() / r.abs().max()).item() for f, r in zip(found, reference, strict=True))


def reference(leaves, activation):
    """Output and gradients in float64."""
    wide = [t.detach().double().requires_grad_() for t in leaves]
    y = ffn_reference(*wide, activation)
    return [y.detach(), *torch.autograd.grad(y, wide, torch.ones_like(y))]


def runner(function, leaves, activation, mode, device):
    """A function without arguments that does one call of `mode` and waits for it."""
    gradient = torch.ones_like(leaves[0])

    def call():
        if mode == "no gradients":
            with torch.no_grad():
                function(*leaves, activation)
        else:
            y = function(*leaves, activation)
            if mode == "forward and backward":
                torch.autograd.grad(y, leaves, gradient)

    return waiting(call, device)


def waiting(function, device):
    """`function`, returning only when the device is done."""

    def call():
        function()
        if device == "cuda":
            torch.cuda.synchronize()

    return call


def measure(arguments, d, tokens, width, dtype):
    """Rows of one size."""
    leaves = inputs(tokens, d, width, DTYPES[dtype], arguments.device, arguments.seed)
    found = providers(arguments.device, not arguments.no_compile)
    truth = reference(leaves, arguments.activation)
    errors = {name: error(f, leaves, arguments.activation, truth) for name, f in found.items()}
    if errors["geowidth"] > 2 * errors["eager"] + 1e-6:
        raise SystemExit(f"geowidth's error {errors['geowidth']:.2g} is above twice eager's {errors['eager']:.2g}")
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else device_name()
    common = dict(op="ffn", x_name="width", x_value=width, threads=arguments.threads, device=device)
    size = f"{dtype} d={d} tokens={tokens}"
    clock = (
        "cpu" if arguments.device == "cpu" and arguments.threads == 1 else "wall"
    )  # other processes' time not counted
    rows = []
    for mode in MODES:
        calls = {n: runner(f, leaves, arguments.activation, mode, arguments.device) for n, f in found.items()}
        calls["products"] = waiting(products(leaves, mode), arguments.device)
        samples = interleave(calls, rounds=arguments.rounds, least=0.05, warmup=2)
        over = partial(ratio, samples, base="eager", metric=clock)
        for name in samples:
            where = dict(provider=name, mode=f"{mode}, {size}", error=errors.get(name, float("nan")), **common)
            rows.append(Row(metric="wall", **where, **samples[name].quantiles()))
            if name != "eager":
                rows.append(Row(metric="ratio", note=f"over eager, {clock}", **where, **over(name)))
    for name, function in found.items():
        where = dict(provider=name, metric="bytes", **common)
        kept = saved_bytes(function, leaves, arguments.activation)
        rows.append(Row(mode=f"kept for backward, {size}", p50=kept, **where))
        for mode in MODES[1:]:
            most = peak_bytes(runner(function, leaves, arguments.activation, mode, arguments.device), arguments.device)
            rows.append(Row(mode=f"peak, {mode}, {size}", p50=most, **where))
    return rows


def run(arguments):
    """All rows; with --quick one small size."""
    if arguments.device == "cuda" and not torch.cuda.is_available() and not arguments.explain:
        raise SystemExit("no CUDA device is visible to torch; use --device cpu")
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.dimensions, arguments.tokens, arguments.widths, arguments.rounds = [64], [256], [171], 3
    rows = []
    for dtype in arguments.dtypes:
        for d in arguments.dimensions:
            for tokens in arguments.tokens:
                for width in arguments.widths:
                    if arguments.explain:
                        print(explain(tokens, d, width, dtype=DTYPES[dtype], device=arguments.device, chip=_chip()))
                        continue
                    rows += measure(arguments, d, tokens, width, dtype)
                    print(f"{dtype}, d = {d}, tokens = {tokens}, width = {width}: done", file=sys.stderr)
    return rows


def _chip():
    if not torch.cuda.is_available():
        return "sm_90"
    from geowidth.kernels import tiles

    return tiles.chip_name(torch.cuda.get_device_capability())


def main(argv=None):
    """Run by itself: benchmarks.run's options and output, or --explain."""
    from benchmarks import run as frame

    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ffn", description=__doc__)
    frame.add_common_arguments(parser)
    add_arguments(parser)
    if parser.parse_args(argv).explain:
        run(parser.parse_args(argv))
        return 0
    return frame.main(["ffn", *argv])


if __name__ == "__main__":
    sys.exit(main())
