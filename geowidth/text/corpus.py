"""Text to train on, as bytes: split into training, validation and test by document, with a digest of all of it.

Sources: `stdlib` (the default: the source text of the running Python's standard library: real text, some 13 MB, nothing
shipped and nothing fetched), a text file, a folder of text files, or a JSONL file whose objects have a `text` field.

A document (a file; a JSONL record) belongs to the split that a hash of its name picks: 90 % training, 5 % validation,
5 % test. The name is the path relative to the folder; a JSONL record is named by its text, so that copies of a text
never stand on both sides of a split. Where this leaves a split empty (few documents), every document is cut at 90 %
and 95 % of its bytes instead. Documents end with one zero byte, which text does not contain.
"""

import hashlib
import json
import math
import os
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import files
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.text.permutation import scattered
from geowidth.text.streams import Stream, TokenStream

Document = tuple[str | bytes, bytes]  # its name and its text

SPLITS = ("train", "validation", "test")
FIRST_CUT, SECOND_CUT = 0.90, 0.95
# Left out of `stdlib`: what is not the library (installed packages, bundled wheels, machine-made build facts), and its
# tests, which some distributions ship and others do not.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "_bundled", "__pycache__"}


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
    """The Corpus of `source`: "stdlib", or the path of a text file, a folder or a .jsonl file.

    Raises UserError for a missing, empty, binary or malformed source.
    """
    source = str(source)
    if source == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        documents, words = list(library_files(root)), "source files of the Python standard library"
        if not documents:
            raise UserError(f"no Python source under {root}; name a text file or folder as the corpus instead")
        return build(source, documents, words)
    path = Path(source)
    if os.path.isdir(source):
        return build(source, list(folder_files(path)), "text files")
    if not files.exists(path):
        raise UserError(f"corpus {source!r} does not exist; allowed: stdlib, a text file, a folder, a .jsonl file")
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return build(source, list(json_lines(path)), "JSONL records")
    text = files.read_bytes(path)
    if 0 in text:
        raise UserError(
            f"corpus {source!r} holds zero bytes, so it is not text; name a text file, a folder or a .jsonl"
        )
    return build(source, [(path.name, text)], "text file")


def build(source: str, documents: Iterable[Document], words: str) -> Corpus:
    """Corpus from (name, bytes) pairs in their order; documents without bytes are dropped."""
    documents = [(name, text) for name, text in documents if text]
    if not documents:
        raise UserError(f"corpus {source!r} holds no text; name a file or folder with some")
    parts = by_name(documents)
    rule = "split by document"
    if not all(parts):
        parts, rule = by_position(documents), "each cut at 90 % and 95 %"
    arrays = [np.frombuffer(b"".join(text + b"\0" for text in part), np.uint8) for part in parts]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(array.data)
    description = f"{len(documents)} {words}, {sum(map(len, arrays)):,} bytes, {rule}"
    train, validation, test = (torch.from_numpy(a.copy()) for a in arrays)
    return Corpus(train, validation, test, digest.hexdigest(), description, source)


def by_name(documents: Iterable[Document]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The texts of each split, by a hash of the name."""
    parts: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for name, text in documents:
        number = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64
        parts[0 if number < FIRST_CUT else 1 if number < SECOND_CUT else 2].append(text)
    return parts


def by_position(documents: Iterable[Document]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The texts of each split, every document cut in three."""
    cuts = [(text, round(len(text) * FIRST_CUT), round(len(text) * SECOND_CUT)) for _, text in documents]
    return [t[:a] for t, a, _ in cuts], [t[a:b] for t, a, b in cuts], [t[b:] for t, _, b in cuts]


def walk(root: Path, left_out: Collection[str] = frozenset()) -> list[tuple[str, Path]]:
    """(name relative to root with '/', path) of every file below `root`, sorted by name; hidden names are skipped."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in left_out and not f.startswith(".")]
        paths = [Path(folder, f) for f in names if not f.startswith(".")]
        found += [(p.relative_to(root).as_posix(), p) for p in paths]
    return sorted(found)


def library_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the standard library's own .py files."""
    for name, path in walk(root, LEFT_OUT):
        machine_made = name.startswith(("_sysconfigdata", "_sysconfig_vars", "config-"))
        if name.endswith(".py") and not machine_made:
            text = files.read_bytes(path)
            if 0 not in text:
                yield name, text


def folder_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every text file (one without zero bytes) below `root`."""
    for name, path in walk(root):
        if path.is_file():
            text = files.read_bytes(path)
            if 0 not in text:
                yield name, text


def json_lines(path: PathLike) -> Iterator[tuple[bytes, bytes]]:
    """(name, bytes) of every record of a JSONL file; the name is the text itself."""
    for number, line in enumerate(files.read_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            words = "nested too deeply" if isinstance(error, RecursionError) else error
            raise UserError(f"{path} line {number} is not JSON ({words}); give one JSON object a line") from error
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            found = f"fields {', '.join(record) or 'none'}" if isinstance(record, dict) else type(record).__name__
            raise UserError(f"{path} line {number} has {found}; needed: an object with a string field 'text'")
        encoded = text.encode("utf-8", "surrogatepass").replace(b"\0", b"")
        yield text.encode("utf-8", "surrogatepass"), encoded


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
