"""Measure how much geometric work each FFN layer does on its token cloud.

families       where each kind of model keeps its FFNs, as data
widths         FFN widths by what a layer computes, however its weights are stored
models         what is asked of a model before it runs: wrappers, limits, where its input goes
opening        what `geowidth measure MODEL` may name
states         capture: a model's `before` and `after` states at every FFN, the same tokens in every layer
pipeline       clouds to a profile: layers side by side, or a GPU and the CPU's threads overlapping; resumable
layer_cloud    one layer's cloud, with distances and diagrams computed once
layers         one layer's measurement, in parts and steps
statistics     shift, Gromov-Wasserstein distortion, change of degree-one persistent homology

Clouds and the result, WorkProfile, are in geowidth.artifacts; diagrams and dimension are operations of geowidth.ops.
"""

from typing import TYPE_CHECKING

from geowidth import lazy

if TYPE_CHECKING:  # what type checkers and editors see; at run time each name loads when it is first used
    from geowidth.artifacts.clouds import Clouds as Clouds
    from geowidth.artifacts.work_profile import WorkProfile as WorkProfile
    from geowidth.measure.families import FAMILIES as FAMILIES
    from geowidth.measure.families import Family as Family
    from geowidth.measure.pipeline import MeasureSettings as MeasureSettings
    from geowidth.measure.pipeline import check_enough_text as check_enough_text
    from geowidth.measure.pipeline import measure as measure
    from geowidth.measure.pipeline import measure_clouds as measure_clouds
    from geowidth.measure.states import capture as capture
    from geowidth.measure.statistics import DEFAULT_STATISTICS as DEFAULT_STATISTICS
    from geowidth.measure.statistics import STATISTICS as STATISTICS
    from geowidth.ops.diagrams import DiagramMatching as DiagramMatching
    from geowidth.ops.diagrams import diagram_distance as diagram_distance
    from geowidth.ops.diagrams import diagram_matching as diagram_matching
    from geowidth.ops.dimension import DimensionResult as DimensionResult
    from geowidth.ops.dimension import intrinsic_dimension as intrinsic_dimension
    from geowidth.ops.dimension import merge_duplicates as merge_duplicates
    from geowidth.ops.persistence import persistence_diagram as persistence_diagram

_HOMES = {
    "FAMILIES": "geowidth.measure.families",
    "Family": "geowidth.measure.families",
    "Clouds": "geowidth.artifacts.clouds",
    "MeasureSettings": "geowidth.measure.pipeline",
    "capture": "geowidth.measure.states",
    "check_enough_text": "geowidth.measure.pipeline",
    "measure": "geowidth.measure.pipeline",
    "measure_clouds": "geowidth.measure.pipeline",
    "WorkProfile": "geowidth.artifacts.work_profile",
    "DEFAULT_STATISTICS": "geowidth.measure.statistics",
    "STATISTICS": "geowidth.measure.statistics",
    "persistence_diagram": "geowidth.ops.persistence",
    "diagram_distance": "geowidth.ops.diagrams",
    "DiagramMatching": "geowidth.ops.diagrams",
    "diagram_matching": "geowidth.ops.diagrams",
    "DimensionResult": "geowidth.ops.dimension",
    "intrinsic_dimension": "geowidth.ops.dimension",
    "merge_duplicates": "geowidth.ops.dimension",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
