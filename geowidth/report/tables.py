"""The paired table: one row per arm, in numbers, in words, and as terminal text."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from geowidth.files import PathLike
from geowidth.report.folder import as_record, lookup
from geowidth.report.numbers import DASH, compact, is_finite, is_number, plain, shorten, signed, thousands
from geowidth.train.evidence import LOSS_UNIT, loss_unit

if TYPE_CHECKING:
    from geowidth.train.evidence import Comparison


@dataclass(frozen=True)
class ArmRow:
    """What is known of one arm. Unknown numbers are None; `losses` and `differences` are by seed, in `unit`."""

    arm: str
    is_baseline: bool
    losses: dict[int, float]
    differences: dict[int, float]
    mean_loss: float | None
    bits_per_byte: float | None
    difference: float | None
    standard_error: float | None
    interval: tuple[float, float] | None
    confidence: float | None
    sign_flip_p: float | None
    power: dict[str, Any]
    sentence: str | None
    parameters: float | None
    tokens: float | None
    flops: float | None
    seconds: float | None
    unit: str = LOSS_UNIT


def _mean(values):
    values = [v for v in values if is_number(v)]
    return sum(values) / len(values) if values else None


def _number(value):
    return value if is_number(value) else None


def _losses(arm, trainings):
    losses = {int(seed): value for seed, value in (arm.get("losses") or {}).items() if is_number(value)}
    for seed, training in trainings.items():
        value = training.final_loss()
        if seed not in losses and is_number(value):
            losses[seed] = value
    return dict(sorted(losses.items()))


def rows_of(run):
    """The ArmRows of a RunFolder: what is known of every arm and of its paired difference, the baseline first."""
    rows = arm_rows({"baseline": run.baseline, **(run.comparison or {})}, run.arms, run.arm_names)
    return [replace(row, unit=run.loss_unit) for row in rows]


def arm_rows(comparison, arms=None, names=None):
    """One ArmRow per arm, from a comparison record and the trainings {arm: {seed: TrainingRun}}, both optional."""
    comparison, arms = comparison or {}, arms or {}
    baseline = comparison.get("baseline") or "uniform"
    compared = {str(arm.get("arm")): arm for arm in comparison.get("arms") or []}
    names = list(dict.fromkeys([*(names or []), *compared, *arms]))
    losses = {name: _losses(compared.get(name, {}), arms.get(name, {})) for name in names}
    return [_arm_row(n, baseline, compared.get(n, {}), arms.get(n, {}), losses) for n in names]


def _arm_row(name, baseline, arm, trainings, losses):
    results = [t.result for t in trainings.values() if t.result]
    paired = losses.get(baseline, {})
    own = losses[name]
    difference = arm.get("difference") if name != baseline else None
    difference = difference if isinstance(difference, dict) else {}
    interval = difference.get("interval")
    interval = tuple(interval) if isinstance(interval, list) and len(interval) == 2 else None

    def cost(key):
        return arm[key] if is_number(arm.get(key)) else _mean([lookup(result, key) for result in results])

    return ArmRow(
        arm=name,
        is_baseline=name == baseline,
        losses=own,
        differences={} if name == baseline else {s: v - paired[s] for s, v in own.items() if s in paired},
        mean_loss=arm["mean_loss"] if is_number(arm.get("mean_loss")) else _mean(own.values()),
        bits_per_byte=cost("bits_per_byte"),
        difference=_number(difference.get("mean")),
        standard_error=_number(difference.get("standard_error")),
        interval=interval if interval and all(map(is_number, interval)) else None,
        confidence=_number(difference.get("confidence")),
        sign_flip_p=_number(difference.get("sign_flip_p")),
        power=difference.get("seeds_for_power") or {},
        sentence=arm.get("sentence") if isinstance(arm.get("sentence"), str) else None,
        parameters=cost("parameters"),
        tokens=cost("tokens"),
        flops=cost("flops"),
        seconds=cost("seconds"),
    )


def percent(confidence):
    """0.95 as "95 %"; an unstated confidence is not invented."""
    return f"{confidence * 100:g} %" if is_finite(confidence) else "t"


def interval_words(row, decimals=4):
    """The interval as text: "-0.0312 to -0.0088"."""
    return f"{signed(row.interval[0], decimals)} to {signed(row.interval[1], decimals)}" if row.interval else DASH


def seeds_needed(row):
    """(number of seeds as text, effect or None, power or None). None with an interval: over a million."""
    seeds = row.power.get("seeds")
    none = "> 1 000 000".replace(" 0", "\u202f0") if row.power and row.interval else DASH
    return (
        thousands(seeds) if is_number(seeds) else none,
        _number(row.power.get("effect")),
        _number(row.power.get("power")),
    )


def verdict(row, baseline):
    """One honest sentence on an arm: the comparison's own where it has one, else what its paired differences show."""
    if row.is_baseline:
        return "The baseline: every difference is taken from it, seed by seed."
    if row.sentence:
        return row.sentence.removeprefix(f"{row.arm}: ")
    count = len(row.differences)
    if not is_finite(row.difference):
        if not count:
            return f"Not compared: no seed has been trained to the end for both {row.arm} and {baseline}."
        words = (
            f"{signed(_mean(row.differences.values()), 4)} {row.unit} on average over {count} seed{'s' * (count != 1)}"
        )
        return f"Not compared yet ({words}): no interval, so no conclusion."
    side = "below" if row.difference < 0 else "above"
    start = f"{plain(abs(row.difference), 4)} {row.unit} {side} {baseline} on average over {count} seed"
    start += "s" * (count != 1)
    if standing(row) == "unknown":
        return f"{start}: too few to say anything about chance."
    interval = f"{percent(row.confidence)} interval {interval_words(row)}"
    if standing(row) == "same":
        return f"{start}: no difference is seen at this size ({interval})."
    p = f", sign-flip p {row.sign_flip_p:.3g}" if is_finite(row.sign_flip_p) else ""
    return f"{start}: the interval excludes zero ({interval}{p})."


