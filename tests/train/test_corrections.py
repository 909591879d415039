"""Paired t tests and Holm's correction of a family of them."""

import numpy as np
import pytest
from scipy import stats

from geowidth.train.corrections import holm, paired_t_p


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([0.2]) == [0.2] and holm([]) == []


def test_the_paired_t_test_is_scipys():
    ours, theirs = np.random.default_rng(0).normal(0, 1, (2, 6))
    assert paired_t_p(ours - theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)
    assert paired_t_p(np.zeros(3)) == 1.0 and paired_t_p(np.full(3, 0.5)) == 0.0
