"""Time the FFN over a range of widths on a device and store the staircase, for width budgets in milliseconds.

Reads    nothing.
Prints   the measured widths and their milliseconds.
Writes   --out, a cost table that geowidth allocate reads with --cost.

Examples
  geowidth cost --device cpu --model-dimension 512 --widths 128:2048:64 --out cost.json
  geowidth allocate --schedule cosine --layers 8 --base 1024 --multiple 64 --cost cost.json
"""

from geowidth import records
from geowidth.cli import words


def add_arguments(parser):
    """The options of `geowidth cost`."""
    add = parser.add_argument
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add("--model-dimension", metavar="D", type=words.whole(), required=True, help="size of the residual stream")
    add(
        "--widths",
        metavar="FIRST:LAST:STEP",
        type=words.width_range,
        required=True,
        help="FFN widths to time, both ends included",
    )
    add("--tokens", metavar="N", type=words.whole(), default=2048, help="tokens per pass")
    add("--projections", metavar="N", type=words.whole(2, 3), default=3, help="matrices per FFN: 3 gated, 2 plain")
    add("--dtype", metavar="NAME", default="float32", help="float32, bfloat16 or float16")
    add("--training", action="store_true", help="time forward and backward together instead of forward alone")
    add("--rounds", metavar="N", type=words.whole(), default=7, help="timings of every width; the median counts")
    add("--out", metavar="FILE", type=words.output(), default="cost.json", help="where to write the table")


def run(arguments):
    """Measure, print, write."""
    from geowidth.allocate.timing import measure_cost

    table = measure_cost(
        arguments.widths,
        arguments.model_dimension,
        tokens=arguments.tokens,
        projections=arguments.projections,
        device=arguments.device,
        dtype=arguments.dtype,
        kind="training" if arguments.training else "forward",
        rounds=arguments.rounds,
    )
    records.write_json(arguments.out, table.to_json())
    print("width  milliseconds")
    for width, milliseconds in zip(arguments.widths, table.milliseconds.tolist(), strict=True):
        print(f"{width:5}  {milliseconds:.4f}")
    print(f"written to {arguments.out}")
