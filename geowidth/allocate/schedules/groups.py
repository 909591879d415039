"""Three groups: early, middle and late layers, each with one width (the controlled experiment of arXiv 2606.23670)."""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.errors import positive


def groups(problem, *, early=1.5, middle=1.0, late=0.5):
    """A third of the layers at each width, in multiples of the base; early and late are equally many."""
    third = round(problem.layers / 3)
    labels = np.ones(problem.layers, dtype=np.int64)
    labels[:third], labels[problem.layers - third :] = 0, 2
    levels = np.array([positive(*pair) for pair in (("early", early), ("middle", middle), ("late", late))])
    return Shape(levels[labels], tied=labels)


RULE = Rule("groups", "three groups of equal widths: early, middle, late", groups)
