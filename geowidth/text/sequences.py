"""Sequences of token ids: what counts as a token, which tokens are drawn, and how a batch is padded.

Membership is decided by a mask, never by a shape: padding is cut away here, once, and put back on the right of each
batch, so that the batch size and the side a caller padded on can change nothing.
"""

from collections.abc import Sequence

import numpy as np
import torch

from geowidth import inputs
from geowidth.errors import UserError
from geowidth.inputs import ArrayLike
from geowidth.text.streams import Stream


def windows_of(text: Stream, context: int) -> list[torch.Tensor]:
    """Cut (length,) integers, in a tensor or in files, into length // context sequences of `context` tokens each."""
    count = len(text) // context
    if not count:
        raise UserError(
            f"the text has {len(text)} tokens, fewer than one window of {context}; give more text or a smaller context"
        )
    return list(text[: count * context].view(count, context))


def sequences_of(
    tokens: ArrayLike | list[ArrayLike] | tuple[ArrayLike, ...],
    mask: ArrayLike | None = None,
    pad_id: int | None = None,
) -> list[torch.Tensor]:
    """The sequences in `tokens`, without padding.

    tokens   a list of (length,) integer tensors, or one (batch, length) integer tensor
    mask     (batch, length), 1 where a real token stands, else 0 (or True and False); one unbroken run per row, padding
             on either side
    pad_id   the padding token; a tensor that holds it at an edge of a row is refused when there is no mask, because
             whether those are tokens cannot be told
    returns  list of (length,) int64 tensors; rows without a token are left out
    """
    if isinstance(tokens, (list, tuple)):
        if mask is not None:
            raise UserError("a mask came with a list of sequences; a list holds no padding, so leave the mask out")
        rows = [token_ids(row, f"sequence {index}") for index, row in enumerate(tokens)]
        for index, row in enumerate(rows):
            if row.ndim != 1:
                raise UserError(f"sequence {index} has shape {tuple(row.shape)}; needed: (length,)")
        return [row.long() for row in rows if len(row)]
    tokens = token_ids(tokens, "the text").long()
    if tokens.ndim != 2:
        raise UserError(f"tokens have shape {tuple(tokens.shape)}; needed: (batch, length), or a list of sequences")
    if mask is None:
        _refuse_padding(tokens, pad_id)
        return [row for row in tokens if len(row)]
    mask = inputs.tensor("the mask", mask).cpu()
    if tuple(mask.shape) != tuple(tokens.shape):
        raise UserError(f"mask has shape {tuple(mask.shape)}, tokens {tuple(tokens.shape)}; they must agree")
    inputs.refuse_entry("mask", mask, (mask != 0) & (mask != 1), "allowed: 1 for a token, 0 for padding")
    rows = []
    for index, (row, keep) in enumerate(zip(tokens, mask != 0, strict=True)):
        places = torch.nonzero(keep).flatten()
        if len(places) and places[-1] - places[0] + 1 != len(places):
            raise UserError(f"mask row {index} has a hole between tokens; padding may stand only at the ends of a row")
        if len(places):
            rows.append(row[places])
    return rows


def token_ids(value: ArrayLike, what: str) -> torch.Tensor:
    """`value` as an integer tensor on the CPU; what holds anything but whole numbers is refused by name.

    value   integers in a tensor, an array or nested lists. what: its name in messages
    """
    if isinstance(value, np.ndarray):  # a copy of its own, in this machine's byte order
        value = np.array(value, dtype=value.dtype.newbyteorder("="))
    try:
        tensor = inputs.dense(what, torch.as_tensor(value)).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{what} is a {type(value).__name__}; needed: integers in a tensor or in lists") from error
    if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
        raise UserError(f"{what} holds {inputs.short(tensor.dtype)}; token ids are integers")
    return tensor if tensor.dtype in (torch.uint8, torch.int64) else tensor.long()


