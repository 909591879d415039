"""Turn a work profile or a named schedule into integer FFN widths under an exact budget.

Reads    --work work.json (made by geowidth measure) for measured schedules; nothing for named shapes.
Prints   the widths from first to last layer on one line; what they spend of the budget on the next.
Writes   --out schedule.json and --plot FILE.svg or FILE.png, where asked for.

Examples
  geowidth allocate --schedule cosine --layers 24 --base 4096 --multiple 16
  geowidth allocate --schedule geometry --work work.json --multiple 8 --out schedule.json
  geowidth allocate --schedule geometry --control reversed --work work.json --multiple 8
  geowidth allocate --list
"""

import inspect
import sys

from geowidth.allocate.arms import read_options
from geowidth.allocate.initial_scale import INITIAL_SCALES
from geowidth.allocate.schedules import find_rule, schedule_names
from geowidth.cli import words
from geowidth.errors import UserError


def add_arguments(parser):
    """The options of `geowidth allocate`."""
    add = parser.add_argument
    add("--list", action="store_true", help="list all schedules with their options, and stop")
    add("--schedule", metavar="NAME", default="geometry", help="which schedule; --list names them all")
    add("--control", metavar="NAME", help="a control built from the schedule: reversed, permuted, sorted or inverse")
    add("--option", metavar="NAME=VALUE", action="append", help="an option of the schedule, may be given several times")
    add(
        "--work",
        metavar="FILE",
        help="work.json; also gives layers, budget and model dimension where they are not given",
    )
    add("--geometry", metavar="NAME", help="raw, spherical or hyperbolic, of schedule geometry (default: hyperbolic)")
    add("--statistic", metavar="NAME", help="shift, gw or topology, of schedule geometry (default: topology)")
    add(
        "--mixture",
        metavar="NAME=X,...",
        type=words.named_numbers,
        help="weighted signals, as in topology/hyperbolic=2,shift/raw=1",
    )
    add(
        "--exponent",
        metavar="A",
        type=words.or_word(("dimension", "fitted"), words.number_or_list("dimension, fitted, ")),
        help="dimension (2s/d), fitted, a number, or one a layer (default: dimension)",
    )
    add("--calibration", metavar="FILE", help="calibration.json, for fitted exponents or schedule calibrated")
    add("--sensitivity", metavar="X,...", help="how much the loss reacts to each layer: numbers, or a .json file")
    add("--no-smoothing", action="store_true", help="do not smooth the work over depth by [1 2 1]/4")
    add("--layers", metavar="N", type=words.whole(), help="number of layers")
    budget = parser.add_argument_group("budget")
    add = budget.add_argument
    add("--base", metavar="WIDTH", type=words.whole(), help="budget of this width in every layer")
    add("--budget", metavar="N", help="budget in --unit, in place of --base")
    add("--unit", metavar="UNIT", help="parameters, flops (forward, per token), milliseconds or width (their sum)")
    add("--cost", metavar="FILE", help="cost table of geowidth cost, for a budget in milliseconds")
    add("--model-dimension", metavar="D", type=words.whole(), help="model dimension, to count parameters or FLOPs")
    add(
        "--projections",
        metavar="N",
        type=words.whole(2, 3),
        help="matrices per FFN: 3 gated, 2 plain (default: 3, or what work.json says)",
    )
    add("--biases", action="store_true", help="the FFN's matrices have biases")
    add("--multiple", metavar="Q", type=words.whole(), default=1, help="every width is a multiple of this quantum")
    add(
        "--tensor-parallel",
        metavar="N",
        type=words.whole(),
        default=1,
        help="every width is a multiple of this times the quantum",
    )
    add(
        "--max-distinct-widths",
        metavar="K",
        type=words.whole(),
        help="at most this many different widths (8 suits compilers)",
    )
    add(
        "--floor",
        metavar="W",
        type=words.width_bound,
        help="smallest width: a width, one a layer, or a multiple of the uniform one as in 0.25x",
    )
    add(
        "--cap",
        metavar="W",
        type=words.width_bound,
        help="largest width, likewise (for measured work the bounds are 0.25x and 4x by default)",
    )
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of permuted controls")
    add(
        "--initial-scale",
        metavar="RULE",
        type=words.one_of(INITIAL_SCALES),
        default="plain",
        help="of down-projections: plain; width (each layer starts as loud as in the uniform model); alone (uniform "
        "widths that start as loud as the schedule's)",
    )
    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--out", metavar="FILE", type=words.output(), help="write schedule.json here")
    add("--plot", metavar="FILE", type=words.output(".svg", ".png"), help="draw the widths over depth (.svg or .png)")


