"""What a sweep still costs: its cells, their parameters, tokens and FLOPs, and hours from measured speeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from geowidth.plan.footprint import footprint
from geowidth.plan.training import GPU, GPU_PEAK, MFU, PRODUCTS, days, plan_training, time_here
from geowidth.progress import size
from geowidth.train.cells import PlannedCell
from geowidth.train.evidence import loss_unit
from geowidth.train.power import UNKNOWN, Power


@dataclass(frozen=True)
class SweepPlan:
    """A sweep before it goes on. seconds: one after another, of what is left; longest: of one cell.

    source: how the speed is known, in words. processes: cells side by side.
    """

    cells: tuple[PlannedCell, ...]
    seconds: float
    longest: float
    source: str
    processes: int

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(cell.arm for cell in self.cells))

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(cell.seed for cell in self.cells))

    @property
    def unit(self) -> str:
        """Of the losses."""
        return loss_unit(next((cell.config["corpus"] for cell in self.cells if cell.config is not None), None))

    @property
    def losses(self) -> dict[str, dict[int, float]]:
        """Losses of the finished cells {arm: {seed: loss}}."""
        found: dict[str, dict[int, float]] = {arm: {} for arm in self.arms}
        for cell in self.cells:
            if cell.result is not None:
                found[cell.arm][cell.seed] = cell.result["loss"]
        return found

    @property
    def wall(self) -> float:
        """Seconds until the last cell ends."""
        return max(self.seconds / self.processes, self.longest)

    @property
    def flops_left(self) -> float:
        return sum(cell.flops * cell.left for cell in self.cells)

    def lines(self, power: Power | None, unknown: str = UNKNOWN) -> list[str]:
        """The plan in words: counts, a line an arm, the cost, and what so many seeds show (None: `unknown`)."""
        arms, seeds = self.arms, self.seeds
        rows = [("cells", f"{len(self.cells)} ({len(arms)} arms, {len(seeds)} seeds): {counted(self.cells)}")]
        rows += [("", f"{arm}: {by_seed([c for c in self.cells if c.arm == arm])}") for arm in arms]
        sizes = span([cell.model.parameters for cell in self.cells]), span([cell.tokens for cell in self.cells])
        most = max(cell.flops for cell in self.cells)
        memory = max(footprint(cell.model, cell.training).total for cell in self.cells)
        rows.append(("a cell", f"{sizes[0]} parameters, {sizes[1]} tokens, {most:.3g} FLOPs, {size(memory)} of memory"))
        rows.append(("left", f"{self.flops_left:.3g} FLOPs{self._time()}"))
        rows += zip(("power", ""), power.lines() if power else [unknown], strict=False)
        return [f"{name + ':' if name else '':9} {text}" for name, text in rows]

    def _time(self):
        """Hours of what is left, here and on one GPU."""
        if not self.longest:
            return ""
        about = "at least" if self.source.startswith(PRODUCTS) else "about"
        many = f"{self.processes} side by side" if self.processes > 1 else "one after another"
        gpu = self.flops_left / (MFU * GPU_PEAK)
        words = f", {days(gpu)} of one {GPU} at {MFU:.0%}" if gpu >= 60 else ""
        return f"{words}, {about} {days(self.wall)} ({many}, {days(self.longest)} a cell, {self.source})"


def plan_sweep(
    cells: Sequence[PlannedCell],
    processes: int = 1,
    device: str = "cpu",
    probe: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> SweepPlan:
    """The SweepPlan of `cells`: finished ones say how fast they were, otherwise a moment of work is timed here.

    processes: cells side by side. device, probe: of the timing, see geowidth.plan.training.time_here; nothing is timed
    where nothing is left or a cell is finished.
    """
    finished = [cell.result for cell in cells if cell.result is not None]
    open_cells = [cell for cell in cells if cell.result is None]
    rate, source = 0.0, ""
    if open_cells and finished:
        rate = sum(result["seconds"] for result in finished) / sum(result["flops"] for result in finished)
        source = f"as its {len(finished)} finished cells took"
    elif open_cells:
        timed = time_here(plan_training(open_cells[0].preset), device, probe)
        rate, source = (timed.here_seconds or 0.0) / timed.flops, f"{timed.timed} here"
    seconds = [rate * cell.flops for cell in open_cells]
    left = sum(one * cell.left for one, cell in zip(seconds, open_cells, strict=True))
    side_by_side = max(1, min(processes, len(open_cells)))
    return SweepPlan(tuple(cells), left, max(seconds, default=0.0), source, side_by_side)


def counted(cells: Sequence[PlannedCell]) -> str:
    """'8 finished, 1 begun, 3 missing'"""
    kinds = Counter("finished" if c.result is not None else "begun" if c.begun else "missing" for c in cells)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in ("finished", "begun", "missing"))


def by_seed(cells: Sequence[PlannedCell]) -> str:
    """'seeds 0 1 2 finished, seed 3 at step 200 of 480'"""
    groups: dict[str, list[int]] = {}
    for cell in cells:
        groups.setdefault(cell.state, []).append(cell.seed)
    return ", ".join(
        f"{'seed' if len(seeds) == 1 else 'seeds'} {' '.join(map(str, seeds))} {words}"
        for words, seeds in groups.items()
    )


def span(values: Sequence[int]) -> str:
    """A number, or the lowest and the highest of several: '457,344' or '457,344 to 460,000'."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
