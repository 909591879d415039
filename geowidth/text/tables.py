"""Documents that are rows: of Parquet files, and of Hugging Face datasets in a folder or in the local cache.

pyarrow and datasets read them, a few rows at a time. Nothing is downloaded.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from geowidth.errors import UserError, shown
from geowidth.text.documents import Named, Source, needed, of_files, record

ROWS = 256  # of a table that are in memory at once
_STRINGS = ("string", "large_string", "string_view")


def parquet_rows(found: Sequence[Named], field: str) -> Source:
    """Rows of Parquet files with a column `field` of text."""
    for _, path in found:
        _table(path, field)

    def read():
        for _, path in found:
            with _table(path, field) as table:
                weight = os.path.getsize(path) // max(1, table.metadata.num_rows)
                for batch in _read(path, table.iter_batches(ROWS, columns=[field])):
                    yield from (record(text, weight) for text in batch.column(0).to_pylist() if text)

    return of_files("Parquet rows", found, read)


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


def _read(where, rows):
    """`rows`, some at a time; whatever the library runs into on the way is refused in one line."""
    rows = iter(rows)
    while True:
        try:
            some = next(rows, None)
        except Exception as error:
            raise UserError(f"{where} is damaged ({shown(str(error))}); fetch or write it again") from error
        if some is None:
            return
        yield some


def check_column(where: str, columns: dict[str, str], field: str) -> None:
    """Refuse a table without a column `field` of text. columns: {name: type}."""
    if columns.get(field) not in _STRINGS:
        found = ", ".join(f"{name} ({kind})" for name, kind in columns.items()) or "none"
        raise UserError(f"{where} has no text column {field!r}; columns: {found}; name one with --field")


def saved_dataset(root: Path, field: str) -> Source:
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
    source = of_files("dataset rows", [(path.name, path) for path in paths], lambda: iter(()))
    weight = source.size // max(1, len(dataset))

    def read():
        for rows in _read(where, dataset.with_format(None).select_columns([field]).iter(ROWS)):
            yield from (record(text, weight) for text in rows[field] if text)

    return Source(source.words, source.size, source.mark, read)


_IN_CACHE = """
import json, sys, datasets
datasets.disable_progress_bars()
found = datasets.load_dataset(*sys.argv[1:])
print(json.dumps({name: [entry["filename"] for entry in split.cache_files] for name, split in found.items()}))
"""


def cached_dataset(source: str, field: str) -> Source:
    """Rows of hf:NAME or hf:NAME:CONFIG, in the local Hugging Face cache: nothing is fetched.

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
    return _dataset(source, datasets.concatenate_datasets(parts), field)
