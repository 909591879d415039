"""Whole blocks against neurons at equal parameters: how many blocks go, and how narrow those that stay then are.

Blocks go by a score of geowidth.cascade (by default the smallest angle between what enters and leaves a block goes
first); for every number of them the rest is sliced to the same number of parameters, and what has the least measured
loss is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geowidth.artifacts.schedule import Schedule
from geowidth.cascade.blocks import ResidualBlocks
from geowidth.cascade.held_out import HeldOut, mean_and_error, window_losses
from geowidth.cascade.importance import evaluating
from geowidth.cascade.scores import RULES, block_scores, removal_order
from geowidth.cascade.scores import Evidence as BlockEvidence
from geowidth.errors import UserError, choose, whole
from geowidth.progress import Progress
from geowidth.slicing.apply import sliced
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.ffns import FFN, FFNs
from geowidth.slicing.layer_losses import check_predicts
from geowidth.slicing.scores import neuron_scores
from geowidth.slicing.selection import kept_neurons
from geowidth.slicing.targets import Budget, Keep, Parameters, Sizes
from geowidth.slicing.widths import Asked, slice_widths

JUDGED = 4  # every how many calibration windows one is kept for the losses
PATIENCE = 2  # numbers of blocks in a row that may be worse than the best before no more are tried
RIDGE = 1e-2


@dataclass(frozen=True)
class Trial:
    """A number of blocks removed, and the rest sliced to the parameters asked for.

    removed      blocks, in the order in which they went
    schedule     widths of those that stay, first one first
    parameters   distinct ones of the whole
    losses       of the judged windows, float64 (windows,), nats per token
    """

    removed: tuple[int, ...]
    schedule: Schedule
    parameters: int
    losses: np.ndarray

    def to_json(self, best: Trial) -> dict[str, Any]:
        """As a dict; its loss also as a difference to the best trial's, paired over windows."""
        facts = {"removed": list(self.removed), "widths": list(self.schedule.widths), "parameters": self.parameters}
        difference = mean_and_error(self.losses - best.losses)
        return {**facts, "loss": mean_and_error(self.losses), "more_than_best": difference}


@dataclass(frozen=True)
class DepthAndWidth:
    """Trials with 0, 1, ... blocks removed. best: the one of least mean loss. corrected: whether each was corrected by
    least squares; not where there were fewer tokens to fit than neurons."""

    trials: tuple[Trial, ...]
    corrected: bool

    @property
    def best(self) -> Trial:
        return min(self.trials, key=lambda trial: float(trial.losses.mean()))

    def to_json(self) -> dict[str, Any]:
        trials = [trial.to_json(self.best) for trial in self.trials]
        return {"best": len(self.best.removed), "corrected": self.corrected, "trials": trials}


def depth_against_width(
    evidence: Evidence,
    target: Parameters | Keep,
    by: str = "uniform",
    *,
    blocks_by: str = "similarity",
    most: int | None = None,
    patience: int = PATIENCE,
    multiple: int = 1,
    tensor_parallel: int = 1,
    max_distinct_widths: int | None = None,
) -> DepthAndWidth:
    """Try 0, 1, 2, ... blocks removed at equal parameters; the model is as before afterwards.

    evidence     FFNs of a causal language model, and calibration windows: every fourth is kept for the losses, the
                 others score blocks and neurons and correct what is sliced
    target       Parameters, or Keep: then as many parameters as that share of the neurons leaves
    by           rule for widths that measures no layer by itself: uniform, threshold, a schedule, a control of these
    blocks_by    rule of geowidth.cascade by which blocks go: similarity, taylor, magnitude, random
    most         blocks that go (default: as long as the model without them is not below the target)
    patience     no further block is tried once so many numbers in a row were worse than the best
    multiple, tensor_parallel, max_distinct_widths
                 of widths, see slice_widths
    """
    asked = Asked.parse(by)
    if "text" in asked.reads:
        raise UserError(
            f"by is {by}; with blocks removed the allowed rules for widths are those that measure no layer by itself: "
            "uniform, threshold, and schedules"
        )
    choose("pruning rule", blocks_by, [name for name, rule in RULES.items() if "ledger" not in rule.reads])
    patience, sizes = whole("patience", patience, 1), evidence.sizes
    total = _parameters(target, sizes)
    fitted, judged = _parts(evidence.windows())
    ffns: FFNs = evidence.ffns
    check_predicts(ffns)
    blocks = ResidualBlocks(ffns.model, ffns.family.blocks(ffns.model))
    order = removal_order(block_scores(blocks_by, BlockEvidence(blocks, fitted, seed=evidence.seed)))
    counts = _counts(blocks, order, sizes, total, most)
    rules = {"multiple": multiple, "tensor_parallel": tensor_parallel, "max_distinct_widths": max_distinct_widths}
    corrected = _enough_to_fit(fitted, sizes)
    trials: list[Trial] = []
    with evaluating(ffns.model), Progress(len(counts), "depth and width", unit="number of block") as progress:
        for count in counts:
            kept = _without(evidence, blocks, order[:count], fitted)
            trials.append(kept.trial(by, total, rules, judged, corrected))
            progress.step(text=f"{count} blocks removed, loss {trials[-1].losses.mean():.4f}")
            if len(trials) - 1 - int(np.argmin([t.losses.mean() for t in trials])) >= patience:
                break
    return DepthAndWidth(tuple(trials), corrected)


