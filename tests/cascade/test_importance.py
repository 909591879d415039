"""Importance of blocks on held-out text, and its correlation with other numbers a block."""

import numpy as np
import pytest
import torch
from cascade_models import library, ours
from scipy import stats

from geowidth.cascade import block_importance, correlate, residual_blocks
from geowidth.cascade.held_out import IGNORED, HeldOut, draw_held_out, mean_and_error, window_losses
from geowidth.cascade.plot import plot_curves, plot_importance
from geowidth.errors import UserError
from geowidth.measure.opening import OpenedModel
from geowidth.text.corpus import load_corpus


def text_of(windows=5):
    tokens = torch.randint(20, (windows, 8), generator=torch.Generator().manual_seed(3))
    return HeldOut(tokens, torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED), {"windows": windows})


@pytest.mark.parametrize("make", [ours, lambda: library("llama")], ids=["ours", "llama"])
@torch.no_grad()
def test_window_losses_by_definition(make):
    model, text = make(), text_of()
    found = window_losses(model, text, batch=2)
    for losses, row in zip(found, text.tokens, strict=True):
        logits = getattr(out := model(row[None]), "logits", out)[0].double().log_softmax(-1)
        wanted = -np.mean([float(logits[i, row[i + 1]]) for i in range(7)])
        assert losses == pytest.approx(wanted, abs=1e-5)


def test_importance_is_paired_over_windows():
    model, text = ours().train(), text_of()
    blocks = residual_blocks(model)
    found = block_importance(blocks, text)
    assert model.training and found.values.shape == (3,)
    model.eval()
    with blocks.without([1]):
        without = window_losses(model, text)
    differences = without - window_losses(model, text)
    assert found.values[1] == pytest.approx(differences.mean())
    assert found.standard_errors[1] == pytest.approx(stats.sem(differences))
    assert found.to_json()["loss"] == mean_and_error(found.full)


def test_a_block_that_does_nothing_has_no_importance():
    model, text = ours(), text_of()
    with torch.no_grad():
        for parameter in model.blocks[2].parameters():
            parameter.zero_()
    found = block_importance(residual_blocks(model), text)
    assert found.values[2] == 0 and found.standard_errors[2] == 0 and found.values[0] != 0


def test_windows_are_drawn_from_the_split_without_special_tokens(text):
    corpus = load_corpus(text)
    model = ours()
    with pytest.raises(UserError, match="m has 20 token ids and no tokenizer.json"):
        draw_held_out(OpenedModel(model, {"name": "m"}, context=8), corpus, "test", windows=4)
    from geowidth.models import ModelConfig, TaperedTransformer

    of_bytes = TaperedTransformer(ModelConfig(256, 1, 8, 1, (8,), 16), seed=0).eval()
    found = draw_held_out(OpenedModel(of_bytes, {}, context=8), corpus, "test", windows=4, seed=1)
    rows = corpus.test[: len(corpus.test) // 8 * 8].view(-1, 8).long()
    assert all(any(torch.equal(row, one) for one in rows) for row in found.tokens)
    assert torch.equal(found.targets[:, :-1], found.tokens[:, 1:]) and (found.targets[:, -1] == IGNORED).all()
    again = draw_held_out(OpenedModel(of_bytes, {}, context=8), corpus, "test", windows=4, seed=1)
    assert torch.equal(found.tokens, again.tokens)
    with pytest.raises(UserError, match="windows asked for; the test split"):
        draw_held_out(OpenedModel(of_bytes, {}, context=8), corpus, "test", windows=100_000)


def test_correlation_against_scipy(rng):
    x = rng.normal(size=12)
    y = x + rng.normal(size=12)
    found = correlate(x, y, confidence=0.9)
    pearson = stats.pearsonr(x, y)
    assert found["pearson"].value == pytest.approx(pearson.statistic)
    assert found["pearson"].interval == pytest.approx(tuple(pearson.confidence_interval(0.9)))
    assert found["spearman"].value == pytest.approx(stats.spearmanr(x, y).statistic)
    low, high = found["spearman"].interval
    assert low < found["spearman"].value < high


def test_intervals_cover():
    """Of normal pairs with a known correlation, 95 % intervals hold it about 95 times in 100."""
    generator, inside = np.random.default_rng(5), {"pearson": 0, "spearman": 0}
    truth = {"pearson": 0.6, "spearman": 6 / np.pi * np.arcsin(0.3)}
    for _ in range(400):
        x = generator.normal(size=30)
        found = correlate(x, 0.6 * x + 0.8 * generator.normal(size=30))
        for name, one in found.items():
            inside[name] += one.interval[0] <= truth[name] <= one.interval[1]
    assert all(0.92 <= count / 400 <= 0.98 for count in inside.values()), inside


def test_correlation_at_its_edges():
    assert correlate([1, 2, 3], [1, 1, 1])["pearson"].value is None
    assert correlate([1, 2, 3], [2, 4, 9])["spearman"].to_json() == {
        "value": pytest.approx(1), "interval": None, "confidence": 0.95, "pairs": 3,
    }  # fmt: skip
    assert correlate([1, 2, 3, 4], [4, 3, 2, 1])["spearman"].interval is None
    with pytest.raises(UserError, match="3 and 2 numbers came"):
        correlate([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match="y of layer 1 is nan"):
        correlate([1, 2], [1, float("nan")])


def test_pictures(tmp_path):
    values = np.array([3.0, 1.0, 0.5, 0.4])
    plot_importance(values, values / 10, values / values.sum(), correlate(values, values[::-1]), tmp_path / "a.svg")
    points = [{"loss": {"mean": 3.0 + i}, "difference": {"standard_error": 0.1 * i}} for i in range(3)]
    plot_curves({"random": points, "ledger": points}, tmp_path / "b.svg")
    for name in ("a.svg", "b.svg"):
        assert (tmp_path / name).read_text().lstrip().startswith("<?xml")
