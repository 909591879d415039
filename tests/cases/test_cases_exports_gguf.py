"""Cases of GGUF: tokens, flags and ids there and back, and files that say of themselves what does not fit them."""

import json
import struct
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export
from geowidth.exchange.gguf_file import open_gguf
from geowidth.exchange.gguf_read import read_gguf, read_gguf_shape
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.text.tokenizer import byte_vocabulary, spell_bytes
from geowidth.text.tokenizer_json import vocabulary_from_files

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
BYTES = spell_bytes(range(256))
BOS, EOS, SAID, EOT = 256, 257, 258, 259
TOKENS = [*BYTES, "<s>", "</s>", "<said>", "<|eot|>"]
TYPES = [1] * 256 + [3, 3, 4, 3]
FACTS = {"context_length": 32, "embedding_length": 32, "block_count": 1, "feed_forward_length": 24}
FACTS |= {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5}


def add(writer, key, value):
    """A field of the type that its Python value has; a numpy scalar keeps its own width."""
    kinds = {bool: "bool", str: "string", int: "uint32", float: "float32", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def gguf_file(path, fields=(), architecture="llama", vocabulary=260, tokens=True, tensors=()):
    """A tiny random Llama; fields and tensors of None are left out."""
    writer = gguf.GGUFWriter(str(path), architecture)
    stated = {f"{architecture}.{name}": value for name, value in FACTS.items()}
    stated |= {f"{architecture}.vocab_size": vocabulary}
    if tokens:
        stated |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.token_type": TYPES}
        stated |= {"tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.pre": "gpt-2"}
    for key, value in (stated | dict(fields)).items():
        if value is not None:
            add(writer, key, value)
    shapes = {"token_embd": (vocabulary, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {"blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32)}
    shapes |= {"blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (24, 32), "blk.0.ffn_up": (24, 32)}
    shapes |= {"blk.0.ffn_down": (32, 24)}
    generator = np.random.default_rng(0)
    for name, shape in ({f"{name}.weight": shape for name, shape in shapes.items()} | dict(tensors)).items():
        if shape is not None:
            writer.add_tensor(name, generator.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_of(files):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"])


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "gpt-2", "smollm", "qwen2", "default", None])
@pytest.mark.parametrize("flag", [None, True, False])
def test_N12_begin_token_by_the_kind_of_tokenizer(tmp_path, pre, flag):
    """llama.cpp's loader sets add_bos for llama3, llama-v3 and llama-bpe before it looks for the key."""
    fields = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": flag, "tokenizer.ggml.bos_token_id": BOS}
    fields |= {"tokenizer.ggml.merges": ["Ġ Ġ"]}
    files = read_gguf(gguf_file(tmp_path / "m.gguf", fields)).files
    begun = str(pre).startswith("llama") if flag is None else flag
    assert tokenizer_of(files).encode("ab").ids == [BOS] * begun + [97, 98]


def test_N12_end_token_where_the_file_asks_for_it(tmp_path):
    fields = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": BOS}
    fields |= {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": EOS}
    files = read_gguf(gguf_file(tmp_path / "m.gguf", fields)).files
    assert tokenizer_of(files).encode("ab").ids == [BOS, 97, 98, EOS]
    assert tokenizer_of(files).encode("a", "b").ids == [BOS, 97, EOS, BOS, 98, EOS]
    with pytest.raises(UserError, match="texts get a eos token, but"):
        read_gguf(gguf_file(tmp_path / "n.gguf", fields | {"tokenizer.ggml.eos_token_id": None}))


def test_pre_tokenizer_of_a_file_that_names_none(tmp_path):
    """Not GPT-2's: punctuation stands alone there, and digits come in threes (llama.cpp's four default patterns)."""
    tokens = [*BYTES, "Ġ.", "11", "111", "1111"]
    fields = {"tokenizer.ggml.pre": None, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 260}
    fields |= {"tokenizer.ggml.merges": ["Ġ .", "1 1", "11 1", "11 11"]}
    default = tokenizer_of(read_gguf(gguf_file(tmp_path / "d.gguf", fields)).files)
    gpt2 = tokenizer_of(read_gguf(gguf_file(tmp_path / "g.gguf", fields | {"tokenizer.ggml.pre": "gpt-2"})).files)
    assert gpt2.encode("a . 1111").tokens[1] == "Ġ." and default.encode("a . 1111").tokens[1:3] == ["Ġ", "."]
    assert gpt2.encode("1111").tokens == ["1111"] and default.encode("1111").tokens == ["111", "1"]


def test_N10_ids_and_kinds_of_tokens_there_and_back(tmp_path):
    """GGUF to hf to GGUF: types, flags, ids, templates; several end tokens; the table filled up with unused tokens."""
    fields = {
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.eot_token_id": EOT,
    }
    fields |= {"tokenizer.ggml.padding_token_id": 5, "tokenizer.ggml.unknown_token_id": 6}
    fields |= {"tokenizer.ggml.fim_pre_token_id": 8, "tokenizer.ggml.add_bos_token": True}
    fields |= {"tokenizer.chat_template": "{{ x }}", "tokenizer.chat_template.tool": "{{ y }}"}
    path = gguf_file(tmp_path / "m.gguf", fields, vocabulary=263)
    checkpoint = read_gguf(path)
    assert checkpoint.config["eos_token_id"] == [EOS, EOT] and checkpoint.config["bos_token_id"] == BOS
    assert checkpoint.config["pad_token_id"] == 5 and checkpoint.config["fim_pre_token_id"] == 8
    added = {t["id"]: t["special"] for t in json.loads(checkpoint.files["tokenizer.json"])["added_tokens"]}
    assert added == {BOS: True, EOS: True, EOT: True, SAID: False}
    assert main(["export", str(path), "--format", "hf-padded", "--out", str(tmp_path / "hf")]) == 0
    assert main(["export", str(tmp_path / "hf"), "--format", "gguf", "--out", str(tmp_path / "back")]) == 0
    back = open_gguf(tmp_path / "back" / "model.gguf").fields
    for key, value in fields.items():
        assert back[key] == value, key
    assert back["tokenizer.ggml.token_type"].tolist() == [*TYPES, 5, 5, 5]
    assert back["tokenizer.ggml.tokens"][260:] == ["[PAD260]", "[PAD261]", "[PAD262]"]
    assert back["tokenizer.ggml.add_eos_token"] is False and "tokenizer.ggml.eom_token_id" not in back


def written_gguf(tmp_path, config=None, generation=None, change=None, name="out", tokenizer_config=None):
    """Fields of the GGUF of a model of 262 ids whose tokenizer.json `change` may edit."""
    model = TaperedTransformer(ModelConfig(262, 1, 32, 4, (24,), 16), seed=0)
    value = json.loads(byte_vocabulary().files()["tokenizer.json"])
    extra = ["<s>", "</s>", "<said>"]
    value["added_tokens"] = [{"id": 256 + i, "content": text, "special": i < 2} for i, text in enumerate(extra)]
    if change:
        change(value)
    files = {"tokenizer.json": json.dumps(value), "tokenizer_config.json": json.dumps(tokenizer_config or {})}
    files |= {} if generation is None else {"generation_config.json": json.dumps(generation)}
    plain = checkpoint_from(model, files)
    checkpoint = checkpoint_from(model, files, source={**plain.shape.config(), **(config or {})})
    export(checkpoint, "gguf", tmp_path / name)
    return open_gguf(tmp_path / name / "model.gguf").fields


def template(begin, end):
    """A post-processor that puts these tokens around a text."""
    around = {"<s>": 256, "</s>": 257}
    single = [{"SpecialToken": {"id": t, "type_id": 0}} for t in begin] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": t, "type_id": 0}} for t in end]
    tokens = {t: {"id": t, "ids": [around[t]], "tokens": [t]} for t in around}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": tokens}


def test_N10_gguf_takes_ids_from_config_where_the_tokenizer_has_none(tmp_path):
    config = {"bos_token_id": 3, "eos_token_id": [7, 9], "pad_token_id": None}
    found = written_gguf(tmp_path, config, {"eos_token_id": [9, 11], "pad_token_id": 0})
    names = {"bos": 3, "eos": 7, "eot": 9, "eom": 11, "padding": 0}
    assert {role: found[f"tokenizer.ggml.{role}_token_id"] for role in names} == names
    found = written_gguf(
        tmp_path, {"eos_token_id": 7, "pad_token_id": -1}, name="b", tokenizer_config={"eos_token": "</s>"}
    )
    assert found["tokenizer.ggml.eos_token_id"] == 257 and found["tokenizer.ggml.eot_token_id"] == 7
    assert "tokenizer.ggml.padding_token_id" not in found and "tokenizer.ggml.bos_token_id" not in found
    assert json.loads((tmp_path / "b" / "source_config.json").read_text())["pad_token_id"] == -1
    for config, word in (
        ({"eos_token_id": 262}, "eos_token_id is 262"),
        ({"eos_token_id": [1, 2, 3, 4]}, "4 end tokens"),
    ):
        with pytest.raises(UserError, match=word):
            written_gguf(tmp_path, config, name="no")


@pytest.mark.parametrize(
    "begin, end, stated, flags",
    [
        ([], [], {}, (False, False)),
        (["<s>"], [], {}, (True, False)),
        ([], ["</s>"], {}, (False, True)),
        (["<s>"], ["</s>"], {}, (True, True)),
        (["<s>"], [], {"add_bos_token": False}, (False, False)),
        ([], [], {"add_bos_token": True, "add_eos_token": True}, (True, True)),
    ],
)
def test_N12_flags_are_written_by_what_the_tokenizer_does(tmp_path, begin, end, stated, flags):
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    change = lambda value: value.update(post_processor=template(begin, end))  # noqa: E731
    found = written_gguf(tmp_path, change=change, tokenizer_config=names | stated)
    assert (found["tokenizer.ggml.add_bos_token"], found["tokenizer.ggml.add_eos_token"]) == flags
    assert found["tokenizer.ggml.token_type"].tolist() == [1] * 256 + [3, 3, 4, 5, 5, 5]


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda v: v.update(normalizer={"type": "Lowercase"}), "normalizer"),
        (lambda v: v.update(normalizer={"type": "NFC"}), "normalizer"),
        (lambda v: v["added_tokens"][0].update(lstrip=True), "lstrip"),
        (lambda v: v["added_tokens"][2].update(single_word=True), "single_word"),
        (lambda v: v["model"].update(byte_fallback=True), "byte_fallback"),
        (lambda v: v["model"].update(dropout=0.1), "dropout"),
        (lambda v: v["model"].update(ignore_merges=True), "ignore_merges"),
        (lambda v: v["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (lambda v: v["model"].update(type="Unigram"), "only byte-level BPE"),
        (lambda v: v["model"].update(type="WordPiece"), "only byte-level BPE"),
        (lambda v: v.update(decoder={"type": "Metaspace"}), "decoder"),
        (lambda v: v.update(post_processor=template(["</s>", "<s>"], [])), "puts tokens"),
        (lambda v: v["added_tokens"][0].update(id=70), "give each an id"),
        (lambda v: v["added_tokens"][0].update(id=262), "has 263 ids; the model has 262"),
        (lambda v: v["added_tokens"][0].update(id=2**40), "give each an id"),
        (lambda v: v.pop("model"), "out of order"),
    ],
)
def test_what_gguf_has_no_place_for_is_refused_by_name(tmp_path, change, word):
    with pytest.raises(UserError, match=word) as caught:
        written_gguf(tmp_path, change=change)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_chat_template_of_its_own_file_comes_first(tmp_path):
    model = TaperedTransformer(ModelConfig(256, 1, 32, 4, (24,), 16), seed=0)
    files = byte_vocabulary().files()
    config = json.loads(files["tokenizer_config.json"])
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    for name, more, wanted in (
        ("one", {"tokenizer_config.json": json.dumps(config | {"chat_template": "a"})}, {"": "a"}),
        (
            "many",
            {"tokenizer_config.json": json.dumps(config | {"chat_template": several})},
            {"": "a", ".tool_use": "b"},
        ),
        ("file", {"chat_template.jinja": "c", "additional_chat_templates/rag.jinja": "d"}, {"": "c", ".rag": "d"}),
    ):
        export(checkpoint_from(model, {**files, **more}), "gguf", tmp_path / name)
        back = open_gguf(tmp_path / name / "model.gguf").fields
        found = {key: value for key, value in back.items() if key.startswith("tokenizer.chat_template")}
        found.pop("tokenizer.chat_templates", None)
        assert {key.removeprefix("tokenizer.chat_template"): value for key, value in found.items()} == wanted
        again = vocabulary_from_files(read_gguf(tmp_path / name / "model.gguf").files)
        assert again.templates == {key.removeprefix(".") or "default": text for key, text in wanted.items()}


@pytest.mark.parametrize(
    "fields, word",
    [
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"llama.rope.dimension_count": 32}, "rope.dimension_count is 32"),
        ({"llama.attention.key_length": 16, "llama.attention.value_length": 8}, "attention.value_length is 8"),
        ({"llama.attention.sliding_window": 7}, "attention.sliding_window is 7"),
        ({"llama.attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"llama.logit_scale": 2.0}, "logit_scale is 2.0"),
        ({"llama.attention.causal": False}, "attention.causal is False"),
        ({"llama.expert_count": 8}, "expert_count is 8"),
        ({"llama.something_new": 1}, "something_new is 1"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling is 'yarn'"),
        ({"llama.rope.freq_base": float("nan")}, "rope.freq_base is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon is 0.0"),
        ({"llama.block_count": 2**31}, "block_count is 2147483648; the file holds 11 tensors"),
        ({"llama.block_count": 2}, "tensor model.layers.1.*is missing"),
        ({"llama.block_count": [1]}, "block_count is a list"),
        ({"llama.feed_forward_length": 2**31}, "has shape .24, 32.; expected .2147483648"),
        ({"llama.feed_forward_length": [24, 24]}, "has 2 entries for 1 layers"),
        ({"llama.feed_forward_length": ["a"]}, "is 'a'"),
        ({"llama.attention.head_count": 0}, "attention.head_count is 0"),
        ({"llama.embedding_length": "x"}, "embedding_length is 'x'"),
        ({"general.architecture": None, "llama.vocab_size": 2**31}, "has shape .260, 32."),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'"),
        ({"tokenizer.ggml.bos_token_id": 260}, "bos_token_id is 260"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"tokenizer.ggml.token_type": [1] * 259}, "token_type must give"),
        ({"tokenizer.ggml.token_type": [1] * 259 + [6]}, "token 259 has type 6"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], "a"]}, "token 'a' comes twice"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens must be a list of texts"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges must be a list of pairs"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is 1"),
        ({"tokenizer.ggml.add_sep_token": True}, "add_sep_token is set"),
        ({"tokenizer.chat_template": 5}, "chat_template is not a text"),
    ],
)
def test_N27_fields_without_a_place_are_refused_by_name(tmp_path, fields, word):
    path = gguf_file(tmp_path / "m.gguf", {k: v for k, v in fields.items() if v is not None})
    with pytest.raises(UserError, match=word) as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)


def test_fields_that_change_nothing_are_read(tmp_path):
    fields = {"llama.rope.dimension_count": 16, "llama.attention.key_length": 16, "llama.attention.causal": True}
    fields |= {"llama.expert_count": 0, "llama.attention.sliding_window": 32, "llama.rope.scaling.type": "none"}
    plain = read_gguf(gguf_file(tmp_path / "m.gguf"))
    same = read_gguf(gguf_file(tmp_path / "n.gguf", fields))
    assert same.shape == plain.shape and read_gguf_shape(tmp_path / "n.gguf") == plain.shape
    biased = read_gguf(gguf_file(tmp_path / "b.gguf", tensors={"blk.0.attn_q.bias": (32,), "blk.0.ffn_up.bias": (24,)}))
    assert biased.shape.qkv_bias and biased.shape.ffn_bias
    assert not biased.tensors["model.layers.0.self_attn.o_proj.bias"].any()
    assert biased.tensors["model.layers.0.self_attn.q_proj.bias"].any()
    empty = {f"blk.0.ffn_{name}.weight": None for name in ("gate", "up", "down", "norm")}
    assert read_gguf(gguf_file(tmp_path / "e.gguf", {"llama.feed_forward_length": 0}, tensors=empty)).shape.widths == (
        0,
    )


# ------------------------------------------------------------------------------------------- hostile files


def text(value):
    return struct.pack("<Q", len(value)) + value


def header(tensors=0, fields=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def array(kind, count, data=b""):
    return struct.pack("<IIQ", 9, kind, count) + data


def info(name, shape, kind=0, offset=0):
    packed = text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    return packed + struct.pack("<IQ", kind, offset)


NESTED = b"".join(array(9, 1) for _ in range(100_000))
ALIGNED = text(b"general.alignment") + struct.pack("<I", 4)
HOSTILE = {
    "nothing": b"",
    "magic alone": b"GGUF",
    "another magic": b"GGML" + bytes(40),
    "version 1": header(version=1),
    "version 2**31": header(version=2**31),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "2**60 tensors": header(tensors=2**60),
    "2**63 fields": header(fields=2**63),
    "2**40 numbers": header(fields=1) + text(b"a") + array(4, 2**40),
    "2**40 bytes": header(fields=1) + text(b"a") + array(0, 2**40, bytes(1000)),
    "2**40 texts": header(fields=1) + text(b"a") + array(8, 2**40, bytes(1000)),
    "2**64 - 1 texts": header(fields=1) + text(b"a") + array(8, 2**64 - 1, bytes(1000)),
    "a text of 2**62": header(fields=1) + struct.pack("<Q", 2**62) + bytes(100),
    "a text that is not UTF-8": header(fields=1) + text(b"\xff\xfe") + struct.pack("<IB", 0, 1),
    "arrays of arrays": header(fields=1) + text(b"a") + NESTED,
    "unknown type": header(fields=1) + text(b"a") + struct.pack("<IQ", 99, 0),
    "a field twice": header(fields=2) + 2 * (text(b"a") + struct.pack("<IB", 0, 1)),
    "0 dimensions": header(tensors=1) + info(b"t", ()) + bytes(64),
    "2**31 dimensions": header(tensors=1) + text(b"t") + struct.pack("<I", 2**31) + bytes(64),
    "2**40 elements": header(tensors=1) + info(b"t", (2**40,)) + bytes(64),
    "elements beyond 64 bits": header(tensors=1) + info(b"t", (2**63, 2**63)) + bytes(64),
    "beyond the end": header(tensors=1) + info(b"t", (4,), offset=2**40) + bytes(64),
    "offset unaligned": header(tensors=1) + info(b"t", (4,), offset=4) + bytes(128),
    "offset that wraps": header(tensors=1) + info(b"t", (4,), offset=2**64 - 32) + bytes(128),
    "overlapping": header(tensors=2) + info(b"t", (8,)) + info(b"u", (8,)) + bytes(128),
    "a tensor twice": header(tensors=2) + info(b"t", (8,)) + info(b"t", (8,), offset=32) + bytes(128),
    "unknown kind": header(tensors=1) + info(b"t", (8,), kind=250) + bytes(128),
    "half a block": header(tensors=1) + info(b"t", (8,), kind=2) + bytes(128),
    "alignment 0": header(fields=1) + ALIGNED + struct.pack("<I", 0),
    "alignment 48": header(fields=1) + ALIGNED + struct.pack("<I", 48),
    "alignment as text": header(fields=1) + text(b"general.alignment") + struct.pack("<I", 8) + text(b"32"),
    "no architecture": header(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_gguf_is_refused_in_one_line(tmp_path, capsys, name):
    """2^40 elements in a file of a hundred bytes are never looked for: what is announced is held against the file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[name])
    for read in (read_gguf, read_gguf_shape):
        with pytest.raises(UserError, match="m.gguf") as caught:
            read(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert main(["export", str(path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_gguf_cut_or_changed_anywhere_never_crashes(tmp_path):
    """Every prefix and every changed byte of the header: read, or refused in one line."""
    data = gguf_file(tmp_path / "m.gguf", tokens=False, vocabulary=3).read_bytes()
    size = len(data) - 4 * (3 * 32 + 4 * 32 + 2 * 16 * 32 + 2 * 32 * 32 + 3 * 24 * 32)
    generator = np.random.default_rng(0)
    path = tmp_path / "x.gguf"
    changed = [data[:cut] for cut in range(0, len(data), 97)]
    for _ in range(400):
        copy = bytearray(data)
        copy[generator.integers(size)] = generator.integers(256)
        changed.append(bytes(copy))
    refused = 0
    for content in changed:
        path.write_bytes(content)
        try:
            read_gguf(path)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > len(changed) // 2


def test_quantised_tensors_as_the_package_reads_them(tmp_path):
    """Walked by us or by the gguf package's own reader: the same values, for every kind that can be written."""
    values = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    kinds = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
    for name in kinds:
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(tmp_path / "m.gguf")
    theirs = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file.path).tensors}
    assert [entry.name for entry in file.entries] == list(kinds)
    for entry in file.entries:
        assert torch.equal(
            torch.from_numpy(file.tensor(entry)), torch.from_numpy(theirs[entry.name].astype(np.float32))
        )


@pytest.mark.parametrize("role", ["bos", "eos", "pad"])
@pytest.mark.parametrize("value", ["x", True, 1.5, [1, "x"], {}])
def test_N10_ids_that_are_no_numbers_are_refused_by_name(tmp_path, role, value):
    with pytest.raises(UserError, match=f"{role}_token_id is"):
        written_gguf(tmp_path, {f"{role}_token_id": value})


LLAMA_CPP = """
import json, sys
import xllamacpp as llama
counts = []
for path in json.loads(sys.argv[1]):
    parameters = llama.CommonParams()
    parameters.model.path = path
    parameters.n_predict, parameters.n_ctx, parameters.n_parallel, parameters.warmup = 1, 256, 1, False
    parameters.cpuparams.n_threads = 1
    question = {"prompt": sys.argv[2], "n_predict": 1, "temperature": 0.0}
    counts.append(llama.Server(parameters).handle_completions(question)["usage"]["prompt_tokens"])
print("COUNTS", json.dumps(counts))
"""
MERGES = [
    "Ġ .",
    "1 1",
    "11 1",
    "11 11",
    "Ġ a",
    "Ġa b",
    "a b",
    ". .",
    ".. .",
    "' s",
    "Ġ Ġ",
    "ĠĠ Ġ",
    "1 2",
    "12 3",
    "$ a",
]


def test_llama_cpp_cuts_text_as_the_tokenizer_that_is_read(tmp_path):
    """As many tokens by llama.cpp as by tokenizer.json, for every way of cutting text and both begin-token defaults."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp (llama.cpp) is not installed; `make test` installs it")
    tokens = list(dict.fromkeys([*BYTES, *(merge.replace(" ", "") for merge in MERGES), "<s>"]))
    words = "ab a . 11112 1234 ab's it's...  x$a<=^~| é 1é ...a1 12345   z\n\n 1"
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3]}
    fields |= {"tokenizer.ggml.merges": MERGES, "tokenizer.ggml.bos_token_id": len(tokens) - 1}
    fields |= {"tokenizer.ggml.eos_token_id": 6, "llama.rope.dimension_count": 16, "llama.context_length": 256}
    paths, ours = [], []
    for pre in (None, "default", "gpt-2", "smollm", "qwen2", "llama-bpe"):
        paths.append(gguf_file(tmp_path / f"{pre}.gguf", fields | {"tokenizer.ggml.pre": pre}, vocabulary=len(tokens)))
        ours.append(len(tokenizer_of(read_gguf(paths[-1]).files).encode(words).ids))
    job = [sys.executable, "-c", LLAMA_CPP, json.dumps([str(path) for path in paths]), words]
    done = subprocess.run(job, capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("COUNTS"))
    assert json.loads(line.removeprefix("COUNTS ")) == ours
