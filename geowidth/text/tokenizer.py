"""Tokenizers as plain JSON: byte-level BPE between tokenizer.json and GGUF's lists, and a tokenizer of single bytes.

Nothing here needs a tokenizer library: tokenizer.json is text, GGUF holds lists of strings.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from geowidth.errors import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # GGUF's token types
SPECIAL = (UNKNOWN, CONTROL)  # kinds of tokens that stand for no text
ROLES = ("bos", "eos", "unk", "sep", "pad", "mask")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PLAIN_BYTES = {**BYTES, "use_regex": False}
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


# GGUF's name for how text is cut before the merges: what tokenizer.json says for it
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
PRE_TOKENIZERS = {
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, BYTES),
    "gpt-2": BYTES,
    "llama-bpe": _sequence(_split(LLAMA3_PATTERN), PLAIN_BYTES),
    "qwen2": _sequence(_split(QWEN2_PATTERN), PLAIN_BYTES),
    # llama.cpp's way with a file that names none: four cuts, one after the other.
    "default": _sequence(
        _split(r"[\p{P}\$\+<=>\^~\|]+"), _split(GPT2_PATTERN), _split(r"\p{N}+"), _split("[0-9][0-9][0-9]"), PLAIN_BYTES
    ),
}
SAME_AS = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "qwen2.5": "qwen2"}
# Those that take a word as one token where the vocabulary has it, whatever the merges make of it.
WHOLE_WORDS = ("llama-bpe",)
# Those whose texts begin with the bos token unless a file says otherwise (llama.cpp's vocabulary loader).
BEGUN = ("llama-bpe",)
# What stands for text in normal form C in tokenizer.json, and in GGUF goes without saying for these.
COMPOSED, COMPOSING = {"type": "NFC"}, ("qwen2",)


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE tokenizer.

    tokens       strings in id order, bytes spelled as GPT-2 spells them
    merges       "left right" strings, first merged first
    kinds        {id: GGUF's token type} of tokens that are not normal text
    pre          one of PRE_TOKENIZERS
    names        {"bos": id, "eos": id, ...} with those of ROLES that exist
    templates    {name: chat template}; the one used by default is called default
    add_bos      whether text is begun with the bos token
    add_eos      whether it is ended with the eos token
    composed     whether text is first brought into Unicode's normal form C
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    kinds: dict[int, int]
    pre: str
    names: dict[str, int]
    templates: dict[str, str] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    composed: bool = False

    def files(self) -> dict[str, str]:
        """{name: text} of tokenizer.json and tokenizer_config.json."""
        shown = {i: kind for i, kind in self.kinds.items() if kind in (*SPECIAL, USER_DEFINED)}
        added = [
            {"id": i, "content": self.tokens[i], "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": shown[i] in SPECIAL}
            for i in sorted(shown)
        ]
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": COMPOSED if self.composed else None,
            "pre_tokenizer": PRE_TOKENIZERS[self.pre],
            "post_processor": self._post_processor(),
            "decoder": {**BYTES, "add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": self.pre in WHOLE_WORDS,
                "vocab": {token: i for i, token in enumerate(self.tokens)},
                "merges": [merge.split(" ", 1) for merge in self.merges],
            },
        }
        return {
            "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
            "tokenizer_config.json": json.dumps(self._config(), ensure_ascii=False, indent=1),
        }

    def _config(self):
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config["model_input_names"] = ["input_ids", "attention_mask"]
        config |= {f"{name}_token": self.tokens[i] for name, i in self.names.items()}
        if set(self.templates) == {"default"}:
            config["chat_template"] = self.templates["default"]
        elif self.templates:
            config["chat_template"] = [{"name": name, "template": text} for name, text in self.templates.items()]
        return config

    def _post_processor(self):
        begin = [self._special("bos")] if self.add_bos else []
        end = [self._special("eos")] if self.add_eos else []
        if not begin + end:
            return None
        first, second = ([*begin, {"Sequence": {"id": name, "type_id": 0}}, *end] for name in "AB")
        used = {part["SpecialToken"]["id"] for part in begin + end}
        tokens = {token: {"id": token, "ids": [self.tokens.index(token)], "tokens": [token]} for token in sorted(used)}
        return {"type": "TemplateProcessing", "single": first, "pair": first + second, "special_tokens": tokens}

    def _special(self, role):
        return {"SpecialToken": {"id": self.tokens[self.names[role]], "type_id": 0}}


def special_ids_around(processor: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prefix ids, suffix ids) that a tokenizer.json's post_processor puts around one text.

    processor   the value of "post_processor", a dict or None. Raises UserError for one that repeats or drops the text
    """
    kind = (processor or {}).get("type")
    if processor is None or kind in (None, "ByteLevel"):
        return (), ()
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],), (processor["sep"][1],)
    if kind == "Sequence":
        prefix: tuple[int, ...] = ()
        suffix: tuple[int, ...] = ()
        for step in processor["processors"]:
            before, after = special_ids_around(step)
            prefix, suffix = before + prefix, suffix + after
        return prefix, suffix
    if kind != "TemplateProcessing":
        raise UserError(f"post_processor {kind!r} of tokenizer.json is unknown; known: template, BERT's and RoBERTa's")
    return _ids_of_template(processor)


def _ids_of_template(processor):
    """The special ids before and after the one text of a template such as [CLS] $A [SEP]."""
    sides: tuple[list[int], list[int]] = ([], [])
    texts = 0
    for piece in processor["single"]:
        if "Sequence" in piece:
            texts += 1
        else:
            sides[min(texts, 1)].extend(processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    if texts != 1:
        raise UserError(f"the template of tokenizer.json holds the text {texts} times; once is needed")
    return tuple(sides[0]), tuple(sides[1])


def byte_vocabulary() -> Vocabulary:
    """The tokenizer of a model whose token ids are the 256 bytes: no merges, no special token."""
    return Vocabulary(tuple(spell_bytes(range(256))), (), {}, "gpt-2", {})


def spell_bytes(values: Iterable[int]) -> list[str]:
    """Byte values as GPT-2 spells them: printable Latin-1 characters as themselves, the others from U+0100 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in plain]
    spelled = {value: chr(value) for value in plain} | {v: chr(256 + i) for i, v in enumerate(others)}
    return [spelled[value] for value in values]
