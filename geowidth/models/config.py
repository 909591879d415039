"""ModelConfig: the shape of a TaperedTransformer, and what follows from it by counting: parameters and FLOPs."""

import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from geowidth import memory
from geowidth.errors import UserError, flag, whole
from geowidth.models.rotary import rope_frequencies
from geowidth.ops.activation.functions import GATED_ALIASES, activation_function, is_gated_name

MOST_REPEATS = 1024  # of the last blocks: each costs the time and the memory of those blocks


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a TaperedTransformer.

    vocabulary: number of token ids. layers, dimension, heads: blocks, size d of the residual stream, attention heads
    (d / heads must be an even whole number). widths: FFN width of every layer. context: longest sequence in tokens.
    rope_base, norm_epsilon: constants of the rotary angles and of RMSNorm.

    activation: of the FFNs, any name of geowidth.ops.activation; a GLU name ("swiglu", "geglu", "geglu_tanh", "reglu")
    says that there is a gate, a plain one ("gelu", "relu2", ...) that there is none, unless gated=True. Names of one
    meaning are one: ("silu", gated=True) is kept as "swiglu", "gelu_new" as "gelu_tanh".

    layer_heads: attention heads of every layer, None for `heads` in all of them. A head keeps its size, d / `heads`, so
    heads are what attention spends; queries that share keys do so in the groups that `heads` and key_heads make, and
    each layer's heads must be a multiple of a group.

    repeat_last, repeat_times: the last `repeat_last` blocks, one after another, are applied `repeat_times` times with
    the same parameters, as if they stood there as often. Parameters count once, FLOPs as often as they are spent.

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
    activation: str = "swiglu"
    gated: bool | None = None
    layer_heads: tuple[int, ...] | None = None
    repeat_last: int = 0
    repeat_times: int = 1

    def __post_init__(self):
        for name in ("vocabulary", "layers", "dimension", "heads", "context"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))
        widths = tuple(whole(f"width of layer {i}", w, 0) for i, w in enumerate(self.widths))
        object.__setattr__(self, "widths", widths)
        if len(widths) != self.layers:
            raise UserError(f"{len(widths)} widths came for {self.layers} layers; give one width per layer")
        if not isinstance(self.tied, bool):
            raise UserError(f"tied is {self.tied!r}; allowed: true, false")
        rope_frequencies(2, 1.0, self.rope_scaling)
        for name in ("rope_base", "norm_epsilon"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
                raise UserError(f"{name} is {value!r}; allowed: positive numbers")
            object.__setattr__(self, name, float(value))
        self._check_heads()
        self._check_repeats()
        activation, gated = _plainest(self.activation, self.gated)
        object.__setattr__(self, "activation", activation)
        object.__setattr__(self, "gated", gated)

    def _check_heads(self):
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
        if self.layer_heads is None:
            return
        heads = tuple(whole(f"heads of layer {i}", count, 1) for i, count in enumerate(self.layer_heads))
        if len(heads) != self.layers:
            raise UserError(f"{len(heads)} layer_heads came for {self.layers} layers; give one number per layer")
        odd = next((i for i, count in enumerate(heads) if count % self.queries_per_key), None)
        if odd is not None:
            raise UserError(
                f"layer {odd} has {heads[odd]} heads, of which {self.queries_per_key} share a key; "
                f"use multiples of {self.queries_per_key} in layer_heads"
            )
        object.__setattr__(self, "layer_heads", None if set(heads) == {self.heads} else heads)

    def _check_repeats(self):
        """One form of each meaning: without repetition it is 0 blocks once."""
        last = whole("repeat_last", self.repeat_last, 0, self.layers)
        times = whole("repeat_times", self.repeat_times, 1, MOST_REPEATS)
        if times > 1 and not last:
            raise UserError(f"repeat_times is {times}, but repeat_last names no blocks; give repeat_last from 1 up")
        plain = times == 1
        object.__setattr__(self, "repeat_last", 0 if plain else last)
        object.__setattr__(self, "repeat_times", times)

    @property
    def order(self) -> tuple[int, ...]:
        """The blocks in the order in which a state passes them: each once, but for those that are repeated."""
        return block_order(self.layers, self.repeat_last, self.repeat_times)

    @property
    def head_dimension(self) -> int:
        """Features of one head."""
        return self.head_size or self.dimension // self.heads

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values, where a layer has `heads` heads."""
        return self.key_heads or self.heads

    @property
    def queries_per_key(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.shared_heads

    @property
    def heads_by_layer(self) -> tuple[int, ...]:
        """Query heads of every layer."""
        return self.layer_heads or (self.heads,) * self.layers

    @property
    def key_heads_by_layer(self) -> tuple[int, ...]:
        """Heads of keys and values of every layer."""
        return tuple(heads // self.queries_per_key for heads in self.heads_by_layer)

    @property
    def is_gated(self) -> bool:
        """Whether the FFNs have a gate."""
        return is_gated_name(self.activation) or bool(self.gated)

    @property
    def projections(self) -> int:
        """Matrices of an FFN: gate, up and down, or up and down."""
        return 3 if self.is_gated else 2

    @property
    def ffn_parameters(self) -> int:
        """Parameters of all FFNs."""
        return self.projections * self.dimension * sum(self.widths)

    @property
    def attention_parameters(self) -> int:
        """Parameters of all attention layers: queries, keys, values, output."""
        heads = sum(self.heads_by_layer) + sum(self.key_heads_by_layer)
        return 2 * self.dimension * self.head_dimension * heads

    @property
    def parameters(self) -> int:
        """Distinct parameters of the model: embedding, output matrix unless tied, attention, norms, FFNs."""
        outer = self.vocabulary * self.dimension * (1 if self.tied else 2)
        norms = (2 * self.layers + 1) * self.dimension
        return outer + norms + self.attention_parameters + self.ffn_parameters

    def check_memory(self, what: str, copies: float) -> None:
        """Raise a UserError when this machine has no room for `copies` float32 numbers a parameter. what: needs it."""
        size = int(4 * copies * self.parameters)
        memory.check(f"{what} with {self.parameters:,} parameters", size, "use narrower widths")

    def refuse_repeats(self, what: str) -> None:
        """Raise a UserError where blocks are repeated. what: names what has no place for that."""
        if self.repeat_times > 1:
            raise UserError(
                f"{what} takes no model that applies its last {self.repeat_last} blocks {self.repeat_times} times; "
                "train one without repeat_last"
            )

    def to_json(self) -> dict[str, Any]:
        """The fields, those of OPTIONAL left out where they have their default."""
        value = asdict(self) | {"widths": list(self.widths)}
        if self.layer_heads is not None:
            value["layer_heads"] = list(self.layer_heads)
        return {name: v for name, v in value.items() if name not in OPTIONAL or v != OPTIONAL[name]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ModelConfig":
        """The config that `to_json` gave; unknown or missing fields raise a UserError that names them."""
        known = {f.name for f in fields(cls)}
        needed = {f.name for f in fields(cls) if f.default is MISSING}
        if not isinstance(value, dict) or set(value) - known or needed - set(value):
            found = ", ".join(value) if isinstance(value, dict) else repr(value)
            raise UserError(f"model config has {found}; needed: {', '.join(f.name for f in fields(cls))}")
        for name in ("widths", "layer_heads"):
            stated = value.get(name)
            if not isinstance(stated, (list, tuple)) and not (name == "layer_heads" and stated is None):
                raise UserError(f"{name} is {stated!r}; needed: a list with one whole number per layer")
        return cls(**value)


# Left out of files where they have their default: the files of earlier versions have none of them.
OPTIONAL: dict[str, Any] = {"key_heads": None, "head_size": None, "tied": True, "rope_scaling": None}
OPTIONAL |= {"activation": "swiglu", "gated": None, "layer_heads": None, "repeat_last": 0, "repeat_times": 1}


def block_order(layers: int, repeat_last: int, repeat_times: int) -> tuple[int, ...]:
    """`layers` blocks in the order in which states pass them, the last `repeat_last` of them `repeat_times` times."""
    once = layers - repeat_last
    return (*range(once), *(tuple(range(once, layers)) * repeat_times))


def _plainest(name, gated):
    """(activation, gated) under the one name of each meaning; gated None where the name says it."""
    gated = is_gated_name(name) if gated is None else flag("gated", gated)
    function = activation_function(name, gated).name
    if not gated:
        return function, None
    glu = next((glu for glu, plain in GATED_ALIASES.items() if plain == function), None)
    return (function, True) if glu is None else (glu, None)


def training_flops(config: ModelConfig, tokens: int, length: int | None = None) -> int:
    """FLOPs of training on `tokens` tokens in sequences of `length` (default: the context).

    Forward matrix products, times 3 for forward and backward: 2 per weight and token (the tied embedding once, as the
    output matrix), and for attention 4 per query-key pair and query feature, of which causality leaves
    (length + 1) / 2 a token. A block that is applied several times counts as often. What a mask of documents or
    recomputation changes is not counted.
    """
    length = config.context if length is None else length
    blocks = sum(block_flops(config, layer, length) for layer in config.order)
    return 3 * tokens * (blocks + 2 * config.vocabulary * config.dimension)


def block_flops(config: ModelConfig, layer: int, length: int) -> int:
    """FLOPs of one forward pass of a token through one block, in sequences of `length`; see training_flops."""
    queries, keys = config.heads_by_layer[layer], config.key_heads_by_layer[layer]
    attention = 2 * config.dimension * config.head_dimension * (queries + keys)
    ffn = config.projections * config.dimension * config.widths[layer]
    return 2 * (attention + ffn) + 2 * queries * config.head_dimension * (length + 1)
