"""Losses over blocks removed: each set judged once, means over seeds, and work that goes on where it was."""

import numpy as np
import pytest
import torch
from cascade_models import ours
from test_importance import text_of

from geowidth.artifacts.ledger import Ledger
from geowidth.cascade import block_importance, curves, residual_blocks
from geowidth.cascade.curves import Judge, rankings, removal_curves, stabilities
from geowidth.cascade.held_out import window_losses
from geowidth.cascade.scores import Evidence
from geowidth.errors import UserError

RULES = ("ledger", "similarity", "random")
LEDGER = Ledger(("a", "b", "c"), 2, 0, [3, 1, 2], [1, 1, 1])


@pytest.fixture
def judged(monkeypatch):
    """(blocks, text, list of what was judged)."""
    blocks, seen = residual_blocks(ours()), []

    def counted(model, text):
        seen.append(text)
        return window_losses(model, text)

    for name in ("window_losses", "whole_losses"):
        monkeypatch.setattr(curves, name, counted)
    return blocks, text_of(), seen


def evidence(blocks, seeds):
    return [Evidence(blocks, text_of(), LEDGER, seed) for seed in range(seeds)]


def test_points_are_means_over_seeds_of_losses_by_definition(judged):
    blocks, text, seen = judged
    judge = Judge(blocks, text)
    ranked = rankings(judge, RULES, evidence(blocks, 12))
    assert {rule: len(own) for rule, own in ranked.items()} == {"ledger": 1, "similarity": 12, "random": 12}
    found = removal_curves(judge, ranked, 2)
    assert len(seen) == 7  # the whole model, and all sets of one or two of three blocks
    assert [point["removed"] for point in found["ledger"]] == [[], [1], [1, 2]] and "by_seed" not in found["ledger"][1]
    with blocks.without([1, 2]):
        alone = window_losses(blocks.model, text)
    assert found["ledger"][2]["loss"]["mean"] == pytest.approx(alone.mean())
    for k in range(3):
        by_seed = found["random"][k]["by_seed"]
        assert [one["seed"] for one in by_seed] == list(range(12))
        assert found["random"][k]["loss"]["mean"] == pytest.approx(np.mean([one["loss"]["mean"] for one in by_seed]))
        windows = [judge.windows()[" ".join(map(str, sorted(one["removed"])))] for one in by_seed]
        apart = np.mean(windows, 0) - judge.full
        assert found["random"][k]["difference"]["mean"] == pytest.approx(apart.mean(), abs=1e-12)
        assert found["random"][k]["difference"]["standard_error"] == pytest.approx(apart.std(ddof=1) / 5**0.5)
    told = stabilities(ranked)
    assert told["similarity"]["spearman"] == 1 and told["similarity"]["orders"] == 1  # all looked at one text
    assert abs(told["random"]["spearman"]) < 0.6 and told["random"]["orders"] > 3 and "ledger" not in told


def test_an_interrupted_curve_goes_on_and_ends_the_same(judged, tmp_path, monkeypatch):
    blocks, text, seen = judged
    out = tmp_path / "curve.json"

    def whole(place):
        judge = Judge(blocks, text, place)
        found = removal_curves(judge, rankings(judge, RULES, evidence(blocks, 3)), 2)
        judge.finish()
        return found, judge.windows()

    expected = whole(None)
    assert not list(tmp_path.iterdir())
    total, left = len(seen), iter([True] * 3)

    def stopped(model, text):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return window_losses(model, text)

    with monkeypatch.context() as patch:
        for name in ("window_losses", "whole_losses"):
            patch.setattr(curves, name, stopped)
        with pytest.raises(KeyboardInterrupt):
            whole(out)
    assert (tmp_path / ".curve.json.partial").exists()
    seen.clear()
    monkeypatch.setattr(curves, "block_scores", None)  # scores are there already
    found = whole(out)
    assert found[0] == expected[0] and found[1] == expected[1]
    assert len(seen) == total - 2 and not list(tmp_path.iterdir())


def test_what_was_kept_of_another_model_or_text_is_not_taken(judged, tmp_path):
    blocks, text, seen = judged
    Judge(blocks, text, tmp_path / "curve.json").without([0])
    for parameter in blocks.parameters(2):
        parameter.data.mul_(1.01)
    other = Judge(blocks, text, tmp_path / "curve.json")
    assert not other.kept.results
    seen.clear()
    with blocks.without([0]):
        wanted = window_losses(blocks.model, text)
    np.testing.assert_array_equal(other.without([0]), wanted)
    assert len(seen) == 1


def test_a_model_without_a_finite_loss_is_refused():
    blocks = residual_blocks(ours())
    with torch.no_grad():
        blocks.model.blocks[0].ffn.up[0, 0] = float("inf")
    with pytest.raises(UserError, match="loss of the whole model on window 0 of the text is nan"):
        Judge(blocks, text_of())
    with pytest.raises(UserError, match="give a model of finite weights"):
        block_importance(blocks, text_of())
