"""Capture the states around every FFN of a model, for one set of tokens in all layers.

A model family is one row of FAMILIES: where its layers are, and which module's input and output to watch. On the first
batch the residual identity `after = before + what the FFN sub-block added` is checked numerically; a model that fails
it is refused by name instead of measured wrongly.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from geowidth.errors import UserError
from geowidth.measure.clouds import Clouds
from geowidth.progress import Progress


@dataclass(frozen=True)
class Family:
    """How to find the FFN sub-blocks of a kind of model.

    matches     model -> whether it is of this family
    layers      model -> list of blocks
    before      block -> module whose input is the residual stream entering the FFN sub-block, before its norm
    added       block -> module whose output is what the sub-block adds to the stream
    after       block -> module whose output is the stream after the sub-block
    widths      model -> FFN width of every layer
    projections matrices per FFN: 3 when gated, else 2
    """

    name: str
    matches: Callable
    layers: Callable
    before: Callable
    added: Callable
    after: Callable
    widths: Callable
    projections: int


def _is_tapered(model):
    from geowidth.models import TaperedTransformer

    return isinstance(model, TaperedTransformer)


FAMILIES = [
    Family(
        name="geowidth",
        matches=_is_tapered,
        layers=lambda model: list(model.blocks),
        before=lambda block: block.ffn_norm,
        added=lambda block: block.ffn,
        after=lambda block: block,
        widths=lambda model: tuple(model.config.widths),
        projections=3,
    ),
]


def family_of(model):
    """The Family of a model; an unknown model is refused with the names of those that are known."""
    for family in FAMILIES:
        if family.matches(model):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise UserError(f"cannot capture from a {type(model).__name__}; known model families: {known}")


def draw_tokens(text, tokens, context, seed, skip=1):
    """Draw (window, position) pairs uniformly without replacement, every one with a context of its own.

    text      (length,) integer tensor, cut into length // context windows
    tokens    how many to draw
    skip      leading positions of each window never drawn: the first one is an attention sink, not language
    returns   (windows, positions), two (tokens,) int64 tensors, sorted by window then position
    """
    windows = len(text) // context
    per_window = context - skip
    if per_window < 1:
        raise UserError(f"a context of {context} leaves no position after the first {skip}; use a longer context")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(windows * per_window, generator=generator).tolist()
    chosen, seen = [], set()
    for index in order:
        window, position = divmod(index, per_window)
        position += skip
        start = window * context
        prefix = text[start : start + position + 1].cpu().numpy().tobytes()
        if prefix not in seen:
            seen.add(prefix)
            chosen.append((window, position))
        if len(chosen) == tokens:
            break
    if len(chosen) < tokens:
        raise UserError(
            f"{tokens} tokens asked for, but the text has only {len(chosen)} distinct contexts "
            f"({windows} windows of {context}); ask for fewer or give more text"
        )
    pairs = torch.tensor(sorted(chosen), dtype=torch.int64)
    return pairs[:, 0], pairs[:, 1]


def capture(model, text, tokens=512, *, seed=0, context=None, batch=32, skip=1, settings=None):
    """Run `model` over `text` and keep the states around every FFN for `tokens` drawn tokens.

    model     a model of a known family, in evaluation mode or not (its mode is restored)
    text      (length,) integer tensor of token ids the model has not been trained on
    context   length of the windows the text is cut into (default: the model's own)
    batch     windows a forward pass; changes nothing but memory and speed
    returns   Clouds in the model's dtype, on the CPU: 2 * layers * tokens * dimension numbers
    """
    family = family_of(model)
    context = context or model.config.context
    windows, positions = draw_tokens(text, tokens, context, seed, skip)
    distinct, row_window = torch.unique(windows, return_inverse=True)
    device = next(model.parameters()).device
    before, after = [], []
    first = True
    with _watch(model, family) as states, Progress(len(distinct), "capture", unit="window") as progress:
        for begin in range(0, len(distinct), batch):
            ids = distinct[begin : begin + batch]
            tokens_in = torch.stack([text[w * context : (w + 1) * context] for w in ids.tolist()]).long().to(device)
            with torch.no_grad():
                model(tokens_in)
            if first:
                _check_residual_identity(model, states)
                first = False
            rows = torch.nonzero((row_window >= begin) & (row_window < begin + len(ids))).flatten()
            pick = (row_window[rows] - begin, positions[rows])
            before.append(torch.stack([s["before"][pick] for s in states]).cpu())
            after.append(torch.stack([s["after"][pick] for s in states]).cpu())
            progress.step(len(ids))
    clouds = Clouds(
        before=torch.cat(before, dim=1),
        after=torch.cat(after, dim=1),
        token_ids=text[windows * context + positions].long(),
        positions=positions,
        widths=family.widths(model),
        projections=family.projections,
        settings={
            "family": family.name,
            "tokens": tokens,
            "seed": seed,
            "context": context,
            "skipped_positions": skip,
            **(settings or {}),
        },
    )
    _check_finite(clouds)
    return clouds


@contextmanager
def _watch(model, family):
    """Hooks on every layer that keep the last batch's states; removed, and the mode restored, whatever happens."""
    training = model.training
    states = [{} for _ in family.layers(model)]
    handles = []

    def keep_input(state):
        def hook(_module, arguments):
            state["before"] = arguments[0].detach()

        return hook

    def keep_output(state, name):
        def hook(module, _arguments, output):
            if not isinstance(output, torch.Tensor):
                raise UserError(f"{type(module).__name__} returned a {type(output).__name__}; a tensor is needed here")
            state[name] = output.detach()

        return hook

    try:
        for block, state in zip(family.layers(model), states, strict=True):
            handles.append(family.before(block).register_forward_pre_hook(keep_input(state)))
            handles.append(family.added(block).register_forward_hook(keep_output(state, "added")))
            handles.append(family.after(block).register_forward_hook(keep_output(state, "after")))
        model.eval()
        yield states
    finally:
        for handle in handles:
            handle.remove()
        model.train(training)


def _check_residual_identity(model, states):
    for layer, state in enumerate(states):
        before, added, after = (state[name].double() for name in ("before", "added", "after"))
        error = (after - before - added).abs().max()
        scale = torch.maximum(before.abs().max(), after.abs().max())
        # Rounding of the sum in the model's dtype is all that may be left.
        if not error <= 4 * torch.finfo(state["after"].dtype).eps * scale:
            raise UserError(
                f"layer {layer} of {type(model).__name__} is not a residual FFN: after - before - added reaches "
                f"{error:.3g} at states of size {scale:.3g}; its work cannot be measured this way"
            )


def _check_finite(clouds):
    for name in ("before", "after"):
        finite = getattr(clouds, name).isfinite().all(dim=-1)
        if not finite.all():
            layer, row = (int(i) for i in torch.nonzero(~finite)[0])
            raise UserError(f"the state {name} the FFN of layer {layer} is not finite at token {row}; mend the model")
