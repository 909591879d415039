"""A folder of token shards: what `geowidth data prepare` writes and `--corpus` reads.

    index.json        kind "geowidth.tokens"; written last, so its presence marks a whole folder
    SPLIT-NNNNN.bin   the ids of a split (train, validation, test), in order: little-endian unsigned integers of 1 byte
                      (bytes), 2 (vocabularies up to 65,536) or 4, without a header; numpy.memmap opens them
    tokenizer.json    of the ids, where they are not bytes, with tokenizer_config.json where there is one
    settings.json     what the folder was asked for

index.json says for each split its tokens, the bytes of text they stand for, its documents, and its shards: file,
tokens, and the sha256 of the file. `digest` is that of the whole: sha256 over, for train, validation and test, the
number of ids (8 bytes, little-endian) and the ids as they lie in the files; where there is a tokenizer, after its own
digest (32 bytes), the sha256 of tokenizer.json. It does not hang on the size of the shards, and for bytes it is the
digest of the text that was never prepared.

A shard is a memory map, and only the pages that are read are in memory. Its hash is checked when it is first opened,
and again when its size or time is no longer the one noted in `.checked.json`.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, TEXT, Part
from geowidth.text.splits import SPLITS
from geowidth.text.streams import TokenStream
from geowidth.text.tokenisation import BESIDE, TOKENIZER_FILE, tokenizer_digest

INDEX_FILE, SETTINGS_FILE, CHECKED_FILE = "index.json", "settings.json", ".checked.json"
KIND, SCHEMA = "geowidth.tokens", 1
COUNTED = ("tokens", "documents", "bytes")
BLOCK = 1 << 22  # ids that are looked at together
AGAIN = "prepare the folder again"

_ITEM = Part("1, 2 or 4", lambda value: value in (1, 2, 4) and type(value) is int)
_UNIT = Part('"byte" or "token"', lambda value: value in ("byte", "token"))
NAME = Part("the name of a file beside it", lambda v: isinstance(v, str) and v not in ("", ".", "..") and "/" not in v)
_SHARD = {"file": NAME, "tokens": COUNT, "documents": COUNT, "bytes": COUNT, "digest": TEXT}
_SPLIT = {"tokens": COUNT, "documents": COUNT, "bytes": COUNT, "shards": [_SHARD]}
FORM = {
    "digest": TEXT, "description": TEXT, "unit": _UNIT, "vocabulary": COUNT, "separator": COUNT, "item_bytes": _ITEM,
    "tokenizer": {"name": TEXT, "digest?": TEXT}, "splits": dict.fromkeys(SPLITS, _SPLIT),
}  # fmt: skip


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds an index of shards."""
    return os.path.isfile(folder / INDEX_FILE)


def read_index(folder: Path) -> dict[str, Any]:
    """index.json of a folder, each part of it checked. Raises UserError."""
    path = Path(folder) / INDEX_FILE
    index = records.read_json(path, KIND, SCHEMA)
    forms.check(path, index, FORM, AGAIN)
    for name, split in index["splits"].items():
        for key in COUNTED:
            if split[key] != sum(shard[key] for shard in split["shards"]):
                raise UserError(f"{path} is damaged: {key} of {name} are not those of its shards; {AGAIN}")
    if index["vocabulary"] > 1 << 8 * index["item_bytes"] or index["separator"] >= index["vocabulary"]:
        raise UserError(f"{path} is damaged: its vocabulary is {index['vocabulary']}; {AGAIN}")
    return index


def tokenizer_of(folder: Path, index: Mapping[str, Any]) -> dict[str, str]:
    """{file name: text} of the tokenizer in a folder of shards; {} for bytes. Refuses another than the index names."""
    if index["unit"] == "byte":
        return {}
    paths = {name: Path(folder) / name for name in (TOKENIZER_FILE, *BESIDE)}
    found = {name: files.read_text(path) for name, path in paths.items() if files.exists(path)}
    if tokenizer_digest(found) != index["tokenizer"].get("digest"):
        raise UserError(f"{paths[TOKENIZER_FILE]} is not the tokenizer the shards were made with; {AGAIN}")
    return found


