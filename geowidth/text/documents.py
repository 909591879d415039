"""Documents and where they come from: text files, folders, JSONL, Parquet, Hugging Face datasets, the standard library.

A source is opened (and refused) at once and read document by document, so that it may be larger than memory. A
document has a name, which decides its split: the path of a file relative to its folder, or the text itself of a record,
so that copies of a text never stand on both sides of a split.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geowidth import files
from geowidth.errors import UserError, shown
from geowidth.files import PathLike

# Left out of `stdlib`: what is not the library (installed packages, bundled wheels, machine-made build facts), and its
# tests, which some distributions ship and others do not.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "_bundled", "__pycache__"}
LONG_TEXT = 1 << 20  # bytes: longer files are read piece by piece
LONGEST_LINE = 1 << 30  # bytes of one JSONL record
ROWS = 256  # of a table that are in memory at once
ALLOWED = "stdlib, a text file, a folder, a .jsonl or .parquet file, a dataset folder, or hf:NAME"
_STRINGS = ("string", "large_string", "string_view")


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


def open_source(source: PathLike, field: str = "text") -> Source:
    """The Source that `source` names; field: where records have their text. Raises UserError, in one line."""
    source = str(source)
    if source == "stdlib":
        return _library()
    if source.startswith("hf:"):
        return _cached_dataset(source)(field)
    if os.path.isdir(source):
        return _folder(Path(source), field)
    path = Path(source)
    if not files.exists(path):
        raise UserError(f"corpus {source!r} does not exist; allowed: {ALLOWED}")
    ending = path.suffix.lower()
    if ending in (".jsonl", ".ndjson"):
        return _of_files("JSONL records", [(path.name, path)], lambda: json_lines(path, field))
    if ending == ".parquet":
        return _tables([(path.name, path)], field)
    return _text_file(path)


def walk(root: Path, left_out: Collection[str] = frozenset()) -> list[tuple[str, Path]]:
    """(name relative to root with '/', path) of every file below `root`, sorted by name; hidden names are skipped."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in left_out and not f.startswith(".")]
        paths = [Path(folder, f) for f in names if not f.startswith(".")]
        found += [(p.relative_to(root).as_posix(), p) for p in paths]
    return sorted(found)


def _of_files(words, found, read):
    """The Source of (name, path) pairs."""
    size, mark = 0, hashlib.sha256()
    for name, path in found:
        try:
            facts = os.stat(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {files.reason(error)}") from error
        size += facts.st_size
        mark.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return Source(words, size, mark.hexdigest(), read)


def _library():
    """The standard library's own .py files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    machine_made = ("_sysconfigdata", "_sysconfig_vars", "config-")
    found = [(n, p) for n, p in walk(root, LEFT_OUT) if n.endswith(".py") and not n.startswith(machine_made)]
    if not found:
        raise UserError(f"no Python source under {root}; name a text file or folder as the corpus instead")
    return _of_files("source files of the Python standard library", found, lambda: _texts(found))


def _folder(root, field):
    """Text files; or Parquet files, where there is nothing else; or a dataset that `save_to_disk` wrote."""
    if (root / "dataset_dict.json").is_file() or (
        (root / "state.json").is_file() and (root / "dataset_info.json").is_file()
    ):
        return _saved_dataset(root, field)
    found = [(name, path) for name, path in walk(root) if path.is_file()]
    if found and all(path.suffix.lower() == ".parquet" for _, path in found):
        return _tables(found, field)
    return _of_files("text files", found, lambda: _texts(found))


def _texts(found):
    """Documents of the (name, path) pairs that are text: without zero bytes."""
    for name, path in found:
        text = _text_of(path)
        binary = text.is_binary() if isinstance(text, FileText) else 0 in text
        if not binary:
            yield Document(os.fsencode(name), text, len(text))


def _text_of(path):
    size = os.path.getsize(path)
    return FileText(path, size) if size > LONG_TEXT else files.read_bytes(path)


def _text_file(path):
    text = FileText(path, os.path.getsize(path))
    if text.is_binary():
        raise UserError(
            f"corpus {str(path)!r} holds zero bytes, so it is not text; name a text file, a folder or a .jsonl"
        )
    return _of_files("text file", [(path.name, path)], lambda: _texts([(path.name, path)]))


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
                    yield _record(_parsed(line, path, number, field), len(line))
    except OSError as error:
        raise UserError(f"cannot read {path}: {files.reason(error)}") from error


def _parsed(line, path, number, field):
    """The text of one line of a JSONL file."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        words = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{path} line {number} is not JSON ({words}); give one JSON object a line") from error
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        found = f"fields {', '.join(record) or 'none'}" if isinstance(record, dict) else type(record).__name__
        raise UserError(f"{path} line {number} has {found}; needed: an object with a string field {field!r}")
    return text


