"""Power before a comparison: agrees with what the t test sees, and says where its spread comes from."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from geowidth.train.evidence import t_power
from geowidth.train.power import NANO_SPREAD, observed_spread, power_of, smallest_effect

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.parametrize("seeds", [2, 3, 6, 30])
@pytest.mark.parametrize("spread", [1e-9, 0.02, 5.0])
def test_the_smallest_effect_is_seen_just_so_often(seeds, spread):
    effect = smallest_effect(seeds, spread)
    assert t_power(seeds, spread, effect) == pytest.approx(0.8, abs=1e-5)
    assert smallest_effect(seeds, spread, power=0.9) > effect


def test_the_smallest_effect_against_simulated_tests(rng):
    drawn = rng.normal(smallest_effect(6, 1.0), 1.0, (40_000, 6))
    seen = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert np.mean(seen) == pytest.approx(0.8, abs=0.01)


def test_one_seed_shows_nothing():
    assert smallest_effect(1, 0.1) is None
    assert "1 seed shows nothing" in power_of(1, {}).lines()[1]


def test_without_spread_everything_shows():
    losses = {"uniform": {0: 1.0, 1: 2.0, 2: 3.0}, "cosine": {0: 1.0, 1: 2.0, 2: 3.0}}
    found = power_of(3, losses)
    assert found.spread == 0 and found.smallest == 0 and found.needed == 2


def test_the_spread_is_the_largest_of_finished_pairs():
    losses = {
        "uniform": {0: 1.0, 1: 1.1, 2: 1.2, 3: 1.0},
        "cosine": {0: 0.9, 1: 1.3, 2: 1.0},
        "linear": {0: 1.0, 1: 1.1, 2: 1.3, 3: 1.0},
        "short": {0: 9.0, 1: -9.0},
    }
    spread, words = observed_spread(losses, "uniform")
    assert (
        spread == pytest.approx(np.std([-0.1, 0.2, -0.2], ddof=1)) and words == "cosine minus uniform, 3 finished pairs"
    )
    assert observed_spread({"cosine": losses["cosine"]}, "uniform") is None
    assert observed_spread({arm: losses[arm] for arm in ("uniform", "short")}, "uniform") is None


def test_a_stated_spread_wins_and_the_demo_stands_in_by_name():
    losses = {"uniform": {0: 1.0, 1: 1.1, 2: 1.2}, "cosine": {0: 0.9, 1: 1.3, 2: 1.0}}
    assert power_of(3, losses, spread=0.5).source == "as stated"
    assert "nano demo" in power_of(3, {}).source
    needed = power_of(3, losses, spread=0.02, effect=0.01).needed
    assert t_power(needed, 0.02, 0.01) >= 0.8 > t_power(needed - 1, 0.02, 0.01)
    assert "6 are the fewest with which the sign-flip test can reach 0.05" in power_of(5, {}).lines()[1]
    assert "fewest" not in power_of(6, {}).lines()[1]


def test_the_demos_spread_is_the_readmes():
    demo = [line for line in README.read_text("utf-8").splitlines() if line.startswith("    ")]
    errors = [float(error) for error in re.findall(r"[+−]0\.\d+ ± (0\.\d+)", "\n".join(demo))]
    assert f"{max(errors) * math.sqrt(6):.4f}" == f"{NANO_SPREAD:.4f}"


def test_models_of_tokens_have_no_committed_spread():
    assert power_of(3, {}, unit="nats per token") is None
    assert (
        power_of(3, {}, unit="nats per token", spread=0.1)
        .lines()[0]
        .startswith("sd of paired differences 0.1 nats per token")
    )
