"""The one dialect of all commands: what a word may be, and how a wrong one is refused.

The functions here give the `type` of an argparse option. Each reads the text of one word, and refuses in the same way,
as in "--steps is 0; allowed: whole numbers from 1 up". `Parser` (geowidth.cli) turns what they raise into that line.
"""

import argparse
import math
import re

from geowidth import records
from geowidth.allocate.problem import plain_number
from geowidth.errors import UserError, shown

AS_IT_IS = "\0"  # before words that no option's name belongs to
CORPUS = "stdlib, text, token shards or .bin files; geowidth data --help says which"
MOST_DIGITS = 18  # of a whole number: more are no count of anything here


class Once(argparse.Action):
    """Stores a value, and refuses a second one: of two budgets it would be unclear which counts."""

    def __call__(self, parser, namespace, values, option_string=None):
        given = vars(namespace).setdefault("_given", set())
        if self.dest in given and option_string is not None:
            parser.error(f"argument {option_string}: it came twice; give it once")
        given.add(self.dest)
        if isinstance(values, list) and self.nargs is not None:  # words of their own, not numbers in one word
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                name = option_string or self.dest
                parser.error(f"argument {name}: is {' '.join(map(str, values))}; allowed: each once")
        setattr(namespace, self.dest, values)


def wrong(text, allowed):
    """The error of a type, in the words of the dialect; a number stands without quotes."""
    plain = re.fullmatch(r"-?[0-9.]{1,40}", text)
    return argparse.ArgumentTypeError(f"is {text if plain else shown(text)}; allowed: {allowed}")


def as_it_is(error):
    """The error of a type whose words say it all: a UserError, which argparse would put its own in place of."""
    return argparse.ArgumentTypeError(f"{AS_IT_IS}{error}")


def whole(least=1, most=None):
    """A whole number in digits: 1e3, 16.0 and 1_000 are refused by name."""
    allowed = f"whole numbers from {least} {'up' if most is None else f'to {most}'}"

    def read(text):
        good = re.fullmatch(rf"-?[0-9]{{1,{MOST_DIGITS}}}", text)
        if not good or int(text) < least or (most is not None and int(text) > most):
            raise wrong(text, allowed)
        return int(text)

    return read


def number(allowed="finite numbers", fits=math.isfinite):
    """A number in plain digits for which `fits` holds."""

    def read(text):
        value = plain_number(text)
        if value is None or not fits(value):
            raise wrong(text, allowed)
        return value

    return read


def positive():
    """A finite number above 0."""
    return number("finite numbers above 0", lambda value: 0 < value < math.inf)


def share():
    """A number between 0 and 1, both left out."""
    return number("numbers between 0 and 1", lambda value: 0 < value < 1)


def one_of(names):
    """One of `names`: a sequence, or a function that gives one, for names that extensions may add to."""

    def read(text):
        try:
            known = list(names() if callable(names) else names)
        except UserError as error:  # an extension that cannot be loaded
            raise as_it_is(error) from error
        if text not in known:
            raise wrong(text, ", ".join(known))
        return text

    return read


def geometries():
    """Names of the geometries."""
    from geowidth.geometry import GEOMETRIES

    return GEOMETRIES


def statistics():
    """Names of the statistics."""
    from geowidth.measure import STATISTICS

    return STATISTICS


def formats():
    """Names of the export formats."""
    from geowidth.exchange.formats import FORMATS

    return FORMATS


def presets():
    """Names of the presets."""
    from geowidth.models.presets import PRESETS

    return PRESETS


def preset(text):
    """The Preset of a name, or in a .toml or .json file."""
    from geowidth.models.preset_files import ENDINGS, read_preset

    if text.lower().endswith(ENDINGS):
        try:
            return read_preset(text)
        except UserError as error:
            raise as_it_is(error) from error
    return presets()[one_of(presets)(text)]


def preset_keys():
    """Keys of a preset file."""
    from geowidth.models.preset_files import KEYS

    return KEYS


