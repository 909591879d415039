"""The tokenizer in GGUF's fields, read into a Vocabulary and written from one, with the ids that a config states."""

import numpy as np

from geowidth.errors import UserError, choose
from geowidth.text.tokenizer import BEGUN, BYTE, NORMAL, PRE_TOKENIZERS, ROLES, SAME_AS, UNUSED, Vocabulary, spell_bytes
from geowidth.text.tokenizer_json import padded_tokens, parsed

# GGUF's words for the roles of tokens; for bos, eos and mask they are ours.
LONG = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
ENDS = ("eos", "eot", "eom")  # a model that ends with several tokens has these places for them
# Roles that Hugging Face has no field for; they stay in config.json under GGUF's names.
EXTRA = tuple(f"fim_{part}" for part in ("pre", "suf", "mid", "pad", "rep", "sep")) + ("prefix", "suffix", "middle")
READ = {"model", "pre", "tokens", "token_type", "merges", "scores", "add_bos_token", "add_eos_token"}
READ |= {f"{LONG.get(role, role)}_token_id" for role in (*ROLES, *ENDS, *EXTRA)}
UNREAD = ("add_sep_token", "add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap")


def vocabulary_from_gguf(fields, path):
    """The Vocabulary in a GGUF file's fields, or None in a file without one. Raises UserError for other kinds."""

    def get(name, default=None):
        return fields.get(f"tokenizer.ggml.{name}", default)

    if get("model") in ("no_vocab", "none"):
        return None
    choose(f"{path}: tokenizer.ggml.model", get("model"), ["gpt2", "no_vocab"])
    for name in UNREAD:
        if np.any(get(name, False)):
            raise UserError(f"{path}: tokenizer.ggml.{name} is set, which has no place in a byte-level BPE tokenizer")
    pre = get("pre", "default")
    pre = choose(f"{path}: tokenizer.ggml.pre", SAME_AS.get(pre, pre) if isinstance(pre, str) else pre, PRE_TOKENIZERS)
    tokens, kinds = _tokens(get("tokens"), get("token_type"), path)
    known = set(tokens)
    names = {role: i for role in ROLES if (i := _id(fields, role, len(tokens), path)) is not None}
    flags = {role: _flag(fields, f"add_{role}_token", role == "bos" and pre in BEGUN, path) for role in ("bos", "eos")}
    for role, flag in flags.items():
        if flag and role not in names:
            raise UserError(f"{path}: texts get a {role} token, but tokenizer.ggml.{role}_token_id is missing")
    merges = tuple(merge for merge in _texts(get("merges", []), "merges", path) if merge.replace(" ", "", 1) in known)
    templates = _templates(fields, path)
    return Vocabulary(tokens, merges, kinds, pre, names, templates, flags["bos"], flags["eos"])


def vocabulary_ids(fields, vocabulary, path):
    """The fields of config.json that state ids: begin, ends, padding, and roles of GGUF's own. Null: it has none."""
    for key in fields:
        name = key.removeprefix("tokenizer.ggml.")
        if name.endswith("_token_id") and name != key and name not in READ:
            raise UserError(f"{path}: {key} names a role that is not read")
    found = {role: _id(fields, role, vocabulary, path) for role in (*ROLES, *ENDS[1:], *EXTRA)}
    ends = list(dict.fromkeys(found[role] for role in ENDS if found[role] is not None))
    ids = {"bos_token_id": found["bos"], "eos_token_id": ends if len(ends) > 1 else (ends or [None])[0]}
    ids["pad_token_id"] = found["pad"]
    return ids | {f"{role}_token_id": found[role] for role in EXTRA if found[role] is not None}


def _id(fields, role, count, path):
    """The id of a role, or None."""
    key = f"tokenizer.ggml.{LONG.get(role, role)}_token_id"
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise UserError(f"{path}: {key} is {value!r:.60}; allowed: the ids of its {count} tokens")
    return value


def _flag(fields, name, default, path):
    value = fields.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise UserError(f"{path}: tokenizer.ggml.{name} is {value!r:.60}; allowed: true, false")
    return value


