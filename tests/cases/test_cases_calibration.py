"""M4: what a calibration's curves explain of what width does, and when lack of fit is seen; old files are refused."""

import dataclasses
import json

import numpy as np
import pytest
from work_profiles import make_profile

from geowidth import records
from geowidth.cli.calibrate import table
from geowidth.diagnose.calibration import Calibration, summarise
from geowidth.diagnose.calibration_design import CalibrationDesign
from geowidth.diagnose.curves import fit_curves
from geowidth.diagnose.forms import lack_of_fit_test, saturated, seed_noise
from geowidth.diagnose.refits import noise_lack, refit
from geowidth.diagnose.sweep import Sweep, basis
from geowidth.errors import UserError
from geowidth.models.presets import NANO

RATIOS = np.tile([1 / 16, 1 / 4, 4.0], (8, 1))
BUMP = np.array([0.2, 1.0, -0.1])


def sweeps(curve, count, seeds=4, generator=0):
    """`count` Sweeps of 8 layers with this curve (layers, widths), paired seeds and noise of 1 in every loss."""
    generator = np.random.default_rng(generator)
    for _ in range(count):
        level = 100 + 10 * generator.standard_normal(seeds)
        losses = level + curve[:, :, None] + generator.standard_normal((8, 3, seeds))
        yield Sweep(level + generator.standard_normal(seeds), losses, RATIOS)


def law(difficulty, exponent=0.4):
    return difficulty * basis(RATIOS, exponent)


def fitted(sweep):
    curves, _ = refit(sweep.losses.mean(axis=2)[None], sweep.base.mean()[None], sweep.ratios)
    return curves[0]


@pytest.mark.parametrize("difficulty", [0.0, 0.6])
def test_M4_lack_of_fit_is_seen_in_five_of_a_hundred_where_there_is_none(difficulty):
    """Widths that do nothing, and a law whose curves explain a third of all variation (a nano model's noise)."""
    found = []
    for sweep in sweeps(law(difficulty), 48):
        curve, least = fitted(sweep), saturated(sweep)
        squares = sweep.squares(curve)
        gain = sweep.squares(np.zeros((8, 3))) - squares
        expected = noise_lack(sweep, curve, gain, seed_noise(sweep)[0])
        assert squares >= least
        found.append(lack_of_fit_test(sweep, squares, expected)["p"])
    assert np.mean(np.array(found) < 0.05) <= 7 / 48  # 0.05 and 3 standard errors
    assert np.mean(np.array(found) < 0.5) >= 0.25


def test_M4_the_quick_refit_is_the_fit():
    for sweep in sweeps(law(2.0), 3):
        squares = fit_curves(sweep).forms["power"]["squares"]
        assert sweep.squares(fitted(sweep)) == pytest.approx(squares, rel=1e-6)


@pytest.mark.parametrize(("curve", "share"), [(law(0.0), 0.0), (law(0.6), 1.0), (law(5.0), 1.0), (3 * BUMP, None)])
def test_M4_the_interval_holds_what_the_law_explains_without_noise(curve, share):
    curve = np.broadcast_to(curve, (8, 3))
    if share is None:
        exact = Sweep(np.zeros(1), curve[:, :, None], RATIOS)
        lack, all_of_it = exact.squares(fitted(exact)), exact.squares(np.zeros((8, 3)))
        share = 1 - lack / all_of_it
        assert 0.1 < share < 0.9
    for sweep in sweeps(curve, 4, generator=1):
        fit = fit_curves(sweep)
        forms = {name: row["squares"] for name, row in fit.forms.items()}
        ratio = (forms["no effect"] - forms["power"]) / (forms["no effect"] - forms["any curve"])
        assert fit.explained == pytest.approx(ratio, rel=1e-6)
        low, high = fit.explained_interval
        assert low <= min(share, ratio) + 1e-9 and max(share, ratio) <= high + 2e-2


def calibration(curve, seeds=(0, 1, 2, 3)):
    plan = CalibrationDesign(NANO, seeds=seeds)
    sweep = next(sweeps(curve, 1, len(seeds)))
    losses = np.concatenate([sweep.base[None], sweep.losses.reshape(-1, len(seeds))]).T / 100
    return summarise(plan, losses.ravel(), make_profile(8, 256))


def test_M4_the_words_claim_no_more_than_the_interval():
    nothing = calibration(law(0.0))
    assert nothing.explained["interval"][0] == 0 and "nothing can be said of how much" in nothing.sentence
    clear = calibration(law(5.0))
    assert "beside free means (95 % interval" in clear.sentence and clear.explained["share"] > 0.95
    assert "[" in table(clear).splitlines()[1].split("%")[1]
    alone = calibration(law(5.0), seeds=(0,))
    assert alone.explained["interval"] is None and "cannot be said with one seed" in alone.sentence
    assert "not known" in table(alone)


def test_M4_calibrations_of_the_old_meaning_are_refused(tmp_path):
    path = tmp_path / "calibration.json"
    record = calibration(law(5.0)).to_json()
    records.write_json(path, record)
    assert Calibration.read(path).explained == json.loads(path.read_text())["explained"]
    records.write_json(path, record | {"schema": 1})
    with pytest.raises(UserError, match="schema 1.*its trainings are kept"):
        Calibration.read(path)


def test_M4_losses_without_noise():
    level = 2.0 + 0.1 * np.arange(3.0)
    exact = Sweep(level, level + law(0.1)[:, :, None], RATIOS)
    fit = fit_curves(exact)
    assert fit.explained == pytest.approx(1.0) and fit.explained_interval == pytest.approx((1, 1))
    assert fit.lack_of_fit is None
    flat = fit_curves(Sweep(level, level + np.zeros((8, 3, 1)), RATIOS))
    assert (flat.explained, flat.explained_interval) == (None, None)


def test_M3_three_layers_are_not_enough_for_a_correlation():
    model = dataclasses.replace(NANO.model, layers=3, widths=(256,) * 3)
    plan = CalibrationDesign(dataclasses.replace(NANO, model=model), seeds=(0, 1))
    losses = 2 + np.random.default_rng(0).standard_normal(2 * 10) / 100
    found = summarise(plan, losses, make_profile(3, 256))
    assert "3 layers are not enough" in found.sentence and "not enough layers" in table(found)
    assert all(row["difficulty"]["p"] is None for t in found.signals.values() for row in t.values())


@pytest.mark.parametrize("shape", [(1, 3, 2), (2, 2, 2), (8, 2, 3), (4, 6, 2)])
def test_M4_small_sweeps_are_judged_too(shape):
    ratios = np.tile([1 / 16, 1 / 4, 4.0, 1 / 2, 2.0, 8.0][: shape[1]], (shape[0], 1))
    generator = np.random.default_rng(0)
    fit = fit_curves(Sweep(generator.normal(size=shape[2]), generator.normal(size=shape), ratios))
    low, high = fit.explained_interval
    assert 0 <= low <= fit.explained <= high <= 1
    assert (fit.lack_of_fit is None) == (shape[1] == 2)
