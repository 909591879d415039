"""One threshold over all layers, against the plain thing: sort everything, keep the best."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geowidth.slicing.evidence import Evidence
from geowidth.slicing.targets import Keep, Parameters, Sizes
from geowidth.slicing.widths import slice_widths


def plain(scores, total):
    """Widths by sorting all scores; every layer keeps one neuron, as a width is at least 1."""
    order = sorted(((-s, layer, i) for layer, row in enumerate(scores) for i, s in enumerate(row)))
    best = {layer: max(range(len(row)), key=lambda i, row=row: row[i]) for layer, row in enumerate(scores)}
    chosen = set(best.items())
    for _, layer, i in order:
        if len(chosen) == total:
            break
        chosen.add((layer, i))
    return tuple(sum(one[0] == layer for one in chosen) for layer in range(len(scores)))


NORMALISED = {
    "norm": lambda row: row / np.sqrt((row**2).sum()),
    "mean": lambda row: row / row.mean(),
    "standard": lambda row: (row - row.mean()) / row.std(),
    "none": lambda row: row,
}


@pytest.mark.parametrize("normalised", NORMALISED)
@given(seed=st.integers(0, 10_000), keep=st.floats(0.5, 1))
@settings(max_examples=15, deadline=None)
def test_the_best_of_all_stay(normalised, seed, keep):
    generator = np.random.default_rng(seed)
    widths = tuple(generator.integers(2, 12, 4).tolist())
    scores = [generator.gamma(1.0, generator.gamma(1.0), width) for width in widths]
    look = Evidence(Sizes(widths, 8), scores=scores)
    found = slice_widths(f"threshold:normalised={normalised}", look, Keep(keep))
    wanted = plain([NORMALISED[normalised](row) for row in scores], found.budget["value"])
    assert found.widths == wanted


def test_flat_scores_and_layers_without_any():
    look = Evidence(Sizes((4, 4, 4), 8), scores=[np.zeros(4), np.ones(4), np.arange(4.0)])
    assert slice_widths("threshold", look, Keep(0.75)).widths == (2, 4, 3), "of equal scores the earlier layer's"
    standard = slice_widths("threshold:normalised=standard", look, Keep(0.5)).widths
    assert sum(standard) == 6 and standard[2] >= 2


def test_multiples_parameters_and_few_widths():
    generator = np.random.default_rng(0)
    sizes = Sizes((32,) * 4, 8, 2, True, 5_000)
    look = Evidence(sizes, scores=[generator.gamma(1.0, 1.0 + i, 32) for i in range(4)])
    found = slice_widths("threshold:normalised=none", look, Parameters(4_000), multiple=4, max_distinct_widths=2)
    assert len(set(found.widths)) <= 2 and all(w % 4 == 0 for w in found.widths)
    assert sizes.total(found.widths) <= 4_000
    free = slice_widths("threshold:normalised=none", look, Parameters(4_000)).widths
    assert 4_000 - 17 < sizes.total(free) <= 4_000 and free[3] > free[0]
    least = slice_widths("threshold:normalised=none", look, Keep(0.5), floor="0.5x").widths
    assert min(least) >= 8
