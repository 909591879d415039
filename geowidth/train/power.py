"""Before a comparison: which differences its seeds would show, and how many seeds a difference takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from geowidth.train.evidence import LOSS_UNIT, seeds_for_power, standard_deviation, t_power

FEWEST_PAIRS = 3  # two say next to nothing about a spread
# The largest of the nano demo (README, cosine minus uniform: standard error 0.0083 with 6 seeds, times sqrt(6)).
NANO_SPREAD = 0.0203
NANO_WORDS = "the nano demo's of cosine and uniform; another model, text or length has another: name yours with --sd"
UNKNOWN = (
    f"not known: no arm has {FEWEST_PAIRS} finished pairs, and no figure of models of tokens is committed: name --sd"
)


@dataclass(frozen=True)
class Power:
    """What `seeds` paired seeds show when paired differences have the standard deviation `spread` (in `unit`).

    source: where the spread comes from, in words. smallest: the smallest difference seen with probability `power` by a
    two-sided t test at level 1 - confidence, None for one seed. needed: seeds that see a difference of `effect`.
    """

    seeds: int
    spread: float
    source: str
    smallest: float | None
    effect: float
    needed: int | None
    power: float
    confidence: float
    unit: str = LOSS_UNIT

    def lines(self) -> list[str]:
        """In words, a line for the spread and one for what follows from it."""
        needed = "more than a million seeds" if self.needed is None else f"{self.needed:,} seeds"
        seen = (
            "1 seed shows nothing about chance"
            if self.smallest is None
            else (f"{self.seeds} seeds show differences from {self.smallest:.2g} up")
        )
        level = 1 - self.confidence
        fewest = math.ceil(1 - math.log2(level))
        if self.seeds < fewest:
            seen += f"; {fewest} are the fewest with which the sign-flip test can reach {level:.2g}"
        return [
            f"sd of paired differences {self.spread:.2g} {self.unit} ({self.source})",
            f"{seen}; {self.effect:g} takes {needed} (probability {self.power:g}, level {level:.2g})",
        ]


def power_of(
    seeds: int,
    losses: Mapping[str, Mapping[int, float]],
    baseline: str = "uniform",
    *,
    spread: float | None = None,
    effect: float = 0.01,
    power: float = 0.8,
    confidence: float = 0.95,
    unit: str = LOSS_UNIT,
) -> Power | None:
    """The Power of a comparison with so many paired seeds, losses in `unit`; None where no spread is known.

    spread: standard deviation of paired differences; None takes the largest of the arms in `losses` {arm: {seed: loss}}
    that have FEWEST_PAIRS seeds with the baseline, or else, for models of bytes, that of the nano demo.
    """
    source = "as stated"
    if spread is None:
        found = observed_spread(losses, baseline) or ((NANO_SPREAD, NANO_WORDS) if unit == LOSS_UNIT else None)
        if found is None:
            return None
        spread, source = found
    smallest = smallest_effect(seeds, spread, power, confidence)
    needed = seeds_for_power(spread, effect, power, confidence)
    return Power(seeds, spread, source, smallest, effect, needed, power, confidence, unit)


def observed_spread(losses: Mapping[str, Mapping[int, float]], baseline: str) -> tuple[float, str] | None:
    """(largest standard deviation of an arm's paired differences, which one), or None where pairs are too few."""
    found = []
    for arm, by_seed in losses.items():
        pairs = [by_seed[seed] - losses[baseline][seed] for seed in by_seed if seed in losses.get(baseline, {})]
        if arm != baseline and len(pairs) >= FEWEST_PAIRS:
            mean = math.fsum(pairs) / len(pairs)
            spread = standard_deviation([pair - mean for pair in pairs]) if any(p != mean for p in pairs) else 0.0
            found.append((spread, f"{arm} minus {baseline}, {len(pairs)} finished pairs"))
    return max(found, default=None)


def smallest_effect(seeds: int, spread: float, power: float = 0.8, confidence: float = 0.95) -> float | None:
    """The smallest true difference that t_power sees with probability `power`, to six digits; None for one seed."""
    if seeds < 2 or spread == 0:
        return None if seeds < 2 else 0.0
    low, high = 0.0, spread
    while t_power(seeds, spread, high, confidence) < power:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if t_power(seeds, spread, middle, confidence) >= power else (middle, high)
    return high
