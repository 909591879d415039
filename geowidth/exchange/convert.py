"""Our TaperedTransformer from a Llama-family checkpoint, and back: a renaming, so that weights keep their bits.

Both rotate the two halves of a head; ours stacks queries, keys and values in one matrix and stores the FFN's down
projection transposed, [width, d].
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from geowidth.errors import UserError
from geowidth.exchange.checkpoint import Checkpoint
from geowidth.exchange.shape import LlamaShape
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.ops.activation.functions import activation_function
from geowidth.text.tokenizer import byte_vocabulary

PLAIN = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.out": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate": "mlp.gate_proj.weight",
    "ffn.up": "mlp.up_proj.weight",
}
OUTER = {"embedding": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head": "lm_head.weight"}
QKV = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")


def foreign_parts(shape: LlamaShape) -> list[str]:
    """Names of what a LlamaShape has and our model has no place for."""
    return [name for name in ("qkv_bias", "output_bias", "ffn_bias", "qk_norm") if getattr(shape, name)]


def model_from(checkpoint: Checkpoint) -> TaperedTransformer:
    """The TaperedTransformer with a Checkpoint's weights, in its dtype and in evaluation mode.

    Raises UserError for what our model has no place for: biases and norms on queries and keys.
    """
    shape = checkpoint.shape
    for name in foreign_parts(shape):
        raise UserError(
            f"{checkpoint.where}: a {shape.family} model with {name}; our model has none, take one of the llama or "
            "mistral family"
        )
    config = ModelConfig(
        vocabulary=shape.vocabulary,
        layers=shape.layers,
        dimension=shape.dimension,
        heads=shape.heads,
        widths=shape.widths,
        context=shape.reach,
        rope_base=shape.rope_base,
        norm_epsilon=shape.norm_epsilon,
        key_heads=None if shape.key_heads == shape.heads else shape.key_heads,
        head_size=None if shape.head_dimension * shape.heads == shape.dimension else shape.head_dimension,
        tied=shape.tied,
        rope_scaling=shape.rope_scaling,
        activation=shape.activation,
        gated=shape.gated,
        layer_heads=shape.layer_heads,
    )
    found = checkpoint.tensors
    state = {ours: found[theirs] for ours, theirs in OUTER.items() if theirs in found}
    for layer in range(shape.layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        state |= {here + ours: found[there + theirs] for ours, theirs in PLAIN.items() if there + theirs in found}
        state[here + "attention.qkv"] = torch.cat([found[there + name] for name in QKV])
        state[here + "ffn.down"] = found[there + "mlp.down_proj.weight"].T.contiguous()
    model = TaperedTransformer(config, seed=None).to(checkpoint.dtype)
    model.load_state_dict(state)
    return model.eval()


def checkpoint_from(
    model: TaperedTransformer,
    files: Mapping[str, str | bytes] | None = None,
    where: str = "the model",
    source: dict[str, Any] | None = None,
) -> Checkpoint:
    """The Checkpoint of a TaperedTransformer: a llama with one FFN width per layer.

    files    {name: text, or bytes} of its tokenizer's files; a model of 256 token ids without any gets the tokenizer of
             bytes
    source   the config.json it was once made from, whose fields and family it then has; it must fit the model
    """
    config = model.config
    config.refuse_repeats(f"{where}: an export")
    shape = _shape_of(config) if source is None else _shape_from(source, config, where)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    tensors = {theirs: state[ours] for ours, theirs in OUTER.items() if ours in state}
    for layer in range(config.layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        tensors |= {there + theirs: state[here + ours] for ours, theirs in PLAIN.items() if here + ours in state}
        queries, keys = config.heads_by_layer[layer], config.key_heads_by_layer[layer]
        rows = [heads * config.head_dimension for heads in (queries, keys, keys)]
        parts = state[here + "attention.qkv"].split(rows)
        tensors |= {there + name: part.contiguous() for name, part in zip(QKV, parts, strict=True)}
        tensors[there + "mlp.down_proj.weight"] = state[here + "ffn.down"].T.contiguous()
    if not files and config.vocabulary == 256:
        files = byte_vocabulary().files()
    return Checkpoint(shape, tensors, dict(files or {}), where, source)


def _shape_from(source, config, where):
    """The LlamaShape of the config.json a model was made from, which must be the model's own but for what it lacks."""
    shape = LlamaShape.from_config(source, f"{where}: its source's config", config.widths)
    own = _shape_of(config)
    lacking = {"family", "context", "windows", "qkv_bias", "output_bias", "ffn_bias", "qk_norm"}
    for name in {field.name for field in fields(LlamaShape)} - lacking:
        if getattr(shape, name) != getattr(own, name):
            raise UserError(
                f"{where}: its source's config states {name} {getattr(shape, name)}, the model {getattr(own, name)}; "
                "remove that file"
            )
    if shape.reach != own.context:
        raise UserError(f"{where}: its source's config allows {shape.reach} tokens, the model {own.context}; remove it")
    return shape


def _shape_of(config):
    return LlamaShape(
        family="llama",
        vocabulary=config.vocabulary,
        dimension=config.dimension,
        heads=config.heads,
        key_heads=config.shared_heads,
        head_dimension=config.head_dimension,
        windows=(None,) * config.layers,
        widths=config.widths,
        context=config.context,
        rope_base=config.rope_base,
        rope_scaling=config.rope_scaling,
        norm_epsilon=config.norm_epsilon,
        tied=config.tied,
        activation=activation_function(config.activation, config.is_gated).name,
        gated=config.is_gated,
        layer_heads=config.layer_heads,
    )
