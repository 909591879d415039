"""Turn a work profile or a named schedule into integer FFN widths under an exact budget.

Reads:   --work work.json (made by geowidth measure) for measured schedules; nothing for named shapes.
Prints:  the widths from first to last layer on one line; what they spend of the budget on the next.
Writes:  --out schedule.json and --plot FILE.svg or FILE.png, where asked for.

    geowidth allocate --schedule cosine --layers 24 --base 4096 --multiple 16
    geowidth allocate --schedule geometry --work work.json --multiple 8 --out schedule.json
    geowidth allocate --schedule geometry --control reversed --work work.json --multiple 8
    geowidth allocate --list
"""

import inspect
import sys

from geowidth import records
from geowidth.allocate import options as words
from geowidth.allocate.schedules import find_rule, schedule_names
from geowidth.errors import UserError


def add_arguments(parser):
    """The options of `geowidth allocate`."""
    parser.register("action", None, words.Once)
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
    add("--mixture", metavar="NAME=W,...", help="weighted signals, as in hyperbolic/topology=2,raw/shift=1")
    add("--exponent", metavar="A", help="dimension (2s/d), fitted, a number, or one a layer (default: dimension)")
    add("--calibration", metavar="FILE", help="calibration.json, for fitted exponents or schedule calibrated")
    add("--sensitivity", metavar="S,...", help="how much the loss reacts to each layer: numbers, or a .json file")
    add("--no-smoothing", action="store_true", help="do not smooth the work over depth by [1 2 1]/4")
    add("--layers", metavar="N", help="number of layers")
    budget = parser.add_argument_group("budget")
    add = budget.add_argument
    add("--base", metavar="WIDTH", help="budget of this width in every layer")
    add("--budget", metavar="N", help="budget in --unit, in place of --base")
    add("--unit", metavar="UNIT", help="parameters, flops (forward, per token), milliseconds or width (their sum)")
    add("--cost", metavar="FILE", help="cost table of geowidth cost, for a budget in milliseconds")
    add("--model-dimension", metavar="D", help="model dimension, to count parameters or FLOPs")
    add("--projections", metavar="N", help="matrices per FFN: 3 gated, 2 plain (default: 3, or what work.json says)")
    add("--biases", action="store_true", help="the FFN's matrices have biases")
    add("--multiple", metavar="Q", default="1", help="every width is a multiple of this quantum")
    add("--tensor-parallel", metavar="N", default="1", help="every width is a multiple of this times the quantum")
    add("--max-distinct-widths", metavar="K", help="at most this many different widths (8 suits compilers)")
    add(
        "--floor",
        metavar="W",
        help="smallest width: a width, one a layer, or a multiple of the uniform one as in 0.25x",
    )
    add("--cap", metavar="W", help="largest width, likewise (for measured work the bounds are 0.25x and 4x by default)")
    add("--seed", metavar="N", default="0", help="seed of permuted controls")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="FILE", help="write schedule.json here")
    output.add_argument("--plot", metavar="FILE", help="draw the widths over depth as FILE.svg or FILE.png")


def run(arguments):
    """Allocate, print, write."""
    if arguments.list:
        return _print_list()
    request = _request(arguments)
    for path in (arguments.out, arguments.plot):
        if path is not None:
            records.check_writable(path)
    if arguments.plot is not None and not arguments.plot.endswith((".svg", ".png")):
        raise UserError(f"--plot is {arguments.plot!r}; allowed: a file that ends in .svg or .png")
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
        "layers": words.whole_number("--layers", arguments.layers),
        "base_width": words.whole_number("--base", arguments.base),
        "budget": _amount(arguments),
        "unit": arguments.unit,
        "cost_table": arguments.cost,
        "max_distinct_widths": words.whole_number("--max-distinct-widths", arguments.max_distinct_widths),
        "model_dimension": words.whole_number("--model-dimension", arguments.model_dimension),
        "projections": words.whole_number("--projections", arguments.projections),
        "biases": arguments.biases,
        "work": arguments.work,
        "quantum": words.whole_number("--multiple", arguments.multiple),
        "tensor_parallel": words.whole_number("--tensor-parallel", arguments.tensor_parallel),
        "floor": words.width_bound("--floor", arguments.floor),
        "cap": words.width_bound("--cap", arguments.cap),
        "control": arguments.control,
        "seed": words.whole_number("--seed", arguments.seed, minimum=0),
    }
    given = words.schedule_options("--option", arguments.option)
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
        found["mixture"] = words.named_numbers("--mixture", found["mixture"])
        single = next((name for name in ("geometry", "statistic") if name in found), None)
        if single:
            raise UserError(f"--mixture and --{single} came; a mixture names its signals itself: leave --{single} out")
    if found.get("exponent") not in (None, "dimension", "fitted"):
        found["exponent"] = words.number_or_list("--exponent", found["exponent"], "dimension, fitted, ")
    if "sensitivity" in found and not found["sensitivity"].endswith(".json"):
        found["sensitivity"] = words.number_or_list("--sensitivity", found["sensitivity"], "a .json file, ")
    return found | ({"smoothing": False} if arguments.no_smoothing else {})


def _amount(arguments):
    """The budget: milliseconds may have a fraction, everything else is counted."""
    timed = arguments.unit == "milliseconds" or (arguments.unit is None and arguments.cost is not None)
    if arguments.budget is not None and timed:
        return words.number("--budget", arguments.budget)
    return words.whole_number("--budget", arguments.budget)


def _print_list():
    required = inspect.Parameter.empty
    for name in schedule_names():
        rule = find_rule(name)
        options = ", ".join(
            f"{key} (required)" if value is required else f"{key}={value}" for key, value in rule.options.items()
        )
        print(f"{name:12} {rule.summary}" + (f" [{options}]" if options else ""))
