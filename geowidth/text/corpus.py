"""Text to train on, in three splits, with a digest of all of it: as bytes, or as the tokens a tokenizer made of it.

Text is read into memory as bytes: `stdlib` (the default: the source text of the running Python's standard library: real
text, some 13 MB, nothing shipped and nothing fetched), or whatever else geowidth.text.sources names. Its documents go
to the splits by geowidth.text.splits, and end with one zero byte, which text does not contain.

Tokens, and bytes that are more than memory holds, come from files, of which only what is used is in memory: a folder
that `geowidth data prepare` wrote (geowidth.text.shards), or .bin files as nanoGPT and llm.c write them
(geowidth.text.binary_files).
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import memory, records
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.text import binary_files, shards
from geowidth.text.permutation import scattered
from geowidth.text.sources import open_source
from geowidth.text.splits import BY_NAME, BY_POSITION, SPLITS, cuts, split_of
from geowidth.text.streams import Stream, TokenStream
from geowidth.text.tokenisation import tokenizer_digest

Document = tuple[str | bytes, bytes]  # its name and its text


@dataclass(frozen=True)
class Corpus:
    """Text as ids, in three splits: its bytes, or the tokens a tokenizer made of it.

    train, validation, test   uint8 tensors (n,) of bytes, or TokenStreams of ids that lie in files
    digest                    sha256 of all three, and of the tokenizer where there is one
    description, source       in words, and as it was named
    vocabulary                ids are below it
    unit                      what an id stands for: "byte" or "token"
    separator                 the id that ends every document; None where that is not known
    tokenizer                 its name; None for bytes, and where it is not known
    tokenizer_files           {file name: text}: tokenizer.json and what stands beside it
    byte_counts               {split: bytes of text that its tokens stand for}, {} where that is not known
    """

    train: Stream
    validation: Stream
    test: Stream
    digest: str
    description: str
    source: str
    vocabulary: int = 256
    unit: str = "byte"
    separator: int | None = 0
    tokenizer: str | None = None
    tokenizer_files: Mapping[str, str] = field(default_factory=dict)
    byte_counts: Mapping[str, int] = field(default_factory=dict)

    def split(self, name: str) -> Stream:
        """The ids of split `name`: a uint8 tensor, or a TokenStream."""
        return getattr(self, name)

    @property
    def loss_unit(self) -> str:
        """What a loss of a model of this corpus is in: "nats per byte" or "nats per token"."""
        return f"nats per {self.unit}"

    @property
    def tokenizer_digest(self) -> str | None:
        """sha256 of the tokenizer.json; None for bytes, and where it is not known."""
        return tokenizer_digest(self.tokenizer_files)

    def bytes_in(self, split: str) -> int | None:
        """Bytes of text in a split; None where they are not known."""
        return self.split(split).numel() if self.unit == "byte" else self.byte_counts.get(split)

    def bits_per_byte(self, loss: float, split: str = "validation") -> float | None:
        """A mean loss in nats per id as bits per byte of text; None where the bytes of a token are not known.

        A token stands for as many bytes as one of the whole split does on average.
        """
        if self.unit == "byte":
            return loss / math.log(2)
        known = self.bytes_in(split)
        return loss / math.log(2) * (self.split(split).numel() / known) if known else None

    def documents(self, windows: torch.Tensor) -> torch.Tensor:
        """Which document of its window every id is in, counted from 0: for the mask of attention.

        windows: (batch, length) int64. returns: the same shape. A separator belongs to the document it ends. Raises
        UserError where it is not known which id ends a document.
        """
        if self.separator is None:
            raise UserError(f"corpus {self.source!r} does not say which id ends a document; train without the mask")
        ends = (windows == self.separator).long()
        return ends.cumsum(1) - ends

    def write_tokenizer(self, folder: PathLike) -> None:
        """Write the tokenizer's files into a model's folder, so that the model can be given text later; bytes have
        none."""
        for name, text in self.tokenizer_files.items():
            records.write_text(Path(folder) / name, text)

    def to_json(self) -> dict[str, Any]:
        sizes = {name: self.bytes_in(name) for name in SPLITS}
        record: dict[str, Any] = {
            "source": self.source,
            "description": self.description,
            "digest": self.digest,
            "bytes": sizes,
        }
        if self.unit == "byte":
            return record
        tokens = {name: self.split(name).numel() for name in SPLITS}
        return record | {
            "unit": self.unit,
            "tokenizer": self.tokenizer,
            "vocabulary": self.vocabulary,
            "tokens": tokens,
        }


def load_corpus(source: PathLike = "stdlib") -> Corpus:
    """The Corpus of `source`: text (see geowidth.text.sources), a folder of shards (geowidth.text.shards), or token
    ids in .bin files (geowidth.text.binary_files).

    Raises UserError for a missing, empty, binary or malformed source.
    """
    source = str(source)
    path = Path(source)
    if source != "stdlib" and shards.is_prepared(path):
        return _prepared(source)
    if source != "stdlib" and binary_files.is_tokenised(path):
        return _of_binary_files(source)
    opened = open_source(source)
    memory.check(f"corpus {source!r} read whole", 2 * opened.size, "geowidth data prepare makes shards of it")
    return build(source, ((one.name, one.text[:]) for one in opened.read()), opened.words)


def _prepared(source):
    """The Corpus of a folder of shards."""
    index = shards.read_index(Path(source))
    of_bytes = index["unit"] == "byte"
    splits = shards.open_splits(Path(source), index)
    return Corpus(
        splits["train"],
        splits["validation"],
        splits["test"],
        digest=index["digest"],
        description=index["description"],
        source=source,
        vocabulary=index["vocabulary"],
        unit=index["unit"],
        separator=index["separator"],
        tokenizer=None if of_bytes else index["tokenizer"]["name"],
        tokenizer_files=shards.tokenizer_of(Path(source), index),
        byte_counts={} if of_bytes else {name: index["splits"][name]["bytes"] for name in SPLITS},
    )


def _of_binary_files(source):
    """The Corpus of .bin files, whose tokenizer may be known from a tokenizer.json beside them."""
    found = binary_files.open_files(Path(source))
    splits = found.splits
    return Corpus(
        splits["train"],
        splits["validation"],
        splits["test"],
        digest=shards.digest_of([splits[name].parts for name in SPLITS], tokenizer_digest(found.tokenizer_files)),
        description=found.description,
        source=source,
        vocabulary=found.vocabulary,
        unit="token",
        separator=found.separator,
        tokenizer=found.tokenizer,
        tokenizer_files=found.tokenizer_files,
    )


def build(source: str, documents: Iterable[Document], words: str) -> Corpus:
    """Corpus from (name, bytes) pairs in their order; documents without bytes are dropped."""
    documents = [(name, text) for name, text in documents if text]
    if not documents:
        raise UserError(f"corpus {source!r} holds no text; name a file or folder with some")
    parts = by_name(documents)
    rule = BY_NAME
    if not all(parts):
        parts, rule = by_position(documents), BY_POSITION
    arrays = [np.frombuffer(b"".join(text + b"\0" for text in part), np.uint8) for part in parts]
    digest = shards.digest_of([[array] for array in arrays], None)
    description = f"{len(documents)} {words}, {sum(map(len, arrays)):,} bytes, {rule}"
    train, validation, test = (torch.from_numpy(a.copy()) for a in arrays)
    return Corpus(train, validation, test, digest, description, source)


def by_name(documents: Iterable[Document]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The texts of each split, by a hash of the name."""
    parts: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for name, text in documents:
        parts[SPLITS.index(split_of(os.fsencode(name)))].append(text)
    return parts


