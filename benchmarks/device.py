"""One command for a machine with a GPU: ceilings, correctness, timings, a tile sweep, and one table last.

    python -m benchmarks.device [--seconds 450] [--out FILE.json]
    TRITON_INTERPRET=1 python -m benchmarks.device --rehearse     the same steps at toy size on a CPU

Ends within --seconds: a stage that would start too late is skipped, and the table says so. Exit code 1 when a result is
wrong, 0 otherwise, however slow. Nothing about the device is changed.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks.ffn import error, inputs, products, providers, reference, runner
from geowidth import records
from geowidth.ops.ffn import ffn

GRID = {"d": (1024, 2048, 4096), "width": (500, 1365, 1387, 2731, 5461, 14336), "tokens": (2048, 8192)}
SWEEP_SIZES = ((1024, 1387, 8192), (2048, 2731, 8192), (1024, 500, 2048))  # d, width, tokens


class Session:
    """What every stage needs: the device, the clock, and the lines of the last table."""

    def __init__(self, seconds, rehearse):
        self.end = time.monotonic() + seconds
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.dtype = torch.float32 if rehearse else torch.bfloat16
        self.table, self.wrong, self.results = [], [], {}

    def left(self):
        """Seconds until the session must end."""
        return self.end - time.monotonic()

    def note(self, line):
        """One line now, and again in the last table."""
        print(line, flush=True)
        self.table.append(line)


def seconds_of(function, device, rounds=10):
    """Median seconds of one call, by CUDA events where there is a GPU; the L2 cache is left as calls leave it."""
    for _ in range(2):
        function()
    if device == "cpu":
        times = []
        for _ in range(2):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        function()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) / 1e3


def ceilings(session):
    """Rates of a large library product and of a large copy: what everything else is a fraction of."""
    n = 64 if session.rehearse else 8192
    a = torch.randn(n, n, device=session.device, dtype=session.dtype)
    rate = 2 * n**3 / seconds_of(lambda: a @ a, session.device) / 1e12
    big = torch.empty(n * n * 2, device=session.device, dtype=session.dtype)
    copy = big.clone()
    bandwidth = 2 * big.numel() * big.element_size() / seconds_of(lambda: copy.copy_(big), session.device) / 1e12
    session.results["ceilings"] = {"product_tflops": rate, "copy_tb_per_second": bandwidth}
    session.note(f"ceilings: product {rate:.0f} TFLOP/s, copy {bandwidth:.2f} TB/s")


def with_fused(mode, function):
    """function() with every product fused ("always"), none ("never"), or as the table says ("")."""
    before = os.environ.get("GEOWIDTH_FFN_FUSED", "")
    os.environ["GEOWIDTH_FFN_FUSED"] = mode
    try:
        return function()
    finally:
        os.environ["GEOWIDTH_FFN_FUSED"] = before


def triton_layer(*arguments):
    """The op on the backend that is measured here."""
    return ffn(*arguments, backend="triton")


def correctness(session):
    """Every dtype and activation at prime sizes, fused and not, against float64; eager's error is the yardstick."""
    sizes = ((37, 40, 31),) if session.rehearse else ((1, 8, 1), (67, 72, 37), (1021, 1032, 1387), (2053, 1024, 509))
    dtypes = (torch.float32,) if session.rehearse else (torch.bfloat16, torch.float16, torch.float32)
    eager = providers(session.device, False)["eager"]
    count = 0
    for (tokens, d, width), dtype, name in itertools.product(sizes, dtypes, ("swiglu", "geglu", "geglu_tanh", "reglu")):
        leaves = inputs(tokens, d, width, dtype, session.device)
        truth = reference(leaves, name)
        theirs = error(eager, leaves, name, truth)
        for mode in ("always", "never"):
            ours = with_fused(mode, lambda a=leaves, n=name, t=truth: error(triton_layer, a, n, t))
            count += 1
            if not ours <= 2 * theirs + 1e-6:
                session.wrong.append(
                    f"{dtype} {name} {tokens}x{d}x{width} fused {mode}: {ours:.2g}, eager {theirs:.2g}"
                )
    session.note(f"correctness: {count} layers, {len(session.wrong)} beyond twice eager's error")
    for line in session.wrong:
        session.note(f"  wrong: {line}")


def timings(session):
    """Forward and backward on the grid: the op, library + elementwise kernels, eager, torch.compile, the products."""
    grid = {"d": (16,), "width": (13,), "tokens": (32,)} if session.rehearse else GRID
    over = {}
    for d, width, tokens in itertools.product(*grid.values()):
        if session.left() < 120 and not session.rehearse:
            session.note(f"timings: stopped before d={d} width={width} tokens={tokens}, out of time")
            break
        leaves = inputs(tokens, d, width, session.dtype, session.device)
        calls = {n: f for n, f in providers(session.device, not session.rehearse).items() if n != "geowidth"}
        times = {n: _time(session, f, leaves) for n, f in calls.items()}
        times["library + elementwise"] = with_fused("never", lambda a=leaves: _time(session, triton_layer, a))
        times["geowidth"] = _time(session, triton_layer, leaves)
        times["products"] = seconds_of(products(leaves, "forward and backward"), session.device)
        session.results.setdefault("timings", []).append({"d": d, "width": width, "tokens": tokens} | times)
        for name, value in times.items():
            over.setdefault(name, []).append(times["geowidth"] / value)
        text = ", ".join(f"{n} {v * 1e3:.3f}" for n, v in times.items())
        print(f"d={d} width={width} tokens={tokens}, ms: {text}", flush=True)
    for name, ratios in over.items():
        if name != "geowidth":
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            session.note(f"timings: geowidth / {name}: geometric mean {mean:.3f}, worst {max(ratios):.3f}")


