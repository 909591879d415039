"""What the user can mend, told apart from what the program got wrong; and checks of single arguments."""

import math
import numbers
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar, cast

Chosen = TypeVar("Chosen")

MOST = 2**31 - 1  # of a count that compiled code takes as a 32-bit integer
MOST_SEED = 2**53 - 1  # every reader of JSON keeps it


class UserError(ValueError):
    """Bad input: the message says in one line what came, what is allowed, and what to do.

    The command line prints it and exits with code 2; from Python it is a ValueError.
    """


def shown(value: object) -> str:
    """`value` for a message, on one line of at most 80 characters; arrays and tensors by their type and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


def choose(what: str, value: Chosen, allowed: Collection[object]) -> Chosen:
    """Return `value` if it is one of `allowed`; otherwise raise a UserError that lists them."""
    try:
        known = value in frozenset(allowed)
    except TypeError:  # a list, a dict, an array
        known = False
    if not known:
        raise UserError(f"{what} is {shown(value)}; allowed: {', '.join(map(str, allowed))}")
    return value


def choose_several(what: str, values: object, allowed: Collection[object]) -> tuple[str, ...]:
    """A tuple of different names out of `allowed`, at least one: from one name or a sequence of them."""
    try:
        names = (values,) if isinstance(values, str) else tuple(cast("Iterable[str]", values))
    except TypeError:  # None, a number
        names = (cast(str, values),)
    for name in names:
        choose(what, name, allowed)
    if not names or len(set(names)) < len(names):
        raise UserError(f"{what} is {shown(values)}; name at least one, each once: {', '.join(map(str, allowed))}")
    return names


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """`value` as an int from `least` to `most` (None: no bound); anything else raises a UserError that names it.

    Integers of Python, numpy and torch count, bool and floats do not.
    """
    found = _scalar(value)
    fits = isinstance(found, numbers.Integral) and not isinstance(found, bool)
    if not (fits and found >= least and (most is None or found <= most)):
        raise UserError(
            f"{name} is {shown(value)}; allowed: whole numbers from {least} {'up' if most is None else f'to {most}'}"
        )
    return int(found)


def seed_number(name: str, value: object) -> int:
    """`value` as an int that records of trainings can hold and every reader of theirs gives back."""
    return whole(name, value, 0, MOST_SEED)


def number(name: str, value: object, allowed: str, fits: Callable[[float], bool]) -> float:
    """`value` as a float for which `fits` holds; a UserError that says `allowed` for all else.

    Real numbers of Python, numpy and torch count, bool and strings do not.
    """
    found = _scalar(value)
    try:
        real = float(found) if isinstance(found, numbers.Real) and not isinstance(found, bool) else math.nan
    except OverflowError:  # an integer beyond the range of floats
        real = math.nan
    if not fits(real):
        raise UserError(f"{name} is {shown(value)}; allowed: {allowed}")
    return real


def positive(name: str, value: object) -> float:
    """`value` as a float if it is a finite number above 0; a UserError otherwise."""
    return number(name, value, "a finite number above 0", lambda v: 0 < v < math.inf)


def flag(name: str, value: object) -> bool:
    """`value` as a bool if it is True or False; a UserError otherwise (the text "false" would count as true)."""
    found = _scalar(value)
    if not isinstance(found, bool):
        raise UserError(f"{name} is {shown(value)}; allowed: True or False")
    return found


def _scalar(value):
    """The Python number inside a numpy or torch scalar; anything else as it is."""
    if type(value) in (int, float, bool, str) or getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (TypeError, ValueError, RuntimeError):  # a tensor without numbers
        return value
