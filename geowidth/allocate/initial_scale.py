"""Initial scales beside widths: what a wider layer owes to its width, and what to its louder start.

A down-projection whose initial values have a scale free of its width makes the output of a wider layer larger: the
variance of a sum grows with the number of its terms. So an arm of other widths also starts from other output scales.
Two arms take the two apart:

    width   the schedule's widths, each down-projection started sqrt(uniform width / width) times as large: every layer
            starts with the output scale that it has in the uniform model
    alone   uniform widths, each down-projection started sqrt(width / uniform width) times as large: the output scales
            of the schedule without its widths
"""

from dataclasses import replace

import numpy as np

from geowidth.allocate.frame import Answer, Frame
from geowidth.allocate.schedules import find_rule
from geowidth.errors import choose

INITIAL_SCALES = ("plain", "width", "alone")


def with_initial_scale(frame: Frame, answer: Answer, rule: str) -> Answer:
    """`answer` with "initial_scales" in its details, float64 (layers,): factors on the usual start of down-projections.

    rule: one of INITIAL_SCALES; "plain" changes nothing.
    """
    choose("initial scale", rule, INITIAL_SCALES)
    if rule == "plain":
        return answer
    widths = np.asarray(answer.rounding.widths, dtype=np.float64)
    settings = {**answer.settings, "initial_scale": rule}
    if rule == "width":
        scales = np.sqrt(frame.uniform_width / widths)
        return replace(answer, settings=settings, details={**answer.details, "initial_scales": scales})
    uniform = frame.answer(find_rule("uniform"), {})
    scales = np.sqrt(widths / np.asarray(uniform.rounding.widths, dtype=np.float64))
    note = f"uniform widths: only the initial scales are those of {answer.rule.name}"
    details = {"source_widths": answer.rounding.widths, "initial_scales": scales, "notes": [note]}
    return replace(uniform, rule=answer.rule, settings=settings, details=details)


def scaled_name(name: str, rule: str) -> str:
    """The name of a schedule with that rule, as an arm spells it."""
    return name if rule == "plain" else f"{name}:initial_scale={rule}"
