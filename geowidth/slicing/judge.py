"""What slicing cost and what it saved: loss, parameters, time and memory, each beside the whole model's."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth.artifacts.cost import linear_cost
from geowidth.cascade.held_out import BATCH, HeldOut, check_room, mean_and_error, window_losses
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import safetensors_files
from geowidth.measure.models import backbone_of, forward, input_device, takes
from geowidth.progress import Progress
from geowidth.slicing.ffns import FFNs, ffns_of
from geowidth.slicing.targets import sizes_of

SAME, SAME_ROUNDED = 1e-4, 0.25  # of the largest state: how far a written model may be from the sliced one
ROUNDS = 7  # timed passes of each model
TIMED_WINDOWS = 1  # windows in a timed pass


def judged_losses(model: torch.nn.Module, text: HeldOut, label: str, batch: int = BATCH // 2) -> np.ndarray:
    """Loss of every window in nats a token, float64 (windows,), with progress."""
    found = []
    with Progress(len(text.tokens), label, unit="window") as progress:
        for tokens, targets in text.batches(batch):
            found.append(window_losses(model, replace(text, tokens=tokens, targets=targets), batch))
            progress.step(len(tokens))
    return np.concatenate(found)


def compared(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Losses of two models over the same windows, and their paired difference, each with its standard error."""
    return {
        "loss_before": mean_and_error(before),
        "loss_after": mean_and_error(after),
        "difference": mean_and_error(after - before),
    }


@torch.no_grad()
def state_errors(whole: torch.nn.Module, sliced: torch.nn.Module, text: HeldOut, label: str) -> np.ndarray:
    """What slicing changed in the last states of every window: |sliced - whole|^2 / |whole|^2, float64 (windows,).

    For models that predict no next token.
    """
    check_room(whole, text, 1)
    found = []
    with Progress(len(text.tokens), label, unit="window") as progress:
        for tokens, _ in text.batches(1):
            wanted, states = (last_states(model, tokens) for model in (whole, sliced))
            found.append(float((states - wanted).square().sum() / wanted.square().sum()))
            progress.step()
    return np.array(found)


def last_states(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """States (batch, length, dimension) after the last layer, float64 on the CPU."""
    runner = backbone_of(model)
    given = {"attention_mask": torch.ones_like(tokens)} if takes(runner, "attention_mask") else {}
    device = input_device(model)
    output = runner(tokens.to(device), **{name: value.to(device) for name, value in given.items()})
    return (output if isinstance(output, torch.Tensor) else output[0]).double().cpu()


def sizes(ffns: FFNs, sliced: torch.nn.Module, folder: Path) -> dict[str, Any]:
    """{"parameters", "ffn_parameters", "bytes"}, each {"whole", "sliced"}; ffns: those of the whole model.

    sliced, folder: the model as it was written, padding and all. bytes: of its weight files, and what the whole model
    would take in the same dtype.
    """
    known, after = sizes_of(ffns), ffns_of(sliced)
    cost = linear_cost("parameters", known.layers, known.dimension, known.projections, after.biases)
    whole, now = (sum(p.numel() for p in model.parameters()) for model in (ffns.model, sliced))
    written = sum(path.stat().st_size for path in safetensors_files(folder))
    found = {
        "parameters": (whole, now),
        "ffn_parameters": (known.cost.total(known.widths), cost.total(after.widths)),
        "bytes": (round(written / now * whole), written),
    }
    return {name: {"whole": before, "sliced": after} for name, (before, after) in found.items()}


@torch.no_grad()
def check_same(sliced: torch.nn.Module, written: torch.nn.Module, text: HeldOut) -> None:
    """Raise a UserError where the model that was written and opened again does not compute what the sliced one does.

    Weights of 16 bits are rounded ones: there the check is against another model, not another rounding.
    """
    wanted, found = (last_states(model, text.tokens[:1]) for model in (sliced, written))
    apart = float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))
    most = SAME if _full(sliced, written) else SAME_ROUNDED
    if not apart <= most:
        raise UserError(
            f"a {type(sliced).__name__} cannot be written sliced: opened again, its last states differ by {apart:.2g} "
            "of the largest; nothing was written"
        )


def _full(sliced, written):
    """Whether no weight was rounded: those outside the FFNs, whose shapes stay, are the same numbers."""
    after = dict(written.named_parameters())
    pairs = [(p, after[name]) for name, p in sliced.named_parameters() if name in after]
    return all(p.shape != q.shape or torch.equal(p.detach().to(q.device), q) for p, q in pairs)


@torch.no_grad()
def timed(
    whole: torch.nn.Module, sliced: torch.nn.Module, text: HeldOut, rounds: int = ROUNDS, windows: int = TIMED_WINDOWS
) -> dict[str, Any]:
    """Tokens a second of forward passes of both models over the same windows, one after the other, round by round.

    Returns {"whole", "sliced": {"median", "low", "high"}, "ratio", "ratio_low", "ratio_high", "rounds", "tokens",
    "device"}: low and high are the quartiles. ratio: median of how many times as fast the sliced model was in a round.
    A first pass of each is left out. The machine's own load is in the spread.
    """
    tokens = text.tokens[:windows]
    models = {"whole": whole, "sliced": sliced}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with Progress(rounds + 1, "time", unit="round") as progress:
        for number in range(rounds + 1):
            for name in models if number % 2 else reversed(models):
                spent = _pass_seconds(models[name], tokens)
                if number:
                    seconds[name].append(spent)
            progress.step()
    speeds = {name: tokens.numel() / np.array(times) for name, times in seconds.items()}
    facts: dict[str, Any] = {name: _spread(found) for name, found in speeds.items()}
    ratio = _spread(speeds["sliced"] / speeds["whole"])
    facts |= {"ratio": ratio["median"], "ratio_low": ratio["low"], "ratio_high": ratio["high"]}
    return facts | {"rounds": rounds, "tokens": tokens.numel(), "device": str(input_device(whole))}


def _pass_seconds(model, tokens):
    device = input_device(model)
    ids, mask = tokens.to(device), torch.ones_like(tokens).to(device)
    _wait(device)
    start = time.perf_counter()
    forward(model, ids, mask)
    _wait(device)
    return time.perf_counter() - start


def _wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _spread(values):
    low, median, high = np.percentile(values, (25, 50, 75))
    return {"median": float(median), "low": float(low), "high": float(high)}


def ranges(indices: torch.Tensor) -> str:
    """Ascending numbers in words, as in "0-5 7": 0 to 5 and 7."""
    runs: list[list[int]] = []
    for index in indices.tolist():
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
