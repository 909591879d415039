"""Remove whole residual blocks from a model, and say what that costs in loss.

Reads   MODEL: a folder that `geowidth train` wrote, a Hugging Face folder, or a name that is in its local cache
        (--download fetches it), smollm2, or a .gguf file of the Llama family; and held-out text
Writes  --out: a model folder that loads as MODEL does, with fewer blocks, and prune.json: the blocks that went, their
        scores, and the loss on held-out text before and after. --curve: the losses without 0, 1, ... K blocks, with
        --seeds of several orders and how far these agree (an interrupted curve goes on where it was)

Rules (the smallest score goes first; scores are of the whole model, taken once)
  ledger       accumulated gradient share of the training (ledger.json, which geowidth train --ledger writes)
  similarity   mean angle between what enters and what leaves a block
  taylor       sum over its parameters of |parameter * gradient|
  magnitude    sum over its parameters of |parameter|
  random       an order drawn by --seed

Rules look at windows of the validation split; losses are of windows of the test split. Several rules draw a curve.

Examples
  geowidth prune runs/nano --by ledger --blocks 2 --out runs/nano-short
  geowidth prune smollm2 --by similarity --blocks 2 --out short
  geowidth prune smollm2 --by similarity magnitude random --blocks 8 --seeds 5 --curve curve.json --plot curve.svg
"""

from geowidth.cli import words
from geowidth.errors import UserError

OPTIONS = (
    "seed",
    "seeds",
    "ledger",
    "identity",
    "curve",
    "corpus",
    "windows",
    "context",
    "device",
    "download",
    "cache",
)


def rules():
    """Names of the pruning rules."""
    from geowidth.cascade.scores import RULES

    return RULES


def add_arguments(parser):
    """The options of `geowidth prune`."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder, name or .gguf file")
    add("--blocks", metavar="K", type=words.whole(), required=True, help="how many blocks go")
    add(
        "--by",
        nargs="+",
        metavar="RULE",
        type=words.one_of(rules),
        required=True,
        help="ledger, similarity, taylor, magnitude or random; several with --curve",
    )
    add("--out", metavar="DIR", help="new folder for the pruned model")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of rule random, and of the drawing of windows")
    add(
        "--seeds",
        metavar="N",
        type=words.whole(),
        default=1,
        help="of the curve, from --seed on: each draws an order, or the windows a rule looks at",
    )
    add("--ledger", metavar="FILE", help="ledger of the training (default: ledger.json in MODEL)")
    add("--identity", action="store_true", help="keep the number of blocks: those that go become identities")
    add("--curve", metavar="FILE", type=words.output(".json"), help="losses without 0 to K blocks (.json)")
    add("--plot", metavar="FILE", type=words.output(".svg"), help="also draw the curve (.svg)")
    add("--corpus", metavar="TEXT", default="stdlib", help="held-out text: stdlib, a file, a folder, or shards")
    add("--windows", metavar="N", type=words.whole(2), default=32, help="windows of text that are read")
    add("--context", metavar="N", type=words.whole(2), help="tokens a window (default: the model's, at most 256)")
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    add("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")


def run(arguments):
    if arguments.plot is not None and arguments.curve is None:
        raise UserError("--plot draws the curve, and none was asked for; give --curve FILE too")
    from geowidth.cascade.pruning import prune

    given = {name: getattr(arguments, name) for name in OPTIONS}
    record = prune(arguments.model, arguments.blocks, arguments.by, arguments.out, **given)
    if arguments.curve is not None:
        show_curve(arguments)
    if arguments.out is not None:
        show(arguments, record)


def show_curve(arguments):
    """Print the curves, and draw them where that is asked for."""
    from geowidth import records

    record = records.read_json(arguments.curve)
    curves = record["curves"]
    print(table(curves))
    for rule, found in record["stability"].items():
        print(agreement(rule, found))
    print(f"curve: {arguments.curve}")
    if arguments.plot is not None:
        from geowidth.cascade.plot import plot_curves

        plot_curves(curves, arguments.plot)
        print(f"picture: {arguments.plot}")


def table(curves):
    """A row for each number of blocks removed: the mean loss by every rule, with its range over seeds."""
    cells = {rule: [cell(point) for point in points] for rule, points in curves.items()}
    widths = {rule: max(10, len(rule), *map(len, own)) for rule, own in cells.items()}
    lines = ["removed " + " ".join(f"{rule:>{widths[rule]}}" for rule in curves)]
    for k, row in enumerate(zip(*cells.values(), strict=True)):
        lines.append(f"{k:7d} " + " ".join(f"{text:>{widths[rule]}}" for rule, text in zip(cells, row, strict=True)))
    return "\n".join(lines)


def cell(point):
    """The loss of a point: 4.1234, or 4.1234 (4.0 to 4.3) over seeds that differ."""
    losses = [one["loss"]["mean"] for one in point.get("by_seed", ())]
    spread = f" ({min(losses):.3f} to {max(losses):.3f})" if losses and min(losses) < max(losses) else ""
    return f"{point['loss']['mean']:.4f}{spread}"


def agreement(rule, found):
    """How far the orders of several seeds agree, in words."""
    words = f"{rule}: {found['orders']} orders from {found['draws']} seeds"
    if found["spearman"] is None:
        return f"{words}; their scores have no spread to be compared"
    spearman, kendall = (f"{found[name]:.2f} (least {found[f'least_{name}']:.2f})" for name in ("spearman", "kendall"))
    return f"{words}; Spearman {spearman}, Kendall {kendall} between two of them"


def show(arguments, record):
    """Print what went and what it cost."""
    before, after, difference = (record[name] for name in ("loss_before", "loss_after", "difference"))
    what = "are identities now" if record["identity"] else "removed"
    print(f"blocks {' '.join(map(str, record['removed']))} of {record['layers']} {what}, by {record['by']}")
    text = f"{record['text']['windows']} windows of {record['text']['context']} tokens"
    print(
        f"loss on {text}: {before['mean']:.4f} before, "
        f"{after['mean']:.4f} after; {difference['mean']:+.4f} with a standard error of "
        f"{difference['standard_error']:.4f} (nats per token, paired)"
    )
    print(f"model: {arguments.out}")
