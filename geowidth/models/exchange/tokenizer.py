"""Tokenizers as plain JSON: byte-level BPE between tokenizer.json and GGUF's lists, and a tokenizer of single bytes.

Nothing here needs a tokenizer library: tokenizer.json is text, GGUF holds lists of strings.
"""

import json
from dataclasses import dataclass

from geowidth.errors import UserError

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # GGUF's token types
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
PRE_TOKENIZERS = {
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, BYTES),
    "gpt-2": BYTES,
    "llama-bpe": _sequence(_split(LLAMA3_PATTERN), PLAIN_BYTES),
    "qwen2": _sequence(_split(QWEN2_PATTERN), PLAIN_BYTES),
}
SAME_AS = {"default": "gpt-2", "gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE tokenizer.

    tokens     strings in id order, bytes spelled as GPT-2 spells them
    merges     "left right" strings, first merged first
    special    ids that stand for no text (control tokens)
    pre        one of PRE_TOKENIZERS
    names      {"bos": id, "eos": id, "unk": id, "pad": id}, those that exist
    template   chat template or None
    add_bos    whether text is begun with the bos token
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    special: frozenset
    pre: str
    names: dict
    template: str | None = None
    add_bos: bool = False

    def files(self):
        """{name: text} of tokenizer.json and tokenizer_config.json."""
        added = [
            {"id": i, "content": self.tokens[i], "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for i in sorted(self.special)
        ]
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
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
                "ignore_merges": self.pre == "llama-bpe",
                "vocab": {token: i for i, token in enumerate(self.tokens)},
                "merges": [merge.split(" ", 1) for merge in self.merges],
            },
        }
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config["model_input_names"] = ["input_ids", "attention_mask"]
        config |= {f"{name}_token": self.tokens[i] for name, i in self.names.items()}
        if self.template:
            config["chat_template"] = self.template
        return {
            "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
            "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1),
        }

    def _post_processor(self):
        if not (self.add_bos and "bos" in self.names):
            return None
        bos = self.tokens[self.names["bos"]]
        begin, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        pair = [begin, text, begin, {"Sequence": {"id": "B", "type_id": 0}}]
        tokens = {bos: {"id": bos, "ids": [self.names["bos"]], "tokens": [bos]}}
        return {"type": "TemplateProcessing", "single": [begin, text], "pair": pair, "special_tokens": tokens}


def vocabulary_from_files(files, where="tokenizer.json"):
    """The Vocabulary of a tokenizer.json (and tokenizer_config.json beside it), or None when there is none.

    Raises UserError for a tokenizer that is no byte-level BPE, or that cuts text in a way GGUF has no name for.
    """
    if "tokenizer.json" not in files:
        return None
    tokenizer = json.loads(files["tokenizer.json"])
    config = json.loads(files.get("tokenizer_config.json", "{}"))
    model = tokenizer["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise UserError(f"{where}: a {model.get('type')} tokenizer; only byte-level BPE ones can be written to GGUF")
    pre = next((n for n, value in PRE_TOKENIZERS.items() if _same(value, tokenizer.get("pre_tokenizer"))), None)
    if pre is None:
        raise UserError(f"{where}: its pre_tokenizer has no name in GGUF; known: {', '.join(PRE_TOKENIZERS)}")
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}}
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{where}: token ids are not 0 to {len(ids) - 1} without a gap")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    names = {}
    for name in ("bos", "eos", "unk", "pad"):
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token in ids:
            names[name] = ids[token]
    processor = json.dumps(tokenizer.get("post_processor"))
    return Vocabulary(
        tokens=tuple(sorted(ids, key=ids.get)),
        merges=tuple(merges),
        special=frozenset(t["id"] for t in tokenizer.get("added_tokens", ()) if t.get("special")),
        pre=pre,
        names=names,
        template=config.get("chat_template") if isinstance(config.get("chat_template"), str) else None,
        add_bos="bos" in names and json.dumps(ids and sorted(ids, key=ids.get)[names["bos"]]) in processor,
    )


def byte_vocabulary():
    """The tokenizer of a model whose token ids are the 256 bytes: no merges, no special token."""
    return Vocabulary(tuple(spell_bytes(range(256))), (), frozenset(), "gpt-2", {})


def spell_bytes(values):
    """Byte values as GPT-2 spells them: printable Latin-1 characters as themselves, the others from U+0100 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in plain]
    spelled = {value: chr(value) for value in plain} | {v: chr(256 + i) for i, v in enumerate(others)}
    return [spelled[value] for value in values]


def _same(ours, theirs):
    """Whether two pre_tokenizers cut alike: trim_offsets only concerns offsets."""

    def bare(value):
        if isinstance(value, dict):
            return {name: bare(item) for name, item in value.items() if name != "trim_offsets"}
        return [bare(item) for item in value] if isinstance(value, list) else value

    return bare(ours) == bare(theirs)
