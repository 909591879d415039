"""A pretrained model, as narrow as each layer allows: which FFN neurons stay, how many a layer, what is corrected.

ffns         the FFNs of a model as lists of neurons
hidden       statistics of their hidden vectors over a text
scores       the rules by which neurons stay
selection    the neurons that stay
targets      how small the model shall be: a share of its neurons, parameters, a time
evidence     what rules for widths may look at, made once and shared
widths       the rules by which layers get their widths: by schedules, geometry, sensitivity, thresholds, curves
depth_and_width
             whole blocks against neurons at equal parameters
correction   what those take over from the ones that go, by least squares
apply        a model with fewer neurons, in place and back
streaming    models larger than the memory, one block at a time
pipeline     from a model's name to a narrower checkpoint with its record: stages, request, healing, judge, write
"""

from typing import TYPE_CHECKING

from geowidth import lazy

if TYPE_CHECKING:  # what type checkers and editors see; at run time each name loads when it is first used
    from geowidth.slicing.apply import SliceReport as SliceReport
    from geowidth.slicing.apply import slice_in_place as slice_in_place
    from geowidth.slicing.apply import sliced as sliced
    from geowidth.slicing.depth_and_width import depth_against_width as depth_against_width
    from geowidth.slicing.evidence import Evidence as Evidence
    from geowidth.slicing.ffns import FFNs as FFNs
    from geowidth.slicing.ffns import ffns_of as ffns_of
    from geowidth.slicing.healing import Healing as Healing
    from geowidth.slicing.pipeline import slice_model as slice_model
    from geowidth.slicing.request import SliceRequest as SliceRequest
    from geowidth.slicing.scores import NEURON_RULES as NEURON_RULES
    from geowidth.slicing.scores import NeuronRule as NeuronRule
    from geowidth.slicing.scores import neuron_scores as neuron_scores
    from geowidth.slicing.selection import kept_neurons as kept_neurons
    from geowidth.slicing.streaming import StreamedModel as StreamedModel
    from geowidth.slicing.streaming import slice_streaming as slice_streaming
    from geowidth.slicing.targets import Keep as Keep
    from geowidth.slicing.targets import Latency as Latency
    from geowidth.slicing.targets import Parameters as Parameters
    from geowidth.slicing.widths import WIDTH_RULES as WIDTH_RULES
    from geowidth.slicing.widths import WidthRule as WidthRule
    from geowidth.slicing.widths import slice_widths as slice_widths

_HOMES = {
    "SliceReport": "geowidth.slicing.apply",
    "slice_in_place": "geowidth.slicing.apply",
    "sliced": "geowidth.slicing.apply",
    "FFNs": "geowidth.slicing.ffns",
    "ffns_of": "geowidth.slicing.ffns",
    "Healing": "geowidth.slicing.healing",
    "slice_model": "geowidth.slicing.pipeline",
    "SliceRequest": "geowidth.slicing.request",
    "NEURON_RULES": "geowidth.slicing.scores",
    "NeuronRule": "geowidth.slicing.scores",
    "neuron_scores": "geowidth.slicing.scores",
    "kept_neurons": "geowidth.slicing.selection",
    "StreamedModel": "geowidth.slicing.streaming",
    "slice_streaming": "geowidth.slicing.streaming",
    "depth_against_width": "geowidth.slicing.depth_and_width",
    "Evidence": "geowidth.slicing.evidence",
    "Keep": "geowidth.slicing.targets",
    "Latency": "geowidth.slicing.targets",
    "Parameters": "geowidth.slicing.targets",
    "WIDTH_RULES": "geowidth.slicing.widths",
    "WidthRule": "geowidth.slicing.widths",
    "slice_widths": "geowidth.slicing.widths",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
