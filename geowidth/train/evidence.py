"""What paired seeds say: differences, their uncertainty, and how many seeds would be needed.

For an arm and a baseline trained from the same seeds, the differences loss(arm) - loss(baseline) are judged by

- their mean, standard error (sd / sqrt(n)) and Student t interval, which takes them as a normal sample;
- the exact sign-flip test, which takes them only as symmetric about 0 when the arms are alike: p is the share of the
  2^n ways to flip their signs whose mean is at least as far from 0. With n seeds it cannot be below 2 / 2^n;
- the number of seeds with which a two-sided t test at level 1 - confidence would see a stated difference with a stated
  power, if the spread stays as it is (noncentral t).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from geowidth.errors import UserError, choose, whole

if TYPE_CHECKING:
    pass

KIND, SCHEMA = "geowidth.comparison", 1
LOSS_UNIT, TOKEN_UNIT = "nats per byte", "nats per token"  # of models of bytes, and of a tokenizer's tokens
EXACT_SEEDS = 24  # 2^24 sign flips take about a second; beyond, flips are sampled
MOST_SEEDS = 1_000_000
LARGEST_LOSS = 1e300  # sums of losses stay finite
_LEGENDRE = np.polynomial.legendre.leggauss(40)
_TURNS = np.array([-9, -6, -4, -2, -1, 0, 1, 2, 4, 6, 9.0])


@dataclass(frozen=True)
class Difference:
    """Arm minus baseline over paired seeds. Fields are None where too few seeds leave them undefined.

    mean, standard_error: in the losses' unit. interval: t interval (low, high) at `confidence`. sign_flip_p: two-sided;
    exact unless `sign_flip_exact` is False. smallest_p: what it could be at best. seeds: n. effect, power,
    seeds_needed: seeds with which a true difference of `effect` would be seen with probability `power`.
    """

    mean: float
    standard_error: float | None
    interval: tuple[float, float] | None
    confidence: float
    sign_flip_p: float
    sign_flip_exact: bool
    seeds: int
    effect: float
    power: float
    seeds_needed: int | None

    @property
    def smallest_p(self) -> float:
        return min(1.0, 2.0 ** (1 - self.seeds))

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "interval": None if self.interval is None else list(self.interval),
            "confidence": self.confidence,
            "sign_flip_p": self.sign_flip_p,
            "sign_flip_exact": self.sign_flip_exact,
            "smallest_sign_flip_p": self.smallest_p,
            "seeds": self.seeds,
            "seeds_for_power": {"effect": self.effect, "power": self.power, "seeds": self.seeds_needed},
        }


@dataclass(frozen=True)
class ComparedArm:
    """One arm of a comparison: losses by seed, and its Difference from the baseline (None for the baseline itself)."""

    name: str
    losses: dict[int, float]
    difference: Difference | None

    @property
    def mean_loss(self) -> float:
        return math.fsum(self.losses.values()) / len(self.losses)


@dataclass(frozen=True)
class Comparison:
    """All arms against one baseline, with one plain sentence for each and one over all."""

    baseline: str
    arms: tuple[ComparedArm, ...]
    unit: str = LOSS_UNIT

    def arm(self, name: str) -> ComparedArm:
        """The ComparedArm called `name`."""
        return {arm.name: arm for arm in self.arms}[choose("arm", name, [arm.name for arm in self.arms])]

    @property
    def sentence(self) -> str:
        """What may and may not be concluded, in plain words."""
        others = [arm for arm in self.arms if arm.difference is not None]
        if not others:
            return f"Only {self.baseline} was trained: there is nothing to compare."
        return " ".join([*(arm_sentence(arm, self.baseline, self.unit) for arm in others), overall_sentence(others)])

    def to_json(self, facts: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Any]:
        """The comparison record; facts: for each arm what stands beside its losses (widths, parameters, tokens ...)."""
        arms = [
            {
                "arm": arm.name,
                **(facts or {}).get(arm.name, {}),
                "losses": arm.losses,
                "mean_loss": arm.mean_loss,
                "difference": None if arm.difference is None else arm.difference.to_json(),
                "sentence": None if arm.difference is None else arm_sentence(arm, self.baseline, self.unit),
            }
            for arm in self.arms
        ]
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "baseline": self.baseline,
            "arms": arms,
            "sentence": self.sentence,
        }


def compare_arms(
    losses: Mapping[str, Mapping[int, float]],
    baseline: str = "uniform",
    *,
    confidence: float = 0.95,
    effect: float = 0.01,
    power: float = 0.8,
    unit: str = LOSS_UNIT,
) -> Comparison:
    """Comparison of `losses` {arm: {seed: loss in `unit`}} with `baseline`; every arm needs the same seeds.

    effect, power: for the number of seeds needed. Raises UserError for unpaired seeds and values that are not finite.
    """
    choose("baseline", baseline, list(losses))
    for name, value in (("confidence", confidence), ("power", power)):
        if not 0 < value < 1:
            raise UserError(f"{name} is {value!r}; allowed: numbers between 0 and 1")
    if not 0 < effect < math.inf:
        raise UserError(f"effect is {effect!r}; allowed: positive numbers, in {unit}")
    seeds = sorted(losses[baseline])
    for arm, values in losses.items():
        if sorted(values) != seeds or not seeds:
            raise UserError(
                f"arm {arm} has seeds {sorted(values)}, {baseline} has {seeds}; train the same seeds in both"
            )
        bad = next((seed for seed in seeds if not abs(values[seed]) < LARGEST_LOSS), None)
        if bad is not None:
            raise UserError(f"arm {arm} seed {bad} has loss {values[bad]!r}; a finite loss is needed")
    arms = []
    for arm, values in losses.items():
        pairs = [values[seed] - losses[baseline][seed] for seed in seeds]
        judged = None if arm == baseline else paired_difference(pairs, confidence, effect, power)
        arms.append(ComparedArm(arm, {seed: values[seed] for seed in seeds}, judged))
    return Comparison(baseline, tuple(arms), unit)


def paired_difference(
    differences: Sequence[float] | np.ndarray, confidence: float = 0.95, effect: float = 0.01, power: float = 0.8
) -> Difference:
    """The Difference of a sequence of paired differences (n,), n at least 1."""
    values = np.asarray(differences, np.float64)
    n, mean = len(values), math.fsum(differences) / len(differences)
    error = interval = needed = None
    if n > 1:
        spread = standard_deviation(values - mean)
        error = spread / math.sqrt(n)
        reach = critical_t(n - 1, confidence) * error
        interval = (mean - reach, mean + reach)
        needed = seeds_for_power(spread, effect, power, confidence)
    p = sign_flip_p(values)
    return Difference(mean, error, interval, confidence, p, n <= EXACT_SEEDS, n, effect, power, needed)


def standard_deviation(residuals: Sequence[float] | np.ndarray) -> float:
    """sqrt(sum of squares / (n - 1)) of n residuals around their mean, at any scale: squares neither overflow nor
    vanish."""
    unit = math.ldexp(1.0, math.frexp(np.abs(residuals).max())[1] - 1)
    return unit * math.sqrt(math.fsum((float(r) / unit) ** 2 for r in residuals) / (len(residuals) - 1))


def sign_flip_p(differences: Sequence[float] | np.ndarray, samples: int = 1 << 20, seed: int = 0) -> float:
    """Two-sided sign-flip p-value of paired differences (n,): exact up to EXACT_SEEDS, sampled beyond.

    Sums within rounding of the observed one count as equal to it, so ties do not hang on the order of addition.
    """
    values = np.asarray(differences, np.float64)
    observed, slack = abs(values.sum()), 1e-12 * np.abs(values).sum()
    if len(values) <= EXACT_SEEDS:
        sums = np.zeros(1)
        for value in values[1:]:  # the first sign stays: a flip of all signs has the same absolute sum
            sums = np.concatenate((sums + value, sums - value))
        return float(np.mean(np.abs(sums + values[0]) >= observed - slack))
    generator, hits, chunk = np.random.default_rng(seed), 0, 1 << 14
    for _ in range(0, samples, chunk):
        signs = generator.integers(0, 2, (chunk, len(values))) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs @ values) >= observed - slack))
    return (hits + 1) / (samples + 1)


def t_power(n: int, spread: float, effect: float, confidence: float = 0.95) -> float:
    """Probability that a two-sided t test of n differences with standard deviation `spread` sees a mean of `effect`.

    n: at least 1; one difference has no spread to be judged by, so nothing is seen: 0. spread, effect: 0 to infinity,
    in one unit. An effect of 0 is "seen" with 1 - confidence; without a spread too, the differences are all 0 and
    nothing is. Both infinite is refused. The noncentral t tail is E F(|z + shift| / critical) over a standard normal
    z, F the distribution of chi / sqrt(n - 1): an integral without cancellation, right to about 1e-11 everywhere.
    """
    from scipy import special

    whole("n", n, 1)
    spread, effect = _size("spread", spread), _size("effect", effect)
    if math.isinf(spread) and math.isinf(effect):
        raise UserError("effect and spread are both infinite; their ratio is needed")
    if n == 1 or effect == spread == 0:
        return 0.0
    critical, shift = critical_t(n - 1, confidence), math.sqrt(n) * (effect / spread if spread else math.inf)
    if critical == 0 or math.isinf(shift):
        return 1.0
    nodes, weights = _normal_quadrature(shift, critical, n - 1)
    with np.errstate(over="ignore"):
        seen = special.gammainc((n - 1) / 2, (n - 1) / 2 * np.square((nodes + shift) / critical))
    return min(1.0, float(weights @ seen))


def critical_t(freedom: float, confidence: float) -> float:
    """The t statistic beyond which a two-sided test at level 1 - confidence sees a difference."""
    from scipy import stats

    return float(stats.t.isf((1 - confidence) / 2, freedom))


def _size(name, value):
    value = abs(float(value)) if name == "effect" else float(value)
    if not value >= 0:
        raise UserError(f"{name} is {value!r}; allowed: numbers from 0 up")
    return value


def _normal_quadrature(shift, critical, freedom):
    """Nodes and weights of E f(z), z standard normal, where f(z) = F(|z + shift| / critical) as in t_power.

    Gauss-Legendre between the places where f turns: |z + shift| = 0 and = critical, where it rises within about
    critical / sqrt(2 freedom). Normal weight beyond 10 is below 1e-22.
    """
    rise = critical / math.sqrt(2 * freedom) * _TURNS
    turns = np.concatenate([np.linspace(-10, 10, 11), rise - shift, critical + rise - shift, rise - critical - shift])
    edges = np.unique(np.clip(turns, -10, 10))
    half = np.diff(edges)[:, None] / 2
    nodes = edges[:-1, None] + half * (1 + _LEGENDRE[0])
    density = np.exp(-np.square(nodes) / 2) / math.sqrt(2 * math.pi)
    return nodes.ravel(), (half * _LEGENDRE[1] * density).ravel()


def seeds_for_power(spread: float, effect: float, power: float = 0.8, confidence: float = 0.95) -> int | None:
    """Fewest seeds with t_power of at least `power`; None if a million would not do."""
    low, high = 1, 2
    while not t_power(high, spread, effect, confidence) >= power:
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        if t_power(middle, spread, effect, confidence) >= power:
            high = middle
        else:
            low = middle
    return high


def _signed(value):
    """A number with its sign, the minus a real one as in the report's tables."""
    return f"{value:+.4f}".replace("-", "\N{MINUS SIGN}")


