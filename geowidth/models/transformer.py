"""A decoder transformer whose blocks may each have an FFN width, and a number of attention heads, of their own.

Pre-norm RMSNorm (Zhang and Sennrich 2019), rotary positions (Su et al. 2021, rotate-half layout), SwiGLU FFN (Shazeer
2020) or one of another activation, causal attention, tied embeddings, no biases. All FFN weights, down-projection
included, are stored [width, dimension]: a width is a number of rows.

Initial values are drawn tensor by tensor from (seed, tensor name), row by row, with a scale that depends on no width
and no number of heads. So two models of one seed that differ only in those start from the same values wherever their
shapes agree: the rows of a narrower FFN are the first rows of the wider one, and the heads of a layer with fewer are
the first heads of one with more. Paired seeds differ by the widths and heads and by nothing else.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from geowidth.errors import UserError, choose, whole
from geowidth.models.cache import Slot
from geowidth.models.config import ModelConfig
from geowidth.models.ffn import FeedForward
from geowidth.models.passes import TrainingPass
from geowidth.models.rotary import rotary_tables, rotate

RECOMPUTE = ("none", "ffn", "block")  # what backward may compute again, see TaperedTransformer.recompute_in_backward
# Rotary tables are as long as the context up to here and grow with the sequences beyond, so that texts decide the
# memory, and not a number in a file.
FIRST_POSITIONS = 8192


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in the dtype of x; the result in `compute_dtype` where one is
    set (see TaperedTransformer.compute_in)."""

    compute_dtype: torch.dtype | None = None

    def __init__(self, dimension: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dimension))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(x.dtype)
        return functional.rms_norm(x, weight.shape, weight, self.epsilon).to(self.compute_dtype or x.dtype)


