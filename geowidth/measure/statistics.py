"""The work statistics of one layer, and what each needs.

STATISTICS is the table of them; a module outside the package adds its own with `STATISTICS.register(Statistic(...))`
(see geowidth.registry). What is brought to the host for the second step of a layer follows from what they declare. All
values have the unit of the geometry's distance. Source: arXiv 2608.02064 section 3, with the choices of definitions in
the docstrings.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from geowidth import signals
from geowidth.errors import UserError, choose, choose_several, shown, whole
from geowidth.geometry import row_norms
from geowidth.measure.layer_cloud import LayerCloud, diagram_source
from geowidth.ops import entropic_gromov_wasserstein, gromov_wasserstein
from geowidth.ops.diagrams import diagram_distance
from geowidth.registry import Registry

PLACES = ("device", "host")
READS = ("distances", "diagrams", "states")


@dataclass(frozen=True)
class Statistic:
    """A work statistic: its function and what that needs.

    name        in options and result files
    function    (LayerCloud, geometry name): (value, details), a number and a dict that goes into the result file
    place       "device": computed where the cloud lies, from cloud.distances, cloud.moved, cloud.before, cloud.after;
                "host": in a thread of the CPU, while the device is at the next layer, from what it reads alone
    reads       of a host statistic, what is brought there: "distances" (cloud.on_host), "diagrams" (cloud.diagrams),
                "states" (cloud.states_on_host)
    sides       of the distances and diagrams that it reads: 2, before and after the FFN, or 1, before alone
    geometries  names of those that it is defined for; None: all
    revision    raised when it comes out differently for the same clouds. A work.json carries those it was made with,
                which tells its numbers from those of another version
    """

    name: str
    function: Callable
    place: str = "device"
    reads: tuple[str, ...] = ()
    sides: int = 2
    geometries: tuple[str, ...] | None = None
    revision: int = 1

    def __post_init__(self):
        of = f"of statistic {shown(self.name)}"
        if self.name == "dimension":
            raise UserError(
                "a statistic cannot be called dimension, a word with a meaning of its own; name it otherwise"
            )
        choose(f"the place {of}", self.place, PLACES)
        if self.place == "host" or self.reads:
            object.__setattr__(self, "reads", choose_several(f"reads {of}", self.reads, READS))
        if self.place == "device" and self.reads:
            raise UserError(f"reads {of} is {self.reads}; on the device everything is at hand: leave it out")
        if self.geometries is not None:
            object.__setattr__(self, "geometries", tuple(self.geometries))
        whole(f"sides {of}", self.sides, 1, 2)
        whole(f"the revision {of}", self.revision, 1)

    def among(self, geometries: Sequence[str]) -> tuple[str, ...]:
        """Those of `geometries` that it is defined for."""
        return tuple(g for g in geometries if self.geometries is None or g in self.geometries)

    def matrices(self, geometries: Sequence[str]) -> tuple[str, ...]:
        """Geometries whose distance matrices must be on the host where it is asked for in `geometries`."""
        read = self.among(geometries)
        distances = read if "distances" in self.reads else ()
        diagrams = [diagram_source(g, geometries) for g in read] if "diagrams" in self.reads else ()
        return (*distances, *diagrams)

    def of(self, cloud: LayerCloud, geometry: str) -> tuple[float, dict[str, Any]]:
        """(value, details) of a LayerCloud."""
        found = self.function(cloud, geometry)
        try:
            value, details = found
            return float(value), dict(details)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"statistic {self.name!r} gave {shown(found)}; needed: (value, details), a number and a dict"
            ) from error


def shift(cloud: LayerCloud, geometry: str) -> tuple[float, dict[str, Any]]:
    """Mean distance between a token's state before and after: mean_i d(x_i, y_i)."""
    return float(cloud.moved(geometry).mean()), {}


def gw(cloud: LayerCloud, geometry: str) -> tuple[float, dict[str, Any]]:
    """Gromov-Wasserstein distortion sqrt(E) at the best coupling found, never above that of the identity.

    Without the op's exchanges of partners: at stationary couplings they lower E by 0.5 % on average (SmolLM2, 90
    problems of 512 tokens, at most 4 %), for 60 % more time.
    """
    result = gromov_wasserstein(*cloud.distances[geometry], swaps=False, threads=cloud.threads)
    names = ("value", "identity", "gap", "lower", "scale", "eccentricity", "shape")
    details = {name: float(getattr(result, name)) for name in names}
    return float(result.gw), details | {"converged": result.converged}


def topology(cloud: LayerCloud, geometry: str) -> tuple[float, dict[str, Any]]:
    """2-Wasserstein distance of the degree-one Vietoris-Rips diagrams before and after, ground norm l_inf."""
    before, after = cloud.diagrams(geometry)
    merged_before, merged_after = cloud.merged[geometry]
    value = float(diagram_distance(before, after))
    details = {
        "bars_before": len(before),
        "bars_after": len(after),
        "total_persistence_before": _total_persistence(before),
        "total_persistence_after": _total_persistence(after),
        "merged_before": merged_before,
        "merged_after": merged_after,
    }
    return value, details


def _total_persistence(diagram):
    lengths = diagram[:, 1] - diagram[:, 0]
    return float(lengths[np.isfinite(lengths)].sum())


def gw_entropic(cloud: LayerCloud, geometry: str) -> tuple[float, dict[str, Any]]:
    """sqrt(E) of the entropic coupling at eps_rel 0.1: mostly blur at usual eps, so a signal of its own beside gw.

    From the op's start "auto": the identity alone where the clouds clearly match, else the lowest of all its descents.
    """
    result = entropic_gromov_wasserstein(*cloud.distances[geometry], threads=cloud.threads)
    return float(result.gw), result.to_json()


STATISTICS = Registry(
    "statistic",
    Statistic,
    [
        Statistic("shift", shift),
        Statistic("gw", gw, revision=2),
        Statistic("topology", topology, place="host", reads=("diagrams",), revision=2),
        Statistic("gw_entropic", gw_entropic, revision=2),
    ],
)
# The nine signals are these under three geometries; the others are measured when asked for.
DEFAULT_STATISTICS = signals.STATISTICS
DIMENSION_REVISION = 2  # as of a statistic, for the intrinsic dimension


def revisions(statistics: Iterable[str]) -> dict[str, int]:
    """{name: revision} of statistics and of the intrinsic dimension."""
    return {**{name: STATISTICS[name].revision for name in statistics}, "dimension": DIMENSION_REVISION}


def sent_matrices(statistics: Iterable[str], geometries: Sequence[str]) -> dict[str, int]:
    """{geometry: 1 or 2}: whose distance matrices the named statistics read on the host, of the first side or both."""
    sent: dict[str, int] = {}
    for statistic in map(STATISTICS.__getitem__, statistics):
        for geometry in statistic.matrices(geometries):
            sent[geometry] = max(statistic.sides, sent.get(geometry, 0))
    return sent


def large_norm_tokens(cloud, factor=5.0):
    """Indices of tokens whose norm exceeds `factor` times the median norm: attention sinks and the like."""
    norms = row_norms(cloud.double())
    return torch.nonzero(norms > factor * norms.median()).flatten().tolist() if len(norms) else []
