"""Make a pretrained model narrower: fewer FFN neurons in every layer, as many as each layer is worth, no training.

Reads   MODEL: a folder that `geowidth train` wrote, a Hugging Face folder, or a name that is in its local cache
        (--download fetches it), smollm2, minilm, or a .gguf file of the Llama family; and text
Writes  --out: a model folder that loads as MODEL does, and slice.json: the widths, the neurons that stayed, losses,
        parameters, time and memory beside the whole model's

How narrow (exactly one)
  --keep 0.8          this share of all FFN neurons
  --parameters N      at most N parameters in the whole model
  --latency MS        at most so many milliseconds in the FFNs, by a table of geowidth cost (--cost FILE)
  --schedule FILE     the widths of a schedule.json by geowidth allocate

How many neurons in each layer (--by)
  uniform             the same share everywhere (default: needs no measurement)
  geometry            by measured work; options as in geometry:statistic=shift,geometry=spherical
  sensitivity         by what the loss grows by when one layer alone is narrow
  threshold           one threshold on the neurons' scores over all layers
  curves              exact optimum of loss curves measured one layer at a time
  combined            signals of the geometry, scaled by sensitivity measured at a tenth of its cost
  cosine, linear, ... every schedule of geowidth allocate, and CONTROL-RULE: reversed-cosine, sorted-geometry, ...

Which neurons (--neurons): the largest scores stay
  activation          root mean square of the neuron times the norm of its column (Wanda's rule for whole neurons)
  fluctuation         its variance times that squared (FLAP; with --bias as in the paper)
  taylor, minitron    first-order change of the loss; mean size (Minitron)
  magnitude, random   norms of its weights; an order drawn by --seed

What stays is corrected by least squares, layer after layer, on windows of the validation split (--no-correction leaves
that out). --heal STEPS trains the result for a few steps on the training split, --distil on the whole model's
predictions. Losses are of windows of the test split, of the checkpoint as it was written. The same command goes on
with a slicing that was stopped; what it has done is kept in DIR.unfinished.

Examples
  geowidth slice smollm2 --keep 0.8 --out narrow
  geowidth slice smollm2 --keep 0.8 --by geometry --out narrow
  geowidth slice smollm2 --parameters 110000000 --by cosine --multiple 64 --out narrow
  geowidth slice runs/nano/arms/uniform/seed-0 --keep 0.5 --neurons fluctuation --heal 200 --distil --out short
  geowidth export narrow --format gguf --out narrow-gguf
"""

from geowidth.cli import words
from geowidth.errors import UserError
from geowidth.progress import size

OPTIONS = (
    "by", "neurons", "bias", "corpus", "calibration_windows", "windows", "context", "seed", "dtype", "device",
)  # fmt: skip
OF_WIDTHS = ("multiple", "tensor_parallel", "max_distinct_widths", "floor")


def neuron_rules():
    """Names of the rules for neurons."""
    from geowidth.slicing.scores import NEURON_RULES

    return NEURON_RULES


def dtypes():
    """Names of what written weights may be."""
    from geowidth.slicing.request import DTYPES

    return DTYPES


