"""Read Llama-family GGUF files (architectures llama and deci) into a Checkpoint, quantised ones included.

llama.cpp rotates neighbouring pairs of a head's features, Hugging Face the two halves; GGUF files therefore hold the
rows of queries and keys permuted, which is undone here. Quantised blocks become float32.
"""

from pathlib import Path

import numpy as np
import torch

from geowidth.errors import UserError, choose
from geowidth.models.exchange.checkpoint import Checkpoint
from geowidth.models.exchange.shape import LlamaShape
from geowidth.models.exchange.tokenizer import CONTROL, PRE_TOKENIZERS, SAME_AS, Vocabulary

# GGUF's tensor names, without "blk.N.", and Hugging Face's, without "model.layers.N."
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read_gguf(path):
    """The Checkpoint in a GGUF file, in float32.

    Raises UserError, in one line, for a truncated file, another architecture, or a tensor that does not fit.
    """
    path = Path(path)
    gguf, reader, fields = _opened(path)
    shape = _shape(fields, {t.name for t in reader.tensors}, path)
    tensors = {}
    for tensor in reader.tensors:
        name = _hugging_face_name(tensor.name, path)
        if name is None:
            continue
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            values = interleaved_to_halves(values, shape.heads)
        elif name.endswith(("k_proj.weight", "k_proj.bias")):
            values = interleaved_to_halves(values, shape.key_heads)
        tensors[name] = values
    vocabulary = _vocabulary(fields, path)
    return Checkpoint(shape, tensors, vocabulary.files() if vocabulary else {}, str(path))


def read_gguf_shape(path):
    """The LlamaShape of a GGUF file, whose tensors are left alone."""
    path = Path(path)
    _, reader, fields = _opened(path)
    return _shape(fields, {t.name for t in reader.tensors}, path)


def _opened(path):
    """(the gguf package, its reader of the file, {name: value} of its fields)."""
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    try:
        import gguf
    except ImportError as error:
        raise UserError("reading GGUF needs the package gguf; install it with pip install 'geowidth[gguf]'") from error
    try:
        reader = gguf.GGUFReader(str(path))
        return gguf, reader, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader raises whatever its parsing of a damaged file runs into
        raise UserError(f"{path} is no whole GGUF file ({' '.join(str(error).split())})") from error


def interleaved_to_halves(rows, heads):
    """Rows of a query or key matrix (or bias) from llama.cpp's order, feature pairs side by side, to two halves."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def halves_to_interleaved(rows, heads):
    """The inverse of `interleaved_to_halves`."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _shape(fields, names, path):
    architecture = choose(f"{path}: architecture", fields.get("general.architecture"), ["llama", "deci"])

    def get(name, default=None):
        value = fields.get(f"{architecture}.{name}", default)
        if value is None:
            raise UserError(f"{path}: {architecture}.{name} is missing")
        return value

    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in ("none", "linear") or fields.get(f"{architecture}.expert_count"):
        raise UserError(f"{path}: rope scaling {scaling!r} and experts are not read; allowed: none, linear; no experts")
    if "rope_freqs.weight" in names:
        raise UserError(f"{path}: tensor rope_freqs.weight scales the rotary angles; take the safetensors instead")
    layers = get("block_count")
    widths, heads = get("feed_forward_length"), get("attention.head_count")
    key_heads = get("attention.head_count_kv", heads)
    config = {
        "model_type": "llama",
        "vocab_size": get("vocab_size", len(fields.get("tokenizer.ggml.tokens") or ())),
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": _one(heads, "attention.head_count", path),
        "num_key_value_heads": _one(key_heads, "attention.head_count_kv", path),
        "head_dim": get("attention.key_length", get("embedding_length") // _one(heads, "attention.head_count", path)),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(get("rope.freq_base", 10000.0)),
        "rope_scaling": {"rope_type": "linear", "factor": get("rope.scaling.factor")} if scaling == "linear" else None,
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
    }
    widths = list(widths) if isinstance(widths, (list, tuple)) else [widths] * layers
    if len(widths) != layers:
        raise UserError(f"{path}: feed_forward_length has {len(widths)} entries for {layers} layers")
    return LlamaShape.from_config(config, str(path), widths)


def _one(value, name, path):
    """The one value of a per-layer list: attention is the same in every layer of the models read here."""
    if not isinstance(value, (list, tuple)):
        return value
    if len(set(value)) != 1:
        raise UserError(f"{path}: {name} differs from layer to layer; models with it are not read")
    return value[0]


def _shortest(value):
    """A float32 number as the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _hugging_face_name(name, path):
    stem, _, kind = name.rpartition(".")
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{kind}"
    raise UserError(f"{path}: tensor {name} belongs to no part of a Llama-family model")


def _vocabulary(fields, path):
    def get(name, default=None):
        return fields.get(f"tokenizer.ggml.{name}", default)

    if get("model") == "no_vocab":
        return None
    if get("model") != "gpt2":
        raise UserError(f"{path}: tokenizer of model {get('model')!r}; only byte-level BPE (gpt2) is read")
    pre = SAME_AS.get(get("pre", "default"), get("pre", "default"))
    choose(f"{path}: tokenizer.ggml.pre", pre, list(PRE_TOKENIZERS))
    tokens = tuple(get("tokens"))
    known = set(tokens)
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return Vocabulary(
        tokens=tokens,
        merges=tuple(merge for merge in get("merges", ()) if merge.replace(" ", "", 1) in known),
        special=frozenset(i for i, kind in enumerate(get("token_type", ())) if kind == CONTROL),
        pre=pre,
        names={short: get(f"{name}_token_id") for short, name in ids.items() if get(f"{name}_token_id") is not None},
        template=fields.get("tokenizer.chat_template"),
        add_bos=bool(get("add_bos_token", False)),
    )
