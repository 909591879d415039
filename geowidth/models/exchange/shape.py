"""What a Llama-family model is: sizes and conventions, read from a Hugging Face config, and the tensors that follow."""

import math
from dataclasses import dataclass

from geowidth.errors import UserError, choose, whole

# Entries a config.json leaves out where they equal the library's defaults (transformers 4.57 and 5.24).
FAMILY_DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "use_sliding_window": False},
    "qwen3": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
    },
}
TAPERED = "geowidth_tapered_"  # model_type of our own export, before the family's name
ROPE_SCALINGS = ("default", "linear", "llama3")
MOST_LAYERS = 100_000


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
    window                  attention reaches this far back, or None
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
    rope_scaling: dict | None
    norm_epsilon: float
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    window: int | None = None

    @property
    def layers(self):
        return len(self.widths)

    @classmethod
    def from_config(cls, config, where="config.json", widths=None):
        """The shape that a config.json states; with `widths`, those instead of the stated ones."""
        family = str(config.get("model_type", "nothing"))
        family = "llama" if family == "nemotron-nas" else family.removeprefix(TAPERED)
        choose(f"{where}: model_type", family, list(FAMILY_DEFAULTS))
        get = {**FAMILY_DEFAULTS[family], **{name: v for name, v in config.items() if v is not None}}.get
        if get("hidden_act", "silu") != "silu":
            raise UserError(f"{where}: hidden_act is {get('hidden_act')!r}; allowed: silu")
        sizes = {}
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            sizes[name] = _whole(where, name, get(name))
        heads, dimension = sizes["num_attention_heads"], sizes["hidden_size"]
        head_dimension = _whole(where, "head_dim", get("head_dim", dimension // heads))
        key_heads = _whole(where, "num_key_value_heads", get("num_key_value_heads", heads))
        if heads % key_heads or head_dimension % 2:
            raise UserError(
                f"{where}: {heads} attention heads of size {head_dimension} with {key_heads} key heads; heads must be "
                "a multiple of key heads, and their size even"
            )
        base, scaling = _rope(config, where)
        attention_bias = bool(get("attention_bias", False))
        sliding = get("sliding_window") if get("use_sliding_window", True) else None
        return cls(
            family=family,
            vocabulary=sizes["vocab_size"],
            dimension=dimension,
            heads=heads,
            key_heads=key_heads,
            head_dimension=head_dimension,
            widths=tuple(stated_widths(config, where) if widths is None else widths),
            context=_whole(where, "max_position_embeddings", get("max_position_embeddings")),
            rope_base=base,
            rope_scaling=scaling,
            norm_epsilon=_positive(where, "rms_norm_eps", get("rms_norm_eps", 1e-6)),
            tied=bool(get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=attention_bias and family in ("llama", "qwen3"),
            ffn_bias=bool(get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            window=sliding if family == "mistral" or sliding else None,
        )

    def tensors(self):
        """{name: shape} of every tensor of a checkpoint of this shape, under Hugging Face's names."""
        d, q, k = self.dimension, self.heads * self.head_dimension, self.key_heads * self.head_dimension
        shapes = {"model.embed_tokens.weight": (self.vocabulary, d), "model.norm.weight": (d,)}
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, d)
        for layer, width in enumerate(self.widths):
            part = {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
            part |= self._linear("self_attn.q_proj", q, d, self.qkv_bias)
            part |= self._linear("self_attn.k_proj", k, d, self.qkv_bias)
            part |= self._linear("self_attn.v_proj", k, d, self.qkv_bias)
            part |= self._linear("self_attn.o_proj", d, q, self.output_bias)
            if self.qk_norm:
                part |= {f"self_attn.{name}_norm.weight": (self.head_dimension,) for name in "qk"}
            part |= self._linear("mlp.gate_proj", width, d, self.ffn_bias)
            part |= self._linear("mlp.up_proj", width, d, self.ffn_bias)
            part |= self._linear("mlp.down_proj", d, width, self.ffn_bias)
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in part.items()}
        return shapes

    @staticmethod
    def _linear(name, rows, columns, bias):
        return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})

    def config(self):
        """config.json of the stock family, whose every layer is as wide as the widest; one both 4.57 and 5 read."""
        config = {
            "model_type": self.family,
            "architectures": [f"{CLASSES[self.family]}ForCausalLM"],
            "vocab_size": self.vocabulary,
            "hidden_size": self.dimension,
            "intermediate_size": max(self.widths, default=0),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_dimension,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": self.rope_base,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.output_bias or (self.qkv_bias and self.family != "qwen2"),
            "mlp_bias": self.ffn_bias,
            "sliding_window": self.window,
            "use_sliding_window": self.window is not None,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
        }
        return config if self.rope_scaling is None else {**config, "rope_scaling": self.rope_scaling}


CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def stated_widths(config, where="config.json"):
    """The FFN widths that a config states: one list, block_configs, or one number for all layers."""
    layers = _whole(where, "num_hidden_layers", config.get("num_hidden_layers"))
    if layers > MOST_LAYERS:
        raise UserError(f"{where}: num_hidden_layers is {layers}; allowed: at most {MOST_LAYERS}")
    if "block_configs" in config:
        name, blocks = "block_configs", config["block_configs"]
        try:
            widths = [_block_width(block["ffn"], config["hidden_size"]) for block in blocks]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{where}: block_configs must list attention and ffn of every layer ({error})") from error
    elif "intermediate_sizes" in config:
        widths, name = config["intermediate_sizes"], "intermediate_sizes"
    else:
        return [_whole(where, "intermediate_size", config.get("intermediate_size"), 0)] * layers
    if not isinstance(widths, list) or len(widths) != layers:
        raise UserError(f"{where}: {name} must list one FFN width per layer; num_hidden_layers is {layers}")
    return [_whole(where, f"{name}[{layer}]", width, 0) for layer, width in enumerate(widths)]


def _block_width(ffn, dimension):
    """Width of a nemotron-nas block: stated, or ffn_mult rounded up to 256 as that family's readers do."""
    if ffn.get("no_op"):
        return 0
    if "ffn_mult" not in ffn:
        return ffn.get("intermediate_size")
    return -(-int(2 * ffn["ffn_mult"] * dimension / 3) // 256) * 256


def _rope(config, where):
    """(base, scaling) of transformers 4's rope_theta and rope_scaling, or of 5's rope_parameters."""
    parameters, scaling = (config.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    for name, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if not isinstance(value, dict):
            raise UserError(f"{where}: {name} is {value!r}; needed: an object")
    base = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    scaling = {n: v for n, v in {**scaling, **parameters}.items() if n != "rope_theta"}
    kind = scaling.pop("type", None)
    kind = scaling.get("rope_type", kind) or "default"
    choose(f"{where}: kind of rope scaling", kind, ROPE_SCALINGS)
    if scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UserError(f"{where}: partial_rotary_factor must be 1.0")
    base = _positive(where, "rope_theta", base)
    return base, None if kind == "default" else {**scaling, "rope_type": kind}


def _whole(where, name, value, least=1):
    return whole(f"{where}: {name}", value, least)


def _positive(where, name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UserError(f"{where}: {name} is {value!r}; allowed: finite numbers above 0")
    return float(value)