def add_arguments(parser):
    """The options of `geowidth slice`."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder, name or .gguf file")
    add("--out", metavar="DIR", required=True, help="new folder for the sliced model")
    add = parser.add_argument_group("how narrow").add_argument
    add("--keep", metavar="X", type=words.number(), help="share of all FFN neurons that stays")
    add("--parameters", metavar="N", type=words.whole(), help="most parameters of the whole model")
    add("--latency", metavar="MS", type=words.positive(), help="most milliseconds in the FFNs together")
    add("--cost", metavar="FILE", help="cost table of geowidth cost, for --latency")
    add("--schedule", metavar="FILE", help="schedule.json whose widths are taken")
    add = parser.add_argument_group("how many neurons in each layer").add_argument
    add("--by", metavar="RULE", help="rule for widths, see above (default: uniform)")
    add("--geometry", metavar="NAME", help="of rule geometry: raw, spherical or hyperbolic")
    add("--statistic", metavar="NAME", help="of rule geometry: shift, gw or topology")
    add("--multiple", metavar="Q", type=words.whole(), help="every width is a multiple of this (default: 1)")
    add(
        "--tensor-parallel",
        metavar="N",
        type=words.whole(),
        help="every width is a multiple of this times the multiple (default: 1)",
    )
    add("--max-distinct-widths", metavar="K", type=words.whole(), help="at most this many different widths")
    add("--floor", metavar="W", type=words.width_bound, help="smallest width: a number, or 0.25x of the uniform one")
    add = parser.add_argument_group("which neurons, and what is corrected").add_argument
    add(
        "--neurons",
        metavar="RULE",
        type=words.one_of(neuron_rules),
        default="activation",
        help="rule for neurons, see above",
    )
    add("--bias", action="store_true", help="put the mean of what goes into the down-projection's bias")
    add("--no-correction", action="store_true", help="no least squares")
    add(
        "--ridge",
        metavar="X",
        type=words.number_or_list(),
        help="of the least squares, a share of the mean diagonal; of several, held-out calibration windows choose",
    )
    add = parser.add_argument_group("healing").add_argument
    add("--heal", metavar="STEPS", type=words.whole(), help="steps of training after slicing")
    add("--distil", action="store_true", help="heal on the whole model's predictions")
    add("--heal-rate", metavar="X", type=words.positive(), help="highest learning rate (default: 1e-4)")
    add("--heal-batch", metavar="N", type=words.whole(), help="windows in a step (default: 8)")
    add = parser.add_argument_group("text and machine").add_argument
    add("--corpus", metavar="TEXT", default="stdlib", help=words.CORPUS)
    add(
        "--calibration-windows",
        metavar="N",
        type=words.whole(2),
        default=32,
        help="windows that rules and correction look at",
    )
    add("--windows", metavar="N", type=words.whole(2), default=32, help="other windows, that losses are of")
    add("--context", metavar="N", type=words.whole(2), help="tokens a window (default: the model's, at most 256)")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of all that is drawn")
    add(
        "--dtype",
        metavar="NAME",
        type=words.one_of(dtypes),
        default="keep",
        help="of the written weights: keep, float32, bfloat16 or float16",
    )
    add(
        "--stream",
        action="store_true",
        help="one block's weights in memory at a time (default: where memory does not suffice)",
    )
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    add("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")


def run(arguments):
    request = requested(arguments)
    from geowidth.slicing.pipeline import slice_model

    given = {"download": arguments.download, "cache": arguments.cache, "stream": arguments.stream or None}
    record = slice_model(arguments.model, arguments.out, request, **given)
    print("\n".join(lines(record, arguments.out)))


def requested(arguments):
    """The SliceRequest of the command line."""
    from geowidth.slicing.request import SliceRequest, target_of

    rule, names = _rule(arguments), ("keep", "parameters", "latency", "cost", "schedule")
    target = target_of(**{name: getattr(arguments, name) for name in names})
    given = {name: getattr(arguments, name) for name in OPTIONS}
    given |= {name: value for name in OF_WIDTHS if (value := getattr(arguments, name)) is not None}
    given["by"] = rule
    if arguments.no_correction and arguments.ridge is not None:
        raise UserError("--ridge came with --no-correction, which has no use for it; leave one of them out")
    if arguments.ridge is not None:
        given["ridge"] = arguments.ridge
    return SliceRequest(target, **given, correct=not arguments.no_correction, healing=_healing(arguments))


def _rule(arguments):
    """The rule for widths with the options that have flags of their own."""
    if arguments.schedule is not None:
        names = ("by", "geometry", "statistic", *OF_WIDTHS)
        given = next((name for name in names if getattr(arguments, name) is not None), None)
        if given:
            raise UserError(
                f"--{given.replace('_', '-')} came with --schedule, whose widths are taken as they are; leave one of "
                "them out"
            )
    rule = arguments.by or "uniform"
    for name in ("geometry", "statistic"):
        value = getattr(arguments, name)
        if value is not None:
            if rule.partition(":")[0].rpartition("-")[2] != "geometry":
                raise UserError(f"--{name} came with rule {rule}, which has no use for it; give --by geometry")
            rule += f"{',' if ':' in rule else ':'}{name}={value}"
    return rule


def _healing(arguments):
    from geowidth.slicing.healing import Healing

    given = {"learning_rate": arguments.heal_rate, "batch": arguments.heal_batch}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.heal is None:
        if given or arguments.distil:
            raise UserError("--distil, --heal-rate and --heal-batch are about healing; give --heal STEPS too")
        return None
    return Healing(arguments.heal, distil=arguments.distil, **given)


def lines(record, out):
    """What was cut, what it cost and what it saved."""
    yield f"widths: {' '.join(map(str, record['widths']))}"
    before, after = sum(record["widths_before"]), sum(record["widths"])
    by = f"widths by {record['settings']['by']}, neurons by {record['settings']['neurons']}"
    yield f"{after:,} of {before:,} FFN neurons stay ({after / before:.1%}), {by}"
    yield from _losses(record)
    parameters, held = record["parameters"], record["bytes"]
    yield (
        f"parameters: {parameters['sliced']:,} of {parameters['whole']:,} ({_change(parameters)}); weights "
        f"{size(held['sliced'])} of {size(held['whole'])}"
    )
    if record["time"] is not None:
        yield _speed(record["time"])
    yield from (f"note: {note}" for note in record["notes"])
    yield f"model: {out}"


def _losses(record):
    text = record["text"]["judged"]
    over = f"{text['windows']} windows of {text['context']} tokens"
    if "states" in record:
        states = record["states"]
        yield (
            f"last states on {over}: squared error {states['mean']:.4f} of their square, standard error "
            f"{states['standard_error']:.4f}"
        )
        return
    yield f"loss on {over}: {_loss(record)}"
    if record["heal"] is not None:
        heal = record["heal"]
        yield f"before healing: {_loss(heal['without'])}"
        ends = f"{heal['first']:.4f} to {heal['last']:.4f}"
        yield f"healing: {heal['steps']} steps, {heal['tokens']:,} tokens, its loss {ends}"


def _loss(record):
    before, after, difference = (record[name] for name in ("loss_before", "loss_after", "difference"))
    return (
        f"{before['mean']:.4f} before, {after['mean']:.4f} after; {difference['mean']:+.4f} with a standard error of "
        f"{difference['standard_error']:.4f} (nats per token, paired)"
    )


def _change(pair):
    return f"{pair['sliced'] / pair['whole'] - 1:+.1%}"


def _speed(time):
    whole, sliced = time["whole"], time["sliced"]
    words = [f"{one['median']:,.0f} ({one['low']:,.0f} to {one['high']:,.0f})" for one in (sliced, whole)]
    low, high = time["ratio_low"], time["ratio_high"]
    unclear = ", so no difference can be told" if low <= 1 <= high else ""
    return (
        f"speed: {words[0]} tokens a second, the whole model {words[1]}: {time['ratio']:.2f} ({low:.2f} to {high:.2f}) "
        f"times as fast{unclear} (median and quartiles of {time['rounds']} passes each, in turns, on {time['device']})"
    )
