"""Do gradient shares of a training tell which blocks matter afterwards? Importance of every block beside its share."""

from typing import Any

from geowidth import records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade.blocks import residual_blocks
from geowidth.cascade.correlation import correlate
from geowidth.cascade.fan_in import predicted_fan_in
from geowidth.cascade.held_out import draw_held_out
from geowidth.cascade.importance import block_importance
from geowidth.cascade.plot import plot_importance
from geowidth.cascade.pruning import JUDGED, ledger_of
from geowidth.devices import device_named
from geowidth.errors import UserError, seed_number
from geowidth.files import PathLike
from geowidth.measure.opening import open_model
from geowidth.text.corpus import load_corpus

KIND, SCHEMA = "geowidth.importance", 1


def compare_importance(
    model: PathLike,
    ledger: PathLike | Ledger | None = None,
    out: PathLike | None = None,
    *,
    plot: PathLike | None = None,
    corpus: PathLike = "stdlib",
    windows: int = 32,
    context: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    device: str = "cpu",
    download: bool = False,
    cache: PathLike | None = None,
) -> dict[str, Any]:
    """Importance of every block of a model on the test split of a corpus, and its correlation with gradient shares.

    model      as for `geowidth.cascade.prune`. ledger: a Ledger, its file, or None: ledger.json in its folder
    out, plot  files for the record (.json) and the picture (.svg); None: none is written
    windows    of text, drawn by `seed`, with `context` tokens each
    returns    the record: loss, importance with standard errors paired over windows, shares, predicted fan-in, Spearman
               and Pearson with intervals at `confidence`
    """
    for path in (out, plot):
        if path is not None:
            records.check_writable(path)
    read, seed, where = ledger_of(model, ledger), seed_number("seed", seed), device_named(device)
    correlate([0, 1], [0, 1], confidence)  # a bad confidence is refused before the work
    opened = open_model(model, download=download, cache=cache, causal=True)
    blocks = residual_blocks(opened.model.to(where))
    if len(read.blocks) != len(blocks):
        raise UserError(f"the ledger has {len(read.blocks)} blocks, the model {len(blocks)}; give that of its training")
    shares = read.shares
    text = draw_held_out(opened, load_corpus(corpus), JUDGED, windows=windows, context=context, seed=seed)
    found = block_importance(blocks, text)
    correlations = correlate(shares, found.values, confidence)
    record = {"kind": KIND, "schema": SCHEMA, "source": opened.source, **found.to_json(), "shares": shares.tolist()}
    record |= {"fan_in": predicted_fan_in(len(blocks)).tolist(), "steps": read.steps}
    record |= {"correlations": {name: one.to_json() for name, one in correlations.items()}}
    record |= {"environment": records.environment()}
    if out is not None:
        records.write_json(out, record)
    if plot is not None:
        plot_importance(found.values, found.standard_errors, shares, correlations, plot)
    return record
