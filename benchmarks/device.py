"""One command for a machine with a GPU: build, correctness, timings beside measured ceilings, and one table last.

    benchmarks/device.sh [options]           finds Python, says what is missing, and runs this
    python -m benchmarks.device [options]    the same
    python -m benchmarks.device --rehearse   every stage at toy size on a CPU: emulator, Triton's interpreter

Needs torch with CUDA; nvcc and a C++ compiler for the CUDA kernels; no network. Ends within --seconds: a stage that
would start too late is skipped, and the table says so. What was found is written after every stage, so that a run that
is killed keeps it. Exit code 1 when a result is wrong or a stage failed, 0 otherwise, however slow. Nothing about the
device is changed.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.device_stages import DEVICE_LOST, UNUSABLE

RESULTS = Path(__file__).resolve().parent / "results"
# (stage, seconds without which it is not begun, seconds after which it counts as hanging); the most telling first.
STAGES = (
    ("machine.build", 60, 240),
    ("machine.facts", 10, 30),
    ("machine.ceilings", 20, 60),
    ("distances.correctness", 20, 90),
    ("sinkhorn.correctness", 20, 90),
    ("gromov.correctness", 30, 90),
    ("distances.timings", 40, 90),
    ("sinkhorn.timings", 30, 60),
    ("gromov.timings", 40, 90),
    ("sanitizer.sanitizer", 60, 180),
    ("suite.suite", 40, 120),
    ("gromov.peers", 60, 150),
    ("pipeline.measurement", 40, 90),
    ("ffn.correctness", 30, 90),
    ("ffn.timings", 60, 200),
    ("ffn.odd_widths", 15, 60),
    ("ffn.sweep", 30, 200),
    ("cascade.correctness", 20, 60),
    ("cascade.timings", 40, 120),
)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=450, help="when to be done (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="rows (default: benchmarks/results/device.csv; none in a rehearsal)")
    parser.add_argument("--json", type=Path, help="facts, verdicts and the table (default: beside the rows)")
    parser.add_argument("--no-build", action="store_true", help="take the extensions as they are")
    parser.add_argument("--only", nargs="+", metavar="STAGE", choices=[name for name, *_ in STAGES],
                        help=f"only these of {', '.join(name for name, *_ in STAGES)}")  # fmt: skip
    parser.add_argument("--rehearse", action="store_true", help="toy sizes on a CPU, in the emulator and interpreter")
    parser.add_argument("--worker", choices=("first", "next"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not arguments.rehearse:
        arguments.csv = arguments.csv or RESULTS / "device.csv"
    if arguments.csv:
        arguments.json = arguments.json or arguments.csv.with_suffix(".json")
    return arguments


def chosen(arguments):
    """The stages asked for; a rehearsal builds nothing."""
    build = not (arguments.no_build or arguments.rehearse)
    wanted = [s for s in STAGES if not arguments.only or s[0] in arguments.only]
    return [s for s in wanted if build or s[0] != "machine.build"]


def work(arguments):
    """Run stages in this process; returns the session, and whether all had their turn."""
    from benchmarks.device_stages import rehearsal

    if arguments.rehearse:
        rehearsal.prepare()
    import torch

    from benchmarks.device_stages.session import Session

    if not arguments.rehearse and not torch.cuda.is_available():
        print("no CUDA device is visible to torch; --rehearse runs the stages on a CPU", file=sys.stderr)
        raise SystemExit(UNUSABLE)
    session = Session(arguments.seconds, arguments.rehearse, arguments.csv, arguments.json)
    if arguments.worker == "next":
        session.resume()
    else:
        session.note(f"device: {session.name}; torch {torch.__version__}")
    undo = rehearsal.install() if arguments.rehearse else lambda: None
    try:
        return session, all(session.run(name, stage(name), least) for name, least, _ in chosen(arguments))
    finally:
        undo()


def stage(name):
    """A function of the session that imports the stage of that name, then runs it."""

    def run(session):
        module, function = name.split(".")
        getattr(import_module(f"benchmarks.device_stages.{module}"), function)(session)

    return run


def supervised(arguments):
    """Run stages in worker processes; returns what they left behind."""
    from benchmarks.device_stages.supervisor import supervise

    def command(names, seconds, resume):
        words = ["--csv", arguments.csv, "--json", arguments.json, "--worker", "next" if resume else "first"]
        words += ["--no-build"] if arguments.no_build else []
        return [sys.executable, "-m", "benchmarks.device", *map(str, [*words, "--seconds", seconds, "--only", *names])]

    return supervise(chosen(arguments), command, arguments.json, arguments.seconds)


def main(argv=None):
    """Run the stages; returns the exit code."""
    arguments = parse(argv)
    if arguments.worker:
        return 0 if work(arguments)[1] else DEVICE_LOST
    if arguments.rehearse:
        session, _ = work(arguments)
        found = {name: getattr(session, name) for name in ("table", "wrong", "errors")}
    else:
        found = supervised(arguments)
    lines = list(found["table"])
    for kind in ("wrong", "errors"):
        lines += [f"{kind}: {len(found[kind])}", *(f"  {line}" for line in found[kind])]
    text = "\n".join(lines)
    if arguments.csv:
        arguments.csv.with_suffix(".txt").write_text(text + "\n")
    print("\n" + text, flush=True)
    return 1 if found["wrong"] or found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