@dataclass(frozen=True)
class _Shortened:
    """A model without blocks: what its rules look at, its sizes, and where it is."""

    evidence: Evidence
    blocks: ResidualBlocks
    removed: tuple[int, ...]
    sizes: Sizes

    def trial(self, by, total, rules, judged, corrected):
        ffns, text = self.evidence.ffns, self.evidence.windows()
        with self.blocks.without(self.removed):
            scores = neuron_scores(ffns, text, self.evidence.neurons, seed=self.evidence.seed)
            seen = replace(self.evidence, ffns=self.sizes, scores=scores)
            schedule = slice_widths(by, seen, Parameters(min(total, self.sizes.parameters or total)), **rules)
            kept = kept_neurons(scores, schedule.widths)
            with sliced(ffns, kept, text if corrected else None, ridge=RIDGE):
                losses = window_losses(ffns.model, judged, self.evidence.batch)
        return Trial(self.removed, schedule, self.sizes.total(schedule.widths), losses)


class _Some(FFNs):
    """FFNs of some blocks of a model, numbered anew, while the others are left out."""

    def state_widths(self) -> None:
        """Nothing: the config states the widths of all blocks."""


def _without(evidence, blocks, removed, fitted):
    """The _Shortened without the blocks `removed`."""
    stay = [i for i in range(len(blocks)) if i not in removed]
    every = evidence.ffns
    parts = [FFN(new, every[i].name, every[i].rows, every[i].down, every[i].bias) for new, i in enumerate(stay)]
    some = _Some(every.model, every.family, parts)
    sizes = replace(evidence.sizes, widths=some.widths, parameters=_left(blocks, removed, evidence.sizes))
    return _Shortened(replace(evidence, ffns=some, text=fitted, scores=None, kept_in=None), blocks, removed, sizes)


def _left(blocks, removed, sizes):
    """Distinct parameters of the model without some blocks."""
    gone = {id(p): p.numel() for block in removed for p in blocks.parameters(block)}
    return sizes.parameters - sum(gone.values())


def _counts(blocks, order, sizes, total, most):
    """Numbers of blocks to try: from 0 up as long as what is left has enough parameters."""
    most = len(blocks) - 1 if most is None else whole("most blocks", most, 0, len(blocks) - 1)
    return [count for count in range(most + 1) if _left(blocks, order[:count], sizes) >= total]


def _parameters(target, sizes):
    """Parameters of the whole model that a target asks for; UserError for one of time, and for none that fit."""
    if isinstance(target, Keep):
        neurons = target.budget(sizes)
        cost = sizes.cost
        return sizes.outside() + int(cost.fixed.sum()) + int(cost.per_width[0]) * int(neurons.amount)
    if not isinstance(target, Parameters):
        raise UserError("blocks and neurons are weighed at equal parameters; give --parameters or --keep")
    _: Budget = target.budget(sizes)  # refuses what no widths meet
    return target.total


def _parts(text):
    """(windows to fit, windows for losses), every JUDGED-th the latter; UserError for fewer than eight."""
    count = len(text.tokens)
    if count < 2 * JUDGED:
        raise UserError(f"{count} calibration windows came; {2 * JUDGED} or more are needed, to judge by some of them")
    judged = np.arange(JUDGED - 1, count, JUDGED)
    fitted = np.setdiff1d(np.arange(count), judged)
    return _some(text, fitted), _some(text, judged)


def _some(text: HeldOut, rows: Sequence[int] | np.ndarray) -> HeldOut:
    settings = {**text.settings, "windows": len(rows)}
    return HeldOut(text.tokens[rows], text.targets[rows], settings)


def _enough_to_fit(text, sizes):
    return text.tokens.numel() >= max(sizes.widths)
