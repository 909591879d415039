"""Losses over blocks removed, by several rules and over several seeds; an interrupted curve goes on where it was."""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from geowidth import records
from geowidth.cascade.blocks import ResidualBlocks
from geowidth.cascade.held_out import HeldOut, mean_and_error, whole_losses, window_losses
from geowidth.cascade.scores import RULES, Evidence, block_scores, removal_order
from geowidth.cascade.stability import rank_stability
from geowidth.files import PathLike
from geowidth.measure.kept import KeptResults
from geowidth.progress import Progress

WITHOUT = "without "  # what the names of losses begin with


@dataclass(frozen=True)
class Ranking:
    """The blocks by a rule. seed: what was drawn by it. scores: one a block. order: in which they go."""

    seed: int
    scores: list[float]
    order: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "scores": self.scores, "order": list(self.order)}


class Judge:
    """Losses of a model on text without some of its blocks, (windows,) each: every set of blocks is judged once.

    full   of the whole model
    out    the file that will tell of it: what is done so far is kept beside it, and taken up again for the very same
           model and text (their losses, window by window, are the fingerprint). None: only in memory
    """

    def __init__(self, blocks: ResidualBlocks, text: HeldOut, out: PathLike | None = None) -> None:
        self.blocks, self.text = blocks, text
        self.full = whole_losses(blocks.model, text)
        facts = records.dumps([len(blocks), text.settings, self.full])
        self.kept = KeptResults(out, hashlib.sha256(facts.encode()).hexdigest())

    def without(self, removed: Sequence[int]) -> np.ndarray:
        """Losses of the windows without these blocks."""
        if not removed:
            return self.full
        name = _name(removed)
        if name not in self.kept.results:
            with self.blocks.without(removed):
                self.kept.add(name, window_losses(self.blocks.model, self.text).tolist())
        return np.array(self.kept.results[name])

    def knows(self, removed: Sequence[int]) -> bool:
        """Whether these losses were taken before."""
        return not removed or _name(removed) in self.kept.results

    def ranking(self, rule: str, evidence: Evidence) -> Ranking:
        """The Ranking of the blocks by a rule, whose scores are kept too."""
        seen = [evidence.text and evidence.text.settings, evidence.ledger and evidence.ledger.to_json(), evidence.seed]
        name = f"scores by {rule} {hashlib.sha256(records.dumps(seen).encode()).hexdigest()}"
        if name not in self.kept.results:
            self.kept.add(name, block_scores(rule, evidence).tolist())
        scores = self.kept.results[name]
        return Ranking(evidence.seed, scores, removal_order(np.array(scores)))

    def windows(self) -> dict[str, list[float]]:
        """{blocks that went, as "1 3": losses of the windows} of every set judged, the whole model's under ""."""
        found = {name[len(WITHOUT) :]: v for name, v in self.kept.results.items() if name.startswith(WITHOUT)}
        return {"": self.full.tolist(), **found}

    def finish(self) -> None:
        """What was kept is told elsewhere now."""
        self.kept.remove()


def _name(removed):
    return WITHOUT + " ".join(map(str, sorted(removed)))


def rankings(judge: Judge, rules: Sequence[str], evidence: Sequence[Evidence]) -> dict[str, list[Ranking]]:
    """{rule: [Ranking]}: one for each Evidence, of which each has another seed, or one alone where the seed is nothing
    to the rule (it neither draws nor looks at text)."""
    asked = {rule: evidence if depends_on_seed(rule) else evidence[:1] for rule in rules}
    count = sum(map(len, asked.values()))
    with Progress(count, "scores", unit="order") if count > 1 else contextlib.nullcontext() as progress:
        return {rule: [_ranked(judge, rule, one, progress) for one in draws] for rule, draws in asked.items()}


def _ranked(judge, rule, evidence, progress):
    found = judge.ranking(rule, evidence)
    if progress is not None:
        progress.step(text=rule)
    return found


def depends_on_seed(rule: str) -> bool:
    """Whether another seed may give another order: the rule draws, or looks at windows that are drawn."""
    return RULES[rule].seeded or "text" in RULES[rule].reads


def removal_curves(judge: Judge, ranked: dict[str, list[Ranking]], blocks: int) -> dict[str, list[dict[str, Any]]]:
    """{rule: points} without 0, 1, ... `blocks` blocks. A point has

    removed      the blocks that went, by the first ranking
    loss         mean over windows and rankings, with the standard error over windows
    difference   the same above the whole model's loss, paired
    by_seed      where a rule has several rankings: seed, removed, loss and difference of each
    """
    sets = {tuple(sorted(one.order[:k])) for own in ranked.values() for one in own for k in range(1, blocks + 1)}
    with Progress(len(sets), "losses", unit="set") as progress:
        todo = [removed for removed in sorted(sets) if not judge.knows(removed)]
        progress.resume_at(len(sets) - len(todo))
        for removed in todo:
            judge.without(removed)
            progress.step()
    return {rule: [_point(judge, own, k) for k in range(blocks + 1)] for rule, own in ranked.items()}


def _point(judge, own, k):
    by_seed = [judge.without(one.order[:k]) for one in own]
    losses = np.mean(by_seed, axis=0)
    point: dict[str, Any] = {"removed": list(own[0].order[:k]), **_loss(losses, judge.full)}
    if len(own) > 1:
        point["by_seed"] = [
            {"seed": one.seed, "removed": list(one.order[:k]), **_loss(values, judge.full)}
            for one, values in zip(own, by_seed, strict=True)
        ]
    return point


def _loss(losses, full):
    """Losses over windows, and what they are above the whole model's, paired."""
    return {"loss": mean_and_error(losses), "difference": mean_and_error(losses - full)}


def stabilities(ranked: dict[str, list[Ranking]]) -> dict[str, Any]:
    """{rule: RankStability as JSON} of the rules with several rankings, with the number of different orders."""
    return {
        rule: rank_stability([one.scores for one in own]).to_json() | {"orders": len({one.order for one in own})}
        for rule, own in ranked.items()
        if len(own) > 1
    }
