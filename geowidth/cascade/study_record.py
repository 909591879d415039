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

from geowidth import forms
from geowidth.cascade.correlation import correlate
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.forms import COUNT, FINITE, NUMBER, OBJECT, TEXT, Each, Part
from geowidth.train.corrections import holm, paired_t_p
from geowidth.train.evidence import paired_difference

SCHEMA = 1
CONFIDENCE = 0.95
MEASURES = ("late_half", "late_quarter", "late_rest", "late_sum", "loss")
PAIRS = ("shares_importance", "fan_in_importance", "fan_in_shares")


def _or_null(part):
    return Part(f"{part.words}, or null", lambda value: value is None or part.fits(value))


_FINITE_OR_NULL, _TEXT_OR_NULL = _or_null(FINITE), _or_null(TEXT)
_ABOVE_0 = Part("a finite number above 0", lambda value: FINITE.fits(value) and value > 0)
_ENDS = _or_null(Part("two finite numbers", lambda v: isinstance(v, list) and len(v) == 2 and all(map(FINITE.fits, v))))
_BETWEEN = {"value": _FINITE_OR_NULL, "interval": _ENDS, "confidence": FINITE, "pairs": COUNT}
_BOTH = {"spearman": _BETWEEN, "pearson": _BETWEEN}
_DIFFERENCE = {
    "mean": FINITE, "standard_error": _FINITE_OR_NULL, "interval": _ENDS, "confidence": FINITE, "seeds": COUNT,
    "sign_flip_p": FINITE, "smallest_sign_flip_p": FINITE, "t_p": _FINITE_OR_NULL, "holm_p": _FINITE_OR_NULL,
    "by_seed": Each(FINITE),
}  # fmt: skip
_CELL = {
    "loss": FINITE, "judged_loss": FINITE, "importance": [FINITE], "standard_errors": [FINITE], "shares": [FINITE],
    "late_half": _FINITE_OR_NULL, "late_quarter": _FINITE_OR_NULL, "late_rest": _FINITE_OR_NULL, "late_sum": FINITE,
    "seconds": FINITE, "spearman": _FINITE_OR_NULL, "pearson": _FINITE_OR_NULL,
}  # fmt: skip
_ARM = {
    "arm": TEXT, "sentence": TEXT, "against": _TEXT_OR_NULL, "optimizer": TEXT, "learning_rate": FINITE,
    "changes": OBJECT, "fan_in": [_ABOVE_0], "fan_in_words": TEXT, "parameters": _or_null(COUNT),
    "flops": _FINITE_OR_NULL, "cells": Each(_CELL, lambda seed: seed.isascii() and seed.isdecimal()),
    "means": {"importance?": [FINITE], "shares?": [FINITE], **{f"{name}?": FINITE for name in MEASURES}},
    "spreads": {"importance?": [FINITE], "shares?": [FINITE]},
    "correlations": {f"{name}?": _BOTH for name in PAIRS},
    "differences": {f"{name}?": _DIFFERENCE for name in MEASURES}, "verdict": _TEXT_OR_NULL,
}  # fmt: skip
_SETTINGS = {
    "preset": TEXT, "corpus": TEXT, "arms": [TEXT], "seeds": [COUNT], "windows": COUNT, "seed": COUNT,
    "rates": [FINITE], "model": {"dimension": COUNT, "heads": COUNT, "context": COUNT},
    "training": {"steps": COUNT, "batch": COUNT},
}  # fmt: skip
RECORD = {
    "settings": _SETTINGS, "layers": COUNT, "late": {"half": [COUNT], "quarter": [COUNT]}, "unit": TEXT,
    "corpus?": {"source": TEXT}, "text?": {"windows": COUNT, "context": COUNT, "split": TEXT}, "arms": [_ARM],
    "missing": [TEXT], "question": TEXT, "headline": TEXT, "definition": TEXT, "plain": [TEXT], "sentences": [TEXT],
    "notes": [TEXT], "environment": OBJECT,
    "rates?": {"seed": COUNT, "rates": [NUMBER], "losses": [_FINITE_OR_NULL], "chosen?": FINITE, "words": TEXT},
}  # fmt: skip
AGAIN = "delete it and run geowidth cascade study again"


def check_record(path: PathLike, record: Mapping[str, Any]) -> None:
    """Refuse the content of a damaged study.json: UserError that names what is wrong."""
    forms.check(path, record, RECORD, AGAIN)
    wrong = _misfit(record)
    if wrong:
        raise UserError(f"{path} is damaged: {wrong}; {AGAIN}")


def _misfit(record):
    """Which parts of a record do not fit each other, in words; "" where all do."""
    arms, layers = record["arms"], record["layers"]
    compared = [arm["arm"] for arm in arms if arm["against"] is not None]
    if not arms:
        return "it holds no arm"
    if len(record["sentences"]) != len(compared):
        return f"it holds {len(record['sentences'])} sentences for {len(compared)} compared arms"
    for arm in arms:
        name, cells = arm["arm"], arm["cells"]
        rows = [
            arm["fan_in"],
            *(arm[part].get(row) for part in ("means", "spreads") for row in ("importance", "shares")),
        ]
        rows += [cell[row] for cell in cells.values() for row in ("importance", "standard_errors", "shares")]
        wrong = next((row for row in rows if row is not None and len(row) != layers), None)
        if wrong is not None:
            return f"arm {name} has a row of {len(wrong)} numbers for {layers} layers"
        for measure, found in arm["differences"].items():
            paired = [cells.get(seed, {}).get(measure) for seed in found["by_seed"]]
            if not paired or None in paired:
                return f"arm {name} has a difference in {measure} from seeds without a value"
    return ""


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
