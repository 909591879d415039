"""The command line: ``geowidth COMMAND``.

A command is one row of COMMANDS and one module with ``add_arguments(parser)`` and ``run(arguments)``; the module's
docstring is its help text. Modules are imported only when their command is called, so ``geowidth --help`` is instant.
Exit codes: 0 done, 2 bad input (nothing was done) or a disk, an output or a memory that is full, 130 interrupted,
anything else a fault of ours. Of the processes that torchrun starts, the first speaks for all, or the first that fails.
"""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module

from geowidth import ranks
from geowidth.errors import UserError
from geowidth.progress import printable, tell

# name: (module, one line of help)
COMMANDS = {
    "run": ("geowidth.cli.run", "the whole chain: train, measure, allocate, compare, report"),
    "train": ("geowidth.cli.train", "train one transformer with the widths of a schedule"),
    "data": ("geowidth.cli.data", "turn text into token shards: bytes, a tokenizer's, or a BPE trained here"),
    "measure": ("geowidth.cli.measure", "nine work signals and the intrinsic dimension of every FFN layer"),
    "allocate": ("geowidth.cli.allocate", "turn a work profile or a named schedule into FFN widths"),
    "plan": ("geowidth.cli.plan", "parameters, FLOPs, memory, files and time of a task, before any work"),
    "cost": ("geowidth.cli.cost", "time the FFN over widths, for budgets in milliseconds"),
    "calibrate": ("geowidth.cli.calibrate", "loss-versus-width curves, held against measured work"),
    "cascade": ("geowidth.cli.cascade", "importance of every block beside the gradients it got"),
    "prune": ("geowidth.cli.prune", "remove whole blocks from a model, by gradients or other rules"),
    "slice": ("geowidth.cli.slice", "make a pretrained model narrower, as much as each layer allows"),
    "generate": ("geowidth.cli.generate", "let a model continue a text"),
    "compare": ("geowidth.cli.compare", "paired statistics of trained arms"),
    "report": ("geowidth.cli.report", "draw a run folder as one HTML page with CSV and JSON beside it"),
    "export": ("geowidth.cli.export", "write a tapered model in a format that other tools load"),
    "distances": ("geowidth.cli.distances", "pairwise distances of the rows of .npy files"),
    "gromov": ("geowidth.cli.gromov", "Gromov-Wasserstein of two distance matrices in .npy files"),
    "topology": ("geowidth.cli.topology", "persistence bars of distance matrices in .npy files"),
    "doctor": ("geowidth.cli.doctor", "what was built, which backend serves which op, and why not the others"),
}

OF_MANY_PROCESSES = ("train", "measure", "doctor")  # commands that the processes of torchrun share
CONFIGURED = (
    "run",
    "train",
    "measure",
    "allocate",
    "plan",
    "cost",
    "calibrate",
    "compare",
    "export",
    "slice",
)  # take --config
LONGEST_LINE = 2000  # characters of an error: a value from a file may have millions


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of descriptions and shows each option's default."""

    def _get_help_string(self, action):
        text = action.help or ""
        shown = action.default not in (None, argparse.SUPPRESS) and not isinstance(action.default, bool)
        return text + " (default: %(default)s)" if shown and "default" not in text else text


