"""TrainingSettings: what they may be, and files of older versions."""

from dataclasses import asdict, replace

import pytest
from tiny_preset import TINY

from geowidth.errors import UserError
from geowidth.models.training import TrainingSettings, with_defaults

SETTINGS = TINY.training


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"equal_gradients": "yes"}, "equal_gradients is 'yes'"),
        ({"exit_loss": -1}, "exit_loss is -1; allowed: numbers from 0 up"),
        ({"exit_loss": 1, "exit_weights": "linear"}, "exit_weights is 'linear'; allowed: layerskip, equal"),
        ({"exit_loss": 1, "exit_curriculum": "all"}, "exit_curriculum is 'all'; allowed: none, rotational, gradual"),
        ({"exit_weights": "equal"}, "exit_weights is 'equal', but exit_loss is 0; give exit_loss"),
        ({"exit_curriculum": "gradual"}, "exit_curriculum is 'gradual', but exit_loss is 0"),
        ({"exit_period": 0}, "exit_period is 0; allowed: whole numbers from 1"),
        ({"layer_dropout": 1}, "layer_dropout is 1; allowed: numbers from 0 to 1"),
        ({"layer_dropout_curriculum": "exponential"}, "layer_dropout_curriculum is .*, but layer_dropout is 0"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; allowed: adamw, muon, sgd"),
    ],
)
def test_settings_that_mean_nothing_are_refused(change, words):
    with pytest.raises(UserError, match=words):
        replace(SETTINGS, **change)


def test_settings_read_back_and_those_of_older_versions_mean_what_they_did():
    changed = replace(SETTINGS, equal_gradients=True, exit_loss=1, exit_curriculum="rotational", layer_dropout=0.1)
    assert TrainingSettings.from_json(changed.to_json()) == changed
    new = ("equal_gradients", "exit_loss", "exit_weights", "exit_curriculum", "exit_period", "layer_dropout")
    old = {n: v for n, v in asdict(SETTINGS).items() if n not in (*new, "layer_dropout_curriculum")}
    assert TrainingSettings.from_json(old) == SETTINGS and with_defaults(old) == SETTINGS.to_json()