def check_ids(sequences: Sequence[torch.Tensor], vocabulary: int | None, name: str) -> None:
    """Refuse token ids that a model has no row for, by sequence and position; `vocabulary` None: only negative ones.

    A tokenizer may have tokens beyond the model's embedding; those matter only where the text holds them.
    """
    if not sequences:
        return
    most = torch.iinfo(torch.int64).max if vocabulary is None else vocabulary - 1
    ids = torch.cat([row.flatten() for row in sequences])
    if not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) <= most):
        return
    first = int(torch.nonzero((ids < 0) | (ids > most))[0])
    ends = torch.tensor([len(row) for row in sequences]).cumsum(0)
    row = int(torch.searchsorted(ends, first, right=True))
    raise UserError(
        f"token id {int(ids[first])} (sequence {row}, position {first - int(ends[row]) + len(sequences[row])}) has no "
        f"row in the embedding of {name}, which knows ids 0 to {most}; use the tokenizer the model was trained with"
    )


def _refuse_padding(tokens, pad_id):
    if pad_id is None or not tokens.numel():
        return
    edges = (tokens[:, 0] == pad_id) | (tokens[:, -1] == pad_id)
    if edges.any():
        row = int(torch.nonzero(edges)[0])
        raise UserError(f"row {row} begins or ends with the padding token {pad_id} and no mask came; give mask=")


def draw_tokens(
    sequences: Sequence[torch.Tensor],
    tokens: int | None,
    seed: int,
    skip: int = 1,
    tail: int = 0,
    windows: int | None = None,
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw (sequence, position) pairs uniformly without replacement, every one with a context of its own.

    sequences  list of (length,) integer tensors
    tokens     how many to draw; None takes every one, repeated contexts included
    skip       leading positions never drawn: the first one is an attention sink, not language
    tail       closing positions never drawn
    windows    draw from this many sequences only, themselves drawn first: fewer forward passes, tokens less independent
    causal     whether a token's context is what stands before it (else the whole sequence)
    returns    (rows, positions), two (tokens,) int64 tensors, sorted by sequence then position
    """
    generator = torch.Generator().manual_seed(seed)
    allowed = list(range(len(sequences)))
    if windows is not None and windows < len(sequences):
        allowed = torch.randperm(len(sequences), generator=generator)[:windows].sort().values.tolist()
    free = torch.tensor([max(0, len(sequences[row]) - skip - tail) for row in allowed], dtype=torch.int64)
    ends = free.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    if tokens is None:
        return _pairs([(allowed[i], skip + p) for i in range(len(allowed)) for p in range(int(free[i]))])
    chosen: list[tuple[int, int]] = []
    seen: set[object] = set()
    if tokens > total:  # known before the contexts are told apart, which takes long in much text
        _refuse(tokens, f"at most {total}", len(allowed), skip, tail)
    for index in torch.randperm(total, generator=generator).tolist():
        if len(chosen) == tokens:
            break
        which = int(torch.searchsorted(ends, index, right=True))
        row, position = allowed[which], skip + index - int(ends[which] - free[which])
        sequence = sequences[row].cpu().numpy()
        context = (sequence[: position + 1] if causal else sequence).tobytes(), position
        if context not in seen:
            seen.add(context)
            chosen.append((row, position))
    if len(chosen) < tokens:
        _refuse(tokens, f"only {len(chosen)}", len(allowed), skip, tail)
    return _pairs(sorted(chosen))


def _refuse(tokens, found, sequences, skip, tail):
    raise UserError(
        f"{tokens} tokens asked for, but the text has {found} distinct contexts ({sequences} sequences, first {skip} "
        f"and last {tail} positions left out); ask for fewer or give more text"
    )


def _pairs(pairs):
    both = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return both[:, 0], both[:, 1]


def pad_batch(sequences: Sequence[torch.Tensor], pad_id: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, mask), both (batch, longest) int64, padded on the right."""
    longest = max(len(row) for row in sequences)
    tokens = torch.full((len(sequences), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for index, row in enumerate(sequences):
        tokens[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return tokens, mask
