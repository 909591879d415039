"""What gradients tell about the blocks of a trained model (CascadeFormer).

  geowidth cascade importance MODEL     importance of every block beside its gradient share

Reads   MODEL: a folder that `geowidth train --ledger` wrote, or another model with --ledger FILE; and held-out text
Writes  --out: importance.json: what the loss grows by when a block is left out, with the standard error over windows
        (paired); the accumulated gradient shares; Spearman's and Pearson's correlation of the two with intervals

Examples
  geowidth cascade importance runs/nano --out importance.json --plot importance.svg
"""

from geowidth.cli import words

ACTIONS = ("importance",)
OPTIONS = ("plot", "corpus", "windows", "context", "seed", "confidence", "device", "download", "cache")


def add_arguments(parser):
    """The options of `geowidth cascade`."""
    add = parser.add_argument
    add("action", metavar="ACTION", type=words.one_of(ACTIONS), help="importance")
    add("model", metavar="MODEL", help="folder, name or .gguf file")
    add("--ledger", metavar="FILE", help="ledger of the training (default: ledger.json in MODEL)")
    add("--out", default="importance.json", metavar="FILE", type=words.output(".json"), help="the record (.json)")
    add("--plot", metavar="FILE", type=words.output(".svg"), help="also draw it (.svg)")
    add("--corpus", metavar="TEXT", default="stdlib", help="held-out text: stdlib, a file, a folder, or shards")
    add("--windows", metavar="N", type=words.whole(2), default=32, help="windows of text that are read")
    add("--context", metavar="N", type=words.whole(2), help="tokens a window (default: the model's, at most 256)")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of the drawing of windows")
    add("--confidence", metavar="X", type=words.share(), default=0.95, help="of the intervals")
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    add("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")


def run(arguments):
    from geowidth.cascade.ledger_and_importance import compare_importance

    given = {name: getattr(arguments, name) for name in OPTIONS}
    record = compare_importance(arguments.model, arguments.ledger, arguments.out, **given)
    print(table(record))
    for name, found in record["correlations"].items():
        print(sentence(name, found))
    print(f"importance: {arguments.out}")
    if arguments.plot is not None:
        print(f"picture: {arguments.plot}")


def table(record):
    """A row a block: importance with its standard error, gradient share, fan-in."""
    lines = [f"block {'importance':>11} {'error':>9} {'share':>8} {'fan-in':>7}"]
    columns = ("importance", "standard_errors", "shares", "fan_in")
    for block, row in enumerate(zip(*(record[name] for name in columns), strict=True)):
        value, error, share, paths = row
        lines.append(f"{block:5d} {value:11.4f} {error:9.4f} {share:8.4f} {paths:7.0f}")
    return "\n".join(lines)


def sentence(name, found):
    """A correlation of a record in words."""
    from geowidth.cascade.correlation import Correlation
    from geowidth.cascade.plot import sentence as in_words

    interval = None if found["interval"] is None else tuple(found["interval"])
    return in_words(name, Correlation(found["value"], interval, found["confidence"], found["pairs"]))
