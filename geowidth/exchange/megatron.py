"""The JSON of Megatron-LM's --heterogeneous-layers-config-path, and the arguments that stand beside it. No weights."""

from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.errors import UserError
from geowidth.exchange.carried import refuse_unlike, write_source
from geowidth.exchange.checkpoint import Checkpoint
from geowidth.exchange.shape import LlamaShape

# Its FFNs by their function and whether they have a gate; without any of the two arguments it is GELU without one.
ACTIVATIONS: dict[tuple[str, bool], dict[str, bool]] = {
    ("silu", True): {"--swiglu": True},
    ("gelu", False): {"--swiglu": False, "--no-bias-gelu-fusion": True},
    ("relu2", False): {"--swiglu": False, "--squared-relu": True, "--no-bias-gelu-fusion": True},
}


def write_megatron(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """heterogeneous_layers.json; the source's config and tokenizer beside it. Returns sentences for the user."""
    write_source(checkpoint, folder)
    return write_megatron_shape(checkpoint.shape, checkpoint.config or {}, folder, checkpoint.where)


def write_megatron_shape(
    shape: LlamaShape, config: dict[str, Any], folder: Path, where: str = "config.json"
) -> list[str]:
    """heterogeneous_layers.json of a LlamaShape and the config it was read from."""
    records.write_json(folder / "heterogeneous_layers.json", megatron_record(shape, config, where))
    return ["the arguments beside block_configs go on Megatron's command line; weights are not part of this format"]


def megatron_record(
    shape: LlamaShape, config: dict[str, Any] | None = None, where: str = "config.json"
) -> dict[str, Any]:
    """block_configs with exact widths, as megatron.core.transformer.heterogeneous reads them, and the arguments.

    Raises UserError for what Megatron-LM has no argument for.
    """
    refuse_unlike(shape, where, "megatron", tuple(ACTIVATIONS))
    attention = {"no_op": False, "replace_with_linear": False, "num_query_groups": shape.key_heads}
    blocks = []
    for width in shape.widths:
        mlp = {"no_op": width == 0, "replace_with_linear": False, "ffn_hidden_size": width or None}
        blocks.append({"attention": dict(attention), "mlp": mlp})
    return {"block_configs": blocks, "arguments": _arguments(shape, config or {}, where)}


def _arguments(shape, config, where):
    return {
        "--num-layers": shape.layers,
        "--hidden-size": shape.dimension,
        "--ffn-hidden-size": max(shape.widths),
        "--num-attention-heads": shape.heads,
        "--group-query-attention": True,
        "--num-query-groups": shape.key_heads,
        "--kv-channels": shape.head_dimension,
        "--max-position-embeddings": shape.context,
        "--rotary-base": int(shape.rope_base) if shape.rope_base.is_integer() else shape.rope_base,
        "--norm-epsilon": shape.norm_epsilon,
        "--normalization": "RMSNorm",
        "--position-embedding-type": "rope",
        **ACTIVATIONS[shape.activation, shape.gated],
        "--untie-embeddings-and-output-weights": not shape.tied,
        # Megatron's own defaults are 0.1 and 0.1.
        "--attention-dropout": config.get("attention_dropout") or 0.0,
        "--hidden-dropout": 0.0,
        **({"--init-method-std": config["initializer_range"]} if config.get("initializer_range") else {}),
        **({"--qk-layernorm": True} if shape.qk_norm else {}),
        **_biases(shape, where),
        **_scaling(shape, where),
        **_windows(shape, where),
    }


def _biases(shape, where):
    """All linear maps have biases, or none has, or queries, keys and values alone."""
    parts = (shape.qkv_bias, shape.output_bias, shape.ffn_bias)
    if all(parts) or not any(parts):
        return {"--disable-bias-linear": not any(parts)}
    if parts == (True, False, False):
        return {"--disable-bias-linear": True, "--add-qkv-bias": True}
    raise UserError(f"{where}: attention_bias without mlp_bias, or the reverse, has no form in megatron")


def _scaling(shape, where):
    scaling = shape.rope_scaling
    if scaling is None:
        return {}
    if scaling["rope_type"] == "linear":
        if scaling["factor"] != int(scaling["factor"]):
            raise UserError(f"{where}: a linear rope factor of {scaling['factor']} has no form in megatron")
        return {"--rotary-seq-len-interpolation-factor": int(scaling["factor"])}
    stated = (scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"])
    if stated != (1, 4, 8192):  # Megatron's constants
        raise UserError(f"{where}: llama3 rope scaling other than 1, 4 and 8192 has no form in megatron; got {stated}")
    return {"--use-rope-scaling": True, "--rope-scaling-factor": scaling["factor"]}


def _windows(shape, where):
    """Megatron counts the keys before the query, so a window of n tokens is (n - 1, 0) there."""
    if shape.reach == shape.context:
        return {}
    if len(set(shape.windows)) != 1:
        raise UserError(f"{where}: windows of some layers only (layer_types) have no form in megatron")
    return {"--window-size": f"{shape.reach - 1},0"}
