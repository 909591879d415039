"""Synthetic work profiles for tests."""

import numpy as np

from geowidth.artifacts.work_profile import WorkProfile

GEOMETRIES, STATISTICS = ("raw", "spherical", "hyperbolic"), ("shift", "gw", "topology")


def make_profile(layers=8, width=344, seed=0, **changes):
    """A profile of `layers` layers with nine positive signals and dimensions between 4 and 15."""
    generator = np.random.default_rng(seed)
    work = {g: {s: generator.gamma(2.0, 1.0, layers).tolist() for s in STATISTICS} for g in GEOMETRIES}
    fields = {
        "work": work,
        "dimension": {"twonn_mle": generator.uniform(4, 15, layers).tolist(), "mle": [8.0] * layers},
        "widths": (width,) * layers,
        "model_dimension": 128,
        "projections": 3,
        "details": [],
        "settings": {},
        "environment": {},
    }
    return WorkProfile(**{**fields, **changes})
