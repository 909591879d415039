"""Fits of loss-versus-width curves: exact data, oracles, intervals that cover, forms that do not fit."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from geowidth.diagnose.curves import fit_curves
from geowidth.diagnose.sweep import Sweep, basis
from geowidth.errors import UserError

RATIOS = np.array([1 / 16, 1 / 4, 4.0])


def sweep(difficulty, exponent, seeds=3, noise=0.0, generator=None, ratios=RATIOS, curve=basis):
    """A Sweep of layers with these curves; seeds differ by their means, and every loss has `noise`."""
    difficulty, exponent = np.asarray(difficulty, float), np.asarray(exponent, float)
    table = np.tile(ratios, (len(difficulty), 1))
    generator = generator or np.random.default_rng(0)
    mean = 2.0 + 0.1 * np.arange(seeds)
    losses = mean + (difficulty[:, None] * curve(table, exponent[:, None]))[:, :, None]
    losses = losses + noise * generator.normal(size=losses.shape)
    return Sweep(mean + noise * generator.normal(size=seeds), losses, table)


def test_exact_curves_are_recovered():
    difficulty, exponent = [0.1, 0.02, 0.3, 0.05], [0.3, 1.2, 0.05, 0.6]
    fit = fit_curves(sweep(difficulty, exponent))
    assert [f.difficulty for f in fit.layers] == pytest.approx(difficulty, rel=1e-4)
    assert [f.exponent for f in fit.layers] == pytest.approx(exponent, rel=1e-4)
    assert all(f.explained == pytest.approx(1.0, abs=1e-6) for f in fit.layers)
    value, (low, high) = fit.layers[0].coefficient(256)
    assert value == pytest.approx(0.1 * 256**0.3, rel=1e-3) and low <= value <= high
    assert fit.noise < 1e-6 and all(f.determined for f in fit.layers)
    assert fit.layers[0].slope[0] == pytest.approx(0.1 * 0.3, rel=1e-4)


def test_a_shared_exponent_is_recovered():
    fit = fit_curves(sweep([0.1, 0.02, 0.3, 0.05], [0.4] * 4))
    assert fit.shared_exponent == pytest.approx(0.4, rel=1e-4)
    assert fit.shared_difficulty == pytest.approx([0.1, 0.02, 0.3, 0.05], rel=1e-4)
    assert fit.shared_interval == pytest.approx((0.4, 0.4), rel=1e-4)


def test_the_least_squares_are_those_of_scipy():
    data = sweep([0.1, 0.05, 0.02], [0.4, 0.9, 0.2], seeds=2, noise=0.003, generator=np.random.default_rng(3))
    fit = fit_curves(data)
    layers, widths, seeds = data.losses.shape

    def model(_, *parameters):
        mean, e, a = np.array(parameters[:2]), np.array(parameters[2:5]), np.exp(parameters[5:])
        losses = mean + (e[:, None] * basis(data.ratios, a[:, None]))[:, :, None]
        return np.concatenate([losses.ravel(), mean])

    target = np.concatenate([data.losses.ravel(), data.base])
    start = [*data.base, 0.05, 0.05, 0.05, *np.log([0.5, 0.5, 0.5])]
    found, _ = curve_fit(model, np.arange(target.size), target, p0=start, maxfev=20000)
    least = np.square(model(None, *found) - target).sum()
    assert fit.forms["power"]["squares"] == pytest.approx(least, rel=1e-5)
    assert [f.difficulty for f in fit.layers] == pytest.approx(found[2:5], rel=5e-3)
    assert fit.noise == pytest.approx(np.sqrt(least / (layers * widths * seeds - 2 * layers)), rel=1e-5)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    difficulty, exponent = np.array([0.1, 0.05, 0.2, 0.08]), np.array([0.4, 0.7, 0.3, 0.5])
    hits = {"e": 0, "a": 0, "c": 0, "shared": 0, "count": 0, "rounds": 0}
    for seed in range(15):
        generator = np.random.default_rng(seed)
        fit = fit_curves(sweep(difficulty, exponent, noise=0.004, generator=generator))
        one = fit_curves(sweep(difficulty, [0.4] * 4, noise=0.004, generator=generator))
        hits["shared"] += one.shared_interval[0] <= 0.4 <= one.shared_interval[1]
        hits["rounds"] += 1
        for layer, e, a in zip(fit.layers, difficulty, exponent, strict=True):
            hits["count"] += 1
            hits["e"] += layer.difficulty_interval[0] <= e <= layer.difficulty_interval[1]
            hits["a"] += layer.exponent_interval[0] <= a <= layer.exponent_interval[1]
            low, high = layer.coefficient(256)[1]
            hits["c"] += low <= e * 256**a <= high
    assert all(hits[name] >= 0.88 * hits["count"] for name in ("e", "a", "c")), hits
    assert hits["shared"] >= 12


def test_another_form_is_found_out():
    def bump(ratios, _):
        return np.where(ratios < 0.1, 0.2, np.where(ratios < 1, 1.0, -0.1))

    quiet = fit_curves(sweep([0.1] * 4, [0.4] * 4, noise=0.004))
    loud = fit_curves(sweep([0.1] * 4, [0.4] * 4, noise=0.004, curve=bump))
    assert quiet.lack_of_fit["p"] > 0.01 and loud.lack_of_fit["p"] < 1e-6
    assert loud.forms["any curve"]["aicc"] < loud.forms["power"]["aicc"]
    assert quiet.forms["power, one exponent"]["aicc"] < quiet.forms["any curve"]["aicc"]
    assert quiet.forms["power"]["squares"] >= quiet.forms["any curve"]["squares"]
    assert quiet.forms["no effect"]["squares"] > quiet.forms["line"]["squares"]


def test_layers_that_do_nothing_have_intervals_around_zero():
    fit = fit_curves(sweep([0.0, 0.1, 0.0, 0.1], [0.5] * 4, noise=0.002))
    for layer in (0, 2):
        low, high = fit.layers[layer].difficulty_interval
        assert low < 0 < high and not fit.layers[layer].determined
        assert fit.layers[layer].slope[1][0] < 0 < fit.layers[layer].slope[1][1]
        assert fit.shared_difficulty_interval[layer][0] < 0 < fit.shared_difficulty_interval[layer][1]


def test_one_seed_has_no_pure_error():
    fit = fit_curves(sweep([0.1] * 4, [0.4] * 4, seeds=1, noise=0.001))
    assert fit.lack_of_fit is None and fit.noise > 0


def test_bad_sweeps_are_refused():
    good = sweep([0.1, 0.1], [0.4, 0.4])
    with pytest.raises(UserError, match="not finite"):
        Sweep(good.base * np.nan, good.losses, good.ratios)
    with pytest.raises(UserError, match="not 1, which is the base"):
        Sweep(good.base, good.losses, good.ratios * 4)
    with pytest.raises(UserError, match="take more of them"):
        sweep([0.1] * 3, [0.4] * 3, seeds=1, ratios=RATIOS[:2])
    with pytest.raises(UserError, match="base"):
        Sweep(good.base[:2], good.losses, good.ratios)
