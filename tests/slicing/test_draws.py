"""Widths by geometry measured on the fly: draws until they settle, the band, shrinkage of a cheap sensitivity."""

import numpy as np
import pytest

from geowidth.allocate import allocate
from geowidth.measure import MeasureSettings
from geowidth.slicing import draws as module
from geowidth.slicing.combined import shrunk
from geowidth.slicing.draws import TokenDraws, mean_profile, settled, summarised
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.targets import Keep, Sizes
from geowidth.slicing.widths import slice_widths
from tests.slicing.width_models import evidence, windows
from tests.work_profiles import make_profile

SHIFT = MeasureSettings(geometries=("spherical",), statistics=("shift",))
SIZES = Sizes((64,) * 8, 128)


def noisy(seed, noise=0.3):
    """A profile whose topology/spherical is a fixed one times noise."""
    true = np.linspace(3.0, 1.0, 8)
    work = {"spherical": {"topology": (true * np.random.default_rng(seed).lognormal(0, noise, 8)).tolist()}}
    return make_profile(width=64, work=work, seed=seed)


def share(profile):
    values = np.sqrt(profile.signal("topology", "spherical"))
    return values / values.sum()


class Drawn:
    """Draws without a model."""

    tokens = 512

    def first(self, count):
        return tuple(map(noisy, range(count)))


def test_draws_go_on_until_two_halves_agree():
    loose, strict = (settled(Drawn(), share, tolerance, 40) for tolerance in (0.2, 0.03))
    assert loose.change <= 0.2 and strict.change <= 0.03
    assert len(loose.profiles) == 2 < len(strict.profiles)
    assert all(summarised(Drawn().first(n), share).change > 0.03 for n in range(2, len(strict.profiles), 2))
    assert strict.to_json()["settled"] is True
    never = settled(Drawn(), share, 1e-6, 4)
    assert len(never.profiles) == 4 and never.to_json()["settled"] is False


def test_the_mean_is_that_of_every_number():
    profiles = Drawn().first(3)
    mean = mean_profile(profiles)
    rows = [p.signal("topology", "spherical") for p in profiles]
    np.testing.assert_allclose(mean.signal("topology", "spherical"), np.mean(rows, axis=0))
    np.testing.assert_allclose(
        mean.dimension["twonn_mle"], np.mean([p.dimension["twonn_mle"] for p in profiles], axis=0)
    )
    assert mean_profile(profiles[:1]) is profiles[0]


def test_widths_are_those_of_schedule_geometry_for_the_mean():
    profiles = Drawn().first(4)
    found = slice_widths("geometry", Evidence(SIZES, profiles=profiles), Keep(0.6))
    wanted = allocate(
        "geometry", work=mean_profile(profiles), budget=307, unit="width", cap=64, floor="0.25x",
        statistic="topology", geometry="spherical", exponent=1.0,
    )  # fmt: skip
    assert found.widths == wanted.widths
    real = np.array(found.details["real_widths"])
    difficulty = np.array(found.details["difficulty"])
    np.testing.assert_allclose(real / np.sqrt(difficulty), (real / np.sqrt(difficulty))[0], rtol=1e-6)
    steeper = slice_widths("geometry:exponent=dimension", Evidence(SIZES, profiles=profiles), Keep(0.6)).widths
    assert np.ptp(steeper) > np.ptp(found.widths)


def test_the_band_holds_the_widths_of_every_draw():
    profiles = Drawn().first(3)
    found = slice_widths("geometry", Evidence(SIZES, profiles=profiles), Keep(0.5))
    alone = np.array([slice_widths("geometry", Evidence(SIZES, profiles=[p]), Keep(0.5)).widths for p in profiles])
    assert found.details["band"] == {"draws": 3, "lowest": alone.min(0).tolist(), "highest": alone.max(0).tolist()}
    assert found.details["stability"]["draws"] == 3 and found.details["stability"]["tolerance"] is None


def test_draws_of_a_pass_share_no_token(monkeypatch):
    look = evidence()
    taken = []
    monkeypatch.setattr(module, "measure_clouds", lambda clouds, settings: taken.append(clouds) or clouds)
    draws = TokenDraws(look.ffns.model, windows(8, 16), SHIFT, 20)
    draws.first(6)
    assert draws.per_pass == 4 and all(c.tokens == 20 for c in taken)
    states = [{tuple(row) for row in c.before[0].tolist()} for c in taken]
    assert all(not states[i] & states[j] for i in range(4) for j in range(i))
    assert taken[4].settings["pass"] == 1 and states[4] != states[0]


def test_measured_on_the_fly_and_only_what_is_asked_for():
    look = evidence()
    found = slice_widths("geometry:statistic=shift,tokens=32,most_draws=2", look, Keep(0.5))
    assert sum(found.widths) == 48 and max(found.widths) <= 24
    assert [*look.looked_at.mean.work] == ["spherical"] and [*look.looked_at.mean.work["spherical"]] == ["shift"]
    assert found.details["stability"]["draws"] == 2
    kept = look.looked_at.profiles
    again = slice_widths("sorted-geometry:statistic=shift,tokens=32,most_draws=2", look, Keep(0.5))
    assert look.looked_at.profiles == kept, "nothing is measured twice"
    assert list(again.widths) == sorted(found.widths, reverse=True)


def test_shrinkage_weighs_noise_against_the_signals():
    generator = np.random.default_rng(0)
    signal = generator.gamma(3.0, 1.0, 40)
    true = 0.02 * signal**2
    error = 0.5 * true
    measured = true + error * generator.standard_normal(40)
    found = shrunk(measured, error, signal[None])

    def off(values):
        return float(np.square(np.log(np.maximum(values, 1e-4) / true)).mean())

    assert off(found.values) < 0.5 * off(np.maximum(measured, error))
    assert found.details["coefficients"][1] == pytest.approx(2.0, abs=0.5)
    exact = shrunk(true * generator.lognormal(0, 1, 40), np.full(40, 1e-9), signal[None])
    assert exact.details["weight_of_measured"] == pytest.approx(np.ones(40), abs=1e-3)


def test_shrinkage_of_nothing():
    assert not shrunk(np.zeros(5), np.zeros(5), np.ones((1, 5))).values.any()
    found = shrunk(np.array([0.5, 0.4, 0.0, 0.6]), np.array([0.1, 0.1, 0.0, 0.1]), np.ones((1, 4)))
    assert found.values[2] == 0 and (found.values[[0, 1, 3]] > 0.3).all()