def by_position(documents: Iterable[Document]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The texts of each split, every document cut in three."""
    found = [(text, *cuts(len(text))) for _, text in documents]
    return [t[:a] for t, a, _ in found], [t[a:b] for t, a, b in found], [t[b:] for t, _, b in found]


def windows(stream: Stream, length: int, count: int | None = None) -> torch.Tensor:
    """Non-overlapping windows (k, length + 1) int64 of a stream of ids: inputs [:, :-1], targets [:, 1:].

    With `count`, at most that many, evenly spread over the stream. Raises UserError if not even one fits.
    """
    whole = (stream.numel() - 1) // length
    if whole < 1:
        unit = "bytes" if stream.dtype == torch.uint8 else "tokens"
        raise UserError(
            f"a split of the corpus has {stream.numel()} {unit}; one window takes {length + 1}: give more text"
        )
    picked = np.arange(whole) if count is None or count >= whole else np.arange(count) * whole // count
    return gather(stream, torch.from_numpy(picked * length), length)


def gather(stream: Stream, starts: torch.Tensor, length: int) -> torch.Tensor:
    """Windows (len(starts), length + 1) int64 of `stream` that begin at `starts`."""
    if isinstance(stream, TokenStream):
        return stream.gather(starts, length)
    return stream[starts[:, None] + torch.arange(length + 1)].long()


class DataOrder:
    """Which windows of a stream of ids make up the batch of each step.

    Non-overlapping windows in an order shuffled anew for every pass from (seed, pass), so a step's batch depends on the
    seed and the step alone: not on the microbatch, not on how many ranks share it, not on where a run was resumed. Up
    to LISTED windows that order is numpy's permutation, held in memory; beyond it is `scattered`, which needs none.
    """

    LISTED = 1 << 24  # windows, 128 MiB of places

    def __init__(self, stream: Stream, length: int, batch: int, seed: int) -> None:
        self.stream, self.length, self.size, self.seed = stream, length, batch, seed
        self.windows = (stream.numel() - 1) // length
        self.orders: dict[int, np.ndarray] = {}

    def batch(self, step: int, rows: range | slice | None = None) -> torch.Tensor:
        """The windows (batch, length + 1) int64 of step `step`, counted from 0; with `rows`, those rows of it."""
        mine = range(self.size) if rows is None else range(self.size)[rows] if isinstance(rows, slice) else rows
        numbers = np.asarray(mine, np.int64) + step * self.size
        picked = np.empty(len(numbers), np.int64)
        for epoch in np.unique(numbers // self.windows):
            of_epoch = numbers // self.windows == epoch
            picked[of_epoch] = self.places(int(epoch), numbers[of_epoch] % self.windows)
        return gather(self.stream, torch.from_numpy(picked * self.length), self.length)

    def places(self, epoch: int, numbers: np.ndarray) -> np.ndarray:
        """Which windows stand at places `numbers` (k,) of pass `epoch`."""
        if self.windows > self.LISTED:
            return scattered(numbers, self.windows, (self.seed, epoch))
        if epoch not in self.orders:
            self.orders = {epoch: np.random.default_rng([self.seed, epoch]).permutation(self.windows)}
        return self.orders[epoch][numbers]
