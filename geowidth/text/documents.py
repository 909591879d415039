"""Documents: text files and the records of JSONL files, read one by one, so that a source may be larger than memory.

A document has a name, which decides its split: the path of a file relative to its folder, or the text itself of a
record, so that copies of a text never stand on both sides of a split.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geowidth import files
from geowidth.errors import UserError
from geowidth.files import PathLike

Named = tuple[str, Path]  # a file's name, relative to where it was found, and its path
LONG_TEXT = 1 << 20  # bytes: longer files are read piece by piece
LONGEST_LINE = 1 << 30  # bytes of one JSONL record


@dataclass(frozen=True)
class FileText:
    """The text of a file that is not held in memory."""

    path: Path
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(self.size)
        try:
            with open(self.path, "rb") as file:
                file.seek(start)
                found = file.read(max(0, stop - start))
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {files.reason(error)}") from error
        if len(found) < stop - start:
            raise UserError(f"{self.path} became shorter while it was read; leave it alone and start again")
        return found

    def is_binary(self) -> bool:
        """Whether a zero byte is in it."""
        return any(0 in self[at : at + LONG_TEXT] for at in range(0, self.size, LONG_TEXT))


@dataclass(frozen=True)
class Document:
    """name: decides the split. text: its UTF-8 bytes. weight: bytes of the source that were read for it."""

    name: bytes
    text: bytes | FileText
    weight: int


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again.

    words: what they are, in the plural. size: bytes of all of it. mark: a digest of the names, sizes and times of its
    files, which tells whether they are what they were. read: gives the documents, in an order that is always the same.
    """

    words: str
    size: int
    mark: str
    read: Callable[[], Iterator[Document]]


def walk(root: Path, left_out: Collection[str] = frozenset()) -> list[Named]:
    """(name relative to root with '/', path) of every file below `root`, sorted by name; hidden names are skipped."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in left_out and not f.startswith(".")]
        paths = [Path(folder, f) for f in names if not f.startswith(".")]
        found += [(p.relative_to(root).as_posix(), p) for p in paths]
    return sorted(found)


def of_files(words: str, found: Iterable[Named], read: Callable[[], Iterator[Document]]) -> Source:
    """The Source of named files, which `read` reads. words: what is in them."""
    size, mark = 0, hashlib.sha256()
    for name, path in found:
        try:
            facts = os.stat(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {files.reason(error)}") from error
        size += facts.st_size
        mark.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return Source(words, size, mark.hexdigest(), read)


def texts(found: Iterable[Named]) -> Iterator[Document]:
    """Documents of the named files that are text: without zero bytes."""
    for name, path in found:
        text = _text_of(path)
        binary = text.is_binary() if isinstance(text, FileText) else 0 in text
        if not binary:
            yield Document(os.fsencode(name), text, len(text))


def _text_of(path):
    size = os.path.getsize(path)
    return FileText(path, size) if size > LONG_TEXT else files.read_bytes(path)


def json_lines(path: PathLike, field: str = "text") -> Iterator[Document]:
    """Every record of a JSONL file; its name is the text itself."""
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{path} line {number} is longer than {LONGEST_LINE:,} bytes; cut that record")
                if line.strip():
                    yield record(_parsed(line, path, number, field), len(line))
    except OSError as error:
        raise UserError(f"cannot read {path}: {files.reason(error)}") from error


def _parsed(line, path, number, field):
    """The text of one line of a JSONL file."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        words = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{path} line {number} is not JSON ({words}); give one JSON object a line") from error
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        words = f"fields {', '.join(found) or 'none'}" if isinstance(found, dict) else type(found).__name__
        raise UserError(f"{path} line {number} has {words}; needed: an object with a string field {field!r}")
    return text


def record(text: str, weight: int) -> Document:
    """The Document of a record, whose text loses its zero bytes: they end documents. weight: bytes it takes there."""
    encoded = text.encode("utf-8", "surrogatepass")
    return Document(encoded, encoded.replace(b"\0", b""), weight)


def needed(name: str) -> Any:
    """A module of the extra `data`; a UserError without it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f"this needs the package {package}; install it with: pip install 'geowidth[data]'") from error
