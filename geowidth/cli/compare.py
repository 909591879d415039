"""Compare trained arms seed by seed: paired statistics, costs, and a plain sentence of what may be concluded.

Reads   a run folder (RUN/arms/ARM/seed-S) or single training folders; each must be finished (result.json).
Writes  comparison.json (into the run folder, or to --out) and prints a table.

With --finish cells that are begun or missing are trained first, as the config.json of their arm says, here or on --on.
With --dry-run nothing is trained or written: it prints the cells, what is left to do, and what so many seeds show.

Arms are compared only on equal terms: same seeds, tokens, corpus, training settings and model except for the widths,
and no arm with more parameters than the baseline. Anything else is refused. An arm with over 1 % fewer is named.

Examples
  geowidth compare runs/nano
  geowidth compare runs/nano --dry-run --effect 0.005
  geowidth compare runs/nano --finish --on dask://10.0.0.1:8786
  geowidth compare runs/uniform-* runs/tapered-* --effect 0.02 --out comparison.json
"""

from pathlib import Path

from geowidth import records
from geowidth.cli import words
from geowidth.train.compare import COMPARISON_FILE, compare_folders
from geowidth.train.evidence import LOSS_UNIT


def add_arguments(parser):
    """The options of `geowidth compare`."""
    add = parser.add_argument
    add("folders", metavar="DIR", nargs="+", help="one run folder, or several training folders")
    add("--baseline", metavar="ARM", default="uniform", help="arm that the others are held against")
    add(
        "--effect",
        metavar="X",
        type=words.positive(),
        default=0.01,
        help=f"difference in {LOSS_UNIT} (or per token) to count the needed seeds for",
    )
    add("--power", metavar="X", type=words.share(), default=0.8, help="probability with which it should be seen")
    add("--confidence", metavar="X", type=words.share(), default=0.95, help="of the t intervals")
    add("--out", metavar="FILE", type=words.output(), help=f"default: {COMPARISON_FILE} in the run folder, or here")
    words.add_dry_run(add)
    add("--finish", action="store_true", help="first train what a run folder lacks of arms that were begun")
    words.add_sweep(add)


def run(arguments):
    words.check_used(arguments, dry_run=("sd",), dry_run_or_finish=("processes", "on"), finish=("device",))
    if arguments.dry_run:
        return preview(arguments)
    if arguments.finish:
        finish(arguments)
    compare(arguments)


def preview(arguments):
    """Print what the folders hold, what is left to do, and the power of the comparison."""
    from geowidth.plan.sweep import plan_sweep
    from geowidth.train.cells import cells_in
    from geowidth.train.power import power_of

    plan = plan_sweep(cells_in(arguments.folders), words.side_by_side(arguments))
    options = {name: getattr(arguments, name) for name in ("effect", "power", "confidence")}
    power = power_of(len(plan.seeds), plan.losses, arguments.baseline, spread=arguments.sd, unit=plan.unit, **options)
    print("\n".join(plan.lines(power)))


def finish(arguments):
    """Train what is not finished."""
    from geowidth.train import train_many
    from geowidth.train.cells import cells_in

    jobs = [cell.job(arguments.device) for cell in cells_in(arguments.folders) if cell.result is None]
    train_many(jobs, arguments.processes, on=arguments.on, label="finish")


def compare(arguments):
    """Compare, write, print."""
    from geowidth.report import table

    first = Path(arguments.folders[0])
    alone = len(arguments.folders) == 1 and (first / "arms").is_dir()
    out = Path(arguments.out) if arguments.out else (first / COMPARISON_FILE if alone else Path(COMPARISON_FILE))
    records.check_writable(out)
    options = {name: getattr(arguments, name) for name in ("baseline", "effect", "power", "confidence")}
    record = compare_folders(arguments.folders, **options)
    records.write_json(out, record)
    print(table(record))
    print(f"comparison: {out}")
