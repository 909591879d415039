"""The sizes of a model that `geowidth measure` may name, from its config alone: no weight is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.errors import UserError, choose, whole
from geowidth.exchange.checkpoint import read_config
from geowidth.exchange.gguf_read import read_gguf_shape
from geowidth.exchange.shape import GATE_FIELD, TAPERED, heads_by_layer, stated_widths
from geowidth.files import PathLike
from geowidth.measure.families import known_types
from geowidth.measure.opening import TOKENISED_CONTEXT, located
from geowidth.models.config import ModelConfig
from geowidth.models.storage import CONFIG_FILE, KIND, SCHEMA
from geowidth.plan.estimation import parameter_count

# What configs call a size, whichever comes first.
SIZES = {
    "dimension": ("hidden_size", "n_embd", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions"),
}
WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim")


@dataclass(frozen=True)
class ModelSizes:
    """A model as the estimate sees it.

    name: as it was given. config: a decoder of our own of the same sizes, with the context that is measured.
    tokenised: whether text is tokenised, or read as bytes.
    """

    name: str
    config: ModelConfig
    tokenised: bool

    @property
    def parameters(self) -> int:
        """How many there are, up to biases and norms of the family's own."""
        return parameter_count(self.config)

    def windows(self, tokens: int) -> int:
        """Forward passes over a context that drawing so many tokens takes; see geowidth.measure.measure."""
        return max(16, tokens // 8) if self.tokenised else tokens


def model_sizes(name: PathLike) -> ModelSizes:
    """The ModelSizes of a folder, a .gguf file, smollm2, minilm, or a name in the local Hugging Face cache.

    Raises UserError for what is not there, and for kinds of models that cannot be measured.
    """
    path = located(name)
    if path.suffix == ".gguf":
        return _of_shape(str(name), read_gguf_shape(path))
    if (path / CONFIG_FILE).is_file():
        record = records.read_json(path / CONFIG_FILE, KIND, SCHEMA)
        tokenised = (path / "tokenizer.json").is_file()
        return ModelSizes(str(name), _windowed(ModelConfig.from_json(record.get("config")), tokenised), tokenised)
    return _of_config(str(name), read_config(path), str(Path(path) / "config.json"))


def _windowed(config, tokenised):
    """The config with the context a measurement takes by default."""
    value = config.to_json() | {"context": min(config.context, TOKENISED_CONTEXT) if tokenised else config.context}
    return ModelConfig.from_json(value)


def _of_shape(name, shape):
    sizes = {"dimension": shape.dimension, "layers": shape.layers, "heads": shape.heads, "context": shape.context}
    sizes |= {"vocabulary": shape.vocabulary, "layer_heads": shape.layer_heads}
    return _sizes(name, sizes, shape.key_heads, shape.head_dimension, shape.widths, shape.tied, 3)


def _of_config(name, config, where):
    config = {**config, **(config.get("text_config") or {})}
    kind = str(config.get("model_type")).removeprefix(TAPERED)
    known = known_types()
    projections = known[choose(f"{where}: model_type", kind, sorted(known))].projections
    projections = projections if config.get(GATE_FIELD, True) else 2
    sizes: dict[str, Any] = {ours: _first(config, names, where) for ours, names in SIZES.items()}
    if "intermediate_sizes" in config or "block_configs" in config:
        widths = stated_widths(config, where)
    else:
        width = next((config[n] for n in WIDTHS if config.get(n)), 4 * sizes["dimension"])
        experts = config.get("num_local_experts") or config.get("num_experts") or 1
        width = experts * (config.get("moe_intermediate_size") or width) if experts > 1 else width
        widths = [width] * sizes["layers"]
    heads, tied = sizes["heads"], bool(config.get("tie_word_embeddings", True))
    head_size = config.get("head_dim") or sizes["dimension"] // heads
    key_heads = config.get("num_key_value_heads") or heads
    sizes["layer_heads"] = heads_by_layer(config, heads, key_heads, sizes["layers"], where)
    return _sizes(name, sizes, key_heads, head_size, widths, tied, projections)


def _first(config, names, where):
    found = next((config[name] for name in names if config.get(name) is not None), None)
    return whole(f"{where}: {' or '.join(names)}", found, 1)


def _sizes(name, sizes, key_heads, head_size, widths, tied, projections):
    """ModelSizes whose config is that of a decoder of ours as near as it can be: even heads, key heads that divide."""
    if sizes["heads"] % key_heads:
        raise UserError(f"{name}: {sizes['heads']} heads do not share {key_heads} key heads")
    sizes = {**sizes, "context": min(sizes["context"], TOKENISED_CONTEXT)}
    even = max(2, head_size + head_size % 2)
    sizes |= {"activation": "swiglu" if projections == 3 else "gelu"}  # any of as many matrices
    config = ModelConfig(widths=tuple(widths), key_heads=key_heads, head_size=even, tied=tied, **sizes)
    return ModelSizes(name, config, True)
