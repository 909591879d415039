"""What the parts of a record must be, said once and checked when the file is read.

A form is a Part (words and a test), a dict (an object with these keys; "name?" may be absent or null), a list of one
form (a list of such values), or Each (an object whose values all have one form).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from geowidth.errors import UserError, shown
from geowidth.files import PathLike


@dataclass(frozen=True)
class Part:
    """A single value: `fits(value)` must hold; `words` say what is allowed."""

    words: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """An object of any keys, or of keys for which `key` holds, whose values have `form`."""

    form: "Form"
    key: Callable[[str], bool] | None = None


Form: TypeAlias = Part | Each | dict[str, Any] | list[Any]


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number, infinities and NaN included (a bool is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite real number that a float can hold."""
    return is_number(value) and -sys.float_info.max <= value <= sys.float_info.max


ANY = Part("anything", lambda value: True)
TEXT = Part("a text", lambda value: isinstance(value, str))
NUMBER = Part("a number", is_number)
FINITE = Part("a finite number", is_finite)
COUNT = Part("a whole number from 0 up", lambda value: type(value) is int and 0 <= value < 2**63)
OBJECT = Each(ANY)


def fault(value: Any, form: Form, name: str = "") -> str:
    """What is wrong with `value`, as "NAME is VALUE, not WORDS"; "" when it has the form."""
    if isinstance(form, Part):
        return "" if form.fits(value) else f"{name or 'it'} is {shown(value)}, not {form.words}"
    kind, words = (list, "a list") if isinstance(form, list) else (dict, "an object")
    if not isinstance(value, kind):
        return f"{name or 'it'} is {shown(value)}, not {words}"
    return next(filter(None, (fault(part, own, place) for part, own, place in _parts(value, form, name))), "")


def _parts(value, form, name):
    """(part, its form, its name) of everything in `value` that `form` speaks of."""
    before = f"{name}." if name else ""
    if isinstance(form, list):
        yield from ((part, form[0], f"{name}[{i}]") for i, part in enumerate(value))
    elif isinstance(form, Each):
        for key, part in value.items():
            if form.key is not None and not form.key(key):
                yield key, Part("a name that is allowed there", lambda _: False), f"a name in {name or 'it'}"
            yield part, form.form, f"{before}{key}"
    else:
        for key, own in form.items():
            part = value.get(key.removesuffix("?"))
            if part is not None or not key.endswith("?"):
                yield part, own, f"{before}{key.removesuffix('?')}"


def check(path: PathLike, value: object, form: Form, advice: str) -> None:
    """Raise a UserError that names `path`, the part that does not have its form, and the advice."""
    wrong = fault(value, form)
    if wrong:
        raise UserError(f"{path} is damaged: {wrong}; {advice}")
