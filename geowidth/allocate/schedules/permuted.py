"""Permuted control: another schedule's widths in a random order, fixed by the seed."""

import numpy as np

from geowidth.allocate.schedules import Rule


def permute(widths, problem):
    """The widths in an order drawn from the problem's seed; never the order they had (for two layers or more)."""
    generator, count = np.random.default_rng(problem.seed), len(widths)
    order = generator.permutation(count)
    while count > 1 and (order == np.arange(count)).all():
        order = generator.permutation(count)
    return widths[order]


RULE = Rule("permuted", "control: another schedule's widths in a random order (seeded)", permute, control=True)
