"""Write GGUF of architecture `deci`, the one Llama-like architecture of llama.cpp with an FFN width per layer."""

import os
from pathlib import Path

import numpy as np
import torch

from geowidth.errors import UserError
from geowidth.exchange.carried import refuse_unlike, refuse_windows
from geowidth.exchange.checkpoint import Checkpoint
from geowidth.exchange.gguf_read import BLOCK_NAMES, OUTER_NAMES, halves_to_interleaved
from geowidth.exchange.gguf_vocabulary import LONG, special_ids, write_vocabulary
from geowidth.files import PathLike
from geowidth.models.rotary import rope_frequencies
from geowidth.text.tokenizer_json import vocabulary_from_files

ARCHITECTURE = "deci"


def write_gguf(checkpoint: Checkpoint, path: PathLike, name: str = "tapered") -> list[str]:
    """Write a Checkpoint to a GGUF file, in its own dtype (norms and biases in float32), aside and then renamed.

    Returns sentences for the user. Raises UserError for what `deci` has no place for: norms on queries and keys,
    attention windows, tokenizers other than byte-level BPE.
    """
    try:
        import gguf
    except ImportError as error:
        raise UserError("writing GGUF needs the package gguf; install it with pip install 'geowidth[gguf]'") from error
    shape, where = checkpoint.shape, checkpoint.where
    if shape.qk_norm:
        raise UserError(f"{where}: {shape.family} has norms on queries and keys, which have no form in GGUF's deci")
    refuse_windows(checkpoint, "GGUF's deci")
    refuse_unlike(shape, where, "GGUF's deci", (("silu", True),), heads=True)
    vocabulary = vocabulary_from_files(checkpoint.files, where)
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    writer = gguf.GGUFWriter(str(aside), ARCHITECTURE)
    try:
        _write_facts(writer, checkpoint, name, gguf)
        _write_tokenizer(writer, checkpoint, vocabulary)
        for full_name, tensor in checkpoint.tensors.items():
            _write_tensor(writer, full_name, tensor, shape, gguf)
        if shape.rope_scaling is not None and shape.rope_scaling["rope_type"] == "llama3":
            writer.add_tensor("rope_freqs.weight", _rope_factors(shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        words = _words(writer, vocabulary)
        writer.close()
        os.replace(aside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name a folder that can be written") from error
    finally:
        aside.unlink(missing_ok=True)
    return words


def _write_facts(writer, checkpoint, name, gguf):
    shape = checkpoint.shape
    writer.add_name(name)
    writer.add_file_type(_file_type(checkpoint.dtype, gguf))
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.dimension)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length([int(width) for width in shape.widths])
    writer.add_head_count(list(shape.heads_by_layer))
    writer.add_head_count_kv(list(shape.key_heads_by_layer))
    writer.add_key_length(shape.head_dimension)
    writer.add_value_length(shape.head_dimension)
    writer.add_rope_dimension_count(shape.head_dimension)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    if shape.rope_scaling is not None and shape.rope_scaling["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.rope_scaling["factor"])


def _write_tokenizer(writer, checkpoint, vocabulary):
    """The vocabulary, or that there is none, and the ids of its roles."""
    count = checkpoint.shape.vocabulary
    if vocabulary is None:
        writer.add_tokenizer_model("no_vocab")
    elif len(vocabulary.tokens) > count:
        raise UserError(f"{checkpoint.where}: its tokenizer has {len(vocabulary.tokens)} ids; the model has {count}")
    else:
        write_vocabulary(writer, vocabulary, count)
    for role, i in special_ids(checkpoint, vocabulary).items():
        writer.add_uint32(f"tokenizer.ggml.{LONG.get(role, role)}_token_id", i)


def _words(writer, vocabulary):
    """What the user should know of the tokenizer in the file."""
    if vocabulary is None:
        return []
    words = []
    if vocabulary.composed:
        words.append("llama.cpp does not compose text as this tokenizer does; give it text in normal form C (NFC)")
    if "tokenizer.ggml.eos_token_id" not in writer.kv_data[0]:
        words.append("this model has no end token; llama.cpp then stops at token 11, so give --ignore-eos")
    return words


def _write_tensor(writer, full_name, tensor, shape, gguf):
    name = _gguf_name(full_name)
    if ".attn_q." in name or ".attn_k." in name:
        heads = shape.heads_by_layer if ".attn_q." in name else shape.key_heads_by_layer
        tensor = halves_to_interleaved(tensor, heads[int(name.split(".")[1])])
    values = tensor.contiguous().float().numpy()
    if tensor.ndim == 1 or tensor.dtype == torch.float32:
        writer.add_tensor(name, values)
    elif tensor.dtype == torch.float16:
        writer.add_tensor(name, values.astype(np.float16))
    elif tensor.dtype == torch.bfloat16:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        raise UserError(f"tensor {full_name} is {tensor.dtype}; GGUF takes float32, float16 and bfloat16: give --dtype")


def _gguf_name(full_name):
    stem, _, kind = full_name.rpartition(".")
    outer = {theirs: ours for ours, theirs in OUTER_NAMES.items()}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    block = {theirs: ours for ours, theirs in BLOCK_NAMES.items()}
    return f"blk.{layer}.{block[inner]}.{kind}"


def _rope_factors(shape):
    """What llama.cpp divides each rotary angle by, float32 (head_dimension / 2,)."""
    plain = rope_frequencies(shape.head_dimension, shape.rope_base)
    return (plain / rope_frequencies(shape.head_dimension, shape.rope_base, shape.rope_scaling)).float().numpy()


def _file_type(dtype, gguf):
    names = {torch.float16: "MOSTLY_F16", torch.bfloat16: "MOSTLY_BF16"}
    return getattr(gguf.LlamaFileType, names.get(dtype, "ALL_F32"))
