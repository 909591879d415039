"""Cascade: FFN widths linear in depth, attention heads in discrete steps, or both.

Source: Ahmad, Nam, Yun, "CascadeFormer" (arXiv 2606.26538). Heads keep their size, so that the number of heads is what
attention spends; together they spend at most what `heads` in every layer would.
"""

import numpy as np

from geowidth.allocate.problem import whole_number
from geowidth.allocate.rounding import Closest, round_widths
from geowidth.allocate.schedules import Rule, Shape
from geowidth.allocate.schedules.ends import check_ends
from geowidth.allocate.solve import fit_shape
from geowidth.artifacts.cost import linear_cost
from geowidth.errors import UserError, choose, number


def cascade(problem, *, taper="ffn", start=1.5, end=0.5, heads=None, steps=4, head_multiple=1, share=1.0):
    """taper: "ffn" (linear widths), "heads" (uniform widths, stepped heads) or "both".

    start, end: of the taper, in multiples of the base. heads: attention heads of the uniform model, needed for "heads"
    and "both"; steps: how many levels of heads; head_multiple: heads of a layer are a multiple of it (key-value heads
    under grouped queries); share: of the uniform model's heads, how much is spent. The heads of every layer are in the
    schedule's details.
    """
    choose("taper", taper, ("ffn", "heads", "both"))
    start, end = check_ends(start, end)
    line = start + (end - start) * problem.depth
    share = number("share", share, "numbers above 0, up to 1", lambda value: 0 < value <= 1)
    if taper == "ffn":
        if heads is not None or share != 1:
            name = "share" if heads is None else "heads"
            raise UserError(f"{name} came with taper 'ffn', which leaves attention alone; use taper heads or both")
        return Shape(line)
    if heads is None:
        raise UserError(f"taper {taper!r} needs the number of attention heads of the uniform model; give heads=N")
    details = {"heads": stepped_heads(problem.layers, heads, start, end, steps, head_multiple, share)}
    if taper == "both":
        return Shape(line, details=details)
    return Shape(np.ones(problem.layers), tied=np.zeros(problem.layers, dtype=np.int64), details=details)


def stepped_heads(layers, heads, start, end, steps, multiple, share=1.0):
    """Heads of every layer, int64 (layers,): `steps` levels from start to end, at most that share in all."""
    heads, steps = whole_number("heads", heads), min(whole_number("steps", steps), layers)
    multiple = whole_number("head_multiple", multiple)
    if heads % multiple:
        raise UserError(f"heads is {heads}; allowed: multiples of head_multiple {multiple}")
    total = max(int(share * layers * heads + 1e-9), layers * multiple)  # 0.7 * 10 heads are 7, whatever the digits say
    labels = np.arange(layers) * steps // layers
    level = np.linspace(start, end, steps)[labels] if steps > 1 else np.ones(layers)
    floor, cap = np.full(layers, float(multiple)), np.full(layers, np.inf)
    cost = linear_cost("width", layers)
    real = fit_shape(level, np.ones(layers), float(total), floor, cap)
    return round_widths(Closest(real), cost, total, floor, cap, multiple, labels).widths


RULE = Rule("cascade", "FFN widths linear in depth, attention heads in steps, or both", cascade)
