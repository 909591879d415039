"""How text becomes token ids: its bytes, a tokenizer.json, or a byte-level BPE trained on the text itself.

Every way has an id that ends documents and that text never becomes: 0 for bytes (text holds no zero byte), and a
special token otherwise, which is looked for under the names that tokenizers give it. Its spelling in a text is
tokenised as any other word.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from geowidth import files
from geowidth.errors import UserError, shown
from geowidth.text.documents import needed

MOST_IDS = 1 << 32
TOKENIZER_FILE = "tokenizer.json"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json")
END_OF_TEXT = "<|endoftext|>"
# What the tokens that end a text are called, where no file beside the tokenizer says it.
ENDS = (END_OF_TEXT, "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]")
LEAST_BPE, MOST_BPE = 257, 1 << 20


@dataclass(frozen=True)
class Tokeniser:
    """Turns bytes of text into ids.

    name: as a record names it. vocabulary: ids are below it. separator: the id that ends a document. item_bytes: of an
    id in a file. unit: "byte" or "token". library: the tokenizers.Tokenizer, None for bytes. files: {name: text} of
    tokenizer.json and what stands beside it.
    """

    name: str
    vocabulary: int = 256
    separator: int = 0
    item_bytes: int = 1
    unit: str = "byte"
    library: Any = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str | None:
        """sha256 of tokenizer.json; None for bytes."""
        return tokenizer_digest(self.files)

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """The ids of every text, little-endian and unsigned of `item_bytes`; bytes that are no UTF-8 become U+FFFD."""
        dtype = f"<u{self.item_bytes}"
        if self.library is None:
            return [np.frombuffer(text, dtype) for text in texts]
        words = [text.decode("utf-8", "replace") for text in texts]
        return [np.array(e.ids, dtype) for e in self.library.encode_batch_fast(words, add_special_tokens=False)]


BYTES = Tokeniser("bytes")


def tokenizer_digest(found: Mapping[str, str]) -> str | None:
    """sha256 of the tokenizer.json among {name: text}, which is what a tokenizer is told by; None without one."""
    text = found.get(TOKENIZER_FILE)
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def bpe_size(text: str) -> int | None:
    """N of "bpe:N", None for anything else; a size that cannot be raises UserError."""
    if not text.startswith("bpe:"):
        return None
    size = text.removeprefix("bpe:")
    if not re.fullmatch("[0-9]{1,9}", size) or not LEAST_BPE <= int(size) <= MOST_BPE:
        raise UserError(
            f"the tokenizer is {shown(text)}; allowed: bpe:N with N from {LEAST_BPE} (256 bytes and the token that "
            f"ends a text) to {MOST_BPE}"
        )
    return int(size)


def tokeniser_from(place: str, end_of_text: str | None = None) -> Tokeniser:
    """The Tokeniser of a tokenizer.json, or of a folder that holds one. end_of_text: the token that ends a document.

    Raises UserError for a file that is no tokenizer, or has no token that ends a text.
    """
    path = Path(place) / TOKENIZER_FILE if Path(place).is_dir() else Path(place)
    return tokeniser_of(read_tokenizer_files(path), str(path), str(place), end_of_text)


def read_tokenizer_files(path: Path) -> dict[str, str]:
    """{name: text} of a tokenizer.json at `path`, whatever its name, and of the files beside it."""
    if not files.exists(path):
        raise UserError(
            f"tokenizer {str(path)!r} does not exist; allowed: bytes, bpe:N, a tokenizer.json or its folder"
        )
    beside = {name: path.with_name(name) for name in BESIDE}
    return {TOKENIZER_FILE: files.read_text(path)} | {
        n: files.read_text(p) for n, p in beside.items() if files.exists(p)
    }


def tokeniser_of(found: Mapping[str, str], where: str, name: str, end_of_text: str | None = None) -> Tokeniser:
    """The Tokeniser of {file name: text}. where: for messages."""
    library = load_tokenizer(found[TOKENIZER_FILE], where)
    ids = library.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if not 2 <= size <= MOST_IDS:
        raise UserError(f"{where} has {size:,} token ids; allowed: 2 to {MOST_IDS:,}")
    separator = ids[_end_of_text(ids, found, where, end_of_text)]
    return Tokeniser(name, size, separator, 2 if size <= 1 << 16 else 4, "token", library, dict(found))


def load_tokenizer(text: str, where: str) -> Any:
    """The tokenizers.Tokenizer of a tokenizer.json's text, without padding and truncation; special tokens that are
    spelled in a text are words like any other."""
    tokenizers = needed("tokenizers")
    try:
        library = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"{where} is no tokenizer ({shown(str(error))}); give the tokenizer.json of a model") from error
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    return library


def _end_of_text(ids, found, where, asked):
    """The token that ends a document: the one asked for, the one that the files beside name, or one of ENDS."""
    if asked is not None:
        if asked not in ids:
            raise UserError(f"{where} has no token {asked!r}; name one of its tokens with --end-of-text")
        return asked
    stated = [_eos(found[name], f"{name} beside {where}") for name in BESIDE if name in found]
    token = next((token for token in (*stated, *ENDS) if token in ids), None)
    if token is None:
        raise UserError(f"{where} names no token that ends a text; name one with --end-of-text TOKEN")
    return token


def _eos(text, where):
    try:
        token = json.loads(text)["eos_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return token.get("content") if isinstance(token, dict) else token


def train_bpe(texts: Iterable[bytes], size: int) -> dict[str, str]:
    """{file name: text} of a byte-level BPE of at most `size` tokens, trained on `texts`.

    Words are cut as GPT-2 cuts them. The same texts give the same tokenizer. END_OF_TEXT has id 0, then come the bytes.
    """
    tokenizers = needed("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator((text.decode("utf-8", "replace") for text in texts), trainer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"model_input_names": ["input_ids", "attention_mask"], "eos_token": END_OF_TEXT}
    return {TOKENIZER_FILE: library.to_str(), "tokenizer_config.json": json.dumps(config, indent=1)}
