"""What a Llama-family model is: sizes and conventions, read from a Hugging Face config, and the tensors that follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from geowidth.errors import UserError, choose, whole
from geowidth.exchange.fields import DEFAULTS, REFUSED, Fields
from geowidth.exchange.rope import rope_of
from geowidth.ops.activation.functions import ALIASES

TAPERED = "geowidth_tapered_"  # model_type of our own export, before the family's name
MOST_LAYERS = 100_000
# What a config calls the functions of geowidth.ops.activation.
HIDDEN_ACT = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "relu2": "relu2"}
# Fields of our own exports, where layers differ in their heads, or FFNs have no gate.
HEADS_FIELD, GATE_FIELD = "layer_attention_heads", "mlp_gated"


@dataclass(frozen=True)
class LlamaShape:
    """Sizes and conventions of one Llama-family model.

    family                  llama, mistral, qwen2 or qwen3
    heads, key_heads        of attention: query heads, and heads of keys and values (grouped-query attention)
    widths                  FFN width of every layer
    rope_base, rope_scaling angles of the rotary positions; scaling as in Hugging Face's config, or None
    tied                    whether the output matrix is the embedding
    qkv_bias, output_bias   of the attention projections
    ffn_bias                of gate, up and down
    qk_norm                 RMSNorm on every query and key head (Qwen 3)
    windows                 how far back each layer's attention reaches, in tokens, or None
    activation, gated       function of the FFN by its name in geowidth.ops.activation, and whether there is a gate
    layer_heads             query heads of every layer where they differ; keys are shared in groups as in all layers
    """

    family: str
    vocabulary: int
    dimension: int
    heads: int
    key_heads: int
    head_dimension: int
    widths: tuple[int, ...]
    context: int
    rope_base: float
    rope_scaling: dict[str, Any] | None
    norm_epsilon: float
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    activation: str = "silu"
    gated: bool = True
    layer_heads: tuple[int, ...] | None = None

    @property
    def layers(self) -> int:
        return len(self.widths)

    @property
    def heads_by_layer(self) -> tuple[int, ...]:
        return self.layer_heads or (self.heads,) * self.layers

    @property
    def key_heads_by_layer(self) -> tuple[int, ...]:
        return tuple(heads * self.key_heads // self.heads for heads in self.heads_by_layer)

    @property
    def reach(self) -> int:
        """Tokens of the longest text in which every layer's attention reaches to the beginning."""
        return min([self.context, *(window for window in self.windows if window is not None)])

    @classmethod
    def from_config(
        cls, config: dict[str, Any], where: str = "config.json", widths: Sequence[int] | None = None
    ) -> "LlamaShape":
        """The shape that a config.json states; with `widths`, those instead of the stated ones."""
        family = str(config.get("model_type", "nothing"))
        family = "llama" if family == "nemotron-nas" else family.removeprefix(TAPERED)
        choose(f"{where}: model_type", family, list(DEFAULTS))
        refuse_other_models(config, where)
        fields = Fields(config, where, family)
        activation = choose(f"{where}: hidden_act", fields.value("hidden_act"), list(ALIASES))
        widths = tuple(stated_widths({**DEFAULTS[family], **config}, where) if widths is None else widths)
        base, scaling = rope_of(config, where)
        attention_bias = fields.flag("attention_bias")
        return cls(
            family=family,
            vocabulary=fields.whole("vocab_size"),
            dimension=fields.whole("hidden_size"),
            widths=widths,
            context=fields.whole("max_position_embeddings"),
            rope_base=base,
            rope_scaling=scaling,
            norm_epsilon=fields.positive("rms_norm_eps"),
            tied=fields.flag("tie_word_embeddings"),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=attention_bias,
            ffn_bias=fields.flag("mlp_bias"),
            qk_norm=family == "qwen3",
            windows=fields.windows(len(widths)),
            activation=ALIASES[activation],
            gated=_gated(config, where),
            **_heads(fields, len(widths)),
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of every tensor of a checkpoint of this shape, under Hugging Face's names."""
        d = self.dimension
        shapes = {"model.embed_tokens.weight": (self.vocabulary, d), "model.norm.weight": (d,)}
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, d)
        for layer, width in enumerate(self.widths):
            q, k = (heads[layer] * self.head_dimension for heads in (self.heads_by_layer, self.key_heads_by_layer))
            part = {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
            part |= self._linear("self_attn.q_proj", q, d, self.qkv_bias)
            part |= self._linear("self_attn.k_proj", k, d, self.qkv_bias)
            part |= self._linear("self_attn.v_proj", k, d, self.qkv_bias)
            part |= self._linear("self_attn.o_proj", d, q, self.output_bias)
            if self.qk_norm:
                part |= {f"self_attn.{name}_norm.weight": (self.head_dimension,) for name in "qk"}
            part |= self._linear("mlp.gate_proj", width, d, self.ffn_bias) if self.gated else {}
            part |= self._linear("mlp.up_proj", width, d, self.ffn_bias)
            part |= self._linear("mlp.down_proj", d, width, self.ffn_bias)
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in part.items()}
        return shapes

    @staticmethod
    def _linear(name, rows, columns, bias):
        return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})

    def config(self) -> dict[str, Any]:
        """A config.json for a model that came without one. Its ids of begin, end and padding are null: it has none."""
        config = {
            "model_type": self.family,
            "vocab_size": self.vocabulary,
            "hidden_size": self.dimension,
            "intermediate_size": max(self.widths, default=0),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_dimension,
            "hidden_act": HIDDEN_ACT[self.activation],
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": self.rope_base,
            "tie_word_embeddings": self.tied,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        return config if self.rope_scaling is None else {**config, "rope_scaling": self.rope_scaling}


# Fields that, where they are set, ask for a model other than the family's stock one.
OTHER = {
    "quantization_config": "packed weights",
    "per_layer_config": "settings by layer",
    "pruned_heads": "heads by layer",
    "num_local_experts": "experts",
}
MODULE = "modeling_tapered"  # the modelling file of our own exports
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def stated_widths(config: dict[str, Any], where: str = "config.json") -> list[int]:
    """The FFN widths that a config states: one list, block_configs, or one number for all layers."""
    layers = whole(f"{where}: num_hidden_layers", config.get("num_hidden_layers"), 1)
    if layers > MOST_LAYERS:
        raise UserError(f"{where}: num_hidden_layers is {layers}; allowed: at most {MOST_LAYERS}")
    if "block_configs" in config:
        name, blocks = "block_configs", config["block_configs"]
        try:
            widths = [_block_width(block["ffn"], config["hidden_size"]) for block in blocks]
            odd = [b for b in blocks for part in b.values() if part.get("replace_with_linear")]
            odd += [b for b in blocks if b["attention"].get("no_op")]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{where}: block_configs must list attention and ffn of every layer ({error})") from error
        if odd:
            raise UserError(f"{where}: block_configs has layers without attention, or linear ones; they are not read")
    elif "intermediate_sizes" in config:
        widths, name = config["intermediate_sizes"], "intermediate_sizes"
    else:
        return [whole(f"{where}: intermediate_size", config.get("intermediate_size"), 0)] * layers
    if not isinstance(widths, list) or len(widths) != layers:
        raise UserError(f"{where}: {name} must list one FFN width per layer; num_hidden_layers is {layers}")
    return [whole(f"{where}: {name}[{layer}]", width, 0) for layer, width in enumerate(widths)]


def _block_width(ffn, dimension):
    """Width of a nemotron-nas block: stated, or ffn_mult rounded up to 256 as that family's readers do."""
    if ffn.get("no_op"):
        return 0
    if "ffn_mult" not in ffn:
        return ffn.get("intermediate_size")
    return -(-int(2 * ffn["ffn_mult"] * dimension / 3) // 256) * 256


def _gated(config, where):
    gated = config.get(GATE_FIELD, True)
    if not isinstance(gated, bool):
        raise UserError(f"{where}: {GATE_FIELD} is {gated!r}; allowed: true, false")
    return gated


def heads_by_layer(
    config: dict[str, Any], heads: int, key_heads: int, layers: int, where: str
) -> tuple[int, ...] | None:
    """Query heads of every layer that a config of ours states, None where they are `heads` in all."""
    stated = config.get(HEADS_FIELD)
    if stated is None:
        return None
    if not isinstance(stated, (list, tuple)) or len(stated) != layers:
        raise UserError(f"{where}: {HEADS_FIELD} must list the heads of each of {layers} layers")
    found = tuple(whole(f"{where}: {HEADS_FIELD}[{layer}]", count, 1) for layer, count in enumerate(stated))
    group = heads // key_heads
    odd = next((count for count in found if count % group), None)
    if odd is not None:
        raise UserError(f"{where}: {HEADS_FIELD} has {odd}; {group} heads share a key: use multiples of {group}")
    return None if set(found) == {heads} else found


def _heads(fields, layers):
    """{heads, key_heads, head_dimension, layer_heads} of a config."""
    heads, dimension = fields.whole("num_attention_heads"), fields.whole("hidden_size")
    derived = fields.family in ("llama", "mistral") or "head_dim" not in fields.config
    size = fields.whole("head_dim", null=dimension // heads if derived else REFUSED)
    key_heads = fields.whole("num_key_value_heads", null=_grouped(fields, heads))
    if heads % key_heads or size % 2 or not size:
        raise UserError(
            f"{fields.where}: {heads} attention heads of size {size} with {key_heads} key heads; heads must be a "
            "multiple of key heads, and their size even"
        )
    by_layer = heads_by_layer(fields.config, heads, key_heads, layers, fields.where)
    return {"heads": heads, "key_heads": key_heads, "head_dimension": size, "layer_heads": by_layer}


def _grouped(fields, heads):
    """Key heads where the config leaves them open: one a head, or what all of its block_configs agree on."""
    blocks = fields.config.get("block_configs")
    if not isinstance(blocks, list):
        return heads
    try:
        groups = {block["attention"]["n_heads_in_group"] for block in blocks}
    except (KeyError, TypeError):
        return heads
    if len(groups) != 1:
        raise UserError(f"{fields.where}: n_heads_in_group differs from block to block; such models are not read")
    return heads // whole(f"{fields.where}: n_heads_in_group", groups.pop(), 1)


def refuse_other_models(config: dict[str, Any], where: str) -> None:
    """Refuse by name what makes the weights or the mathematics other than the family's."""
    for name, what in OTHER.items():
        if config.get(name):
            raise UserError(f"{where}: {name} is stated ({what}), which is not read; remove it, or convert the model")
    stated = config.get("auto_map") if config.get("model_type") != "nemotron-nas" else None
    for name, path in (stated if isinstance(stated, dict) else {}).items():
        if not str(path).startswith(f"{MODULE}."):
            raise UserError(f"{where}: auto_map names code of the model's own for {name}; only stock models are read")