def _record(text, weight):
    """The Document of a record: text has no zero bytes, so that they can end documents."""
    encoded = text.encode("utf-8", "surrogatepass")
    return Document(encoded, encoded.replace(b"\0", b""), weight)


def _tables(found, field):
    """Rows of Parquet files."""
    for _, path in found:
        _table(path, field)

    def read():
        for _, path in found:
            with _table(path, field) as table:
                weight = os.path.getsize(path) // max(1, table.metadata.num_rows)
                for batch in table.iter_batches(ROWS, columns=[field]):
                    yield from (_record(text, weight) for text in batch.column(0).to_pylist() if text)

    return _of_files("Parquet rows", found, read)


def _table(path, field):
    """An open pyarrow.parquet.ParquetFile with a column of text."""
    parquet = needed("pyarrow.parquet")
    try:
        table = parquet.ParquetFile(path)
    except Exception as error:  # whatever pyarrow runs into
        raise UserError(f"{path} is no Parquet file ({shown(str(error))})") from error
    columns = {column.name: str(column.type) for column in table.schema_arrow}
    check_column(str(path), columns, field)
    return table


def check_column(where: str, columns: dict[str, str], field: str) -> None:
    """Refuse a table without a column `field` of text. columns: {name: type}."""
    if columns.get(field) not in _STRINGS:
        found = ", ".join(f"{name} ({kind})" for name, kind in columns.items()) or "none"
        raise UserError(f"{where} has no text column {field!r}; columns: {found}; name one with --field")


def _saved_dataset(root, field):
    """Rows of a dataset that `save_to_disk` wrote; of several splits, the one called train."""
    datasets = needed("datasets")
    try:
        found = datasets.load_from_disk(str(root))
    except Exception as error:  # whatever the library runs into
        raise UserError(f"{root} is no whole dataset folder ({shown(str(error))})") from error
    return _dataset(str(root), _one_split(str(root), found), field)


def _one_split(where, found):
    splits = list(found) if isinstance(found, dict) else []
    if not splits:
        return found
    if len(splits) > 1 and "train" not in splits:
        raise UserError(f"{where} has splits {', '.join(splits)} and none called train; save the one to be used alone")
    return found["train" if "train" in splits else splits[0]]


def _dataset(where, dataset, field):
    """The Source of a datasets.Dataset."""
    check_column(where, {n: str(getattr(kind, "dtype", "nested")) for n, kind in dataset.features.items()}, field)
    paths = sorted(Path(entry["filename"]) for entry in dataset.cache_files)
    source = _of_files("dataset rows", [(path.name, path) for path in paths], lambda: iter(()))
    weight = source.size // max(1, len(dataset))

    def read():
        for rows in dataset.with_format(None).select_columns([field]).iter(ROWS):
            yield from (_record(text, weight) for text in rows[field] if text)

    return Source(source.words, source.size, source.mark, read)


_IN_CACHE = """
import json, sys, datasets
datasets.disable_progress_bars()
found = datasets.load_dataset(*sys.argv[1:])
print(json.dumps({name: [entry["filename"] for entry in split.cache_files] for name, split in found.items()}))
"""


def _cached_dataset(source):
    """hf:NAME or hf:NAME:CONFIG, in the local Hugging Face cache: nothing is fetched.

    A child process that is told to stay offline asks where the files are: the library takes that from its environment,
    once, when it is imported.
    """
    words = source.removeprefix("hf:").split(":")
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", words[0]) or len(words) > 2:
        raise UserError(f"corpus {source!r} is no name of a dataset; allowed: hf:NAME or hf:NAME:CONFIG")
    datasets = needed("datasets")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, "-c", _IN_CACHE, *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise UserError(
            f"{source} is not in the local Hugging Face cache ({shown(last)}); load it once with the library datasets, "
            "or name files"
        )
    paths = _one_split(source, json.loads(done.stdout.splitlines()[-1]))
    parts = [datasets.Dataset.from_file(path) for path in paths]
    return lambda field: _dataset(source, datasets.concatenate_datasets(parts), field)


def needed(name: str) -> Any:
    """A module of the extra `data`; a UserError without it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f"this needs the package {package}; install it with: pip install 'geowidth[data]'") from error
