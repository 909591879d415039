"""One cell: a model made smaller by an arm, judged window by window, written as one line.

Neurons are chosen and what remains is corrected by statistics of the whole model, one pass a draw that all arms share;
`geowidth slice` corrects each layer on the inputs that the sliced layers below give it, which costs a pass a model.
Some cells do that too, for a comparison of the two (design.CHECKS).
"""

import time

import torch
from torch.nn import functional

from benchmarks.experiments.slicing.design import ARMS, CHECKS, RIDGE
from benchmarks.experiments.slicing.ground import products
from geowidth.cascade.held_out import IGNORED, logits_of
from geowidth.slicing.apply import cut, slice_in_place
from geowidth.slicing.correction import Correction
from geowidth.slicing.selection import kept_neurons
from geowidth.slicing.targets import Keep
from geowidth.slicing.widths import slice_widths

DIGITS = 5  # decimals of a loss


def losses(model, text, half, batch=16):
    """Mean loss of every window in nats a token, float64 (windows,): window_losses, with other products and batches."""
    found = []
    for tokens, targets in text.batches(batch):
        with products(half):
            logits = logits_of(model, tokens).float()
        each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
        found.append(each.view(targets.shape).double().sum(1) / (targets != IGNORED).sum(1))
    return torch.cat(found).numpy()


def correction(gram, mean, columns, kept, how):
    """The Correction of a layer from the whole model's statistics.

    gram: sum of h h' over tokens (width, width). mean: of h (width,). columns: the down-projection (d, width). kept:
    ascending indices. how: see design.Arm.
    """
    if how == "none":
        return Correction()
    gone = torch.ones(len(mean), dtype=torch.bool)
    gone[kept] = False
    lost = columns[:, gone].double()
    if how == "bias":
        return Correction(bias=lost @ mean[gone].double())
    stay, cross = gram[kept][:, kept], gram[kept][:, gone]
    few = cross.shape[1] < len(lost)  # solve for the neurons that go, or for what they add to the stream
    right = cross if few else cross @ lost.T.float()
    found = solved(stay, right).double()
    return Correction(columns=lost @ found.T if few else found.T, ridge=RIDGE)


def solved(gram, right):
    """(gram + ridge)^-1 right, in float32 after scaling to a diagonal of ones, in float64 where that is singular."""
    damped = gram.clone()
    damped.diagonal().add_(RIDGE * gram.diagonal().mean())
    scale = damped.diagonal().rsqrt()
    factor, failed = torch.linalg.cholesky_ex(damped * scale[:, None] * scale)
    if failed:
        return torch.cholesky_solve(right.double(), torch.linalg.cholesky(damped.double()))
    return torch.cholesky_solve(right * scale[:, None], factor) * scale[:, None]


def apply(ground, kept, how):
    """Slice the model of a Ground in place. how: see design.Arm; all but "own inputs" by shared statistics."""
    if how == "own inputs":
        slice_in_place(ground.library.ffns, kept, ground.calibration, ridge=RIDGE)
        return
    for i, (ffn, indices) in enumerate(zip(ground.library.ffns, kept, strict=True)):
        if 0 < len(indices) < ffn.width:
            gram, mean = (ground.statistics[f"{name}.{i}"] for name in ("gram", "mean"))
            cut(ffn, indices, correction(gram, mean, ffn.columns(), indices, how))


def neurons_and_blocks(ground, arm, kept):
    """(widths, blocks that go) of an arm at a kept share."""
    ffns = ground.library.ffns
    if not arm.blocks:
        source = ground.library.first(ground.text) if arm.once else ground
        schedule = slice_widths(arm.widths, source.evidence(arm.neurons), Keep(kept), seed=source.draw)
        return list(schedule.widths), []
    return depth_and_width(ffns, ground.library.blocks, ground.block_order, kept, arm.blocks)


def depth_and_width(ffns, blocks, order, kept, share):
    """(widths, blocks that go): whole blocks for `share` of the parameters to remove, neurons of the rest for what is
    left, evenly. order: blocks as they go. Never more parameters than uniform widths at this kept share leave."""
    width, neuron = ffns.widths[0], ffns.dimension * ffns.projections
    to_remove = (width - int(kept * width)) * len(ffns) * neuron
    sizes = [sum(p.numel() for p in blocks.parameters(i)) for i in range(len(blocks))]
    gone, removed = [], 0
    for block in order:
        if removed + sizes[block] > share * to_remove:
            break
        gone.append(block)
        removed += sizes[block]
    left = len(ffns) - len(gone)
    narrow = width - -(-max(0, to_remove - removed) // (neuron * left))
    return [0 if i in gone else narrow for i in range(len(ffns))], sorted(gone)


def run(ground, cell):
    """The row of a Cell."""
    library, arm, start = ground.library, {**ARMS, **CHECKS}[cell.arm], time.perf_counter()
    with products(library.half):  # some rules measure losses
        widths, gone = neurons_and_blocks(ground, arm, cell.kept)
    whole = [w or own for w, own in zip(widths, library.ffns.widths, strict=True)]
    kept = kept_neurons(ground.scores(arm.neurons), whole)
    with library.ffns.restored(), library.blocks.without(gone), torch.no_grad():
        apply(ground, kept, arm.correction)
        found = losses(library.opened.model, ground.held_out, library.half and arm.half)
    row = {"text": cell.text, "draw": cell.draw, "kept": cell.kept, "arm": cell.arm, "widths": widths}
    return row | _facts(library, widths, gone, found, start)


def _facts(library, widths, gone, found, start):
    sizes = [sum(p.numel() for p in library.blocks.parameters(i)) for i in gone]
    narrower = sum(own - w for w, own in zip(widths, library.ffns.widths, strict=True) if w)
    return {
        "removed": sum(sizes) + narrower * library.ffns.dimension * library.ffns.projections,
        **({"blocks": gone} if gone else {}),
        "losses": [round(float(v), DIGITS) for v in found],
        "seconds": round(time.perf_counter() - start, 1),
    }