def _texts(value, name, path):
    if not isinstance(value, list) or (name == "merges" and any(text.count(" ") != 1 for text in value)):
        raise UserError(f"{path}: tokenizer.ggml.{name} must be a list of {'pairs' if name == 'merges' else 'texts'}")
    return value


def _tokens(tokens, types, path):
    """(tokens, {id: kind} of those that are not normal), without the unused ones that only fill up the end."""
    tokens = _texts(tokens, "tokens", path)
    types = np.full(len(tokens), NORMAL) if types is None else types
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(tokens):
        raise UserError(f"{path}: tokenizer.ggml.token_type must give a number for each of {len(tokens)} tokens")
    kinds = {i: int(types[i]) for i in np.flatnonzero(types != NORMAL).tolist()}
    odd = next((i for i, kind in kinds.items() if not NORMAL <= kind < BYTE), None)
    if odd is not None:
        raise UserError(f"{path}: token {odd} has type {kinds[odd]}, which no token of a byte-level BPE tokenizer has")
    count = len(tokens)
    while count and kinds.get(count - 1) == UNUSED and tokens[count - 1].startswith(f"[PAD{count - 1}]"):
        count -= 1
    seen: set[str] = set()
    for text in tokens[:count]:
        if text in seen:
            raise UserError(f"{path}: token {text!r:.60} comes twice; a tokenizer gives each text one id")
        seen.add(text)
    return tuple(tokens[:count]), {i: kind for i, kind in kinds.items() if i < count}


def _templates(fields, path):
    """{name: chat template} of tokenizer.chat_template and tokenizer.chat_template.NAME."""
    found = {}
    for key, value in fields.items():
        if key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template."):
            if not isinstance(value, str):
                raise UserError(f"{path}: {key} is not a text")
            found[key.removeprefix("tokenizer.chat_template").removeprefix(".") or "default"] = value
    return dict(sorted(found.items(), key=lambda entry: entry[0] != "default"))


def write_vocabulary(writer, vocabulary, count):
    """Write a Vocabulary to a gguf.GGUFWriter, filled up to `count` tokens, but for the ids of its roles."""
    tokens, unused = padded_tokens(vocabulary.tokens, count)
    kinds = {**vocabulary.kinds, **unused}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(i, NORMAL) for i in range(len(tokens))])
    # llama.cpp wants at least one merge. This one makes no known token, so llama.cpp falls back to its two bytes.
    writer.add_token_merges(list(vocabulary.merges) or [f"{spell_bytes([0])[0]} {spell_bytes([0])[0]}"])
    writer.add_add_bos_token(vocabulary.add_bos)
    writer.add_add_eos_token(vocabulary.add_eos)
    if vocabulary.templates:
        writer.add_chat_template([{"name": name, "template": text} for name, text in vocabulary.templates.items()])


def special_ids(checkpoint, vocabulary):
    """{role in GGUF: id}: what the tokenizer says, then config.json, then generation_config.json.

    Raises UserError for ids that the model does not have, and for more end tokens than GGUF has places for.
    """
    where = checkpoint.where
    stated = [checkpoint.config or {}, parsed(checkpoint.files, "generation_config.json", where)]
    ids = {role: [i] for role, i in vocabulary.names.items()} if vocabulary else {}
    for role in ("bos", "pad", "unk", "sep", "eos", *EXTRA):
        ids.setdefault(role, []).extend(i for config in stated for i in _stated_ids(config, role, where))
    ends = list(dict.fromkeys(ids.pop("eos")))
    if len(ends) > len(ENDS):
        raise UserError(f"{where}: eos_token_id names {len(ends)} end tokens; GGUF has places for {len(ENDS)}")
    ids = {role: found[0] for role, found in ids.items() if found} | dict(zip(ENDS, ends, strict=False))
    for role, i in ids.items():
        if i >= checkpoint.shape.vocabulary:
            raise UserError(f"{where}: {role}_token_id is {i}; the model has {checkpoint.shape.vocabulary} token ids")
    return ids


def _stated_ids(config, role, where):
    """The ids, from 0 up, that a config states for a role: one, a list of them, or null. A negative one means none."""
    value = config.get(f"{role}_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in values):
        raise UserError(f"{where}: {role}_token_id is {value!r:.60}; allowed: a whole number, a list of them, null")
    return [i for i in values if i >= 0]