def _time(session, function, leaves):
    return seconds_of(runner(function, leaves, "swiglu", "forward and backward", "cpu"), session.device)


def odd_widths(session):
    """1387 against 1408, the next multiple of 128, in time for each hidden unit."""
    d, tokens = (16, 32) if session.rehearse else (1024, 8192)
    for odd, even in ((13, 16),) if session.rehearse else ((1387, 1408), (5461, 5504)):
        times = [_time(session, triton_layer, inputs(tokens, d, w, session.dtype, session.device)) for w in (odd, even)]
        session.note(f"odd widths: {odd} takes {times[0] / times[1]:.3f} of the time of {even}")


def sweep(session):
    """The fastest tile of each product at a few sizes, beside the library: what the tile table should say."""
    from geowidth.kernels import tiles

    blocks = (16,) if session.rehearse else (64, 128)
    columns = (16,) if session.rehearse else (64, 128, 256)
    candidates = [
        tiles.Tile(m, n, 16 if session.rehearse else 64, warps, stages, slices={128: 2, 256: 8}.get(n, 1))
        for m, n, warps, stages in itertools.product(blocks, columns, (4, 8), (3, 4))
        if m * n / warps >= 512 or session.rehearse
    ]
    for d, width, tokens in ((16, 13, 32),) if session.rehearse else SWEEP_SIZES:
        for product in tiles.PRODUCTS:
            if session.left() < 45:
                return session.note(f"sweep: stopped before {product} at d={d}, out of time")
            run, library = _product(session, product, d, width, tokens)
            best = {}
            for tile in candidates:
                try:
                    best[str(tile)] = seconds_of(lambda t=tile, r=run: r(t), session.device, rounds=5)
                except Exception as failure:  # a tile that does not fit this chip
                    print(f"  {product} {tile}: {type(failure).__name__}", flush=True)
            base = seconds_of(library, session.device)
            if best:
                name = min(best, key=best.get)
                session.note(
                    f"sweep: {product} d={d} width={width} tokens={tokens}: {name}, {best[name] / base:.3f} of library"
                )


def _product(session, product, d, width, tokens):
    """(function of a tile, library alternative without arguments) for one product."""
    from geowidth.kernels import activation, gate_up, grad_hidden, grad_input
    from geowidth.ops.ffn_library import hidden_buffer, part
    from geowidth.ops.triton_support import interpreted

    x, gate, up, down = (t.detach() for t in inputs(tokens, d, width, session.dtype, session.device))
    options = {"interpreted": interpreted()}
    g, u, h, gradient = (part(hidden_buffer(tokens, width, x), width).zero_() for _ in range(4))
    pair = hidden_buffer(tokens, width, x, 2).zero_()
    dg, du, out = part(pair, width), part(pair, width, 1), torch.empty_like(x)

    def project():
        torch.mm(x, gate.T, out=g), torch.mm(x, up.T, out=u)
        activation.forward(0, g, u, h, padded=True)

    def hidden_gradient():
        torch.mm(x, down.T, out=gradient)
        activation.backward(0, g, u, gradient, dg, du, h, padded=True)

    if product == "grad_input":
        library = lambda: torch.mm(dg, gate, out=out).addmm_(du, up)  # noqa: E731
        return lambda tile: grad_input.run(tile, dg, du, gate, up, out, **options), library
    if product == "grad_hidden":
        return lambda tile: grad_hidden.run(tile, 0, x, down, g, u, dg, du, h, **options), hidden_gradient
    kept = (g, u) if product == "gate_up keep" else (None, None)
    return lambda tile: gate_up.run(tile, 0, x, gate, up, None, None, *kept, h, **options), project


STAGES = (ceilings, correctness, timings, odd_widths, sweep)


def main(argv=None):
    """Run all stages; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=450, help="when to be done (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON file for every number")
    parser.add_argument("--rehearse", action="store_true", help="toy sizes on a CPU in Triton's interpreter")
    arguments = parser.parse_args(argv)
    if not arguments.rehearse and not torch.cuda.is_available():
        print("no CUDA device is visible to torch; --rehearse runs the steps on a CPU", file=sys.stderr)
        return 2
    session = Session(arguments.seconds, arguments.rehearse)
    name = "CPU, interpreter" if arguments.rehearse else torch.cuda.get_device_name()
    session.note(f"device: {name}; torch {torch.__version__}")
    for stage in STAGES:
        if session.left() < 20:
            session.note(f"{stage.__name__}: skipped, out of time")
            continue
        stage(session)
    if arguments.out:
        records.write_json(arguments.out, session.results | {"table": session.table, "wrong": session.wrong})
    print("\n" + "\n".join(session.table))
    return 1 if session.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
