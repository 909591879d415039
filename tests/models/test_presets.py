"""Presets are sound, and wrong settings are refused by name."""

import math

import pytest
import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models import TaperedTransformer
from geowidth.models.presets import PRESETS, Preset, preset_named


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_presets_are_sound(preset):
    assert len(set(preset.model.widths)) == 1 and preset.base_width % preset.run.multiple == 0
    assert len(preset.run.seeds) >= 3 and preset.run.arms[0] == "uniform" and len(preset.run.arms) == 4
    assert Preset.from_json(records.loads(records.dumps(preset.to_json()))) == preset


def test_nano_has_the_size_it_promises():
    model = preset_named("nano").model
    assert 500_000 <= TaperedTransformer(model, seed=None).parameter_count() <= 2_000_000
    assert 6 <= model.layers <= 8


NAMED = {"mini": 12e6, "128m": 128e6, "256m": 256e6, "440m": 440e6, "1.2b": 1.2e9}


@pytest.mark.parametrize("name", NAMED)
def test_presets_have_the_size_of_their_name(name):
    preset = preset_named(name)
    model, training = preset.model, preset.training
    assert model.parameters == pytest.approx(NAMED[name], rel=0.03)
    with torch.device("meta"):
        assert TaperedTransformer(model, seed=None).parameter_count() == model.parameters
    assert model.head_dimension == 64 and preset.base_width % 64 == 0
    assert preset.base_width == pytest.approx(8 / 3 * model.dimension, abs=32)
    tokens = training.steps * training.batch * model.context
    assert tokens == pytest.approx(20 * model.parameters, rel=0.01)
    assert training.learning_rate == pytest.approx(6e-4 * (128e6 / model.parameters) ** 0.5, rel=0.05)
    assert training.batch % training.microbatch == 0 and 0 < training.warmup < 0.1


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="'nono'; allowed: .*nano"):
        preset_named("nono")
    with pytest.raises(UserError, match="learningrate"):
        preset_named("nano").with_training(learningrate=1)
    with pytest.raises(UserError, match="3 widths"):
        preset_named("nano").with_widths((1, 2, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": 2.5},
        {"batch": True},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"clip": -1},
        {"beta2": 1.0},
        {"warmup": 1.5},
    ],
)
def test_bad_settings_are_refused_by_name(change):
    with pytest.raises(UserError, match=next(iter(change))):
        preset_named("nano").with_training(**change)


def test_none_keeps_the_preset():
    nano = preset_named("nano")
    assert nano.with_training(steps=None) == nano.training
    assert nano.with_training(batch=1).microbatch == 1
    assert nano.with_widths(None) == nano.model
