"""Our TaperedTransformer from a Llama-family checkpoint, and back: a renaming, so that weights keep their bits.

Both rotate the two halves of a head; ours stacks queries, keys and values in one matrix and stores the FFN's down
projection transposed, [width, d].
"""

import torch

from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.exchange.checkpoint import Checkpoint
from geowidth.models.exchange.shape import LlamaShape
from geowidth.models.exchange.tokenizer import byte_vocabulary

PLAIN = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.out": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate": "mlp.gate_proj.weight",
    "ffn.up": "mlp.up_proj.weight",
}
OUTER = {"embedding": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head": "lm_head.weight"}
QKV = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")


def model_from(checkpoint):
    """The TaperedTransformer with a Checkpoint's weights, in its dtype and in evaluation mode.

    Raises UserError for what our model has no place for: biases and norms on queries and keys.
    """
    shape = checkpoint.shape
    for name in ("qkv_bias", "output_bias", "ffn_bias", "qk_norm"):
        if getattr(shape, name):
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
        context=min(shape.context, shape.window or shape.context),
        rope_base=shape.rope_base,
        norm_epsilon=shape.norm_epsilon,
        key_heads=None if shape.key_heads == shape.heads else shape.key_heads,
        head_size=None if shape.head_dimension * shape.heads == shape.dimension else shape.head_dimension,
        tied=shape.tied,
        rope_scaling=shape.rope_scaling,
    )
    found = checkpoint.tensors
    state = {ours: found[theirs] for ours, theirs in OUTER.items() if theirs in found}
    for layer in range(shape.layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        state |= {here + ours: found[there + theirs] for ours, theirs in PLAIN.items()}
        state[here + "attention.qkv"] = torch.cat([found[there + name] for name in QKV])
        state[here + "ffn.down"] = found[there + "mlp.down_proj.weight"].T.contiguous()
    model = TaperedTransformer(config, seed=None).to(checkpoint.dtype)
    model.load_state_dict(state)
    return model.eval()


def checkpoint_from(model, files=None, where="the model"):
    """The Checkpoint of a TaperedTransformer: a llama with one FFN width per layer.

    files   {name: text} of its tokenizer's files; a model of 256 token ids without any gets the tokenizer of bytes
    """
    config = model.config
    shape = LlamaShape(
        family="llama",
        vocabulary=config.vocabulary,
        dimension=config.dimension,
        heads=config.heads,
        key_heads=config.shared_heads,
        head_dimension=config.head_dimension,
        widths=config.widths,
        context=config.context,
        rope_base=config.rope_base,
        rope_scaling=config.rope_scaling,
        norm_epsilon=config.norm_epsilon,
        tied=config.tied,
    )
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    tensors = {theirs: state[ours] for ours, theirs in OUTER.items() if ours in state}
    rows = [heads * config.head_dimension for heads in (config.heads, config.shared_heads, config.shared_heads)]
    for layer in range(config.layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        tensors |= {there + theirs: state[here + ours] for ours, theirs in PLAIN.items()}
        parts = state[here + "attention.qkv"].split(rows)
        tensors |= {there + name: part.contiguous() for name, part in zip(QKV, parts, strict=True)}
        tensors[there + "mlp.down_proj.weight"] = state[here + "ffn.down"].T.contiguous()
    if not files and config.vocabulary == 256:
        files = byte_vocabulary().files()
    return Checkpoint(shape, tensors, files or {}, where)
