"""The cloud of one layer before and after its FFN, as the statistics see it: distances, shifts, diagrams."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from geowidth.errors import UserError
from geowidth.geometry import ANGLE, GEOMETRIES, HYPERBOLIC_RADIUS, paired_distances, row_norms
from geowidth.ops import pairwise_distances
from geowidth.ops.dimension import MERGED_WITHIN, merge_duplicates
from geowidth.ops.persistence import persistence_diagram
from geowidth.ops.transfers import Transfer
from geowidth.precision import EPSILON, coarsest

STATES = "/states"  # no geometry can have this name


def diagram_source(geometry: str, geometries: Sequence[str]) -> str:
    """Whose distance matrices the diagrams of a geometry are made from, among those of a cloud."""
    return ANGLE if GEOMETRIES[geometry].angular and ANGLE in geometries else geometry


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
        self._moved, self._diagrams, self._sent, self._host = {}, {}, {}, {}
        self._norms: Any = None  # of the states (before, after), once they are sent

    @cached_property
    def distances(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """{geometry: (before, after)}, two (tokens, tokens) matrices each."""
        if self.before is None:
            raise UserError("cloud.distances are gone on the host; a statistic of place 'host' reads cloud.on_host")
        # float64 in, float64 out: the diagrams are exact in float64, so their input should be too.
        sides = [
            pairwise_distances(cloud.double(), geometry=self.geometries, radius=self.radius, threads=self.threads)
            for cloud in (self.before, self.after)
        ]
        return {name: (sides[0][name], sides[1][name]) for name in self.geometries}

    def send(self, matrices: Mapping[str, int]) -> None:
        """Start bringing distance matrices to the host: {geometry: 1 (before) or 2 (before and after)}."""
        for geometry, sides in matrices.items():
            self._sent[geometry] = [self.transfer(matrix) for matrix in self.distances[geometry][:sides]]
        if self._norms is None:
            norms = [row_norms(side.double()) for side in (self.before, self.after)]
            self._norms = [self.transfer(side) for side in norms]

    def send_states(self) -> None:
        """Start bringing the states to the host."""
        self._sent[STATES] = [self.transfer(side) for side in (self.before, self.after)]

    def on_host(self, geometry: str) -> list[torch.Tensor]:
        """Distance matrices (before, after) on the host, when they are there; before alone if that alone was sent."""
        if geometry not in self._host and geometry not in self._sent and self.before is not None:
            self.send({geometry: 2})
        return self._arrived(geometry, "distances")

    def states_on_host(self) -> list[torch.Tensor]:
        """The states (before, after), (tokens, dimension) each, on the host, when they are there."""
        if STATES not in {*self._host, *self._sent} and self.before is not None:
            self.send_states()
        return self._arrived(STATES, "states")

    def _arrived(self, key, what):
        if key not in self._host:
            if key not in self._sent:
                raise UserError(
                    f"{what} were not sent to the host; a Statistic that reads them there declares reads=({what!r},)"
                )
            self._host[key] = [transfer.wait() for transfer in self._sent.pop(key)]
        return self._host[key]

    def rounding(self, geometry: str, side: int) -> np.ndarray:
        """How far rounding may have put each state from its point, (tokens,) float64 on the host. side: 0 or 1, after.

        A few units in the last place of the state's own norm, at the precision it was produced in: distances are
        computed in float64, so their type says nothing about it. For the other geometries the same as an angle.
        """
        slack, kind = MERGED_WITHIN * self.epsilon, GEOMETRIES[geometry]
        if kind.angular:
            slack = kind.of_angle(slack, self.radius)
        if not isinstance(self._norms[side], np.ndarray):
            self._norms[side] = np.asarray(self._norms[side].wait())
        norms = self._norms[side]
        return slack * (np.ones_like(norms) if kind.directional else norms)

    def release(self) -> None:
        """Let go of the states and distances where they lie; what was sent to the host is kept."""
        self.before = self.after = None
        self.__dict__.pop("distances", None)
        self._moved.clear()

    def moved(self, geometry: str) -> torch.Tensor:
        """Distance of every token's state before to the one after, (tokens,) float64."""
        if geometry not in self._moved:
            kind = GEOMETRIES[geometry]
            if kind.angular and geometry != ANGLE:  # a map of the angle, which is the costly part
                made = kind.of_angle(self.moved(ANGLE), self.radius)
            elif self.before is None:
                raise UserError("cloud.moved is gone on the host; a statistic that reads it is of place 'device'")
            else:
                made = paired_distances(self.before, self.after, geometry, self.radius)
            self._moved[geometry] = made
        return self._moved[geometry]

    def diagrams(self, geometry: str) -> tuple[np.ndarray, ...]:
        """Degree-one persistence diagrams of (before, after), or of the sides that were sent: (bars, 2) float64 arrays.

        Where a distance is an increasing function of the angle, its diagrams are the spherical ones mapped: one
        persistence run serves both. Repeated states would only add bars of the length of their rounding.
        """
        if geometry not in self._diagrams:
            source = diagram_source(geometry, self.geometries)
            if source != geometry:
                kind = GEOMETRIES[geometry]
                made = tuple(kind.of_angle(diagram, self.radius) for diagram in self.diagrams(source))
                self.merged[geometry] = self.merged[source]
            else:
                made = tuple(self._diagram(geometry, side) for side in range(len(self.on_host(geometry))))
            self._diagrams[geometry] = made
        return self._diagrams[geometry]

    def _diagram(self, geometry, side):
        """The diagram of one side, repeated states merged."""
        matrix = np.asarray(self.on_host(geometry)[side], dtype=np.float64)
        kept, merged = merge_duplicates(matrix, rounding=self.rounding(geometry, side))
        self.merged.setdefault(geometry, []).append(merged)
        return persistence_diagram(matrix[np.ix_(kept, kept)] if merged else matrix, validate=False)