def open_splits(folder: Path, index: Mapping[str, Any], again: bool = False) -> dict[str, TokenStream]:
    """{split: TokenStream} of a folder's shards, their sizes and hashes checked. again: also those checked before.

    Raises UserError for a shard that is not the one the index speaks of.
    """
    folder = Path(folder)
    noted = {} if again else read_checked(folder)
    found, item = {}, index["item_bytes"]
    for name, split in index["splits"].items():
        maps = []
        for shard in split["shards"]:
            maps.append(mapped(folder / shard["file"], item, shard["tokens"]))
            if noted.get(shard["file"]) != facts(folder / shard["file"]):
                check_shard(folder / shard["file"], maps[-1], shard["digest"], index["vocabulary"])
        found[name] = TokenStream(maps, item)
    note_checked(folder, index)
    return found


def mapped(path: Path, item_bytes: int, tokens: int | None = None, start: int = 0, advice: str = AGAIN) -> np.ndarray:
    """The ids of a file from byte `start` on, as a memory map; refused where they are not `tokens`."""
    if not files.exists(path):
        raise UserError(f"{path} does not exist; {advice}")
    size = path.stat().st_size - start
    if size % item_bytes or (tokens is not None and size != tokens * item_bytes):
        words = f"{tokens} ids of {item_bytes} bytes" if tokens is not None else f"whole ids of {item_bytes} bytes"
        raise UserError(f"{path} has {size:,} bytes, which are not {words}; {advice}")
    if not size:
        return np.empty(0, f"<u{item_bytes}")
    return np.memmap(path, f"<u{item_bytes}", "r", start)


def check_shard(path: Path, ids: np.ndarray, digest: str, vocabulary: int) -> None:
    """Refuse a shard whose hash is not `digest`, or that holds an id beyond the vocabulary."""
    found, most = hashlib.sha256(), 0
    for block in blocks(ids):
        found.update(block.data)
        most = max(most, int(block.max()))
    if found.hexdigest() != digest:
        raise UserError(f"{path} does not have the hash that {INDEX_FILE} states, so it was changed; {AGAIN}")
    if most >= vocabulary:
        raise UserError(f"{path} holds id {most}, beyond the vocabulary of {vocabulary}; {AGAIN}")


def blocks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """`ids` (n,) in contiguous pieces of at most BLOCK."""
    return (np.ascontiguousarray(ids[at : at + BLOCK]) for at in range(0, len(ids), BLOCK))


def digest_of(splits: Iterable[Sequence[np.ndarray]], tokenizer: str | None) -> str:
    """The digest of a whole corpus, from the arrays of each split in order and the digest of its tokenizer."""
    found = hashlib.sha256(bytes.fromhex(tokenizer or ""))
    for parts in splits:
        found.update(sum(map(len, parts)).to_bytes(8, "little"))
        for block in (block for part in parts for block in blocks(part)):
            found.update(block.data)
    return found.hexdigest()


def digest_of_folder(folder: Path, index: Mapping[str, Any]) -> str:
    """The digest of the shards that an index names, from the files."""
    item = index["item_bytes"]
    splits = [index["splits"][name]["shards"] for name in SPLITS]
    maps = [[mapped(Path(folder) / one["file"], item, one["tokens"]) for one in found] for found in splits]
    return digest_of(maps, index["tokenizer"].get("digest"))


def facts(path: Path) -> list[int]:
    """Size and time of a file, by which a change is noticed."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def read_checked(folder: Path) -> dict[str, Any]:
    """{shard: its facts when its hash was checked}; {} where that is not noted."""
    try:
        noted = records.read_json(folder / CHECKED_FILE)
    except UserError:
        return {}
    return noted if isinstance(noted, dict) else {}


def note_checked(folder: Path, index: Mapping[str, Any]) -> None:
    """Note that all shards are as they should be; a folder that cannot be written is checked each time."""
    names = [shard["file"] for split in index["splits"].values() for shard in split["shards"]]
    noted = {name: facts(folder / name) for name in names}
    if noted != read_checked(folder):
        try:
            records.write_json(folder / CHECKED_FILE, noted)
        except UserError:
            return
