"""The feed-forward layer on a GPU: every dtype and activation, its time, and what the tile table should say."""

import itertools
import math
import os
import statistics

import torch

from benchmarks.device_stages.session import median, poison, quantiles, race, seconds_of
from benchmarks.ffn import error, inputs, products, providers, reference, runner
from geowidth.ops.feed_forward.operation import ffn

GRID = {"tokens": (8192, 2048), "d": (1024, 2048, 4096), "width": (1387, 500, 1365, 2731, 5461, 14336)}
TOY = {"tokens": (32,), "d": (16,), "width": (13,)}
# Sizes at which torch.compile takes part: it compiles each for many seconds.
COMPILED = ((1024, 1387, 8192), (2048, 5461, 8192), (4096, 14336, 8192), (1024, 500, 2048))
SWEEP_SIZES = ((1024, 1387, 8192), (2048, 2731, 8192), (1024, 500, 2048))  # d, width, tokens


def dtype_of(session):
    """What is timed; Triton's interpreter has no bfloat16 products."""
    return session.pick(torch.bfloat16, torch.float32)


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
    sizes = session.pick(((1, 8, 1), (67, 72, 37), (1021, 1032, 1387), (2053, 1024, 509)), ((37, 40, 31),))
    dtypes = session.pick((torch.bfloat16, torch.float16, torch.float32), (torch.float32,))
    names = session.pick(("swiglu", "geglu", "geglu_tanh", "reglu"), ("swiglu",))
    eager = providers(session.device, False)["eager"]
    before, count = len(session.wrong), 0
    for (tokens, d, width), dtype, name in itertools.product(sizes, dtypes, names):
        leaves = inputs(tokens, d, width, dtype, session.device)
        truth = reference(leaves, name)
        theirs = error(eager, leaves, name, truth)
        for mode in ("always", "never"):
            poison(session)
            ours = with_fused(mode, lambda a=leaves, n=name, t=truth: error(triton_layer, a, n, t))
            words = f"{name}, {str(dtype).removeprefix('torch.')}, d={d}, width={width}, fused {mode}"
            session.judge("ffn", "triton", words, tokens, ours, 2 * theirs + 1e-6)
            count += 1
    session.note(f"ffn: {count} layers checked, {len(session.wrong) - before} beyond twice eager's error")


def timings(session):
    """Forward and backward on the grid: the op, library + elementwise kernels, eager, torch.compile, the products."""
    over = {}
    for tokens, d, width in itertools.product(*session.pick(GRID, TOY).values()):
        if session.left() < 50 and not session.rehearse:
            session.note(f"ffn: stopped before d={d} width={width} tokens={tokens}, out of time")
            break
        leaves = inputs(tokens, d, width, dtype_of(session), session.device)
        compiled = (d, width, tokens) in COMPILED
        if compiled:
            torch.compiler.reset()  # its limit of sizes for one function would leave later ones uncompiled
        times = race(session, _calls(session, leaves, compiled), seconds=1.0, most=10)
        mode = f"forward and backward, d={d}, tokens={tokens}"
        for name, values in times.items():
            session.add("ffn", name, mode, "wall", "width", width, **quantiles(values))
        if "geowidth" in times:
            ours = median(times["geowidth"])
            for name, values in times.items():
                over.setdefault(name, []).append(ours / median(values))
        print(f"{mode}, width={width}, ms:", {n: round(median(v) * 1e3, 3) for n, v in times.items()}, flush=True)
    for name, ratios in over.items():
        if name != "geowidth":
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            session.note(f"ffn: geowidth / {name}: geometric mean {mean:.3f}, worst {max(ratios):.3f}")


def _calls(session, leaves, compiled):
    def call(function):
        return runner(function, leaves, "swiglu", "forward and backward", "cpu")

    found = providers(session.device, compiled)
    found.pop("geowidth")
    calls = {name: call(function) for name, function in found.items()}
    calls["geowidth"] = call(triton_layer)
    calls["library + elementwise"] = lambda: with_fused("never", calls["geowidth"])
    calls["products"] = products(leaves, "forward and backward")
    return calls


def odd_widths(session):
    """1387 against 1408, the next multiple of 128, in time for each hidden unit."""
    d, tokens = session.pick((1024, 8192), (16, 32))
    for odd, even in session.pick(((1387, 1408), (5461, 5504)), ((13, 16),)):
        leaves = {w: inputs(tokens, d, w, dtype_of(session), session.device) for w in (odd, even)}
        times = race(
            session,
            {str(w): runner(triton_layer, a, "swiglu", "forward and backward", "cpu") for w, a in leaves.items()},
            seconds=2.0,
        )
        share = median(times[str(odd)]) / median(times[str(even)])
        session.add("ffn", "triton", f"time of {odd} over {even}", "ratio", "width", odd, p50=share)
        session.note(f"ffn: width {odd} takes {share:.3f} of the time of {even}")


def sweep(session):
    """The fastest tile of each product at a few sizes, beside the library: what the tile table should say."""
    from geowidth.kernels import tiles

    blocks, columns, depth = session.pick(((64, 128), (64, 128, 256), 64), ((16,), (16,), 16))
    warps_and_stages = session.pick(tuple(itertools.product((4, 8), (3, 4))), ((4, 3),))
    candidates = [
        tiles.Tile(m, n, depth, warps, stages, slices={128: 2, 256: 8}.get(n, 1))
        for m, n, (warps, stages) in itertools.product(blocks, columns, warps_and_stages)
        if m * n / warps >= 512 or session.rehearse
    ]
    for d, width, tokens in session.pick(SWEEP_SIZES, ((16, 13, 32),)):
        for product in tiles.PRODUCTS:
            if session.left() < 20 and not session.rehearse:
                return session.note(f"sweep: stopped before {product} at d={d}, out of time")
            run, library = _product(session, product, d, width, tokens)
            best = {}
            for tile in candidates:
                try:
                    run(tile)
                    best[str(tile)] = min(seconds_of(session, lambda t=tile, r=run: r(t)) for _ in range(3))
                except Exception as failure:  # a tile that does not fit this chip
                    print(f"  {product} {tile}: {type(failure).__name__}", flush=True)
            library()
            base = min(seconds_of(session, library) for _ in range(3))
            if best:
                name = min(best, key=best.get)
                words = f"{product} d={d} width={width} tokens={tokens}: {name}, {best[name] / base:.3f} of library"
                session.note(f"sweep: {words}")


def _product(session, product, d, width, tokens):
    """(function of a tile, library alternative without arguments) for one product."""
    from geowidth.kernels import activation, gate_up, grad_hidden, grad_input
    from geowidth.ops.feed_forward.problem import hidden_buffer, part
    from geowidth.ops.triton_support import interpreted

    x, gate, up, down = (t.detach() for t in inputs(tokens, d, width, dtype_of(session), session.device))
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
