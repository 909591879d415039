"""Degree-one persistence written down plainly: all edges and triangles, and the reduction of the boundary matrix."""

import math
from itertools import combinations

import numpy as np

from geowidth.inputs import ArrayLike


def persistence_reference(distances: ArrayLike, threshold: float = math.inf) -> np.ndarray:
    """Bars (k, 2) float64 of a (n, n) distance matrix, sorted: for few points, since it lists all n^3 / 6 triangles.

    Source: Edelsbrunner and Harer, Computational Topology (2010), VII.1.
    """
    matrix = np.asarray(distances, dtype=np.float64)
    enter = [(matrix[i, j], i, j) for i, j in combinations(range(len(matrix)), 2)]
    edges = sorted(edge for edge in enter if edge[0] <= threshold and math.isfinite(edge[0]))
    place = {(i, j): index for index, (_, i, j) in enumerate(edges)}
    killed = _reduced(_triangle_columns(len(matrix), place))
    deaths = [(edges[e][0], edges[max(triangle)][0]) for e, triangle in killed.items()]
    endless = [(edges[e][0], math.inf) for e in _closing(len(matrix), edges) if e not in killed]
    bars = sorted((birth, death) for birth, death in deaths + endless if birth < death)
    return np.array(bars, dtype=np.float64).reshape(-1, 2)


def _triangle_columns(n, place):
    """The three edges, by place in the filtration, of every triangle whose edges all enter, in order of entering."""
    sides = [[(i, j), (i, k), (j, k)] for i, j, k in combinations(range(n), 3)]
    columns = [[place[side] for side in three] for three in sides if all(side in place for side in three)]
    return sorted(columns, key=max)


def _reduced(columns):
    """{edge: triangle}: the cycles that edges begin and triangles fill, by reduction over Z/2 from left to right."""
    reduced: dict[int, set[int]] = {}
    killed: dict[int, list[int]] = {}
    for triangle in columns:
        column = set(triangle)
        while column and max(column) in reduced:
            column ^= reduced[max(column)]
        if column:
            reduced[max(column)], killed[max(column)] = column, triangle
    return killed


def _closing(n, edges):
    """Places of the edges that close a cycle instead of joining two components."""
    component, closing = list(range(n)), []
    for place, (_, i, j) in enumerate(edges):
        old, new = component[i], component[j]
        if old == new:
            closing.append(place)
        component = [new if c == old else c for c in component]
    return closing
