"""Reading the words of a command line: numbers without guesses, one line for what is wrong."""

import argparse
import math
import re

from geowidth import records
from geowidth.allocate.problem import plain_number
from geowidth.errors import UserError, shown


class Once(argparse.Action):
    """Stores a value, and refuses a second one: of two budgets it would be unclear which counts.

    `parser.register("action", None, Once)` makes it the action of all options that name no other.
    """

    def __call__(self, parser, namespace, values, option_string=None):
        given = namespace.__dict__.setdefault("_given", set())
        if self.dest in given:
            parser.error(f"argument {option_string}: it came twice; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def whole_number(flag, text, minimum=1):
    """`text` as an int of at least `minimum`; digits only, so that 1e3, 16.0 or 1_000 are refused by name."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < minimum:
        raise UserError(f"{flag} is {shown(text)}; allowed: whole numbers in digits, {minimum} or more")
    return int(text)


def number(flag, text, others=""):
    """`text` as a finite float, in plain digits. others: what else is allowed, for the message."""
    value = plain_number(text)
    if value is None or not math.isfinite(value):
        raise UserError(f"{flag} is {shown(text)}; allowed: {others}finite numbers")
    return value


def number_or_list(flag, text, others=""):
    """A number, or a list of numbers from words separated by commas."""
    values = [number(flag, word, others) for word in text.split(",")]
    return values[0] if len(values) == 1 else values


def width_bound(flag, text):
    """A floor or cap: a width, a multiple of the uniform width ("0.25x"), or one width a layer separated by commas."""
    if text is None:
        return None
    return text if text.endswith("x") else number_or_list(flag, text)


def named_numbers(flag, text):
    """{"name": number} from "name=number,name=number"."""
    pairs = {}
    for word in text.split(","):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"{flag} has {word!r}; allowed: NAME=NUMBER, several separated by commas")
        _once(flag, name.strip(), pairs)
        pairs[name.strip()] = number(flag, value)
    return pairs


def schedule_options(flag, words):
    """{"name": value} from words NAME=VALUE; values are JSON where they parse as such, otherwise text."""
    pairs = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"{flag} is {word!r}; allowed: NAME=VALUE")
        _once(flag, name, pairs)
        try:
            pairs[name] = records.loads(value)
        except ValueError:
            pairs[name] = value
    return pairs


def _once(flag, name, pairs):
    if name in pairs:
        raise UserError(f"{flag} gives {name} twice; give it once")
