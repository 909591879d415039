"""A Vocabulary from tokenizer.json and the files beside it. What GGUF has no place for is refused by name."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from geowidth.errors import UserError
from geowidth.text.tokenizer import (
    COMPOSED,
    COMPOSING,
    CONTROL,
    PRE_TOKENIZERS,
    ROLES,
    UNUSED,
    USER_DEFINED,
    WHOLE_WORDS,
    Vocabulary,
    special_ids_around,
)


def vocabulary_from_files(files: Mapping[str, Any], where: str = "tokenizer.json") -> Vocabulary | None:
    """The Vocabulary of a tokenizer.json (and the files beside it), or None when there is none.

    files   {name: text}
    Raises UserError for a tokenizer that is not byte-level BPE, or that does what GGUF has no place for.
    """
    if "tokenizer.json" not in files:
        if "tokenizer.model" in files or "vocab.json" in files:
            raise UserError(f"{where}: a tokenizer without tokenizer.json; save it in that form, or remove its files")
        return None
    tokenizer = parsed(files, "tokenizer.json", where)
    config = {**parsed(files, "special_tokens_map.json", where), **parsed(files, "tokenizer_config.json", where)}
    try:
        return _vocabulary(tokenizer, config, files, where)
    except UserError as error:
        raise error if str(error).startswith(where) else UserError(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{where}: tokenizer.json is out of order ({type(error).__name__}: {error})") from error


def parsed(files: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The JSON object in a file of `files`, {} without it."""
    try:
        value = json.loads(files.get(name, "{}"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name} holds a {type(value).__name__}; a JSON object is needed")
    return value


def _vocabulary(tokenizer, config, files, where):
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or ()
    pre = _checked(model, tokenizer, where)
    composed = tokenizer.get("normalizer") is not None
    if composed and (tokenizer["normalizer"] != COMPOSED or pre not in COMPOSING):
        raise UserError(f"{where}: its normalizer {_short(tokenizer['normalizer'])} has no form in GGUF")
    for token in added:
        odd = next((name for name in ("lstrip", "rstrip", "single_word") if token.get(name)), None)
        if odd is not None:
            raise UserError(f"{where}: {odd} of the added token {token['content']!r} has no form in GGUF")
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    tokens, kinds = _placed(ids, where)
    kinds |= {token["id"]: CONTROL if token.get("special") else USER_DEFINED for token in added}
    names = {}
    for role in ROLES:
        token = config.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token in ids:
            names[role] = ids[token]
    flags = _flags(tokenizer.get("post_processor"), config, names, where)
    templates = _templates(config, files, where)
    add_bos, add_eos = flags
    return Vocabulary(tokens, _merges(model, where), kinds, pre, names, templates, add_bos, add_eos, composed)


def _checked(model, tokenizer, where):
    """GGUF's name of the way text is cut, of a byte-level BPE model with nothing that GGUF has no place for."""
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        kind = f"{model.get('type')} tokenizer{' with byte_fallback' if model.get('byte_fallback') else ''}"
        raise UserError(f"{where}: a {kind}; only byte-level BPE ones can be written to GGUF")
    pre = next((n for n, value in PRE_TOKENIZERS.items() if _same(value, tokenizer.get("pre_tokenizer"))), None)
    if pre is None:
        raise UserError(f"{where}: its pre_tokenizer has no name in GGUF; known: {', '.join(PRE_TOKENIZERS)}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise UserError(f"{where}: {name} {model[name]!r} of its BPE has no form in GGUF")
    if bool(model.get("ignore_merges")) != (pre in WHOLE_WORDS):
        raise UserError(f"{where}: ignore_merges is {model.get('ignore_merges')!r}; GGUF's {pre} means the other")
    decoder = tokenizer.get("decoder")
    if decoder is not None and decoder.get("type") != "ByteLevel":
        raise UserError(f"{where}: its decoder {_short(decoder)} has no form in GGUF; ByteLevel has")
    return pre


def _placed(ids, where):
    """(tokens in id order, {id: UNUSED} of ids between them that nothing has) of {token: id}."""
    if any(not isinstance(i, int) or i < 0 for i in ids.values()):
        raise UserError(f"{where}: token ids must be whole numbers from 0 up")
    by_id = {i: token for token, i in ids.items()}
    last = max(by_id, default=-1)
    if len(by_id) < len(ids) or last >= 2 * len(ids) + 1024:
        raise UserError(f"{where}: {len(ids)} tokens have {len(by_id)} ids up to {last}; give each an id, few left out")
    return padded_tokens([by_id.get(i) for i in range(last + 1)])


def padded_tokens(tokens: Sequence[str | None], length: int = 0) -> tuple[tuple[str, ...], dict[int, int]]:
    """(tokens, {id: UNUSED}): every None, and what is missing to `length`, named [PADid] as GGUF's writers do."""
    used, named, kinds = set(tokens), [], {}
    for i, token in enumerate([*tokens, *[None] * (length - len(tokens))]):
        if token is None:
            token, kinds[i] = f"[PAD{i}]", UNUSED
            while token in used:
                token += "_"
        named.append(token)
    return tuple(named), kinds


def _merges(model, where):
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    odd = next((merge for merge in merges if len(merge) != 2 or any(" " in part for part in merge)), None)
    if odd is not None:
        raise UserError(f"{where}: merge {odd!r} has no form in GGUF; two parts without spaces have")
    return tuple(" ".join(merge) for merge in merges)


def _flags(processor, config, names, where):
    """(add_bos, add_eos): by the post-processor, unless tokenizer_config.json says so itself."""
    flags = []
    for role, ids in zip(("bos", "eos"), special_ids_around(processor), strict=True):
        if len(ids) == 1:
            names.setdefault(role, ids[0])
        if ids not in ((), (names.get(role),)):
            raise UserError(f"{where}: its post_processor puts tokens {list(ids)} around texts; GGUF knows bos and eos")
        stated = config.get(f"add_{role}_token")
        flags.append((bool(ids) if not isinstance(stated, bool) else stated) and role in names)
    return flags


def _templates(config, files, where):
    """{name: chat template}; a file of its own comes before tokenizer_config.json, as for the library."""
    stated = config.get("chat_template")
    if stated is None:
        stated = parsed(files, "chat_template.json", where).get("chat_template")
    if isinstance(stated, list):
        templates = {entry["name"]: entry["template"] for entry in stated}
    else:
        templates = {} if stated is None else {"default": stated}
    if "chat_template.jinja" in files:
        templates = {"default": files["chat_template.jinja"]}
        more = {name.rpartition("/")[2]: text for name, text in files.items() if "/" in name}
        templates |= {name.removesuffix(".jinja"): text for name, text in more.items()}
    for name, text in templates.items():
        if not isinstance(text, str) or not name.replace("_", "").isalnum():
            raise UserError(f"{where}: chat_template {name!r} has no form in GGUF: text under a name of letters has")
    return templates


def _same(ours, theirs):
    """Whether two pre_tokenizers cut alike: trim_offsets only concerns offsets."""

    def bare(value):
        if isinstance(value, dict):
            return {name: bare(item) for name, item in value.items() if name != "trim_offsets"}
        return [bare(item) for item in value] if isinstance(value, list) else value

    return bare(ours) == bare(theirs)


def _short(value):
    return json.dumps(value)[:80]
