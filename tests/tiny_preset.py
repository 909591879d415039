"""A preset that trains in a fraction of a second, for tests and for the processes they start."""

from geowidth.models import ModelConfig
from geowidth.models.presets import Preset, RunSettings
from geowidth.models.training import TrainingSettings

TINY = Preset(
    "tiny",
    ModelConfig(vocabulary=256, layers=2, dimension=16, heads=2, widths=(24, 24), context=16),
    TrainingSettings(steps=12, batch=4, microbatch=4, learning_rate=1e-2, evaluations=3, evaluation_windows=8),
    RunSettings(seeds=(0, 1), arms=("uniform", "cosine"), measured_tokens=16, multiple=1),
)
