"""What the loss is when one layer alone keeps a share of its neurons: measured layer by layer, and kept on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import forms, records
from geowidth.cascade.blocks import ResidualBlocks
from geowidth.cascade.held_out import HeldOut
from geowidth.cascade.importance import evaluating
from geowidth.errors import UserError, number, shown
from geowidth.measure.models import check_data
from geowidth.progress import Progress
from geowidth.slicing.ffns import FFN, FFNs
from geowidth.slicing.selection import kept_neurons
from geowidth.slicing.suffix import Suffixes

KIND, SCHEMA = "geowidth.layer_losses", 1
AGAIN = "delete it, or name another folder"
FORM = {"settings": forms.OBJECT, "whole": [forms.FINITE], "layers": [forms.Each([forms.FINITE])]}


@dataclass
class LayerLosses:
    """Losses of a model sliced in one layer alone, in nats per token.

    settings   whose they are: the model, the windows, the neuron rule; equal ones give equal losses
    whole      of every window under the whole model, (windows,)
    layers     {share of its neurons that the layer keeps, as text: loss of every window minus `whole`} of each layer
    path       of the file that holds them; None: only in memory
    """

    settings: dict[str, Any]
    whole: list[float]
    layers: list[dict[str, list[float]]]
    path: Path | None = field(default=None, compare=False)

    def differences(self, share: float) -> np.ndarray:
        """What the loss grows by when each layer alone keeps `share` of its neurons, (layers, windows)."""
        return np.array([layer[_name(share)] for layer in self.layers])

    def missing(self, shares: Sequence[float]) -> list[tuple[int, list[float]]]:
        """[(layer, its shares that are not measured yet)], first layer first."""
        open_to = [(i, [s for s in shares if _name(s) not in layer]) for i, layer in enumerate(self.layers)]
        return [pair for pair in open_to if pair[1]]

    def keep(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is not None:
            value = {"kind": KIND, "schema": SCHEMA, "settings": self.settings}
            records.write_json(self.path, {**value, "whole": self.whole, "layers": self.layers})

    @classmethod
    def begun(cls, path: Path | None, settings: dict[str, Any], layers: int) -> LayerLosses:
        """Those in the file at `path`, to go on from, or none yet. UserError for a file of other settings."""
        if path is None or not path.exists():
            return cls(settings, [], [{} for _ in range(layers)], path)
        value = records.read_json(path, KIND, SCHEMA)
        forms.check(path, value, FORM, AGAIN)
        found, wanted = value["settings"], records.loads(records.dumps(settings))
        differs = next((name for name in {**wanted, **found} if found.get(name) != wanted.get(name)), None)
        if differs is not None:
            raise UserError(
                f"{path} holds losses with another {differs}: {shown(found.get(differs))}, not "
                f"{shown(wanted.get(differs))}; {AGAIN}"
            )
        windows = len(value["whole"])
        if len(value["layers"]) != layers or any(
            len(d) != windows for layer in value["layers"] for d in layer.values()
        ):
            raise UserError(f"{path} is damaged: it does not hold one loss a window for {layers} layers; {AGAIN}")
        return cls(settings, value["whole"], value["layers"], path)


def check_predicts(ffns: FFNs) -> None:
    """Refuse a model that predicts no next token: there is no loss to take."""
    if not ffns.family.causal:
        raise UserError(
            f"this rule needs next-token losses, and a {type(ffns.model).__name__} gives none; take geometry, "
            "threshold or a schedule"
        )


def measured_losses(
    ffns: FFNs,
    text: HeldOut,
    scores: Sequence[np.ndarray],
    shares: Sequence[float],
    *,
    settings: dict[str, Any] | None = None,
    path: Path | None = None,
    known: LayerLosses | None = None,
    batch: int = 8,
) -> LayerLosses:
    """The LayerLosses of a causal language model at `shares` of every layer's neurons: the best-scored ones stay.

    text       calibration windows
    scores     of all neurons, one float array (width,) a layer
    settings   what else is to agree where a file is gone on from (the rule of the scores)
    path       file that is written after every layer; what it holds already is not measured again
    known      those of the same model and text, to go on from in place of a file
    batch      windows in a forward pass

    A layer keeps the nearest whole number of neurons, at least one unless the share is 0. What goes is not made up for
    in the rest of the layer. The passes of a layer begin at it: the states before are the whole model's.
    """
    shares = sorted({number("share of a layer", s, "numbers from 0 to below 1", lambda v: 0 <= v < 1) for s in shares})
    check_predicts(ffns)
    check_data(ffns.model)
    if known is None:
        identity = {"model": digest_of_model(ffns.model), "text": digest_of_text(text), **(settings or {})}
        known = LayerLosses.begun(path, identity, len(ffns))
    missing = known.missing(shares)
    if missing:
        _measure(known, ffns, text, scores, missing, batch)
    return known


def _measure(found, ffns, text, scores, missing, batch):
    blocks = ResidualBlocks(ffns.model, ffns.family.blocks(ffns.model))
    with evaluating(ffns.model), Progress(len(ffns), "sensitivity", unit="layer") as progress:
        progress.resume_at(len(ffns) - len(missing))
        suffixes = Suffixes(blocks, text, batch)
        found.whole = found.whole or suffixes.whole.tolist()
        for layer, shares in missing:
            while suffixes.layer < layer:
                suffixes.advance()
            for share in shares:
                losses = _losses_with(ffns[layer], scores[layer], share, suffixes)
                found.layers[layer][_name(share)] = (losses - suffixes.whole).tolist()
            found.keep()
            progress.step(text=f"layer {layer}")


def _losses_with(ffn: FFN, scores: np.ndarray, share: float, suffixes: Suffixes) -> np.ndarray:
    """Losses of all windows where the layer keeps `share` of its neurons: the others' entries of h are 0."""
    count = min(ffn.width, max(1, round(share * ffn.width)) if share else 0)
    mask = torch.zeros(ffn.width)
    mask[kept_neurons([scores], [count])[0]] = 1.0
    with ffn.reading(lambda h: h * mask.to(h)):
        return suffixes.losses()


def _name(share: float) -> str:
    """A share as a key: equal ones alike, however they came."""
    return repr(float(share))


def digest_of_text(text: HeldOut) -> str:
    """A digest of the ids and targets of windows."""
    digest = hashlib.sha256(repr(tuple(text.tokens.shape)).encode())
    for tensor in (text.tokens, text.targets):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def digest_of_model(model: torch.nn.Module) -> str:
    """A digest of all parameters and buffers that a checkpoint of the model would hold."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
