"""The record of a cascade study: what its finished cells say of every arm, and the comparison of paired seeds.

Importance of a block is what the loss on held-out text grows by when the block is left out. The share of the late
blocks is their part of the sum over all blocks; a block without which the loss is lower counts as 0.

    late_half       share of the last half of the blocks (of 8 the last 4); the headline
    late_quarter    share of the last quarter, at least one block
    late_rest       share of the last half, the first block left out of both sums: it often outweighs all others
    late_sum        importance of the last half, summed, in nats per token
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from geowidth.cascade.correlation import correlate
from geowidth.forms import COUNT, FINITE, NUMBER, OBJECT, TEXT, Each, Part
from geowidth.train.corrections import holm, paired_t_p
from geowidth.train.evidence import paired_difference

SCHEMA = 1
CONFIDENCE = 0.95
MEASURES = ("late_half", "late_quarter", "late_rest", "late_sum", "loss")
PAIRS = ("shares_importance", "fan_in_importance", "fan_in_shares")

_FINITE_OR_NULL = Part("a finite number, or null", lambda v: v is None or FINITE.fits(v))
_BETWEEN = {"value?": FINITE, "interval?": [FINITE], "confidence": FINITE, "pairs": COUNT}
_BOTH = {"spearman": _BETWEEN, "pearson": _BETWEEN}
_DIFFERENCE = {
    "mean": FINITE, "standard_error?": FINITE, "interval?": [FINITE], "confidence": FINITE, "seeds": COUNT,
    "sign_flip_p": FINITE, "smallest_sign_flip_p": FINITE, "t_p?": FINITE, "holm_p?": FINITE, "by_seed": Each(FINITE),
}  # fmt: skip
_CELL = {
    "loss": FINITE, "judged_loss": FINITE, "importance": [FINITE], "standard_errors": [FINITE], "shares": [FINITE],
    "late_half?": FINITE, "late_quarter?": FINITE, "late_rest?": FINITE, "late_sum": FINITE, "seconds": FINITE,
    "spearman?": FINITE, "pearson?": FINITE,
}  # fmt: skip
_ARM = {
    "arm": TEXT, "sentence": TEXT, "against?": TEXT, "optimizer": TEXT, "learning_rate": FINITE, "changes": OBJECT,
    "fan_in": [FINITE], "fan_in_words": TEXT, "parameters?": COUNT, "flops?": FINITE, "cells": Each(_CELL),
    "means": {"importance?": [FINITE], "shares?": [FINITE], **{f"{name}?": FINITE for name in MEASURES}},
    "spreads": {"importance?": [FINITE], "shares?": [FINITE]},
    "correlations": {f"{name}?": _BOTH for name in PAIRS}, "differences": Each(_DIFFERENCE), "verdict?": TEXT,
}  # fmt: skip
RECORD = {
    "settings": OBJECT, "layers": COUNT, "late": {"half": [COUNT], "quarter": [COUNT]}, "unit": TEXT,
    "corpus?": OBJECT, "text?": OBJECT, "arms": [_ARM], "missing": [TEXT], "question": TEXT, "headline": TEXT,
    "definition": TEXT, "plain": [TEXT], "sentences": [TEXT], "notes": [TEXT], "environment": OBJECT,
    "rates?": {"seed": COUNT, "rates": [NUMBER], "losses": [_FINITE_OR_NULL], "chosen?": FINITE, "words": TEXT},
}  # fmt: skip
AGAIN = "delete it and run geowidth cascade study again"


def late_blocks(layers: int, part: float) -> list[int]:
    """The last blocks: `part` of all, rounded down, at least one."""
    count = max(1, int(layers * part))
    return list(range(layers - count, layers))


def share_of(importance: Sequence[float] | np.ndarray, blocks: Sequence[int], first: int = 0) -> float | None:
    """The part of `blocks` in the importance of all blocks from `first` on, numbers below 0 as 0; None where no block
    has any."""
    positive = np.maximum(np.asarray(importance, np.float64), 0)
    total = positive[first:].sum()
    return float(positive[[b for b in blocks if b >= first]].sum() / total) if total > 0 else None


def late_measures(importance: Sequence[float]) -> dict[str, float | None]:
    """{late_half, late_quarter, late_rest, late_sum} of one model."""
    layers = len(importance)
    half, quarter = late_blocks(layers, 1 / 2), late_blocks(layers, 1 / 4)
    return {
        "late_half": share_of(importance, half),
        "late_quarter": share_of(importance, quarter),
        "late_rest": share_of(importance, half, first=1),
        "late_sum": float(sum(importance[block] for block in half)),
    }


def correlations(means: Mapping[str, Any], fan_in: Sequence[float]) -> dict[str, Any]:
    """{pair of PAIRS: Spearman's and Pearson's correlation over blocks, of means over seeds}; without what is not
    known."""
    known: dict[str, Any] = {"shares": means.get("shares"), "importance": means.get("importance"), "fan_in": fan_in}
    found = {}
    for pair in PAIRS:
        x, y = ("fan_in", pair[7:]) if pair.startswith("fan_in_") else pair.split("_")
        if known[x] is not None and known[y] is not None:
            both = correlate(known[x], known[y], CONFIDENCE)
            found[pair] = {name: one.to_json() for name, one in both.items()}
    return found


def cell_of(loss: float, seconds: float, judged: Mapping[str, Any], shares: Sequence[float]) -> dict[str, Any]:
    """What the record holds of one model. judged: the content of its importance.json."""
    importance = list(judged["importance"])
    both = correlate(shares, importance, CONFIDENCE)
    return {
        "loss": loss,
        "judged_loss": judged["loss"]["mean"],
        "importance": importance,
        "standard_errors": list(judged["standard_errors"]),
        "shares": list(shares),
        **late_measures(importance),
        **{name: one.value for name, one in both.items()},
        "seconds": seconds,
    }


def summary(cells: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """{"means", "spreads"}: over the seeds of an arm; spreads are standard deviations, left out for one seed."""
    means: dict[str, Any] = {}
    spreads: dict[str, Any] = {}
    for name in ("importance", "shares"):
        if cells:
            rows = np.array([cell[name] for cell in cells.values()])
            means[name] = rows.mean(0).tolist()
            if len(rows) > 1:
                spreads[name] = rows.std(0, ddof=1).tolist()
    for name in MEASURES:
        values = [cell[name] for cell in cells.values()]
        if values and None not in values:
            means[name] = float(np.mean(values))
    return {"means": means, "spreads": spreads}


def mean_over(cells: Mapping[str, Mapping[str, Any]], name: str, seeds: Iterable[str]) -> float:
    """Mean of a measure over some of the seeds of an arm of the record, as of those that a difference is over."""
    return float(np.mean([cells[seed][name] for seed in seeds]))


def differences(
    cells: Mapping[int, Mapping[str, Any]], plain: Mapping[int, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """{measure: the paired difference from the plain arm}, over the seeds in which both have it; not corrected yet."""
    found = {}
    for name in MEASURES:
        pairs = {seed: (cell[name], plain[seed][name]) for seed, cell in cells.items() if seed in plain}
        by_seed = {seed: own - other for seed, (own, other) in pairs.items() if None not in (own, other)}
        if not by_seed:
            continue
        values = list(by_seed.values())
        judged = paired_difference(values, CONFIDENCE).to_json()
        judged.pop("seeds_for_power")
        judged |= {"t_p": paired_t_p(values) if len(values) > 1 else None, "holm_p": None}
        found[name] = judged | {"by_seed": {str(seed): value for seed, value in by_seed.items()}}
    return found


def correct(arms: Sequence[dict[str, Any]]) -> None:
    """Fill in `holm_p` of every measure: Holm's correction over the arms that are compared."""
    for name in MEASURES:
        family = [arm["differences"][name] for arm in arms if name in arm["differences"]]
        family = [one for one in family if one["t_p"] is not None]
        for one, p in zip(family, holm([one["t_p"] for one in family]), strict=True):
            one["holm_p"] = p
