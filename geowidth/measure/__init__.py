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

from geowidth import lazy

_HOMES = {
    "Clouds": "geowidth.artifacts.clouds",
    "MeasureSettings": "geowidth.measure.pipeline",
    "check_enough_text": "geowidth.measure.pipeline",
    "measure": "geowidth.measure.pipeline",
    "measure_clouds": "geowidth.measure.pipeline",
    "WorkProfile": "geowidth.artifacts.work_profile",
    "DEFAULT_STATISTICS": "geowidth.measure.statistics",
    "STATISTICS": "geowidth.measure.statistics",
    "persistence_diagram": "geowidth.ops.persistence",
    "diagram_distance": "geowidth.ops.persistence",
    "DiagramMatching": "geowidth.ops.persistence",
    "diagram_matching": "geowidth.ops.persistence",
    "DimensionResult": "geowidth.ops.dimension",
    "intrinsic_dimension": "geowidth.ops.dimension",
    "merge_duplicates": "geowidth.ops.dimension",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
