"""What the parts of a run folder's records must be for a page to be drawn from them."""

import re

from geowidth import forms
from geowidth.errors import UserError
from geowidth.forms import COUNT, OBJECT, TEXT, Each, Part, is_finite, is_number
from geowidth.signals import GEOMETRIES

LARGEST = 1e300  # what is drawn: scales, sums and ratios of it stay within floats
FINITE = Part(f"a finite number up to {LARGEST:g}", lambda v: is_finite(v) and abs(v) <= LARGEST)
NUMBER = Part(
    f"a number up to {LARGEST:g}, inf or nan", lambda v: is_number(v) and (not is_finite(v) or abs(v) <= LARGEST)
)
NUMBER_OR_NULL = Part(f"{NUMBER.words}, or null", lambda v: v is None or NUMBER.fits(v))
NAME = Part("a name", lambda v: isinstance(v, str) and bool(v))
LIMITS = Part(
    "a number, or a list of numbers and nulls",
    lambda v: NUMBER.fits(v) or (isinstance(v, list) and all(map(NUMBER_OR_NULL.fits, v))),
)
PAIR = Part("a list of two numbers", lambda v: isinstance(v, list) and len(v) == 2 and all(map(NUMBER.fits, v)))
WIDTHS = Part(
    "a list with one whole number a layer", lambda v: isinstance(v, list) and bool(v) and all(map(COUNT.fits, v))
)


def _is_seed(name):
    return bool(re.fullmatch("[0-9]{1,18}", name))


COSTS = {f"{name}?": FINITE for name in ("parameters", "tokens", "flops", "seconds", "bits_per_byte")}
ABOUT = {"settings?": OBJECT, "environment?": OBJECT}
CERTIFICATE = {f"{name}?": NUMBER for name in ("value", "identity", "gap", "lower")}
LAYER = {
    **{f"{geometry}?": {"gw?": CERTIFICATE} for geometry in GEOMETRIES},
    "dimension?": OBJECT, "large_norm_tokens?": OBJECT, "bands?": Each(Part(
        "a count, or signals with pairs of numbers",
        lambda v: COUNT.fits(v) or (isinstance(v, dict) and all(p is None or PAIR.fits(p) for p in v.values())),
    )),
}  # fmt: skip
DIFFERENCE = {
    **{f"{name}?": NUMBER for name in ("mean", "standard_error", "confidence", "sign_flip_p")},
    "interval?": PAIR, "seeds_for_power?": Each(NUMBER_OR_NULL),
}  # fmt: skip
ARM = {
    "arm": NAME, "sentence?": TEXT, "widths?": WIDTHS, "losses?": Each(NUMBER, _is_seed), "mean_loss?": NUMBER,
    "difference?": DIFFERENCE, **COSTS,
}  # fmt: skip

# kind: (form, the command that makes it again)
SHAPES = {
    "geowidth.run": ({"settings?": {
        "preset?": TEXT, "corpus?": TEXT, "arms?": [TEXT], "seeds?": [COUNT], "steps?": COUNT, "tokens?": COUNT,
        "geometry?": TEXT, "statistic?": TEXT, "baseline?": TEXT, "seed?": COUNT, "spelled?": Each(TEXT),
    }, "environment?": OBJECT}, "geowidth run"),
    "geowidth.work": ({
        "work": Each(Each([NUMBER_OR_NULL])), "dimension?": Each([NUMBER_OR_NULL]), "widths?": [COUNT],
        "raw_without_large_norms?": Each([NUMBER_OR_NULL]), "details?": [LAYER], **ABOUT,
    }, "geowidth measure"),
    "geowidth.schedule": ({
        "widths": WIDTHS, "base_width?": FINITE, "quantum?": FINITE, "details?": OBJECT, "environment?": OBJECT,
        "budget?": {"unit?": TEXT, "value?": NUMBER, "spent?": NUMBER}, "settings?": {"floor?": LIMITS, "cap?": LIMITS},
    }, "geowidth allocate"),
    "geowidth.comparison": ({"baseline?": TEXT, "arms": [ARM], "sentence?": TEXT, **ABOUT}, "geowidth compare"),
    "geowidth.training_result": ({
        "arm?": TEXT, "seed?": COUNT, "loss": NUMBER, "widths?": WIDTHS, "corpus?": OBJECT, "model?": OBJECT,
        "training?": OBJECT, "environment?": OBJECT, "preset?": TEXT, **COSTS,
    }, "geowidth train"),
    "geowidth.training": ({
        "arm?": TEXT, "seed?": COUNT, "preset?": TEXT, "widths?": WIDTHS, "model?": OBJECT, "corpus?": OBJECT,
        "training?": OBJECT, "environment?": OBJECT,
    }, "geowidth train"),
}  # fmt: skip
LINE = {"step": COUNT, "split": TEXT, "loss": NUMBER, "tokens?": COUNT, "seconds?": FINITE}


def check(where, record, kind):
    """Raise a UserError that names `where` and the first part of a record that is not what its kind promises."""
    form, maker = SHAPES[kind]
    wrong = forms.fault(record, form)
    if kind == "geowidth.work" and not wrong:
        certificates = {f"{geometry}?": {"gw?": CERTIFICATE} for geometry in record["work"]}
        wrong = forms.fault(record, {"details?": [certificates]}) or _uneven(record)
    if wrong:
        raise UserError(f"{where} is not a whole {kind} record: {wrong}; delete it and run {maker} again")


def _uneven(work):
    """Which signals of a work record have fewer or more layers than the first, in words; "" when none has."""
    signals = {f"{s} {g}": values for g, found in work["work"].items() for s, values in found.items()}
    signals |= {f"dimension {name}": values for name, values in (work.get("dimension") or {}).items()}
    rest = work.get("raw_without_large_norms") or {}
    signals |= {f"{name} raw without large norms": values for name, values in rest.items()}
    sizes = {name: len(values) for name, values in signals.items() if values}
    layers = next(iter(sizes.values()), 0)
    return next((f"{name} has {n} layers, not {layers}" for name, n in sizes.items() if n != layers), "")


def check_lines(path, lines):
    """Raise a UserError that names the first line of metrics that is not what a training writes."""
    for number, line in enumerate(lines, 1):
        wrong = forms.fault(line, LINE)
        if wrong:
            raise UserError(f"{path} line {number} is damaged: {wrong}; delete that line")
