"""The work of a model's layers on several draws of tokens, as many as it takes until the widths they ask for settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from geowidth.artifacts.clouds import Clouds
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.cascade.correlation import correlate
from geowidth.cascade.held_out import HeldOut
from geowidth.errors import UserError, number, whole
from geowidth.measure.pipeline import MeasureSettings, measure_clouds
from geowidth.measure.states import capture

PER_PASS = 4  # draws of which the states are kept at once: those of more would take as many times the memory
LEAST_TOKENS = 16  # of a draw

Ideal = Callable[[WorkProfile], np.ndarray]


class TokenDraws:
    """Work profiles of one draw of tokens after the other, each measured when it is first asked for.

    model       what is measured. text: windows that tokens are drawn from
    settings    MeasureSettings; its seed is that of the draws
    tokens      of a draw: as many as the text has for two draws, if that is fewer
    skip, tail  tokens at the beginning and the end of a window that are never drawn

    The draws of one pass have no token in common; another pass draws from the same windows again.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        text: HeldOut,
        settings: MeasureSettings,
        tokens: int = 512,
        *,
        batch: int = 8,
        skip: int = 1,
        tail: int = 0,
    ) -> None:
        windows, length = text.tokens.shape
        there = windows * (length - skip - tail)
        self.tokens = min(whole("tokens of a draw", tokens, LEAST_TOKENS), there // 2)
        if self.tokens < LEAST_TOKENS:
            raise UserError(
                f"{windows} windows of {length} tokens are too little text to draw tokens from; at least "
                f"{2 * LEAST_TOKENS} tokens are needed"
            )
        self.model, self.text, self.settings = model, text, settings
        self.per_pass = min(PER_PASS, there // self.tokens)
        self.given: dict[str, Any] = {"batch": batch, "skip": skip, "tail": tail}
        self.profiles: list[WorkProfile] = []
        self._clouds: Iterator[Clouds] = iter(())

    def first(self, count: int) -> tuple[WorkProfile, ...]:
        """The profiles of the first `count` draws."""
        while len(self.profiles) < count:
            clouds = next(self._clouds, None)
            if clouds is None:
                self._clouds = self._captured(len(self.profiles) // self.per_pass)
                continue
            self.profiles.append(measure_clouds(clouds, self.settings))
        return tuple(self.profiles[:count])

    def _captured(self, number_of_pass):
        """The Clouds of the draws of one pass."""
        seed = self.settings.seed + number_of_pass
        facts = {**self.text.settings, "pass": number_of_pass}
        every = capture(
            self.model, list(self.text.tokens), self.tokens * self.per_pass, seed=seed, settings=facts, **self.given
        )
        order = torch.randperm(every.tokens, generator=torch.Generator().manual_seed(seed))
        return iter([_part(every, rows) for rows in order.split(self.tokens)])


def _part(clouds, rows):
    rows = rows.sort().values
    ids, positions = clouds.token_ids[rows], clouds.positions[rows]
    before, after = clouds.before[:, rows], clouds.after[:, rows]
    return replace(clouds, before=before, after=after, token_ids=ids, positions=positions)


@dataclass(frozen=True)
class Settled:
    """Work profiles of as many draws as were needed, and their mean.

    change      half the summed difference of the widths that two halves of the draws ask for, as a share of all: so
                many neurons would stand in other layers; None for one draw
    spearman    rank correlation over depth of the two halves' widths; None for one draw, and where one side is flat
    tolerance   that was asked for; None where the profiles were given
    """

    profiles: tuple[WorkProfile, ...]
    mean: WorkProfile
    change: float | None
    spearman: float | None
    tolerance: float | None

    def to_json(self) -> dict[str, Any]:
        enough = None if self.tolerance is None or self.change is None else self.change <= self.tolerance
        found = {"draws": len(self.profiles), "change": self.change, "rank_correlation": self.spearman}
        return {**found, "tolerance": self.tolerance, "settled": enough}


def settled(draws: TokenDraws, ideal: Ideal, tolerance: float, most: int) -> Settled:
    """Draws, two by two, until the widths of the even and of the odd ones differ by at most `tolerance`.

    ideal: the widths that a profile asks for, (layers,) shares that add up to 1. most: draws, an even number; with them
    the Settled says that the tolerance was not reached.
    """
    check_draws(draws.tokens, tolerance, most)
    for count in range(2, most + 1, 2):
        found = summarised(draws.first(count), ideal, tolerance)
        if found.change is not None and found.change <= tolerance:
            break
    return found


def check_draws(tokens: int, tolerance: float, most: int) -> None:
    """Refuse what no draws can be taken with."""
    whole("tokens of a draw", tokens, LEAST_TOKENS)
    number("tolerance", tolerance, "numbers above 0 and below 1", lambda v: 0 < v < 1)
    whole("most draws", most, 2)


def summarised(profiles: Sequence[WorkProfile], ideal: Ideal, tolerance: float | None = None) -> Settled:
    """The Settled of these profiles."""
    change = correlation = None
    if len(profiles) > 1:
        one, other = (ideal(mean_profile(profiles[start::2])) for start in (0, 1))
        change = float(np.abs(one - other).sum() / 2)
        correlation = correlate(one, other)["spearman"].value if len(one) > 1 else None
    return Settled(tuple(profiles), mean_profile(profiles), change, correlation, tolerance)


def mean_profile(profiles: Sequence[WorkProfile]) -> WorkProfile:
    """The WorkProfile with the mean of every number of several of the same model; details of single draws are out."""
    first = profiles[0]
    if len(profiles) == 1:
        return first
    work = {
        geometry: {name: _mean(p.work[geometry][name] for p in profiles) for name in signals}
        for geometry, signals in first.work.items()
    }
    dimension = {name: _mean(p.dimension[name] for p in profiles) for name in first.dimension}
    rest = {name: _mean(p.raw_without_large_norms[name] for p in profiles) for name in first.raw_without_large_norms}
    settings = {**first.settings, "draws": len(profiles)}
    return replace(
        first, work=work, dimension=dimension, raw_without_large_norms=rest, settings=settings,
        details=[{} for _ in first.details],
    )  # fmt: skip


def _mean(lists):
    return np.mean(list(lists), axis=0).tolist()
