"""--config FILE: the options of a command, and a preset, from one TOML or JSON file.

Every option has its key: its name, with dashes or underscores, without those in front (`learning-rate = 3e-3`,
`seeds = [0, 1]`, `download = true`); words without dashes have theirs as --help names them (`folders = ["runs/nano"]`).
What stands on the command line wins. A command with --preset also takes `base`, `name` and the tables [model],
[training] and [run] of a preset file (geowidth.models.preset_files), which change the preset.

The entries become words of the command line, read by the same types, so that a file can say what a line can and no
more.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from geowidth.cli import words
from geowidth.errors import UserError, choose, shown
from geowidth.records import read_table

FLAG = "--config"


def add_argument(parser: argparse.ArgumentParser) -> None:
    """The option itself."""
    parser.add_argument(FLAG, metavar="FILE", help="options from a .toml or .json file; those given here win")


def named_file(args: Sequence[str]) -> str | None:
    """The file that --config names among the words of a command line.

    None where it is not there, and where the command's own parser has to refuse it: without its value, or twice.
    """
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument(FLAG, action="append", default=[])
    try:
        found = reader.parse_known_args(args)[0].config
    except argparse.ArgumentError:
        return None
    return found[0] if len(found) == 1 else None


class Configuration:
    """The entries of one file, for one command's parser."""

    def __init__(self, path: str, parser: argparse.ArgumentParser) -> None:
        self.path, self.parser = path, parser
        self.actions = {a.dest: a for a in parser._actions if a.dest not in ("help", "config")}
        self.entries: dict[str, Any] = {}
        self.preset: dict[str, Any] = {}
        of_presets = words.preset_keys() if "preset" in self.actions else ()
        for key, value in read_table(path).items():
            name = key.replace("-", "_")
            choose(f"{path}: key", name, [*self.actions, *of_presets])
            # `geowidth plan` has a --model, too: a text is that, a table the preset's.
            into = self.preset if name in of_presets and not _is_option(value, name, self.actions) else self.entries
            if name in into:
                raise UserError(f"{path}: {name} stands there twice, with dashes and with underscores; give it once")
            into[name] = value
        if "base" in self.preset and "preset" in self.entries:
            raise UserError(f"{path}: base and preset say the same; give one of them")

    def line(self, args: Sequence[str]) -> list[str]:
        """The words of the command line `args`, with those of the file that it leaves open."""
        given = _given(self.parser, args)
        found = {name: self._words(name, value) for name, value in self.entries.items() if name not in given}
        first = [w for name, some in found.items() if not self.actions[name].option_strings for w in some]
        last = [w for name, some in found.items() if self.actions[name].option_strings for w in some]
        end = list(args).index("--") if "--" in args else len(args)
        return [*first, *args[:end], *last, *args[end:]]

    def finish(self, namespace: argparse.Namespace, args: Sequence[str]) -> None:
        """Put the preset that the file's tables describe in the place of the one that was named."""
        if not self.preset:
            return
        from geowidth.models.preset_files import preset_from
        from geowidth.models.presets import preset_named

        named = "preset" in _given(self.parser, args) or "preset" in self.entries
        tables = {name: value for name, value in self.preset.items() if name != "base" or not named}
        base = preset_named(namespace.preset) if named else None
        namespace.preset = preset_from(tables, self.path, base)

    def _words(self, name, value):
        """One entry as words of the command line, checked by the option's own type."""
        action = self.actions[name]
        if action.nargs == 0:  # a switch
            if not isinstance(value, bool):
                raise UserError(f"{self.path}: {name} is {shown(value)}; allowed: true, false")
            return [action.option_strings[0]] * value
        many = action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction)
        texts = [_text(f"{self.path}: {name}", one) for one in _values(value, many)]
        for text in texts:
            self._check(name, text)
        if not action.option_strings:
            return texts
        flag = action.option_strings[0]
        if action.nargs in ("+", "*"):
            return [flag, *texts] if texts else []
        return [f"{flag}={text}" for text in texts]

    def _check(self, name, text):
        read = self.actions[name].type
        if not text:
            raise UserError(f"{self.path}: {name} is empty")
        if not callable(read):
            return
        try:
            read(text)
        except argparse.ArgumentTypeError as error:
            message = str(error)
            as_it_is = message.startswith(words.AS_IT_IS)
            raise UserError(f"{self.path}: {message[1:] if as_it_is else f'{name} {message}'}") from error


def _is_option(value, name, actions):
    return name in actions and not isinstance(value, dict)


def _values(value, many) -> Iterable[Any]:
    """The values of an entry, one a word: those of a list where the option takes several."""
    if not many:
        return [value]
    if isinstance(value, dict):  # options as a table
        return [f"{key}={_json(part)}" for key, part in value.items()]
    return value if isinstance(value, list) else [value]


def _text(where, value):
    """One value as it would stand on the command line."""
    if isinstance(value, bool) or value is None:
        raise UserError(f"{where} is {shown(value)}; allowed: a text or a number")
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list) and value and all(type(part) in (int, float) for part in value):
        return ",".join(map(repr, value))
    if isinstance(value, dict) and value and all(type(part) in (int, float) for part in value.values()):
        return ",".join(f"{key}={part!r}" for key, part in value.items())
    raise UserError(f"{where} is {shown(value)}; allowed: a text, a number, or numbers in a list or table")


def _json(value):
    from geowidth.records import dumps

    return value if isinstance(value, str) else dumps(value)


def _given(parser, args) -> set[str]:
    """Names of the options, and of the words without dashes, that a command line gives."""
    known, found, left = parser._option_string_actions, set(), 0
    for word in args:
        name, equals, _ = word.partition("=")
        if word == "--":
            left = 0
        elif name in known:
            action = known[name]
            found.add(action.dest)
            left = 0 if equals or action.nargs == 0 else len(args) if action.nargs in ("+", "*") else 1
        elif left:
            left -= 1
        else:
            found |= {action.dest for action in parser._actions if not action.option_strings}
    return found