def standing(row):
    """Where an arm stands: "lower" or "higher" by both tests, "maybe lower" or "maybe higher" by its interval alone,
    "same" when the interval includes zero, "unknown" without an interval."""
    if not row.interval or not all(map(is_finite, row.interval)) or not is_finite(row.confidence):
        return "unknown"
    if row.interval[0] <= 0 <= row.interval[1]:
        return "same"
    side = "lower" if row.interval[1] < 0 else "higher"
    both = is_finite(row.sign_flip_p) and row.sign_flip_p <= 1 - row.confidence + 1e-12
    return side if both else f"maybe {side}"


def headline(rows, baseline):
    """The comparison in one short sentence."""
    groups: dict[str, Any] = {}
    for row in rows:
        if not row.is_baseline:
            groups.setdefault(standing(row), []).append(row.arm)
    seeds = max((len(row.differences) for row in rows), default=0)
    if not groups:
        return f"Only {baseline} was trained: there is nothing to compare."
    if set(groups) == {"unknown"}:
        return "One seed says nothing about chance: no conclusion." if seeds == 1 else "No conclusion yet."
    if set(groups) == {"same"}:
        return f"No arm can be told from {baseline} at this size."
    phrases = {
        "lower": ("has a lower loss than {0}", "have a lower loss than {0}"),
        "higher": ("has a higher loss than {0}", "have a higher loss than {0}"),
        "maybe lower": (
            "looks better than {0} by its t interval alone",
            "look better than {0} by their t intervals alone",
        ),
        "maybe higher": (
            "looks worse than {0} by its t interval alone",
            "look worse than {0} by their t intervals alone",
        ),
        "same": ("cannot be told from {0}", "cannot be told from {0}"),
        "unknown": ("is not judged", "are not judged"),
    }
    parts = [
        f"{_and(groups[key])} {phrase[len(groups[key]) > 1].format(baseline)}"
        for key, phrase in phrases.items()
        if key in groups
    ]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]} ({seeds} paired seed{'s' * (seeds != 1)})."


def remainder(comparison, rows):
    """What the comparison's sentence says beyond the sentences of its arms and the headline."""
    sentence = str((comparison or {}).get("sentence") or "")
    alone = headline([row for row in rows if row.is_baseline], (comparison or {}).get("baseline") or "uniform")
    for said in (*(row.sentence for row in rows), "No arm can be told from the baseline at this size.", alone):
        sentence = sentence.replace(said or "\0", "")
    return " ".join(sentence.split())


def _and(names):
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def table(comparison: Comparison | dict[str, Any] | PathLike) -> str:
    """The paired table as plain text for a terminal, at most 100 characters wide, and under it what may be concluded.

    `comparison`: a Comparison, the content of a comparison.json as a dict, or the path of one.
    """
    comparison = as_record(comparison, "geowidth.comparison")
    unit = loss_unit(lookup(comparison.get("settings"), "corpus")).replace(" per ", "/")
    head = ["arm", f"loss, {unit}", "difference \u00b1 se", "interval", "p", "parameters", "tokens", "time"]
    lines = [head]
    rows = arm_rows(comparison)
    for row in rows:
        error = f" \u00b1 {plain(row.standard_error, 4)}" if is_finite(row.standard_error) else ""
        p = f"{row.sign_flip_p:.3g}" if is_finite(row.sign_flip_p) else DASH
        difference = "baseline" if row.is_baseline else signed(row.difference, 4) + error
        seconds = f"{plain(row.seconds, 1)} s" if is_finite(row.seconds) else DASH
        name = shorten(row.arm, 16)
        lines.append([
            name, plain(row.mean_loss, 4), difference, interval_words(row), p,
            compact(row.parameters), compact(row.tokens), seconds,
        ])  # fmt: skip
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = [
        "  ".join([line[0].ljust(wide[0]), *(c.rjust(w) for c, w in zip(line[1:], wide[1:], strict=True))])
        for line in lines
    ]
    baseline = comparison.get("baseline") or "uniform"
    sayings = [headline(rows, baseline), *(row.sentence for row in rows if row.sentence), remainder(comparison, rows)]
    wrapped = [textwrap.fill(saying, 100, subsequent_indent="  ") for saying in sayings if saying]
    return "\n".join([texts[0], "\u2500" * len(texts[0]), *texts[1:], "", *wrapped])
