"""What a cascade study says in words: one plain line an arm, one over all, and what the numbers do not say."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from geowidth.cascade.correlation import why_no_interval
from geowidth.cascade.study_record import CONFIDENCE, late_blocks, mean_over

QUESTION = "Do late blocks regain importance when they get more of the gradient?"
UP, DOWN, SAME, UNKNOWN = "regain", "lose", "same", "unknown"


def verdict(arm: Mapping[str, Any]) -> str | None:
    """Where a compared arm stands by the corrected t test of the headline measure; None for a plain arm."""
    if arm["against"] is None:
        return None
    found = arm["differences"].get("late_half")
    if found is None or found["holm_p"] is None:
        return UNKNOWN
    if found["holm_p"] > 1 - CONFIDENCE:
        return SAME
    return UP if found["mean"] > 0 else DOWN


def definition(layers: int) -> str:
    """What is measured, in plain words."""
    half = late_blocks(layers, 1 / 2)
    return (
        "Importance of a block is what the loss on held-out text grows by when the block is left out. The share of the "
        f"late blocks is that of the last half, {block_range(half)} of 0 to {layers - 1}, in the sum over all blocks; "
        "a block without which the loss is lower counts as 0."
    )


def block_range(numbers: Sequence[int]) -> str:
    """'block 3' or 'blocks 4 to 7'"""
    return f"block {numbers[0]}" if len(numbers) == 1 else f"blocks {numbers[0]} to {numbers[-1]}"


def headline(arms: Sequence[Mapping[str, Any]]) -> str:
    """The answer over all compared arms."""
    groups: dict[str, list[str]] = {}
    for arm in arms:
        if arm["verdict"] is not None:
            groups.setdefault(arm["verdict"], []).append(arm["arm"])
    if not groups:
        return "Only plain trainings were asked for: there is nothing to compare."
    if set(groups) == {UNKNOWN}:
        return "Nothing can be concluded yet: no arm has two finished pairs of seeds."
    parts = [f"yes with {listed(groups[UP])}"] if UP in groups else []
    if SAME in groups:
        parts.append(f"no difference that holds after correction with {listed(groups[SAME])}")
    if DOWN in groups:
        parts.append(f"late blocks lose importance with {listed(groups[DOWN])}")
    if UNKNOWN in groups:
        parts.append(f"{listed(groups[UNKNOWN])} cannot be judged")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def listed(names: Sequence[str]) -> str:
    """'a, b and c'"""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def arm_line(arm: Mapping[str, Any], plain: Mapping[str, Any], layers: int) -> str:
    """One compared arm in one line, with its numbers: all over the seeds that both have."""
    found = arm["differences"].get("late_half")
    start = f"{arm['arm']} ({arm['sentence']})"
    if found is None:
        return f"{start}: not judged, no finished pair of seeds in which blocks have any importance."
    own, other = (mean_over(one["cells"], "late_half", found["by_seed"]) for one in (arm, plain))
    half = late_blocks(layers, 1 / 2)
    hold = "hold" if len(half) > 1 else "holds"
    numbers = (
        f"{start}: {block_range(half)} {hold} {percent(own)} of the importance, {percent(other)} in "
        f"{plain['arm']}: {points(found['mean'])} points"
    )
    if found["interval"] is None:
        return f"{numbers} with one seed, which says nothing about chance."
    low, high = found["interval"]
    evidence = (
        f"{numbers} ({100 * CONFIDENCE:g} % interval {points(low)} to {points(high)}, {found['seeds']} seeds, "
        f"corrected p {found['holm_p']:.2g})"
    )
    return f"{evidence}. {VERDICTS[verdict(arm) or UNKNOWN]}"


VERDICTS = {
    UP: "Late blocks regain importance.",
    DOWN: "Late blocks lose importance.",
    SAME: "No difference that holds after correction.",
    UNKNOWN: "Not judged.",
}


def plain_line(arm: Mapping[str, Any], layers: int) -> str:
    """What a plain arm shows before any intervention."""
    means = arm["means"]
    if means.get("late_half") is None:
        return f"{arm['arm']}: no finished training in which blocks have any importance."
    half = late_blocks(layers, 1 / 2)
    hold, get = ("hold", "get") if len(half) > 1 else ("holds", "gets")
    text = f"{arm['arm']} ({arm['sentence']}): {block_range(half)} {hold} {percent(means['late_half'])} of the "
    text += "importance"
    if means.get("late_rest") is not None:
        text += f" ({percent(means['late_rest'])} without the first block)"
    text += f" and {get} {percent(sum(means['shares'][block] for block in half))} of the gradient norms"
    found = arm["correlations"].get("shares_importance", {}).get("spearman")
    if found is not None and found["value"] is not None:
        text += f"; over blocks, gradient share and importance have Spearman {between(found)}"
    return text + "."


def between(found: Mapping[str, Any]) -> str:
    """A correlation with its interval: '0.45 (95 % interval -0.41 to 0.89)'"""
    value = minus(f"{found['value']:.2f}")
    if found["interval"] is None:
        return f"{value} ({why_no_interval(found['value'])})"
    low, high = (minus(f"{end:.2f}") for end in found["interval"])
    return f"{value} ({100 * found['confidence']:g} % interval {low} to {high})"


def notes(arms: Sequence[Mapping[str, Any]], seeds: int, rates: Mapping[str, Any] | None) -> list[str]:
    """What the numbers do not say."""
    compared = [arm for arm in arms if arm["against"] is not None]
    found = []
    if compared:
        found.append(
            f"{len(compared)} arms are compared with the plain arm of their optimiser, seed by seed. p is that of the "
            "paired t test, corrected for their number by Holm's rule; intervals are not corrected."
        )
    smallest = 2.0 ** (1 - seeds)
    if compared and smallest * len(compared) > 1 - CONFIDENCE:
        enough = math.ceil(1 - math.log2((1 - CONFIDENCE) / len(compared)))
        found.append(
            f"With {seeds} seed{'s' * (seeds != 1)} the exact sign-flip p cannot be below {smallest:.3g}; after "
            f"correction it could reach {1 - CONFIDENCE:.2g} from {enough} seeds on. The t test trusts that "
            "differences are roughly normal."
        )
    if {arm["optimizer"] for arm in arms} > {"sgd"}:
        found.append("Losses of AdamW and of SGD are not to be compared: neither was tuned against the other.")
    if rates is not None:
        found.append(rates["words"])
    repeated = [arm["arm"] for arm in arms if arm["changes"].get("repeat_times", 1) > 1]
    if repeated:
        found.append(
            f"{listed(repeated)}: a block that is left out is left out in all its applications, and the arm computes "
            "more than the plain one at equal parameters."
        )
    found.append(
        "Correlations over blocks take blocks as independent, which those of one model are not quite. One model size, "
        "one corpus, one length of training."
    )
    return found


def percent(share: float) -> str:
    """0.123 as '12.3 %'"""
    return f"{minus(f'{100 * share:.1f}')} %"


def points(difference: float) -> str:
    """0.123 as '+12.3'"""
    return minus(f"{100 * difference:+.1f}")


def minus(text: str) -> str:
    """With a real minus sign, and none before zero."""
    return text.replace("-", "" if float(text) == 0 else "\N{MINUS SIGN}")
