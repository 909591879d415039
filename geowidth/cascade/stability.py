"""Rank stability: how far draws (of windows, of a training's seed, of chance) agree on the order of the blocks."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from geowidth.artifacts.per_layer import count, per_layer
from geowidth.errors import UserError
from geowidth.inputs import ArrayLike


@dataclass(frozen=True)
class RankStability:
    """Rank correlations over all pairs of draws: their mean, and the smallest.

    draws                      how many score the blocks
    spearman, least_spearman   1 where all give one order, near 0 where they have nothing in common
    kendall, least_kendall     tau-b: pairs of blocks in the same order minus pairs in the other, ties allowed for
    same_first                 mean over pairs of draws of the share that the first half of the blocks to go have in
                               common; about a half by chance

    None where no pair has two draws whose scores differ from block to block, and for a single draw.
    """

    draws: int
    spearman: float | None
    least_spearman: float | None
    kendall: float | None
    least_kendall: float | None
    same_first: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rank_stability(scores: Sequence[ArrayLike]) -> RankStability:
    """The RankStability of rows of scores, one a draw, (blocks,) finite numbers each, two blocks or more."""
    blocks = count(scores[0]) if len(scores) else 0
    if blocks < 2:
        raise UserError(f"the first draw has {blocks} scores; rank stability needs those of two blocks or more")
    lowest = -sys.float_info.max
    rows = np.array([per_layer(f"draw {i} of scores", row, blocks, minimum=lowest) for i, row in enumerate(scores)])
    from scipy import stats

    spread = [row for row in rows if np.ptp(row) > 0]
    pairs = list(combinations(spread, 2))
    spearman = [float(stats.spearmanr(*pair).statistic) for pair in pairs]
    kendall = [float(stats.kendalltau(*pair).statistic) for pair in pairs]
    first = [_in_common(*pair) for pair in combinations(rows, 2)]
    (rho, least_rho), (tau, least_tau) = _mean_and_least(spearman), _mean_and_least(kendall)
    return RankStability(len(rows), rho, least_rho, tau, least_tau, _mean_and_least(first)[0])


def _mean_and_least(values):
    return (float(np.mean(values)), min(values)) if values else (None, None)


def _in_common(left, right):
    """Share that the halves of smallest scores have in common; of equal scores the first block is in."""
    half = len(left) // 2
    return len({*np.argsort(left, kind="stable")[:half]} & {*np.argsort(right, kind="stable")[:half]}) / half
