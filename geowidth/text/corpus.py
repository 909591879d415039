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
import os
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import files
from geowidth.errors import UserError
from geowidth.files import PathLike

Document = tuple[str | bytes, bytes]  # its name and its text

SPLITS = ("train", "validation", "test")
FIRST_CUT, SECOND_CUT = 0.90, 0.95
# Left out of `stdlib`: what is not the library (installed packages, bundled wheels, machine-made build facts), and its
# tests, which some distributions ship and others do not.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "_bundled", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Bytes of text. train, validation, test: uint8 tensors (n,); digest: sha256 of all three; description: words."""

    train: torch.Tensor
    validation: torch.Tensor
    test: torch.Tensor
    digest: str
    description: str
    source: str

    vocabulary = 256

    def split(self, name: str) -> torch.Tensor:
        """The uint8 tensor of split `name`."""
        return getattr(self, name)

    def to_json(self) -> dict[str, Any]:
        sizes = {name: self.split(name).numel() for name in SPLITS}
        return {"source": self.source, "description": self.description, "digest": self.digest, "bytes": sizes}


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


def windows(stream: torch.Tensor, length: int, count: int | None = None) -> torch.Tensor:
    """Non-overlapping windows (k, length + 1) int64 of a uint8 stream: inputs [:, :-1], targets [:, 1:].

    With `count`, at most that many, evenly spread over the stream. Raises UserError if not even one fits.
    """
    whole = (stream.numel() - 1) // length
    if whole < 1:
        raise UserError(
            f"a split of the corpus has {stream.numel()} bytes; one window takes {length + 1}: give more text"
        )
    picked = np.arange(whole) if count is None or count >= whole else np.arange(count) * whole // count
    return gather(stream, torch.from_numpy(picked * length), length)


def gather(stream: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    """Windows (len(starts), length + 1) int64 of `stream` that begin at `starts`."""
    return stream[starts[:, None] + torch.arange(length + 1)].long()


class DataOrder:
    """Which windows of a uint8 stream make up the batch of each step.

    Non-overlapping windows in an order shuffled anew for every pass from (seed, pass), so a step's batch depends on the
    seed and the step alone.
    """

    def __init__(self, stream: torch.Tensor, length: int, batch: int, seed: int) -> None:
        self.stream, self.length, self.size, self.seed = stream, length, batch, seed
        self.windows = (stream.numel() - 1) // length
        self.orders: dict[int, np.ndarray] = {}

    def batch(self, step: int) -> torch.Tensor:
        """The windows (batch, length + 1) int64 of step `step`, counted from 0."""
        numbers = range(step * self.size, (step + 1) * self.size)
        picked = [self.order(n // self.windows)[n % self.windows] for n in numbers]
        return gather(self.stream, torch.tensor(picked) * self.length, self.length)

    def order(self, epoch: int) -> np.ndarray:
        if epoch not in self.orders:
            self.orders = {epoch: np.random.default_rng([self.seed, epoch]).permutation(self.windows)}
        return self.orders[epoch]