def output(*endings):
    """A path that can be written, with one of the endings where there are some."""

    def read(text):
        if not text or "\0" in text:
            return text  # refused by the parser, as in every option
        if endings and not text.lower().endswith(endings):
            raise argparse.ArgumentTypeError(f"is {text}; allowed: a file that ends in {' or '.join(endings)}")
        try:
            records.check_writable(text)
        except UserError as error:
            raise as_it_is(error) from error
        return text

    return read


def reading(flag, read, text):
    """`read(text)` outside argparse, for a word that another one decides about; None stays None."""
    try:
        return None if text is None else read(text)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{flag} {error}") from error


def number_or_list(others=""):
    """A number, or several separated by commas. others: what else the option takes, for the message."""
    one = number(f"{others}finite numbers")

    def read(text):
        values = [one(word) for word in text.split(",")]
        return values[0] if len(values) == 1 else values

    return read


def width_bound(text):
    """A floor or cap: a width, a multiple of the uniform width ("0.25x"), or one width a layer separated by commas."""
    return text if text.endswith("x") else number_or_list()(text)


def or_word(words, read):
    """One of `words` as it is, or what `read` makes of the text."""

    def either(text):
        return text if text in words else read(text)

    return either


def named_numbers(text):
    """{"name": number} from "name=number,name=number"."""
    pairs = {}
    for word in text.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not name:
            raise wrong(word, "NAME=NUMBER, several separated by commas")
        if name in pairs:
            raise argparse.ArgumentTypeError(f"gives {name} twice; give it once")
        pairs[name] = number()(value)
    return pairs


def width_range(text):
    """The widths of "first:last:step", last included if the step meets it."""
    allowed = "FIRST:LAST:STEP in whole numbers, as in 128:2048:64"
    parts = text.split(":")
    if len(parts) != 3 or not all(re.fullmatch(rf"[0-9]{{1,{MOST_DIGITS}}}", part) and int(part) for part in parts):
        raise wrong(text, allowed)
    first, last, step = map(int, parts)
    count = len(range(first, last + 1, step))
    if not 1 <= count <= 4096:
        raise argparse.ArgumentTypeError(f"holds {count} widths; allowed: 1 to 4096")
    return list(range(first, last + 1, step))


def place(text):
    """A place of training (geowidth.train.executors); its name is checked here, the rest when it is opened."""
    from geowidth.train.executors import place_named

    try:
        place_named(text)
    except UserError as error:
        raise as_it_is(error) from error
    return text


def add_sweep(add):
    """The options of a command that trains many models: how many side by side, and where."""
    add(
        "--processes",
        metavar="N",
        type=whole(),
        help="trainings side by side (default: one a core; with --on as many as its workers take)",
    )
    add("--on", metavar="PLACE", type=place, help="train there: dask://HOST:PORT, slurm:partition=NAME,... or local")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:N or auto, where each is trained (default: cpu)")


def side_by_side(arguments):
    """Trainings side by side, for an estimate; elsewhere (--on) one unless it is said."""
    from geowidth.train.processes import default_processes

    if arguments.processes is not None:
        return arguments.processes
    return 1 if elsewhere(arguments.on) else default_processes()


def elsewhere(text):
    """Whether --on names another place than the worker processes of this machine."""
    return text is not None and text != "local"


def add_dry_run(add):
    """The options of a command that can say what it would do."""
    add("--dry-run", action="store_true", help="print cells, cost and power; do nothing")
    add(
        "--sd",
        metavar="X",
        type=positive(),
        help="with --dry-run: standard deviation of paired differences to plan for",
    )


def check_used(arguments, **used):
    """Refuse options that nothing heeds. used: {flags: options}, as in dry_run_or_finish=("on",): of use with those."""
    for flags, options in used.items():
        names = flags.split("_or_")
        given = [option for option in options if getattr(arguments, option) is not None]
        if given and not any(getattr(arguments, name) for name in names):
            needed = " or ".join("--" + name.replace("_", "-") for name in names)
            raise UserError(f"--{given[0]} came without {needed}, and has no use then; leave it out")
