"""A measured work profile for the allocation tests, as a record and as a file."""

import numpy as np
import pytest

from geowidth.measure.profile import WorkProfile

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


@pytest.fixture
def profile():
    """Eight layers measured at width 344."""
    return make_profile()


@pytest.fixture
def work_file(tmp_path, profile):
    """The profile as work.json."""
    path = tmp_path / "work.json"
    profile.write(path)
    return path
