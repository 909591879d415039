"""The work statistics of one layer. To add one, write a function and enter it in STATISTICS.

A statistic takes a LayerCloud and the name of a geometry and returns (value, details). It is computed where the cloud
lies, from `cloud.distances`; those in ON_HOST are computed on the host, from `cloud.on_host`. All values have the unit
of that geometry's distance. Source: arXiv 2608.02064 section 3, with the choices of definitions in the docstrings.
"""

from functools import cached_property

import numpy as np
import torch

from geowidth.geometry import HYPERBOLIC_RADIUS, hyperbolic_from_angle, paired_distances, row_norms
from geowidth.ops import entropic_gromov_wasserstein, gromov_wasserstein, pairwise_distances
from geowidth.ops.dimension.operation import MERGED_WITHIN, merge_duplicates
from geowidth.ops.persistence.operation import diagram_distance, persistence_diagram
from geowidth.ops.transfers import Transfer
from geowidth.precision import EPSILON, coarsest


class LayerCloud:
    """The cloud of one layer before and after its FFN, with distances and diagrams computed once and kept.

    before, after   (tokens, dimension) float tensors whose rows correspond, on the CPU or a GPU
    geometries      names; the distances of all of them come from one Gram matrix
    radius          of the hyperbolic geometry
    threads         threads of the native kernels
    transfer        what brings a tensor to the host; see geowidth.ops.transfers.Transfer
    precision       in which the states were produced, where it is coarser than their dtype
    """

    def __init__(
        self, before, after, geometries, radius=HYPERBOLIC_RADIUS, threads=None, transfer=Transfer, precision=None
    ):
        self.before, self.after = before, after
        self.geometries, self.radius, self.threads = tuple(geometries), radius, threads
        self.transfer = transfer
        self.epsilon = EPSILON[coarsest(precision, before.dtype, after.dtype)]
        self.merged = {}  # geometry: how many repeated states (before, after) its diagrams leave out
        self._moved, self._diagrams, self._sent, self._host, self._norms = {}, {}, {}, {}, None

    @cached_property
    def distances(self):
        """{geometry: (before, after)}, two (tokens, tokens) matrices each."""
        # float64 in, float64 out: the diagrams are exact in float64, so their input should be too.
        sides = [
            pairwise_distances(cloud.double(), geometry=self.geometries, radius=self.radius, threads=self.threads)
            for cloud in (self.before, self.after)
        ]
        return {name: (sides[0][name], sides[1][name]) for name in self.geometries}

    def send(self, matrices):
        """Start bringing distance matrices to the host: {geometry: 1 (before) or 2 (before and after)}."""
        for geometry, sides in matrices.items():
            self._sent[geometry] = [self.transfer(matrix) for matrix in self.distances[geometry][:sides]]
        if self._norms is None:
            norms = [row_norms(side.double()) for side in (self.before, self.after)]
            self._norms = [self.transfer(side) for side in norms]

    def on_host(self, geometry):
        """Distance matrices (before, after) on the host, when they are there; before alone if that alone was sent."""
        if geometry not in self._host:
            if geometry not in self._sent:
                self.send({geometry: 2})
            self._host[geometry] = [transfer.wait() for transfer in self._sent.pop(geometry)]
        return self._host[geometry]

    def rounding(self, geometry, side):
        """How far rounding may have put each state from its point, (tokens,) float64 on the host. side: 0 or 1, after.

        A few units in the last place of the state's own norm, at the precision it was produced in: distances are
        computed in float64, so their type says nothing about it. For the other geometries the same as an angle.
        """
        slack = MERGED_WITHIN * self.epsilon
        if geometry == "hyperbolic":
            slack = hyperbolic_from_angle(slack, self.radius)
        if not isinstance(self._norms[side], np.ndarray):
            self._norms[side] = np.asarray(self._norms[side].wait())
        norms = self._norms[side]
        return slack * (norms if geometry == "raw" else np.ones_like(norms))

    def release(self):
        """Let go of the states and distances where they lie; what was sent to the host is kept."""
        self.before = self.after = None
        self.__dict__.pop("distances", None)
        self._moved.clear()

    def moved(self, geometry):
        """Distance of every token's state before to the one after, (tokens,) float64."""
        if geometry not in self._moved:
            if geometry == "hyperbolic":  # an increasing function of the angle, which is the costly part
                made = hyperbolic_from_angle(self.moved("spherical"), self.radius)
            else:
                made = paired_distances(self.before, self.after, geometry)
            self._moved[geometry] = made
        return self._moved[geometry]

    def diagrams(self, geometry):
        """Degree-one persistence diagrams (before, after), two (bars, 2) float64 arrays.

        Hyperbolic distance is an increasing function of the angle, so its diagrams are the spherical ones mapped: one
        persistence run serves both. Repeated states would only add bars of the length of their rounding.
        """
        if geometry not in self._diagrams:
            if geometry == "hyperbolic" and "spherical" in self.geometries:
                made = tuple(hyperbolic_from_angle(d, self.radius) for d in self.diagrams("spherical"))
                self.merged[geometry] = self.merged["spherical"]
            else:
                made = tuple(self._diagram(geometry, side) for side in range(2))
            self._diagrams[geometry] = made
        return self._diagrams[geometry]

    def _diagram(self, geometry, side):
        """The diagram of one side, repeated states merged."""
        matrix = np.asarray(self.on_host(geometry)[side], dtype=np.float64)
        kept, merged = merge_duplicates(matrix, rounding=self.rounding(geometry, side))
        self.merged.setdefault(geometry, []).append(merged)
        return persistence_diagram(matrix[np.ix_(kept, kept)] if merged else matrix, validate=False)


