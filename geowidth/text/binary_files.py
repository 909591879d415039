"""Token ids in .bin files as nanoGPT and llm.c write them: a folder with training and validation files, or one file.

    nanoGPT           train.bin and val.bin: ids of 2 bytes, nothing else (meta.pkl is never opened)
    llm.c, modded     files with "train" and "val" in their names, several of each where there are shards: 256 integers
    -nanogpt          of 4 bytes (magic 20240520, version 1, number of ids), then ids of 2 bytes; or magic 20240801,
                      version 7 and ids of 4 bytes

All integers are little-endian. A file is one with a header if it begins with a magic number. These folders have no test
split: the first half of the validation ids is used as validation, the second as test. One file alone is cut at 90 % and
95 % of its ids.

Which tokenizer made the ids, the files do not say. A tokenizer.json beside them is taken for it. Without one, the
vocabulary is the largest id and one, 50256 ends documents where it is the largest (GPT-2's end of text), and bits per
byte are not known. llm.c begins documents with that id where nanoGPT ends them: in a mask it counts as the end of the
document before.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from geowidth import files
from geowidth.errors import UserError
from geowidth.text.shards import blocks, mapped
from geowidth.text.splits import SPLITS, cuts
from geowidth.text.streams import TokenStream
from geowidth.text.tokenisation import TOKENIZER_FILE, read_tokenizer_files, tokeniser_of

HEADERS = {20240520: (1, 2), 20240801: (7, 4)}  # magic: (version, bytes of an id)
HEADER_BYTES = 256 * 4
GPT2_END = 50256
AGAIN = "write the file again"


@dataclass(frozen=True)
class BinaryCorpus:
    """splits: {name: TokenStream}. description: in words. vocabulary, separator, tokenizer, tokenizer_files: as those
    of geowidth.text.corpus.Corpus."""

    splits: dict[str, TokenStream]
    description: str
    vocabulary: int
    separator: int | None = None
    tokenizer: str | None = None
    tokenizer_files: Mapping[str, str] = field(default_factory=dict)


def is_tokenised(path: Path) -> bool:
    """Whether `path` is a .bin file, or a folder with .bin files for training and validation."""
    if os.path.isdir(path):
        train, held_out = _named(path)
        return bool(train and held_out)
    return path.suffix == ".bin" and os.path.isfile(path)


def _named(folder):
    """The paths of the training files and of the validation files in a folder, sorted by name."""
    found = sorted(p for p in folder.glob("*.bin") if not p.name.startswith("."))
    train = [path for path in found if "train" in path.name]
    return train, [path for path in found if "val" in path.name and path not in train]


def open_files(path: Path) -> BinaryCorpus:
    """The BinaryCorpus of a .bin file or of a folder of them; all ids are looked at. Raises UserError."""
    if path.is_dir():
        train, held_out = (list(map(open_file, paths)) for paths in _named(path))
        splits = [train, *halves(held_out)]
        number, rule = len(train) + len(held_out), "test is the second half of the validation ids"
    else:
        ids = open_file(path)
        first, second = cuts(len(ids))
        splits = [[ids[:first]], [ids[first:second]], [ids[second:]]]
        number, rule = 1, "cut at 90 % and 95 %"
    items = {part.itemsize for split in splits for part in split}
    if len(items) > 1:
        raise UserError(f"{path} holds files with ids of 2 and of 4 bytes; keep one kind in a folder")
    streams = {name: TokenStream(parts, max(items)) for name, parts in zip(SPLITS, splits, strict=True)}
    count = sum(stream.numel() for stream in streams.values())
    description = f"{number} .bin file{'s' * (number != 1)}, {count:,} tokens, {rule}"
    return _described(path, streams, description)


def _described(path, streams, description):
    """The BinaryCorpus, whose vocabulary comes from a tokenizer.json or from the ids themselves."""
    most = max(int(block.max()) for stream in streams.values() for part in stream.parts for block in blocks(part))
    beside = (path if path.is_dir() else path.parent) / TOKENIZER_FILE
    if not beside.is_file():
        return BinaryCorpus(streams, description, most + 1, GPT2_END if most == GPT2_END else None)
    found = tokeniser_of(read_tokenizer_files(beside), str(beside), str(beside))
    if most >= found.vocabulary:
        raise UserError(f"{path} holds id {most}, beyond the vocabulary of {found.vocabulary} in {beside}")
    return BinaryCorpus(streams, description, found.vocabulary, found.separator, found.name, found.files)


def open_file(path: Path) -> np.ndarray:
    """The ids of one .bin file as a memory map, its header checked where it has one."""
    try:
        with open(path, "rb") as file:
            magic, stated, count = (int.from_bytes(file.read(4), "little", signed=True) for _ in range(3))
    except OSError as error:
        raise UserError(f"cannot read {path}: {files.reason(error)}") from error
    if magic not in HEADERS:
        ids = mapped(path, 2, advice=AGAIN)
    else:
        version, item = HEADERS[magic]
        if path.stat().st_size < HEADER_BYTES:
            raise UserError(f"{path} ends within its header; {AGAIN}")
        if stated != version:
            raise UserError(f"{path} is of version {stated}; with magic {magic}, version {version} can be read")
        ids = mapped(path, item, count, HEADER_BYTES, AGAIN)
    if not len(ids):
        raise UserError(f"{path} holds no ids; {AGAIN}")
    return ids


def halves(parts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Arrays that follow one another, cut in the middle of all: (first half, second half)."""
    middle = sum(map(len, parts)) // 2
    first: list[np.ndarray] = []
    second: list[np.ndarray] = []
    for part in parts:
        first.append(part[:middle])
        second.append(part[middle:])
        middle = max(0, middle - len(part))
    return first, second