def loss_unit(corpus: object) -> str:
    """What the losses of a model are in, from its corpus as a result states it (Corpus.to_json)."""
    return TOKEN_UNIT if isinstance(corpus, dict) and corpus.get("unit") == "token" else LOSS_UNIT


def arm_sentence(arm: ComparedArm, baseline: str, unit: str = LOSS_UNIT) -> str:
    """One arm's difference in plain words."""
    d = arm.difference
    assert d is not None  # the baseline has no sentence
    side = "below" if d.mean < 0 else "above"
    start = (
        f"{arm.name}: {abs(d.mean):.4f} {unit} {side} {baseline} on average" if d.mean else f"{arm.name}: no difference"
    )
    if d.interval is None:
        return f"{start} (1 seed): one seed has no spread, so nothing can be said about chance."
    low, high = d.interval
    interval = f"{d.confidence:.0%} interval {_signed(low)} to {_signed(high)}"
    start += f" ({d.seeds} seeds, {interval}, sign-flip p {d.sign_flip_p:.3g}"
    start += ")" if d.sign_flip_exact else ", sampled)"
    level = 1 - d.confidence
    apart = low > 0 or high < 0
    if not apart:
        needed = "more than a million" if d.seeds_needed is None else f"about {d.seeds_needed:,}"
        return (
            f"{start}: no difference from {baseline} is seen at this size; "
            f"a true one of {d.effect:g} {unit} would take {needed} seeds to be seen {d.power:.0%} of the time."
        )
    if d.sign_flip_p <= level:
        return f"{start}: the loss is {'lower' if d.mean < 0 else 'higher'} than {baseline}'s by both tests."
    if d.smallest_p > level:
        return (
            f"{start}: the interval leaves out 0, but with {d.seeds} seeds the sign-flip p cannot go below "
            f"{d.smallest_p:g}, so this rests on the differences being normal."
        )
    return f"{start}: the interval leaves out 0, the sign-flip test does not agree."


def overall_sentence(arms: Sequence[ComparedArm]) -> str:
    """What holds for all arms together."""
    differences = [arm.difference for arm in arms if arm.difference is not None]
    apart = [d for d in differences if d.interval and (d.interval[0] > 0 or d.interval[1] < 0)]
    seeds = differences[0].seeds
    words = []
    if seeds > 1 and not apart:
        words.append("No arm can be told from the baseline at this size.")
    level, smallest = 1 - differences[0].confidence, differences[0].smallest_p
    if seeds > 1 and smallest > level:
        enough = math.ceil(1 - math.log2(level))
        words.append(
            f"With {seeds} seeds the smallest possible two-sided sign-flip p is {smallest:g}; "
            f"{enough} seeds are the fewest that could reach {level:.2g}."
        )
    if len(arms) > 1 and apart:
        words.append(f"{len(arms)} arms were compared, and no interval is corrected for that.")
    words.append("This holds for this model size, corpus and number of tokens only.")
    return " ".join(words)
