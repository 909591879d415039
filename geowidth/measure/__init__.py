"""Measure how much geometric work each FFN layer does on its token cloud.

families       where each kind of model keeps its FFNs, as data
widths         FFN widths by what a layer computes, however its weights are stored
models         what is asked of a model before it runs: wrappers, limits, where its input goes
sequences      text as windows of tokens: padding, and which tokens are drawn
capture        capture.capture: a model's `before` and `after` states at every FFN, the same tokens in every layer
pipeline       clouds to a profile: layers side by side, or a GPU and the CPU's threads overlapping; resumable
layers         one layer's measurement, in parts and steps
statistics     shift, Gromov-Wasserstein distortion, change of degree-one persistent homology
topology       persistence diagrams and their 2-Wasserstein distance
dimension      intrinsic dimension of a cloud
profile        the result: one number per layer, geometry and statistic
"""

from importlib import import_module

_HOME = {
    "Clouds": "clouds",
    "MeasureSettings": "pipeline",
    "check_enough_text": "pipeline",
    "measure": "pipeline",
    "measure_clouds": "pipeline",
    "WorkProfile": "profile",
    "DEFAULT_STATISTICS": "statistics",
    "STATISTICS": "statistics",
    "persistence_diagram": "topology",
    "diagram_distance": "topology",
    "DiagramMatching": "topology",
    "diagram_matching": "topology",
    "DimensionResult": "dimension",
    "intrinsic_dimension": "dimension",
    "merge_duplicates": "dimension",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(f"geowidth.measure.{_HOME[name]}"), name)
    raise AttributeError(f"module 'geowidth.measure' has no attribute {name!r}")
