"""Capture the states around every FFN of a model, for one set of tokens in all layers.

Where to look is data (geowidth.measure.families). On the first batch the residual identity
`after = before + what the FFN sub-block added` is checked numerically against what the model computed; a model that
fails it is refused by name instead of measured wrongly. Memory is 2 * layers * tokens * dimension numbers: what is not
drawn is dropped inside the hooks.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from geowidth.artifacts.clouds import Clouds
from geowidth.errors import UserError, whole
from geowidth.inputs import ArrayLike
from geowidth.measure import models
from geowidth.measure.families import SEQUENTIAL, Family, family_of, site
from geowidth.models.config import ModelConfig
from geowidth.precision import coarsest
from geowidth.progress import Progress
from geowidth.ranks import Ranks
from geowidth.text.sequences import check_ids, draw_tokens, pad_batch, sequences_of, token_ids, windows_of


def capture(
    model: nn.Module,
    text: ArrayLike | Sequence[ArrayLike],
    tokens: int | None = 512,
    *,
    mask: ArrayLike | None = None,
    seed: int = 0,
    context: int | None = None,
    batch: int = 32,
    skip: int = 1,
    tail: int = 0,
    windows: int | None = None,
    family: Family | None = None,
    settings: dict[str, Any] | None = None,
    ranks: Ranks | None = None,
) -> Clouds:
    """Run `model` over `text` and keep the states around every FFN for `tokens` drawn tokens.

    model     a model of a known family (geowidth.measure.families), in any mode: modes are restored. It may be
              compiled, data-parallel, hold adapters, or have its weights offloaded
    text      (length,) integer tensor, cut into windows; or a (batch, length) tensor with `mask`; or a list of
              (length,) tensors. Ideally text the model has not been trained on
    tokens    how many to draw; None keeps every token that is not skipped
    mask      (batch, length), 1 where a real token stands, else 0: padding is never a row of a cloud
    context   length of the windows (default: the longest sequence the model takes, at most the whole text)
    batch     sequences in a forward pass; changes nothing but memory and speed
    skip      leading positions of each sequence that are never drawn (the first is an attention sink)
    tail      closing positions of each sequence that are never drawn (an encoder's end token)
    windows   draw from this many sequences only (default: all), which saves forward passes
    family    a Family of your own, for a model that is not in the table
    ranks     the processes among which the forward passes are dealt (geowidth.ranks; default: this one alone). Each
              has the model and the text, each gets the same Clouds, whose bits do not depend on their number
    returns   Clouds in the model's dtype, on the CPU

    Refused before the model runs: an unknown model type, widths that cannot be told, sequences longer than the model
    takes, token ids it does not know, weights without data, blocks that are applied several times.
    """
    tokens, context, windows = (
        None if value is None else whole(name, value, least)
        for name, value, least in (("tokens", tokens, 1), ("context", context, 2), ("windows", windows, 1))
    )
    batch, skip, tail = whole("batch", batch, 1), whole("skip", skip, 0), whole("tail", tail, 0)
    seed = whole("seed", seed, 0, 2**63 - 1)
    model = models.unwrapped(model)
    family = family_of(model) if family is None else family
    if not isinstance(family, Family):
        raise UserError(f"family is a {type(family).__name__}; needed: a geowidth.measure.families.Family")
    if isinstance(config := getattr(model, "config", None), ModelConfig):
        config.refuse_repeats("a measurement of FFNs")
    widths = family.widths(model)
    models.check_data(model)
    sequences = _sequences(model, text, mask, context)
    rows, positions = draw_tokens(sequences, tokens, seed, skip, tail, windows, family.causal)
    kept = _run(model, family, sequences, rows, positions, batch, ranks or Ranks())
    clouds = Clouds(
        before=kept["before"],
        after=kept["after"],
        token_ids=torch.tensor([int(sequences[r][p]) for r, p in zip(rows, positions, strict=True)]).long(),
        positions=positions,
        widths=widths,
        projections=family.matrices(model),
        experts=tuple(family.experts(model)),
        precision=kept.get("precision"),
        settings={
            "family": family.name,
            "form": family.form,
            "tokens": len(rows),
            "seed": seed,
            "context": max((len(row) for row in sequences), default=0),
            "windows": len(rows.unique()),
            "skipped_positions": skip,
            **(settings or {}),
        },
    )
    _check_finite(clouds)
    return clouds


def _sequences(model, text, mask, context):
    """The sequences to run, each no longer than the model takes and of ids it knows."""
    longest, name = models.longest_context(model), type(model).__name__
    if isinstance(text, (torch.Tensor, np.ndarray)) and text.ndim == 1:
        if mask is not None:
            raise UserError("a mask came with a text of one row, which is cut into windows; leave the mask out")
        ids = token_ids(text, "the text")
        sequences = windows_of(ids, _context(context, longest, len(ids), name))
    else:
        sequences = sequences_of(text, mask, models.padding_id(model))
        most = max((len(row) for row in sequences), default=0)
        for limit, whose in ((longest, f"{name} takes"), (context, "context is")):
            if limit is not None and most > limit:
                raise UserError(f"a sequence has {most} tokens; {whose} at most {limit}; cut the sequences")
    check_ids(sequences, models.vocabulary_of(model), name)
    return sequences


def _context(context, longest, length, name):
    if context is None and longest is None:
        raise UserError(f"the config of {name} names no longest sequence; give context=")
    if context is None:
        return max(2, min(longest, length))
    if longest is not None and context > longest:
        raise UserError(f"context is {context}; {name} takes at most {longest} tokens")
    return context


def _run(model, family, sequences, rows, positions, batch, ranks):
    """{"before", "after"}: (layers, tokens, dimension) on the CPU, the drawn tokens of every layer; and "precision"."""
    distinct = rows.unique().tolist()
    if not distinct:
        empty = torch.empty(len(family.blocks(model)), 0, models.dimension_of(model) or 0, dtype=models.dtype_of(model))
        return {"before": empty, "after": empty.clone()}
    if not family.causal and not models.takes(models.backbone_of(model), "attention_mask"):
        batch = 1  # tokens would see the padding
    # Whole batches are dealt: what a forward pass computes may depend on what else is in it.
    batches = [distinct[begin : begin + batch] for begin in range(0, len(distinct), batch)]
    own = ranks.together(lambda: _pass(model, family, sequences, rows, positions, ranks.dealt(batches)))
    return _gathered(own, ranks)


def _pass(model, family, sequences, rows, positions, batches):
    """What `_run` gives, with zeros for the drawn tokens that are in none of `batches`."""
    runner, device, pad = models.backbone_of(model), models.input_device(model), models.padding_id(model) or 0
    kept = {}
    with _Watch(model, family) as watch, Progress(sum(map(len, batches)), "capture", unit="window") as progress:
        for names in batches:
            ids, mask = pad_batch([sequences[name] for name in names], pad)
            inside = torch.nonzero((rows >= names[0]) & (rows <= names[-1])).flatten()
            local = {name: index for index, name in enumerate(names)}
            watch.pick = (torch.tensor([local[int(r)] for r in rows[inside]]), positions[inside])
            watch.shape = tuple(ids.shape)
            with torch.no_grad():
                models.forward(runner, ids.to(device), mask.to(device))
            for name, part in watch.take().items():
                if name not in kept:  # whole at once: parts joined at the end would take twice the memory
                    kept[name] = part.new_zeros(part.shape[0], len(rows), part.shape[2])
                kept[name][:, inside] = part
            kept["precision"] = watch.precision
            progress.step(len(names))
    return kept


def _gathered(own, ranks):
    """What all processes kept, in each: every drawn token is one's, and zero bits elsewhere."""
    forms = ranks.gather({n: (v.shape, v.dtype) for n, v in own.items() if n != "precision"})
    precisions = ranks.gather(own.get("precision"))
    kept = {}
    for name, (shape, dtype) in next(filter(None, forms)).items():
        part = own[name] if name in own else torch.zeros(shape, dtype=dtype)
        kept[name] = ranks.sum(part.view(torch.uint8)).view(dtype)
    return kept | {"precision": next(filter(None, precisions), None)}


class _Watch:
    """Hooks that keep the drawn tokens' states; hooks, modes and compilation are as before when the `with` ends."""

    def __init__(self, model, family):
        self.model, self.family = model, family
        self.blocks = family.blocks(model)
        self.scale = family.scale(model)
        self.pick: Any = None
        self.shape: Any = None
        self.checked = False
        self.precision = None  # the coarsest of any state seen: a sum is no finer than its parts
        self.states: list[dict[str, Any]] = [{} for _ in self.blocks]

    def __enter__(self):
        self.modes = [(module, module.training) for module in self.model.modules()]
        self.handles = []
        # Compiled code does not see hooks that were added after it was made. Asked for only where there is some, since
        # this loads the compiler.
        compiled = any(_is_compiled(module) for module in self.model.modules())
        self.stance = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        try:
            self.stance.__enter__()
            self.model.eval()
            self.handles += models.guard_tables(self.model)
            for block, state in zip(self.blocks, self.states, strict=True):
                self._hook(block, state, self.family.before, "before")
                self._hook(block, state, self.family.added, "added")
                self._hook(block, state, self.family.whole, "whole")
                for index, text in enumerate(self.family.others):
                    self._hook(block, state, text, f"other {index}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()
        for module, mode in self.modes:
            module.training = mode
        self.stance.__exit__(None, None, None)

    def _hook(self, block, state, text, name):
        module, side = site(block, text)

        def keep_input(module, arguments, keywords):
            values = (*arguments, *keywords.values())
            self._keep(state, name, module, values[0] if values else None)

        def keep_output(module, _arguments, output):
            self._keep(state, name, module, output)

        if side == "input":
            self.handles.append(module.register_forward_pre_hook(keep_input, with_kwargs=True))
        else:
            self.handles.append(module.register_forward_hook(keep_output))

    def _keep(self, state, name, module, value):
        if name in state:
            raise UserError(
                f"a {type(module).__name__} of {type(self.model).__name__} runs more than once in one pass, so layers "
                "cannot be told apart; give each modules of its own"
            )
        state[name] = self._rows(module, value)

    def _rows(self, module, value):
        """The drawn rows of a (batch, length, d) or flattened (batch * length, d) tensor, or of what wraps one."""
        tensor = states_in(module, value)
        if tensor.is_meta:
            raise models.without_data(self.model)
        batch, length = self.shape
        if tensor.ndim == 2 and tensor.shape[0] == batch * length:
            tensor = tensor.view(batch, length, -1)
        if tensor.ndim != 3 or tuple(tensor.shape[:2]) != (batch, length):
            raise UserError(
                f"{type(module).__name__} gave states of shape {tuple(tensor.shape)} for {batch} sequences of "
                f"{length} tokens; needed: ({batch}, {length}, d) or ({batch * length}, d)"
            )
        self.precision = coarsest(self.precision, tensor.dtype)
        return tensor.detach()[tuple(index.to(tensor.device) for index in self.pick)]

    def take(self):
        """{"before", "after"}: (layers, rows, d) on the CPU, of the last pass."""
        for layer, state in enumerate(self.states):
            missing = [name for name in ("before", "added", "whole") if name not in state]
            if missing:
                raise UserError(
                    f"layer {layer} of {type(self.model).__name__} ran without passing through its {self.family.name} "
                    f"FFN ({', '.join(missing)} never seen); it cannot be measured"
                )
        if not self.checked:
            for layer, state in enumerate(self.states):
                self._check_residual_identity(layer, state)
            self.checked = True
        before = torch.stack([state["before"].cpu() for state in self.states])
        after = torch.stack([self._after(state).cpu() for state in self.states])
        for state in self.states:
            state.clear()
        return {"before": before, "after": after}

    def _after(self, state):
        if self.family.form == SEQUENTIAL or self.family.whole != ":output":
            return state["whole"]
        return state["before"] + self.scale * state["added"]  # parallel: the block's output holds the attention too

    def _check_residual_identity(self, layer, state):
        whole, parts = state["whole"].double(), [state["before"].double(), self.scale * state["added"].double()]
        parts += [state[name].double() for name in state if name.startswith("other")]
        if any(part.shape != whole.shape for part in parts):
            shapes = ", ".join(str(tuple(part.shape)) for part in (whole, *parts))
            raise UserError(
                f"layer {layer} of {type(self.model).__name__}: states of shapes {shapes} around the FFN of the "
                f"{self.family.name} family; they must agree"
            )
        if not whole.isfinite().all():
            return  # reported with its layer and token once everything is there
        error = (whole - sum(parts)).abs().amax(-1)
        scale = torch.stack([part.abs().amax(-1) for part in (whole, *parts)]).amax(0)
        # Rounding of the sums in the model's dtype is all that may be left, token by token.
        allowed = 4 * torch.finfo(state["whole"].dtype).eps * scale
        if (error > allowed).any():
            row = int((error - allowed).argmax())
            raise UserError(
                f"layer {layer} of {type(self.model).__name__} is not a residual FFN of the {self.family.name} family: "
                f"after - before - added reaches {error[row]:.3g} at states of size {scale[row]:.3g}; its work cannot "
                "be measured this way"
            )


def _is_compiled(module):
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules


def states_in(module, value):
    """The one states tensor in what a module takes or returns: a tensor, a tuple or list led by one, or a mapping.

    A module of any other type, or a mapping with several candidates, is refused with the module and the type.
    """
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], torch.Tensor):
        return value[0]
    if hasattr(value, "items"):
        named = dict(value.items())
        for name in ("last_hidden_state", "hidden_states"):
            if isinstance(named.get(name), torch.Tensor):
                return named[name]
        tensors = [item for item in named.values() if isinstance(item, torch.Tensor)]
        if len(tensors) == 1:
            return tensors[0]
    raise UserError(
        f"{type(module).__name__} gave a {type(value).__name__}; a tensor, a tuple led by one, or a mapping with one "
        "is needed"
    )


def _check_finite(clouds):
    for name in ("before", "after"):
        finite = getattr(clouds, name).isfinite().all(dim=-1)
        if not finite.all():
            layer, row = (int(i) for i in torch.nonzero(~finite)[0])
            raise UserError(f"the state {name} the FFN of layer {layer} is not finite at token {row}; mend the model")
