"""Measuring what an FFN of each width costs in time on a device: the staircase behind budgets in milliseconds."""

import math
import os
import random
import time

import numpy as np
import torch

from geowidth import records
from geowidth.artifacts.cost import TableCost
from geowidth.devices import device_named
from geowidth.errors import UserError, choose
from geowidth.progress import Progress

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PASSES = ("forward", "training")
_SAMPLE_SECONDS = 4e-3  # a sample repeats the pass until it lasts this long, well above the clock's grain


def measure_cost(
    widths, model_dimension, *, tokens=2048, projections=3, device="cpu", dtype="float32", kind="forward", rounds=7
):
    """A TableCost for an FFN of `model_dimension` over ascending `widths`, one FFN on `tokens` tokens a pass.

    projections: 3 (gated, SiLU) or 2 (plain, GELU). kind: "forward", or "training" for forward and backward. Rounds
    visit the widths in random order, so that a machine that slows down slows all of them; the table is the closest
    never falling curve to the medians. Raises UserError for a device or dtype this machine does not have.
    """
    choose("pass", kind, PASSES)
    choose("dtype", dtype, list(DTYPES))
    target = device_named(device)
    _check_memory(max(widths), model_dimension, tokens, projections, DTYPES[dtype].itemsize, target)
    weights = _weights(max(widths), model_dimension, tokens, projections, target, DTYPES[dtype])
    passes = {width: _one_pass(width, weights, kind) for width in widths}
    repeats = {width: _repeats(run, target) for width, run in passes.items()}
    samples: dict[int, list[float]] = {width: [] for width in widths}
    order = random.Random(0)
    with Progress(rounds * len(widths), f"cost on {device}", unit="timing") as progress:
        for _ in range(rounds):
            for width in order.sample(widths, len(widths)):
                samples[width].append(_seconds(passes[width], repeats[width], target) / repeats[width] * 1e3)
                progress.step(text=f"width {width}: {samples[width][-1]:.3g} ms")
    table = np.array([samples[width] for width in widths])
    low, median, high = np.quantile(table, [0.2, 0.5, 0.8], axis=1)
    facts = {
        "model_dimension": model_dimension,
        "projections": projections,
        "tokens": tokens,
        "dtype": dtype,
        "pass": kind,
        "rounds": rounds,
        "device": torch.cuda.get_device_name(target) if target.type == "cuda" else "cpu",
        "measured": {"median": median.tolist(), "quantile_20": low.tolist(), "quantile_80": high.tolist()},
        "environment": records.environment(),
    }
    return TableCost(np.asarray(widths, dtype=np.int64), never_falling(median), facts)


def never_falling(values):
    """The closest never falling sequence in least squares (pool adjacent violators), float64."""
    blocks = []  # [mean, count]
    for value in np.asarray(values, dtype=np.float64):
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            before = blocks[-1]
            blocks[-1] = [(before[0] * before[1] + mean * count) / (before[1] + count), before[1] + count]
    return np.repeat([b[0] for b in blocks], [b[1] for b in blocks])


def _check_memory(width, dimension, tokens, projections, size, device):
    """Refuse what does not fit into the device's memory: weights, states, hidden layers and gradients of all."""
    needed = 2 * size * (projections * width * dimension + tokens * (dimension + projections * width))
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"an FFN of width {width} at model dimension {dimension} on {tokens} tokens takes {needed / 1e9:.3g} GB; "
            f"this device has {there / 1e9:.3g} GB: take narrower widths or fewer tokens"
        )


def _weights(width, dimension, tokens, projections, device, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(tokens, dimension), *[(width, dimension)] * projections]
    scale = 1.0 / math.sqrt(dimension)
    return [(torch.randn(s, generator=generator) * scale).to(device, dtype) for s in shapes]


def _one_pass(width, tensors, kind):
    """A function that runs the FFN of the first `width` hidden units once."""
    states, *matrices = tensors
    matrices = [m[:width] for m in matrices]  # rows: contiguous, no copy

    def forward(states, into, *rest):
        hidden = states @ into.t()
        if len(rest) == 2:
            hidden = torch.nn.functional.silu(hidden) * (states @ rest[0].t())
        else:
            hidden = torch.nn.functional.gelu(hidden)
        return hidden @ rest[-1]

    def infer():
        with torch.no_grad():
            forward(states, *matrices)

    def train():
        leaves = [t.detach().requires_grad_() for t in (states, *matrices)]
        forward(*leaves).sum().backward()

    return infer if kind == "forward" else train


def _seconds(run, repeats, device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _repeats(run, device):
    _seconds(run, 2, device)  # warm: allocations, kernel choice
    return max(1, math.ceil(_SAMPLE_SECONDS / max(_seconds(run, 1, device), 1e-7)))
