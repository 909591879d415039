"""Pruning whole blocks: which go by a rule, what the loss is without them, and the checkpoint that has them no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from geowidth import files, records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade.blocks import ResidualBlocks, residual_blocks
from geowidth.cascade.curves import Judge, rankings, removal_curves, stabilities
from geowidth.cascade.held_out import HeldOut, draw_held_out, logits_of, mean_and_error, several_held_out
from geowidth.cascade.removal import write_without
from geowidth.cascade.scores import RULES, Evidence
from geowidth.cascade.training import LEDGER_FILE
from geowidth.errors import UserError, choose_several, flag, seed_number, whole
from geowidth.exchange.folders import check_free, written_whole
from geowidth.files import PathLike
from geowidth.measure.models import input_device
from geowidth.measure.opening import OpenedModel, converted, located, open_model
from geowidth.models.config import ModelConfig
from geowidth.text.corpus import load_corpus

KIND, CURVE_KIND, SCHEMA = "geowidth.prune", "geowidth.prune_curve", 1
RECORD_FILE = "prune.json"
CALIBRATION, JUDGED = "validation", "test"  # splits: what rules look at, and what the losses are of
MOST_SEEDS = 1000
# Of the largest logit: how far a written model, read on the CPU, may be from the one whose losses were taken.
SAME, SAME_ELSEWHERE = 1e-5, 1e-4  # there, and on a device that adds in another order


@dataclass(frozen=True)
class Pruner:
    """A model opened for pruning, with the text it is judged by.

    evidence: what the rules look at, one for each seed.
    """

    opened: OpenedModel
    folder: Path
    blocks: ResidualBlocks
    evidence: tuple[Evidence, ...]
    text: HeldOut


def prune(
    model: PathLike,
    blocks: int,
    by: str | Sequence[str] = "similarity",
    out: PathLike | None = None,
    *,
    seed: int = 0,
    seeds: int = 1,
    ledger: PathLike | Ledger | None = None,
    identity: bool = False,
    curve: PathLike | None = None,
    corpus: PathLike = "stdlib",
    windows: int = 32,
    context: int | None = None,
    device: str = "cpu",
    download: bool = False,
    cache: PathLike | None = None,
) -> dict[str, Any]:
    """Remove `blocks` residual blocks of a model; returns the record that is written to prune.json.

    model      a folder by geowidth train, a Hugging Face folder or name, smollm2, a .gguf file
    by         a rule of geowidth.cascade.RULES; with `curve` and without `out`, several
    out        new folder for the pruned model, which loads as the source did; None: none is written
    seed       of a rule that draws, and of the drawing of windows
    seeds      of the curve: seed, seed + 1, ... as many. Each draws an order, or the windows that a rule looks at; the
               losses are of the same windows throughout. The record tells how far the orders agree
    ledger     a Ledger or its file, for the rule of that name (default: ledger.json in the model's folder)
    identity   keep the number of blocks, those removed as identities: all their parameters zero
    curve      file for the losses without 0, 1, ... `blocks` blocks, of every rule
    windows    windows of `context` tokens of held-out text: rules look at such of the validation split, losses are of
               such of the test split
    device     where the model runs

    Scores are of the whole model, taken once: a block's does not change when others go. Raises UserError before any
    work for bad arguments, and where the written model would not compute what was judged; then nothing is written.
    """
    rules = choose_several("pruning rule", by, RULES)
    _check(blocks, rules, out, curve, identity, seeds)
    read, drawn = _ledger(model, rules, ledger), _seeds(seed, seeds)
    pruner = _opened(model, blocks, rules, read, drawn, corpus, windows, context, device, download, cache)
    judge = Judge(pruner.blocks, pruner.text, curve)
    ranked = rankings(judge, rules, pruner.evidence)
    facts = {"source": pruner.opened.source, "layers": len(pruner.blocks), "text": pruner.text.settings, "seed": seed}
    facts["environment"] = records.environment()
    record: dict[str, Any] = {"kind": KIND, "schema": SCHEMA, **facts}
    if curve is not None:
        record |= {"kind": CURVE_KIND, "curves": removal_curves(judge, ranked, blocks), "seeds": seeds}
        record |= {"rankings": {rule: [one.to_json() for one in own] for rule, own in ranked.items()}}
        record |= {"stability": stabilities(ranked), "windows": judge.windows()}
        records.write_json(curve, record)
        judge.finish()
    if len(rules) > 1 or out is None:
        return record
    return _write(pruner, judge, rules[0], ranked[rules[0]][0], blocks, identity, Path(out), {**facts, "kind": KIND})


def _check(blocks, rules, out, curve, identity, seeds):
    """Refuse what can be refused before anything is opened."""
    whole("blocks", blocks, 1)
    flag("identity", identity)
    if whole("seeds", seeds, 1, MOST_SEEDS) > 1 and curve is None:
        raise UserError(f"seeds is {seeds}, and a pruned model is of one (seed); several draw a curve (--curve FILE)")
    if out is None and curve is None:
        raise UserError("nothing is asked for: name a folder for the pruned model (--out), or a file (--curve)")
    if out is not None and len(rules) > 1:
        raise UserError(f"{len(rules)} rules came ({', '.join(rules)}); one prunes a model, several draw a curve")
    if out is None and identity:
        raise UserError("identity is about the model that is written, and no folder was named for it; give --out")
    if out is not None:
        check_free(out)
    if curve is not None:
        records.check_writable(curve)


def _seeds(seed, seeds):
    """The seeds from one on, as many; the last must be one too."""
    first = seed_number("seed", seed)
    seed_number("the last of the seeds", first + seeds - 1)
    return range(first, first + seeds)


def _ledger(model, rules, ledger):
    """The Ledger for the rules that read one, or None."""
    if not any("ledger" in RULES[rule].reads for rule in rules):
        if ledger is not None:
            raise UserError(f"a ledger came, and rule {', '.join(rules)} reads none; leave it out or prune by ledger")
        return None
    return ledger_of(model, ledger)


def ledger_of(model: PathLike, ledger: PathLike | Ledger | None = None) -> Ledger:
    """The Ledger given, or in a file, or (None) in ledger.json in the model's folder; UserError where there is none."""
    if isinstance(ledger, Ledger):
        return ledger
    path = Path(model) / LEDGER_FILE if ledger is None else Path(ledger)
    if not files.exists(path):
        raise UserError(f"{path} does not exist; geowidth train --ledger writes one, --ledger FILE names another")
    return Ledger.read(path)


def _opened(model, blocks, rules, ledger, seeds, corpus, windows, context, device, download, cache):
    """The Pruner of all this, checked."""
    from geowidth.devices import device_named

    where = device_named(device)
    opened = open_model(model, download=download, cache=cache, causal=True)
    if isinstance(config := getattr(opened.model, "config", None), ModelConfig):
        config.refuse_repeats("pruning")
    path = located(model, download)
    folder = converted(path, cache) if path.suffix == ".gguf" else path
    found = residual_blocks(opened.model.to(where))
    if len(found) == 1:
        raise UserError(f"{opened.source['name']} has one block, and one must stay; give a deeper model")
    if blocks >= len(found):
        raise UserError(f"blocks is {blocks}; the model has {len(found)}, so allowed: 1 to {len(found) - 1}")
    if ledger is not None and len(ledger.blocks) != len(found):
        raise UserError(
            f"the ledger has {len(ledger.blocks)} blocks, the model {len(found)}; give that of its training"
        )
    text, drawn = load_corpus(corpus), {"windows": windows, "context": context}
    judged = draw_held_out(opened, text, JUDGED, seed=seeds[0], **drawn)
    looked_at = [None] * len(seeds)
    if any("text" in RULES[rule].reads for rule in rules):
        looked_at = several_held_out(opened, text, CALIBRATION, seeds, **drawn)
    evidence = (Evidence(found, of, ledger, seed) for seed, of in zip(seeds, looked_at, strict=True))
    return Pruner(opened, folder, found, tuple(evidence), judged)


def _write(pruner, judge, rule, ranking, blocks, identity, out, facts):
    """Write the pruned model and its record, which is returned."""
    removed = ranking.order[:blocks]
    full, losses = judge.full, judge.without(removed)
    record = {
        "kind": KIND,
        "schema": SCHEMA,
        **facts,
        "by": rule,
        "scores": ranking.scores,
        "removed": sorted(removed),
        "kept": [i for i in range(len(pruner.blocks)) if i not in removed],
        "identity": identity,
        "loss_before": mean_and_error(full),
        "loss_after": mean_and_error(losses),
        "difference": mean_and_error(losses - full),
    }

    def fill(folder):
        write_without(pruner.folder, pruner.opened.model, removed, identity, folder)
        _check_written(pruner, removed, folder, identity)
        records.write_json(folder / RECORD_FILE, record)
        return records.read_json(folder / RECORD_FILE, KIND, SCHEMA)

    return written_whole(out, fill)


@torch.no_grad()
def _check_written(pruner, removed, folder, identity):
    """Open what was written, and refuse it where it does not compute what the losses were taken of."""
    written = open_model(folder, causal=True).model
    model, tokens = pruner.opened.model, pruner.text.tokens[:1]
    with pruner.blocks.without(removed):
        wanted = logits_of(model, tokens.to(input_device(model))).double().cpu()
    found = logits_of(written, tokens.to(input_device(written))).double().cpu()
    apart = float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))
    if not apart <= (SAME if input_device(model).type == "cpu" else SAME_ELSEWHERE):
        why = "a block of zeros is no identity" if identity else "what a block does depends on its number"
        raise UserError(
            f"{pruner.folder} cannot be pruned this way: in a {type(model).__name__} {why} (logits differ by "
            f"{apart:.2g} of the largest)"
        )