class Parser(argparse.ArgumentParser):
    """Refuses wrong words with a UserError, in one line like all bad input, where argparse prints its usage.

    A value that is empty (`--out "$FOLDER"` with FOLDER unset) is refused too: it would otherwise be taken for no
    value, or for the folder one is in.
    """

    def parse_args(self, args=None, namespace=None):
        from geowidth.cli import configuration

        args = list(sys.argv[1:] if args is None else args)
        file = configuration.named_file(args) if configuration.FLAG in self._option_string_actions else None
        settings = configuration.Configuration(file, self) if file else None
        found = super().parse_args(settings.line(args) if settings else args, namespace)
        vars(found).pop("_given", None)  # what words.Once keeps
        for action in self._actions:
            value = getattr(found, action.dest, None)
            words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
            wrong = "is empty" if "" in words else "holds a zero byte" if "\0" in "".join(words) else None
            if wrong:
                self.error(f"argument {'/'.join(action.option_strings) or action.dest}: the value {wrong}")
        if settings:
            settings.finish(found, args)
        vars(found).pop("config", None)
        return found

    def print_help(self, file=None):
        print(self.format_help(), file=file, end="")  # argparse's own leaves out what a full disk does not take

    def error(self, message):
        ours = re.fullmatch(r"argument (\S+): (\0|(?:is|has|holds|gives) )(.*)", message, re.DOTALL)
        if ours:  # of a type in geowidth.cli.words, which says what is allowed
            flag, begin, words = ours.groups()
            raise UserError(words if begin == "\0" else f"{flag} {begin}{words}")
        message = message.replace("unrecognized arguments", "unknown words")
        raise UserError(f"{message}; {self.prog} --help lists what is allowed")


def overview():
    """The text of ``geowidth --help``."""
    width = max(map(len, COMMANDS))
    rows = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: geowidth COMMAND [options]",
            "",
            "Measure the geometric work of every FFN layer, allocate widths by it, and prove whether it helped.",
            "",
            *rows,
            "",
            "geowidth COMMAND --help says what a command reads and writes. Start with: geowidth run --preset nano",
        ]
    )


def parser_for(name):
    """The argument parser of one command."""
    from geowidth.cli import configuration
    from geowidth.cli.words import Once

    module = import_module(COMMANDS[name][0])
    parser = Parser(
        prog=f"geowidth {name}", description=module.__doc__, formatter_class=HelpFormatter, allow_abbrev=False
    )
    parser.register("action", None, Once)
    module.add_arguments(parser)
    if name in CONFIGURED:
        configuration.add_argument(parser)
    return parser, module.run


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (`geowidth ... >&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):  # a terminal without our signs, a path that is no UTF-8: shown as an escape
            stream.reconfigure(errors="backslashreplace")
    with contextlib.redirect_stdout(Escaping(sys.stdout)):
        return _guarded(argv)


class Escaping:
    """A text stream that shows control characters as escapes: a name from a file must not steer the terminal."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        return self._stream.write(printable(text))

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _guarded(argv):
    """The exit code of one command; what the user or the machine is to blame for becomes one line."""
    try:
        try:
            with ranks.elected():
                return _main(argv)
        finally:
            sys.stdout.flush()  # a full disk behind standard output is noticed here
    except UserError as error:
        return _refused(error)
    except ranks.ElsewhereError as error:  # one line for all processes, and who failed first says it
        ranks.wait_until_said()
        return error.code
    except ranks.LostError as error:
        return _refused(error, ranks.FAULT)
    except KeyboardInterrupt:
        if ranks.is_first():
            tell("geowidth: interrupted; what was finished is kept, the same command goes on from there")
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`geowidth ... | head`): not an error of ours, and nothing more to print.
        _to_nowhere(sys.stdout)
        return 0
    except OSError as error:
        if error.errno is None:  # not the system's: a fault of ours
            raise
        _to_nowhere(sys.stdout)
        place = "standard output" if error.filename is None else error.filename
        return _refused(f"cannot use {place}: {error.strerror}; make room, or name another file or folder")
    except MemoryError as error:
        return _refused(f"this machine's memory is not enough ({error or 'nothing is free'}); ask for less")


def _refused(error, code=2):
    line = " ".join(str(error).split())
    tell(f"geowidth: {line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + ' ...'}")
    ranks.said()
    return code


def _to_nowhere(stream):
    """Let what is left in the buffer of `stream`, and all that follows, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main(argv):
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        import geowidth

        print(f"geowidth {geowidth.__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise UserError(f"unknown command {argv[0]!r}; allowed: {', '.join(COMMANDS)}")
    if argv[0] not in OF_MANY_PROCESSES and ranks.launched() > 1:
        raise UserError(f"geowidth {argv[0]} is one process's work, and a launcher started several; start it alone")
    parser, run = parser_for(argv[0])
    return run(parser.parse_args(argv[1:])) or 0
