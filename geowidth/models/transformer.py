"""A decoder transformer whose FFN blocks may each have a width of their own.

Pre-norm RMSNorm (Zhang and Sennrich 2019), rotary positions (Su et al. 2021, rotate-half layout), SwiGLU FFN (Shazeer
2020), causal attention, tied embeddings, no biases. All FFN weights, down-projection included, are stored
[width, dimension]: a width is a number of rows.

Initial values are drawn tensor by tensor from (seed, tensor name), row by row, with a scale that does not depend on any
width. So two models of one seed that differ only in widths start from the same values wherever their shapes agree, and
the rows of a narrower FFN are the first rows of the wider one: paired seeds differ by the widths and by nothing else.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from geowidth import memory
from geowidth.errors import UserError, choose, whole
from geowidth.models.ffn import FeedForward


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a TaperedTransformer.

    vocabulary: number of token ids. layers, dimension, heads: blocks, size d of the residual stream, attention heads
    (d / heads must be an even whole number). widths: FFN width of every layer. context: longest sequence in tokens.
    rope_base, norm_epsilon: constants of the rotary angles and of RMSNorm.

    What follows is for models that come from elsewhere. key_heads: heads of keys and values where they are fewer
    (grouped queries). head_size: where it is not d / heads. tied: whether the output matrix is the embedding.
    rope_scaling: None, {"rope_type": "linear", "factor"} or Llama 3's {"rope_type": "llama3", "factor",
    "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}.
    """

    vocabulary: int
    layers: int
    dimension: int
    heads: int
    widths: tuple[int, ...]
    context: int
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5
    key_heads: int | None = None
    head_size: int | None = None
    tied: bool = True
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self):
        for name in ("vocabulary", "layers", "dimension", "heads", "context"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))
        widths = tuple(whole(f"width of layer {i}", w, 0) for i, w in enumerate(self.widths))
        object.__setattr__(self, "widths", widths)
        if len(widths) != self.layers:
            raise UserError(f"{len(widths)} widths came for {self.layers} layers; give one width per layer")
        if self.head_size is not None:
            object.__setattr__(self, "head_size", whole("head_size", self.head_size, 2))
            if self.head_size % 2:
                raise UserError(f"head_size is {self.head_size}; allowed: even numbers")
        elif self.dimension % (2 * self.heads):
            raise UserError(
                f"dimension {self.dimension} does not split into {self.heads} heads of even size; "
                f"use a multiple of {2 * self.heads}"
            )
        if self.key_heads is not None and self.heads % whole("key_heads", self.key_heads, 1):
            raise UserError(f"{self.heads} heads do not share {self.key_heads} key heads; use a divisor")
        if not isinstance(self.tied, bool):
            raise UserError(f"tied is {self.tied!r}; allowed: true, false")
        rope_frequencies(2, 1.0, self.rope_scaling)
        for name in ("rope_base", "norm_epsilon"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
                raise UserError(f"{name} is {value!r}; allowed: positive numbers")
            object.__setattr__(self, name, float(value))

    @property
    def head_dimension(self) -> int:
        return self.head_size or self.dimension // self.heads

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.key_heads or self.heads

    @property
    def parameters(self) -> int:
        """Distinct parameters of the model: embedding, output matrix unless tied, attention, norms, FFNs."""
        d = self.dimension
        attention = 2 * d * (self.heads + self.shared_heads) * self.head_dimension
        outer = self.vocabulary * d * (1 if self.tied else 2) + d
        return outer + self.layers * (attention + 2 * d) + 3 * d * sum(self.widths)

    def check_memory(self, what: str, copies: int) -> None:
        """Raise a UserError when this machine has no room for `copies` float32 numbers a parameter. what: needs it."""
        memory.check(f"{what} with {self.parameters:,} parameters", 4 * copies * self.parameters, "use narrower widths")

    def to_json(self) -> dict[str, Any]:
        value = asdict(self) | {"widths": list(self.widths)}
        return {name: v for name, v in value.items() if name not in FOREIGN or v != FOREIGN[name]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ModelConfig":
        """The config that `to_json` gave; unknown or missing fields raise a UserError that names them."""
        known = {f.name for f in fields(cls)}
        needed = known - {"rope_base", "norm_epsilon", *FOREIGN}
        if not isinstance(value, dict) or set(value) - known or needed - set(value):
            found = ", ".join(value) if isinstance(value, dict) else repr(value)
            raise UserError(f"model config has {found}; needed: {', '.join(f.name for f in fields(cls))}")
        if not isinstance(value["widths"], (list, tuple)):
            raise UserError(f"widths is {value['widths']!r}; needed: a list with one whole number per layer")
        return cls(**value)


RECOMPUTE = ("none", "ffn", "block")  # what backward may compute again, see TaperedTransformer.recompute_in_backward
# Rotary tables are as long as the context up to here and grow with the sequences beyond, so that texts decide the
# memory, and not a number in a file.
FIRST_POSITIONS = 8192
# Fields of models from elsewhere, with the values they have in ours; left out of files where they have those.
FOREIGN = {"key_heads": None, "head_size": None, "tied": True, "rope_scaling": None}


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


def rope_frequencies(head_dimension: int, base: float, scaling: dict[str, Any] | None = None) -> torch.Tensor:
    """Rotary angles per position, (head_dimension / 2,) float64, fastest first.

    scaling: see ModelConfig. "linear" divides all angles (Chen et al. 2023); "llama3" divides those whose wavelength is
    above original / low_freq_factor, leaves those below original / high_freq_factor, and blends between (Llama 3.1).
    """
    half = head_dimension // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    if scaling is None:
        return frequency
    scaling = scaling if isinstance(scaling, dict) else {"rope_type": scaling}
    kind, parts = scaling.get("rope_type"), ("factor",)
    if kind == "llama3":
        parts += ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    given = [scaling.get(name) for name in parts]
    if kind not in ("linear", "llama3") or not all(map(_positive, given)):
        raise UserError(f"rope_scaling is {scaling!r}; allowed: linear or llama3, with positive {', '.join(parts)}")
    if kind == "linear":
        return frequency / scaling["factor"]
    factor, low, high, original = (scaling[name] for name in parts)
    if not low < high:
        raise UserError(f"rope_scaling is {scaling!r}; allowed: low_freq_factor below high_freq_factor")
    turns = original * frequency / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / factor)


def _positive(value):
    return type(value) in (int, float) and 0 < value < math.inf


def rotary_tables(
    context: int, head_dimension: int, base: float, scaling: dict[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines (context, 1, head_dimension) float32 of the rotary angles, in the rotate-half layout."""
    frequency = rope_frequencies(head_dimension, base, scaling)
    angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
    cosine = torch.cat((angle.cos(), angle.cos()), -1)
    sine = torch.cat((-angle.sin(), angle.sin()), -1)
    return cosine[:, None].float(), sine[:, None].float()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions: x (batch, tokens, heads, head_dimension) turned by the tables of its positions.

    The angles keep the dtype of the tables; the result is rounded once, to that of x.
    """
    return (x * cosine + x.roll(x.shape[-1] // 2, -1) * sine).to(x.dtype)


class Attention(nn.Module):
    """Causal attention. Weights: qkv (queries, keys, values one above the other) [heads + 2 key heads, d], out [d, d].

    Each head counts head_dimension rows.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_dimension = config.heads, config.shared_heads, config.head_dimension
        rows = (self.heads + 2 * self.key_heads) * self.head_dimension
        self.qkv = nn.Parameter(torch.empty(rows, config.dimension))
        self.out = nn.Parameter(torch.empty(config.dimension, self.heads * self.head_dimension))

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        heads, key_heads = self.heads, self.key_heads
        qkv = functional.linear(x, self.qkv.to(x.dtype)).view(batch, tokens, heads + 2 * key_heads, self.head_dimension)
        turned, value = qkv.split((heads + key_heads, key_heads), 2)
        query, key = rotate(turned, cosine, sine).transpose(1, 2).split((heads, key_heads), 1)
        mixed = functional.scaled_dot_product_attention(
            query, key, value.transpose(1, 2), is_causal=True, enable_gqa=key_heads != heads
        )
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, heads * self.head_dimension)
        return functional.linear(mixed, self.out.to(x.dtype))


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)). The input of `ffn_norm` is the state that enters the FFN."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dimension, config.norm_epsilon)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dimension, config.norm_epsilon)
        # Left unset here, without touching the global generator: `initialise` or a checkpoint fills it.
        self.ffn = nn.utils.skip_init(FeedForward, config.dimension, width, device=torch.get_default_device())

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.ffn(self.ffn_norm(x))


class TaperedTransformer(nn.Module):
    """Decoder of `config`, initialised from `seed` (None: parameters are left unset, for loading).

    forward: tokens (batch, length) int64, length up to the context -> logits (batch, length, vocabulary).
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
        self.blocks = nn.ModuleList(Block(config, width) for width in config.widths)
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
            if parameter.ndim == 1:
                parameter.fill_(1)
                continue
            last = name.rpartition(".")[2]
            scale = outer if last in ("out", "down") else inner
            if initial_scales is not None and name.endswith(".ffn.down"):
                scale *= initial_scales[int(name.split(".")[1])]
            parameter.copy_(drawn(seed, name, tuple(parameter.shape)).mul_(scale))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        if length > self.config.context:
            raise UserError(f"sequence of {length} tokens; this model's context is {self.config.context}")
        if length > len(self.cosine):
            self._grow_tables(length)
        cosine, sine = self.cosine[:length], self.sine[:length]
        x = functional.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = self._through(block, x, cosine, sine)
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

    def _grow_tables(self, length):
        """Make the rotary tables as long as a sequence needs them, for later forward passes of any kind too."""
        with torch.inference_mode(False):
            tables = self._tables(min(self.config.context, max(length, 2 * len(self.cosine))))
            self.cosine, self.sine = (table.to(self.cosine) for table in tables)

    def parameter_count(self) -> int:
        """Number of distinct parameters (the tied embedding counts once)."""
        return sum(p.numel() for p in self.parameters())


def drawn(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal float32 tensor drawn row by row from (seed, name): fewer rows are the first rows of more."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))


def training_flops(config: ModelConfig, tokens: int, length: int | None = None) -> int:
    """FLOPs of training on `tokens` tokens in sequences of `length` (default: the context).

    Forward matrix products, times 3 for forward and backward: 2 per weight and token (the tied embedding once, as the
    output matrix), and for attention 4 per query-key pair and query feature, of which causality leaves
    (length + 1) / 2 a token.
    """
    length = config.context if length is None else length
    d = config.dimension
    queries, keys = (heads * config.head_dimension for heads in (config.heads, config.shared_heads))
    weights = config.layers * 2 * d * (queries + keys) + 3 * d * sum(config.widths) + config.vocabulary * d
    return int(3 * tokens * (2 * weights + config.layers * 4 * queries * (length + 1) / 2))
