"""A model with fewer neurons a layer: sliced in place, corrected layer after layer on its own inputs, and put back."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from geowidth import memory
from geowidth.cascade.held_out import HeldOut
from geowidth.cascade.importance import evaluating
from geowidth.errors import UserError, number
from geowidth.measure.models import check_data
from geowidth.progress import Progress
from geowidth.slicing.correction import RIDGES, Correction, LayerReport, corrected, kept_out_windows
from geowidth.slicing.ffns import FFN, FFNs


@dataclass(frozen=True)
class SliceReport:
    """What was done to every layer, and the settings of the calibration text, None without one."""

    layers: tuple[LayerReport, ...]
    calibration: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"layers": [layer.to_json() for layer in self.layers], "calibration": self.calibration}


@contextlib.contextmanager
def sliced(
    ffns: FFNs,
    kept: Sequence[torch.Tensor],
    calibration: HeldOut | None = None,
    *,
    ridge: float | Sequence[float] | None = RIDGES,
    bias: bool = False,
) -> Iterator[SliceReport]:
    """Inside, the model holds the neurons `kept` alone (`slice_in_place`); afterwards all is as before, bit by bit."""
    with ffns.restored():
        yield slice_in_place(ffns, kept, calibration, ridge=ridge, bias=bias)


@torch.no_grad()
def slice_in_place(
    ffns: FFNs,
    kept: Sequence[torch.Tensor],
    calibration: HeldOut | None = None,
    *,
    ridge: float | Sequence[float] | None = RIDGES,
    bias: bool = False,
    label: str | None = None,
) -> SliceReport:
    """Keep the neurons `kept` of every layer; what stays is corrected if `calibration` text is given.

    ffns         of the model, which is changed; a failure leaves it as it was
    kept         int64 indices a layer, ascending, as `kept_neurons` gives
    calibration  windows of text, run through the sliced model once, all together: a layer is corrected on what the
                 sliced layers below give it
    ridge        share of the mean diagonal of the Gram matrix; of several that of least error of the FFN's output on
                 windows kept out (the last fifth) is taken, layer by layer; None: no least squares
    bias         whether the mean that the removed neurons leave goes into the bias of the output (FLAP), which is made
                 where the layer has none
    label        shows progress under this name
    Refused before work: indices that do not fit, fewer calibration tokens than a corrected layer keeps neurons, weights
    without data, a lack of memory.
    """
    check_kept(ffns, kept)
    ridges = checked_ridges(ridge)
    changed = [ffn for ffn, indices in zip(ffns, kept, strict=True) if len(indices) < ffn.width]
    if calibration is None and bias:
        raise UserError("a bias for what is removed needs calibration text; give some")
    check_weights(changed)
    if calibration is not None and changed and (ridges or bias):
        check_calibration(ffns, kept, calibration, ridges)
    with _unless_it_fails(ffns):
        if calibration is None or not changed or not (ridges or bias):
            layers = [cut(ffn, indices, Correction()) for ffn, indices in zip(ffns, kept, strict=True)]
        else:
            layers = one_pass(ffns, kept, calibration, ridges, bias, label)
        ffns.state_widths()
    return SliceReport(tuple(layers), None if calibration is None else calibration.settings)


@torch.no_grad()
def one_pass(
    ffns: FFNs,
    kept: Sequence[torch.Tensor],
    calibration: HeldOut,
    ridges: Sequence[float],
    bias: bool,
    label: str | None,
    reports: dict[int, LayerReport] | None = None,
) -> list[LayerReport]:
    """One pass over the text, in which every layer is sliced when the pass has come to it.

    The arguments are those of `slice_in_place`, checked. reports: those of layers that are sliced already, to which the
    others are added as they come.
    """
    reports = {} if reports is None else reports
    last = max(ffn.layer for ffn, indices in zip(ffns, kept, strict=True) if len(indices) < ffn.width)
    held = kept_out_windows(len(calibration.tokens)) * calibration.tokens.shape[1] if len(ridges) > 1 else 0
    with evaluating(ffns.model), _progress(label, len(ffns)) as progress:

        def read(layer, h):
            ffn, indices = ffns[layer], kept[layer].to(h.device)
            if layer in reports:  # of a block that is applied again
                return None
            if len(indices) == ffn.width:
                reports[layer] = cut(ffn, indices, Correction())
            else:
                flat = h.reshape(-1, h.shape[-1])
                reports[layer] = cut(ffn, indices, corrected(flat, ffn.columns(), indices, ridges, held, bias))
                h = h.index_select(-1, indices)
            progress(1)
            return h

        ffns.run(calibration.tokens, read, last)
    return [reports.get(ffn.layer) or cut(ffn, kept[ffn.layer], Correction()) for ffn in ffns]


def cut(ffn: FFN, kept: torch.Tensor, found: Correction) -> LayerReport:
    """Keep the neurons `kept` of a layer and add its Correction."""
    width = ffn.width
    if len(kept) < width:
        ffn.keep(kept)
        if found.columns is not None:
            ffn.put_columns(ffn.columns().double() + found.columns)
        if found.bias is not None:
            ffn.add_bias(found.bias)
    return LayerReport(ffn.layer, width, len(kept), found.ridge, found.unexplained)


@contextlib.contextmanager
def _unless_it_fails(ffns):
    restore = ffns.restorer()
    try:
        yield
    except BaseException:
        restore()
        raise


@contextlib.contextmanager
def _progress(label, total):
    if label is None:
        yield lambda count: None
    else:
        with Progress(total, label, unit="layer") as progress:
            yield progress.step


def check_kept(ffns: FFNs, kept: Sequence[torch.Tensor]) -> None:
    """Refuse indices that are not ascending neurons of their layer, and all of them for another number of layers."""
    if len(kept) != len(ffns):
        raise UserError(f"neurons to keep came for {len(kept)} layers, the model has {len(ffns)}; give one tensor each")
    for ffn, indices in zip(ffns, kept, strict=True):
        fits = isinstance(indices, torch.Tensor) and indices.ndim == 1 and indices.dtype == torch.int64
        fits = fits and (not len(indices) or (int(indices[0]) >= 0 and int(indices[-1]) < ffn.width))
        if not fits or bool((indices[1:] <= indices[:-1]).any()):
            raise UserError(
                f"neurons to keep of layer {ffn.layer} are no ascending int64 indices below its width {ffn.width}; "
                "take them from kept_neurons"
            )
        if len(indices) < ffn.least:
            kind = type(ffn.home).__name__
            raise UserError(f"layer {ffn.layer} would keep no neuron, which its {kind} cannot compute; keep 1 or more")


def checked_ridges(ridge: float | Sequence[float] | None) -> tuple[float, ...]:
    """The ridges to choose from; none for None. Raises UserError for one that is negative or not finite."""
    if ridge is None:
        return ()
    several = ridge if isinstance(ridge, (list, tuple)) else (ridge,)
    if not several:
        raise UserError("ridge is an empty list; give one, several, or None for no least squares")
    return tuple(number("ridge", one, "finite numbers from 0 up", lambda v: 0 <= v < float("inf")) for one in several)


def check_weights(ffns: Sequence[FFN]) -> None:
    """Refuse FFNs whose weights are not in memory."""
    for ffn in ffns:
        if any(parameter.is_meta for parameter in ffn.parameters):
            raise UserError(
                f"{ffn.name}: weights lie on the meta device; load the model, or slice its folder block by block"
            )


def check_calibration(ffns: FFNs, kept: Sequence[torch.Tensor], text: HeldOut, ridges: Sequence[float]) -> None:
    """Refuse a text with fewer tokens to fit than a corrected layer keeps neurons, and a lack of memory."""
    check_data(ffns.model)
    check_text(ffns, kept, text, ridges)
    size = bytes_needed(max(ffns.widths), ffns.dimension, text.tokens.numel())
    memory.check(f"a correction over {text.tokens.numel()} tokens", size, "give fewer calibration windows")


def check_text(ffns: FFNs, kept: Sequence[torch.Tensor], text: HeldOut, ridges: Sequence[float]) -> None:
    """Refuse a text with fewer tokens to fit than a corrected layer keeps neurons."""
    windows, length = text.tokens.shape
    held = kept_out_windows(windows) if len(ridges) > 1 else 0
    tokens = (windows - held) * length
    most = max(len(indices) for ffn, indices in zip(ffns, kept, strict=True) if len(indices) < ffn.width)
    if ridges and tokens < most:
        needed = -(-most // length) + held
        raise UserError(
            f"{windows} calibration windows of {length} tokens leave {tokens} to fit {most} neurons with; give "
            f"{needed + needed // 4} windows or more, or go without correction"
        )


def bytes_needed(width: int, dimension: int, tokens: int) -> int:
    """Bytes that correcting a layer takes at its peak, beside the model: in float32 h and as much again (gate and up,
    then what stays and what goes, then that less its mean), states of the stream, and Gram matrices with a factor."""
    return 4 * tokens * (3 * width + 6 * dimension) + 8 * 3 * width**2 + 8 * width * dimension
