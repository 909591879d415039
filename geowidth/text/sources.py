"""What text may come from: files, folders, JSONL, Parquet, Hugging Face datasets, the standard library.

A source is opened, and refused, at once; it is read document by document.
"""

import os
import sysconfig
from pathlib import Path

from geowidth import files
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.text.documents import FileText, Source, json_lines, of_files, texts, walk
from geowidth.text.tables import cached_dataset, parquet_rows, saved_dataset

# Left out of `stdlib`: what is not the library (installed packages, bundled wheels, machine-made build facts), and its
# tests, which some distributions ship and others do not.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "_bundled", "__pycache__"}
ALLOWED = "stdlib, a text file, a folder, a .jsonl or .parquet file, a dataset folder, or hf:NAME"


def open_source(source: PathLike, field: str = "text") -> Source:
    """The Source that `source` names; field: where records have their text. Raises UserError, in one line."""
    source = str(source)
    if source == "stdlib":
        return _library()
    if source.startswith("hf:"):
        return cached_dataset(source, field)
    if os.path.isdir(source):
        return _folder(Path(source), field)
    path = Path(source)
    if not files.exists(path):
        raise UserError(f"corpus {source!r} does not exist; allowed: {ALLOWED}")
    ending = path.suffix.lower()
    if ending in (".jsonl", ".ndjson"):
        return of_files("JSONL records", [(path.name, path)], lambda: json_lines(path, field))
    if ending == ".parquet":
        return parquet_rows([(path.name, path)], field)
    return _text_file(path)


def _library():
    """The standard library's own .py files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    machine_made = ("_sysconfigdata", "_sysconfig_vars", "config-")
    found = [(n, p) for n, p in walk(root, LEFT_OUT) if n.endswith(".py") and not n.startswith(machine_made)]
    if not found:
        raise UserError(f"no Python source under {root}; name a text file or folder as the corpus instead")
    return of_files("source files of the Python standard library", found, lambda: texts(found))


def _folder(root, field):
    """Text files; or Parquet files, where there is nothing else; or a dataset that `save_to_disk` wrote."""
    if (root / "dataset_dict.json").is_file() or (
        (root / "state.json").is_file() and (root / "dataset_info.json").is_file()
    ):
        return saved_dataset(root, field)
    found = [(name, path) for name, path in walk(root) if path.is_file()]
    if found and all(path.suffix.lower() == ".parquet" for _, path in found):
        return parquet_rows(found, field)
    return of_files("text files", found, lambda: texts(found))


def _text_file(path):
    text = FileText(path, os.path.getsize(path))
    if text.is_binary():
        raise UserError(
            f"corpus {str(path)!r} holds zero bytes, so it is not text; name a text file, a folder or a .jsonl"
        )
    return of_files("text file", [(path.name, path)], lambda: texts([(path.name, path)]))
