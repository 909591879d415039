"""Uniform: the same width in every layer, the rule every other one is compared with."""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape


def uniform(problem):
    """One common width."""
    return Shape(np.ones(problem.layers), tied=np.zeros(problem.layers, dtype=np.int64))


RULE = Rule("uniform", "the same width in every layer", uniform)
