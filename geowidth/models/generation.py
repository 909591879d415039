"""Generation: a prompt is read in pieces, then one token follows the other, with keys and values kept (cache.py).

Logits are those of `model(tokens)`, to rounding. Each text of a batch draws from its own random numbers, told by (seed,
its place in the batch), so that the first text is the one it would be alone.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional

from geowidth.errors import UserError, number, seed_number, whole
from geowidth.inputs import ArrayLike
from geowidth.models.cache import KeyValueCache
from geowidth.models.transformer import TaperedTransformer
from geowidth.text.sequences import check_ids, sequences_of

PIECE = 512  # tokens of a prompt that are read at once: bounds the memory of attention's mask


def cache_of(model: TaperedTransformer, batch: int, capacity: int) -> KeyValueCache:
    """An empty KeyValueCache where `model` is, in the dtype of its attention."""
    dtype = model.norm.compute_dtype or model.embedding.dtype
    return KeyValueCache(model.config, batch, capacity, dtype, model.embedding.device)


@torch.inference_mode()
def cached_logits(
    model: TaperedTransformer, tokens: torch.Tensor, cache: KeyValueCache, every: bool = False
) -> torch.Tensor:
    """Logits after the next `tokens` (batch, count) int64 of what `cache` has read, which then has read them too.

    Returns (batch, vocabulary) after the last token, or with `every` (batch, count, vocabulary). No gradients. Raises
    UserError for another batch, for no token, and for more than the cache has room for.
    """
    states = model.norm(_states(model, tokens, cache, every))
    return functional.linear(states, (model.embedding if model.config.tied else model.head).to(states.dtype))


def _states(model, tokens, cache, every):
    """The residual stream (batch, count, d), or (batch, d) of the last token, and keys and values into the cache."""
    count = _check_room(tokens, cache)
    end = cache.length + count
    if end > len(model.cosine):
        model.grow_tables(end)
    places = cache.places(count)
    cosine, sine = model.cosine[places], model.sine[places]
    mask, x = cache.mask(count), functional.embedding(tokens, model.embedding)
    for layer, slot in zip(model.config.order, cache.slots, strict=True):
        x = model.blocks[layer](x, cosine, sine, mask, slot)
    cache.length = end
    return x if every else x[:, -1]


def _check_room(tokens, cache):
    """How many tokens came; UserError where they do not fit."""
    if tokens.ndim != 2 or tokens.shape[0] != cache.batch or not tokens.shape[1]:
        raise UserError(f"tokens have shape {tuple(tokens.shape)}; needed: ({cache.batch}, 1 or more)")
    count = tokens.shape[1]
    if cache.length + count > cache.capacity:
        raise UserError(
            f"{count} tokens came after {cache.length}; the cache has room for {cache.capacity}: make a larger one"
        )
    return count


def generate(
    model: TaperedTransformer,
    prompts: ArrayLike | Sequence[ArrayLike],
    new_tokens: int | None = None,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: Iterable[int] = (),
    piece: int = PIECE,
) -> list[list[int]]:
    """Token ids that continue every prompt, without the prompt: at most `new_tokens`, or (None) to the context's end.

    prompts: integers (batch, length), or a list of (length,) ones of different lengths. temperature: 0 takes the most
    likely token; otherwise one is drawn from softmax(logits / temperature), of the `top_k` most likely ones where that
    is given, by `seed`. stop: ids that end a text; the one that did is its last. piece: tokens of a prompt that are
    read at once. A text never exceeds the model's context, prompt included.

    Raises UserError before any work for prompts that are empty, too long or hold ids the model does not know.
    """
    found: list[list[int]] = []
    steps = stream(model, prompts, new_tokens, temperature=temperature, top_k=top_k, seed=seed, stop=stop, piece=piece)
    for tokens in steps:
        found = found or [[] for _ in tokens]
        for text, token in zip(found, tokens, strict=True):
            if token is not None:
                text.append(token)
    return found


def stream(
    model: TaperedTransformer,
    prompts: ArrayLike | Sequence[ArrayLike],
    new_tokens: int | None = None,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: Iterable[int] = (),
    piece: int = PIECE,
) -> Iterator[list[int | None]]:
    """What `generate` gives, token by token: of every step one id a prompt, None where that text has ended."""
    rows = _rows(model, prompts)
    longest, context = max(map(len, rows)), model.config.context
    wanted = context if new_tokens is None else whole("new_tokens", new_tokens, 1)
    draw = Draw(len(rows), temperature, top_k, seed)
    ends, piece = frozenset(whole("a stop id", token, 0) for token in stop), whole("piece", piece, 1)
    return _steps(model, rows, min(wanted, context - longest), draw, ends, piece)


def _rows(model, prompts):
    """The prompts as (length,) int64 tensors, checked."""
    rows = sequences_of(prompts)
    if not rows or len(rows) != len(prompts):
        raise UserError("a prompt holds no token; give one or more")
    check_ids(rows, model.config.vocabulary, type(model).__name__)
    longest, context = max(map(len, rows)), model.config.context
    if longest >= context:
        raise UserError(
            f"a prompt has {longest} tokens and the model's context is {context}, which leaves no room for a "
            f"continuation; give at most {context - 1}"
        )
    return rows


def _steps(model, rows, count, draw, ends, piece):
    """One list of ids a step, until `count` steps are done or all texts have ended."""
    cache = cache_of(model, len(rows), max(map(len, rows)) + count)
    logits = prefill(model, rows, cache, piece)
    ended = [False] * len(rows)
    for step in range(count):
        tokens = draw(logits)
        yield [None if over else token for over, token in zip(ended, tokens, strict=True)]
        ended = [over or token in ends for over, token in zip(ended, tokens, strict=True)]
        if all(ended) or step + 1 == count:
            return
        logits = cached_logits(model, torch.tensor(tokens, device=cache.device)[:, None], cache)


def prefill(
    model: TaperedTransformer, rows: Sequence[torch.Tensor], cache: KeyValueCache, piece: int = PIECE
) -> torch.Tensor:
    """Read prompts, (length,) int64 each, into an empty cache, `piece` tokens at once; logits (batch, vocabulary) after
    their last tokens. Shorter prompts stand at the right, and what is left of them is never looked at."""
    longest = max(map(len, rows))
    tokens = torch.stack([functional.pad(row, (longest - len(row), 0)) for row in rows]).to(cache.device)
    starts = torch.tensor([longest - len(row) for row in rows], device=cache.device)
    cache.clear()
    cache.starts = starts if starts.any() else None
    for part in tokens.split(piece, 1):
        logits = cached_logits(model, part, cache)
    return logits


class Draw:
    """Picks the next token of every text: (batch, vocabulary) logits -> a list of ids. See `generate`."""

    def __init__(self, batch: int, temperature: float = 0.0, top_k: int | None = None, seed: int = 0) -> None:
        self.temperature = number("temperature", temperature, "finite numbers from 0 up", lambda t: 0 <= t < math.inf)
        self.top_k = None if top_k is None else whole("top_k", top_k, 1)
        if self.top_k is not None and not self.temperature:
            raise UserError(
                "top_k came with temperature 0, which always takes the most likely token; give a temperature"
            )
        seed = seed_number("seed", seed)
        self._generators = [np.random.default_rng((seed, row)) for row in range(batch)]

    def __call__(self, logits: torch.Tensor) -> list[int]:
        if not self.temperature:
            return logits.argmax(1).tolist()
        count = logits.shape[1] if self.top_k is None else min(self.top_k, logits.shape[1])
        likely, ids = logits.double().topk(count, 1)
        # Highest first, so that a rounded sum of probabilities can only miss the least likely token.
        sums = ((likely - likely[:, :1]) / self.temperature).exp().cumsum(1)
        points = torch.tensor([[generator.random()] for generator in self._generators], dtype=torch.float64)
        places = torch.searchsorted(sums, points.to(sums) * sums[:, -1:], right=True).clamp(max=count - 1)
        return ids.gather(1, places)[:, 0].tolist()