class Attention(nn.Module):
    """Causal attention. Weights: qkv (queries, keys, values, one above the other) and out.

    qkv is [heads + 2 key heads, d], out [d, heads]; each head counts head_dimension rows or columns. layer: whose heads
    these are.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads_by_layer[layer], config.key_heads_by_layer[layer]
        self.head_dimension = config.head_dimension
        rows = (self.heads + 2 * self.key_heads) * self.head_dimension
        self.qkv = nn.Parameter(torch.empty(rows, config.dimension))
        self.out = nn.Parameter(torch.empty(config.dimension, self.heads * self.head_dimension))

    def forward(
        self,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        mask: torch.Tensor | None = None,
        slot: Slot | None = None,
    ) -> torch.Tensor:
        """x (batch, tokens, d) -> the same shape. mask: see document_mask; None for one document a row. slot: keys and
        values of earlier tokens, to which those of x are added."""
        batch, tokens, _ = x.shape
        heads, key_heads = self.heads, self.key_heads
        qkv = functional.linear(x, self.qkv.to(x.dtype)).view(batch, tokens, heads + 2 * key_heads, self.head_dimension)
        turned, value = qkv.split((heads + key_heads, key_heads), 2)
        query, key = rotate(turned, cosine, sine).transpose(1, 2).split((heads, key_heads), 1)
        value = value.transpose(1, 2)
        if slot is not None:
            key, value = slot.extend(key, value)
        causal = mask is None and key.shape[2] == tokens  # a single query after others sees them all
        mixed = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, enable_gqa=key_heads != heads
        )
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, heads * self.head_dimension)
        return functional.linear(mixed, self.out.to(x.dtype))


def document_mask(documents: torch.Tensor) -> torch.Tensor:
    """Which key each query sees, bool (batch, 1, length, length): none that stands later, none of another document.

    documents: integers (batch, length), equal where two positions belong to one document.
    """
    return (documents[:, :, None] == documents[:, None, :]).tril()[:, None]


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)). The input of `ffn_norm` is the state that enters the FFN."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dimension, config.norm_epsilon)
        self.attention = Attention(config, layer)
        self.ffn_norm = RMSNorm(config.dimension, config.norm_epsilon)
        # Left unset here, without touching the global generator: `initialise` or a checkpoint fills it.
        shape = (config.dimension, config.widths[layer], config.activation)
        self.ffn = nn.utils.skip_init(FeedForward, *shape, gated=config.is_gated, device=torch.get_default_device())

    def forward(
        self,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        mask: torch.Tensor | None = None,
        slot: Slot | None = None,
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, mask, slot)
        return x + self.ffn(self.ffn_norm(x))


class TaperedTransformer(nn.Module):
    """Decoder of `config`, initialised from `seed` (None: parameters are left unset, for loading).

    forward: tokens (batch, length) int64, length up to the context -> logits (batch, length, vocabulary).
    documents: integers of the same shape, equal where two positions belong to one document (None: a row is one).
    Attention then crosses no boundary, and the logits of every document are those it has alone, up to rounding: rotary
    scores know differences of positions only. passing: a TrainingPass; the result is then the losses of its exits,
    (exits,), each of the logits that the final norm and the output matrix make of the states there.
    """

    cosine: torch.Tensor
    sine: torch.Tensor
    _recompute_blocks = False

    def __init__(
        self, config: ModelConfig, seed: int | None = 0, initial_scales: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        if torch.get_default_device().type == "cpu":
            config.check_memory("a model", 1)
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, config.dimension))
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.dimension, config.norm_epsilon)
        if not config.tied:
            self.head = nn.Parameter(torch.empty(config.vocabulary, config.dimension))
        cosine, sine = self._tables(min(config.context, FIRST_POSITIONS))
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        if seed is not None:
            self.initialise(seed, initial_scales)

    @torch.no_grad()
    def initialise(self, seed: int, initial_scales: Sequence[float] | None = None) -> None:
        """Draw new values of all parameters from `seed` (see the module's docstring); norm gains become 1.

        initial_scales: a factor on the down-projection of every layer's FFN.
        """
        seed = whole("seed", seed, 0)
        inner = self.config.dimension**-0.5
        outer = inner * (2 * self.config.layers) ** -0.5  # keeps the variance of the residual sum free of depth
        for name, parameter in self.named_parameters():
            held, rows = held_rows(parameter)
            if parameter.ndim == 1:
                held.fill_(1)
                continue
            last = name.rpartition(".")[2]
            scale = outer if last in ("out", "down") else inner
            if initial_scales is not None and name.endswith(".ffn.down"):
                scale *= initial_scales[int(name.split(".")[1])]
            if last in ("qkv", "out"):
                values = drawn_attention(seed, name, self.config, int(name.split(".")[1]))[rows.start : rows.stop]
            else:
                values = drawn(seed, name, tuple(parameter.shape), rows)
            held.copy_(values.mul_(scale))

    def forward(
        self, tokens: torch.Tensor, documents: torch.Tensor | None = None, passing: TrainingPass | None = None
    ) -> torch.Tensor:
        length = tokens.shape[1]
        if documents is not None and documents.shape != tokens.shape:
            raise UserError(
                f"documents has shape {tuple(documents.shape)}, tokens {tuple(tokens.shape)}; give one number a token"
            )
        if length > self.config.context:
            raise UserError(f"sequence of {length} tokens; this model's context is {self.config.context}")
        if length > len(self.cosine):
            self.grow_tables(length)
        cosine, sine = self.cosine[:length], self.sine[:length]
        mask = None if documents is None else document_mask(documents)
        x = functional.embedding(tokens, self.embedding)
        if passing is not None:
            return self._losses(passing, x, cosine, sine, mask)
        for layer in self.config.order:
            x = self._through(self.blocks[layer], x, cosine, sine, mask)
        return self._logits(x)

    def _losses(self, passing, x, cosine, sine, mask):
        losses = []
        for place, layer in enumerate(self.config.order):

            def run(states, of_rows, block=self.blocks[layer]):
                return self._through(block, states, cosine, sine, of_rows)

            x = passing.through(place, run, x, mask)
            if place in passing.exits:
                losses.append(self._exit(x, passing.loss))
        return torch.stack(losses)

    def _exit(self, x, loss):
        """The loss of an exit; with blocks that are computed again, its logits are too, and are not kept."""

        def of(states):
            return loss(self._logits(states))

        if self._recompute_blocks and torch.is_grad_enabled():
            return checkpoint(of, x, use_reentrant=False, preserve_rng_state=False)
        return of(x)

    def _logits(self, x):
        x = self.norm(x)
        return functional.linear(x, (self.embedding if self.config.tied else self.head).to(x.dtype))

    def compute_in(self, dtype: torch.dtype | None) -> None:
        """Let all matrix products run in `dtype` from now on (None: in that of the parameters), parameters unchanged.

        Explicit casts, no autocast: every matrix is cast where it is used, so its gradient comes back in its own dtype.
        The residual stream, the norms and the rotary angles stay in the dtype of the embedding; each norm's result is
        rounded once, and what attention, FFN and output matrix give is in `dtype`.
        """
        for module in self.modules():
            if isinstance(module, (RMSNorm, FeedForward)):
                module.compute_dtype = dtype

    def recompute_in_backward(self, what: str) -> None:
        """Keep less for backward and compute it again there, to the same bits.

        what: "none"; "ffn": the two projections of every FFN; "block": everything but the input of every block.
        """
        choose("recompute", what, RECOMPUTE)
        self._recompute_blocks = what == "block"
        for module in self.modules():
            if isinstance(module, FeedForward):
                module.recompute = "gate_up" if what == "ffn" else None

    def _through(self, block, x, *rest):
        """`block` of x, its inside kept for backward or not."""
        if self._recompute_blocks and torch.is_grad_enabled():
            return checkpoint(block, x, *rest, use_reentrant=False, preserve_rng_state=False)
        return block(x, *rest)

    def _tables(self, positions):
        config = self.config
        return rotary_tables(positions, config.head_dimension, config.rope_base, config.rope_scaling)

    def fill_tables(self) -> None:
        """Compute the rotary tables, after the model was given memory on another device."""
        self.cosine, self.sine = (table.to(self.cosine.device) for table in self._tables(len(self.cosine)))

    def grow_tables(self, length: int) -> None:
        """Make the rotary tables as long as a sequence needs them, for later forward passes of any kind too."""
        with torch.inference_mode(False):
            tables = self._tables(min(self.config.context, max(length, 2 * len(self.cosine))))
            self.cosine, self.sine = (table.to(self.cosine) for table in tables)

    def parameter_count(self) -> int:
        """Number of distinct parameters (the tied embedding counts once)."""
        return sum(p.numel() for p in self.parameters())


DRAWN_AT_ONCE = 1 << 20  # numbers drawn and thrown away before the first row that is wanted


def drawn(seed: int, name: str, shape: tuple[int, ...], rows: range | None = None) -> torch.Tensor:
    """Standard normal float32 tensor drawn row by row from (seed, name): fewer rows are the first rows of more.

    rows: those of `shape` that are wanted (None: all); no memory is taken for others.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    first, count = (0, shape[0]) if rows is None else (rows.start, len(rows))
    left = first * math.prod(shape[1:])
    while left:
        left -= generator.standard_normal(min(left, DRAWN_AT_ONCE), dtype=np.float32).size
    return torch.from_numpy(generator.standard_normal((count, *shape[1:]), dtype=np.float32))


def held_rows(parameter: torch.Tensor) -> tuple[torch.Tensor, range]:
    """(what this process holds of a parameter, which of its rows that is): all, or those of a sharded one's part.

    Rows are sharded in runs of one length, rounded up, so the last processes may hold fewer or none.
    """
    if not hasattr(parameter, "to_local"):
        return parameter, range(len(parameter))
    mesh, held = parameter.device_mesh, parameter.to_local()  # type: ignore[attr-defined]
    first = min(len(parameter), mesh.get_local_rank() * -(-len(parameter) // mesh.size()))
    return held, range(first, first + len(held))


def drawn_attention(seed: int, name: str, config: ModelConfig, layer: int) -> torch.Tensor:
    """Standard normal values of a qkv or out matrix of one layer: those of a layer of `config.heads` heads, of which a
    layer with fewer has the first ones; the further heads of a layer with more are drawn from names of their own."""
    size, d = config.head_dimension, config.dimension
    usual, wanted = config.heads * size, config.heads_by_layer[layer] * size
    keys, wanted_keys = config.shared_heads * size, config.key_heads_by_layer[layer] * size
    if name.endswith(".out"):
        columns = drawn(seed, name, (d, usual)).T
        return _first_rows(columns, wanted, seed, f"{name}.more").T
    parts = drawn(seed, name, (usual + 2 * keys, d)).split((usual, keys, keys))
    counts = {"queries": wanted, "keys": wanted_keys, "values": wanted_keys}
    return torch.cat(
        [
            _first_rows(part, rows, seed, f"{name}.{kind}")
            for part, (kind, rows) in zip(parts, counts.items(), strict=True)
        ]
    )


def _first_rows(values, rows, seed, name):
    """The first `rows` rows of `values`, and where there are not as many, further ones drawn from (seed, name)."""
    if rows <= len(values):
        return values[:rows]
    return torch.cat([values, drawn(seed, name, (rows - len(values), values.shape[1]))])