def shift(cloud, geometry):
    """Mean distance between a token's state before and after: mean_i d(x_i, y_i)."""
    return float(cloud.moved(geometry).mean()), {}


def gw(cloud, geometry):
    """Gromov-Wasserstein distortion sqrt(E) at the best coupling found, never above that of the identity.

    Without the op's exchanges of partners: at stationary couplings they lower E by 0.5 % on average (SmolLM2, 90
    problems of 512 tokens, at most 4 %), for 60 % more time.
    """
    result = gromov_wasserstein(*cloud.distances[geometry], swaps=False, threads=cloud.threads)
    names = ("value", "identity", "gap", "lower", "scale", "eccentricity", "shape")
    details = {name: float(getattr(result, name)) for name in names}
    return float(result.gw), details | {"converged": result.converged}


def topology(cloud, geometry):
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


def gw_entropic(cloud, geometry):
    """sqrt(E) of the entropic plan at eps_rel 0.1: mostly blur at usual eps, so a signal of its own beside gw.

    From the op's start "auto": the identity alone where the clouds clearly match, else the lowest of all its descents.
    """
    result = entropic_gromov_wasserstein(*cloud.distances[geometry], threads=cloud.threads)
    return float(result.gw), result.to_json()


ON_HOST = ("topology",)
STATISTICS = {"shift": shift, "gw": gw, "topology": topology, "gw_entropic": gw_entropic}
# Raised when a statistic, or the intrinsic dimension, comes out differently for the same clouds. A work.json carries
# those it was made with, which tells its numbers from those of another version.
REVISIONS = {"shift": 1, "gw": 2, "topology": 2, "gw_entropic": 2, "dimension": 2}
# The nine signals are these under three geometries; the others are measured when asked for.
DEFAULT_STATISTICS = ("shift", "gw", "topology")


def large_norm_tokens(cloud, factor=5.0):
    """Indices of tokens whose norm exceeds `factor` times the median norm: attention sinks and the like."""
    norms = row_norms(cloud.double())
    return torch.nonzero(norms > factor * norms.median()).flatten().tolist() if len(norms) else []
