"""Time the FFN over a range of widths on a device and store the staircase, for width budgets in milliseconds.

Reads:   nothing.
Prints:  the measured widths and their milliseconds.
Writes:  --out, a cost table that geowidth allocate reads with --cost.

    geowidth cost --device cpu --model-dimension 512 --widths 128:2048:64 --out cost.json
    geowidth allocate --schedule cosine --layers 8 --base 1024 --multiple 64 --cost cost.json
"""

from geowidth import records
from geowidth.allocate import options as words
from geowidth.errors import UserError

_MOST_WIDTHS = 4096


def add_arguments(parser):
    """The options of `geowidth cost`."""
    parser.register("action", None, words.Once)
    add = parser.add_argument
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add("--model-dimension", metavar="D", required=True, help="size of the residual stream")
    add("--widths", metavar="FIRST:LAST:STEP", required=True, help="FFN widths to time, both ends included")
    add("--tokens", metavar="N", default="2048", help="tokens per pass")
    add("--projections", metavar="N", default="3", help="matrices per FFN: 3 gated, 2 plain")
    add("--dtype", metavar="NAME", default="float32", help="float32, bfloat16 or float16")
    add("--training", action="store_true", help="time forward and backward together instead of forward alone")
    add("--rounds", metavar="N", default="7", help="timings of every width; the median counts")
    add("--out", metavar="FILE", default="cost.json", help="where to write the table")


def run(arguments):
    """Measure, print, write."""
    widths = width_range(arguments.widths)
    dimension = words.whole_number("--model-dimension", arguments.model_dimension)
    tokens = words.whole_number("--tokens", arguments.tokens)
    rounds = words.whole_number("--rounds", arguments.rounds)
    projections = words.whole_number("--projections", arguments.projections)
    if projections not in (2, 3):
        raise UserError(f"--projections is {projections}; allowed: 2 (up, down) or 3 (gate, up, down)")
    records.check_writable(arguments.out)
    from geowidth.allocate.timing import measure_cost

    table = measure_cost(
        widths,
        dimension,
        tokens=tokens,
        projections=projections,
        device=arguments.device,
        dtype=arguments.dtype,
        kind="training" if arguments.training else "forward",
        rounds=rounds,
    )
    records.write_json(arguments.out, table.to_json())
    print("width  milliseconds")
    for width, milliseconds in zip(widths, table.milliseconds.tolist(), strict=True):
        print(f"{width:5}  {milliseconds:.4f}")
    print(f"written to {arguments.out}")


def width_range(text):
    """The widths of "first:last:step", last included if the step meets it."""
    parts = text.split(":")
    if len(parts) != 3:
        raise UserError(f"--widths is {text!r}; allowed: FIRST:LAST:STEP in whole numbers, as in 128:2048:64")
    first, last, step = (words.whole_number("--widths", part) for part in parts)
    widths = list(range(first, last + 1, step))
    if not widths or len(widths) > _MOST_WIDTHS:
        raise UserError(f"--widths {text!r} holds {len(widths)} widths; allowed: 1 to {_MOST_WIDTHS}")
    return widths