def run(arguments):
    """Allocate, print, write."""
    if arguments.list:
        return _print_list()
    request = _request(arguments)
    from geowidth.allocate.allocation import allocate

    schedule = allocate(arguments.schedule, **request)
    if arguments.out is not None:
        schedule.write(arguments.out)
    if arguments.plot is not None:
        from geowidth.allocate.plot import plot_schedule

        plot_schedule(schedule, arguments.plot)
    print(*schedule.widths)
    if schedule.heads is not None:
        print("heads", *schedule.heads)
    print(budget_line(schedule))
    for note in schedule.details.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)


def budget_line(schedule):
    """What a schedule spends of its budget, in words."""
    budget = schedule.budget
    unit = {"width": "units of width", "flops": "FLOPs per token"}.get(budget["unit"], budget["unit"])
    spent, value, left = budget["spent"], budget["value"], budget["value"] - budget["spent"]
    if budget["unit"] == "milliseconds":
        spent, value, left = f"{spent:.6g}", f"{value:.6g}", f"{max(left, 0.0):.3g}"
    return f"spent {spent} of {value} {unit} ({left} left), multiples of {schedule.quantum}"


def _request(arguments):
    """Keyword arguments of `allocate` from the command line."""
    options = _flagged(arguments)
    own = {
        "layers": arguments.layers,
        "base_width": arguments.base,
        "budget": _amount(arguments),
        "unit": arguments.unit,
        "cost_table": arguments.cost,
        "max_distinct_widths": arguments.max_distinct_widths,
        "model_dimension": arguments.model_dimension,
        "projections": arguments.projections,
        "biases": arguments.biases,
        "work": arguments.work,
        "quantum": arguments.multiple,
        "tensor_parallel": arguments.tensor_parallel,
        "floor": arguments.floor,
        "cap": arguments.cap,
        "control": arguments.control,
        "seed": arguments.seed,
        "initial_scale": arguments.initial_scale,
    }
    given = read_options("--option", arguments.option or ())
    for name in given:
        if name in options:
            raise UserError(f"--option {name} and --{_FLAGS.get(name, name)} say the same; give one of them")
        if name in own or name == "schedule":
            raise UserError(f"--option {name} is not an option of a schedule; allocate --help lists its own flag")
    return {**own, **options, **given}


_FLAGS = {"smoothing": "no-smoothing"}


def _flagged(arguments):
    """Options of the schedule that have flags of their own, where given."""
    names = ("geometry", "statistic", "mixture", "exponent", "sensitivity", "calibration")
    found = {name: text for name in names if (text := getattr(arguments, name)) is not None}
    if "mixture" in found:
        single = next((name for name in ("geometry", "statistic") if name in found), None)
        if single:
            raise UserError(f"--mixture and --{single} came; a mixture names its signals itself: leave --{single} out")
    if "sensitivity" in found and not found["sensitivity"].endswith(".json"):
        numbers = words.number_or_list("a .json file, ")
        found["sensitivity"] = words.reading("--sensitivity", numbers, found["sensitivity"])
    return found | ({"smoothing": False} if arguments.no_smoothing else {})


def _amount(arguments):
    """The budget: milliseconds may have a fraction, everything else is counted."""
    timed = arguments.unit == "milliseconds" or (arguments.unit is None and arguments.cost is not None)
    return words.reading("--budget", words.positive() if timed else words.whole(), arguments.budget)


def _print_list():
    required = inspect.Parameter.empty
    for name in schedule_names():
        rule = find_rule(name)
        options = ", ".join(
            f"{key} (required)" if value is required else f"{key}={value}" for key, value in rule.options.items()
        )
        print(f"{name:12} {rule.summary}" + (f" [{options}]" if options else ""))
