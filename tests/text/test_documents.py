"""Documents of every kind of source, and the one line that refuses what is none."""

import json
import os
import sys

import pytest

from geowidth.errors import UserError
from geowidth.text import documents, tables
from geowidth.text.corpus import load_corpus
from geowidth.text.sources import open_source

TEXTS = ["one\n", "two \0 and", "größe", "", "漢字", None, "one\n"]
WANTED = [b"one\n", b"two  and", "größe".encode(), b"", "漢字".encode(), b"one\n"]


def read(source, field="text"):
    return [document.text[:] for document in open_source(source, field).read()]


@pytest.fixture
def parquet(tmp_path):
    """A function that writes columns to a Parquet file of small row groups."""
    arrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(name, **columns):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tables.write_table(arrow.table(columns), path, row_group_size=3)
        return path

    return write


def test_records_are_named_by_their_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"body": text}) for text in TEXTS if text is not None) + "\n\n")
    assert read(path, "body") == WANTED
    assert [d.name for d in open_source(path, "body").read()][1] == b"two \0 and"
    assert sum(d.weight for d in open_source(path, "body").read()) <= open_source(path, "body").size
    with pytest.raises(UserError, match="line 1 has fields body; needed: an object with a string field 'text'"):
        read(path)


def test_parquet(parquet, tmp_path):
    path = parquet("a.parquet", number=list(range(7)), text=TEXTS)
    assert read(path) == [text for text in WANTED if text]
    parquet("many/1.parquet", text=["b"])
    parquet("many/0.parquet", text=["a", "c"])
    assert read(tmp_path / "many") == [b"a", b"c", b"b"]
    assert load_corpus(path).description.startswith("5 Parquet rows")
    with pytest.raises(UserError, match=r"no text column 'text'; columns: number \(int64\); name one with --field"):
        open_source(parquet("b.parquet", number=[1, 2]))
    with pytest.raises(UserError, match=r"no text column 'number'; columns: number \(int64\), text \(string\)"):
        open_source(path, "number")
    data = bytearray(parquet("d.parquet", text=["a word " * 9] * 9).read_bytes())
    data[4:90] = bytes(86)
    (tmp_path / "d.parquet").write_bytes(data)
    with pytest.raises(UserError, match="d.parquet is damaged"):
        read(tmp_path / "d.parquet")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(UserError, match="c.parquet is no Parquet file"):
        open_source(tmp_path / "c.parquet")


def test_datasets_that_were_saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"text": TEXTS, "number": list(range(7))})
    rows.save_to_disk(tmp_path / "one")
    other = datasets.Dataset.from_dict({"text": ["held out"]})
    datasets.DatasetDict({"test": other, "train": rows}).save_to_disk(tmp_path / "two")
    for name in ("one", "two"):
        assert read(tmp_path / name) == [text for text in WANTED if text]
    with pytest.raises(UserError, match=r"no text column 'body'; columns: text \(string\), number \(int64\)"):
        open_source(tmp_path / "one", "body")
    datasets.DatasetDict({"a": other, "b": other}).save_to_disk(tmp_path / "three")
    with pytest.raises(UserError, match="has splits a, b and none called train"):
        open_source(tmp_path / "three")
    (tmp_path / "one" / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
    with pytest.raises(UserError, match="is no whole dataset folder"):
        open_source(tmp_path / "one")


def test_datasets_in_the_cache(tmp_path, monkeypatch):
    """What the library prepared earlier is found offline; what it did not is refused, and nothing is fetched."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    made = datasets.load_dataset("json", data_files=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "made"))
    made_in = os.path.dirname(made["train"].cache_files[0]["filename"])
    cached = tmp_path / "cache" / "someone___texts" / "default" / "0.0.0" / ("0" * 40)
    cached.parent.mkdir(parents=True)
    os.rename(made_in, cached)
    os.rename(cached / "json-train.arrow", cached / "texts-train.arrow")
    info = json.loads((cached / "dataset_info.json").read_text())
    (cached / "dataset_info.json").write_text(json.dumps(info | {"dataset_name": "texts", "builder_name": "parquet"}))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert read("hf:someone/texts") == [b"one", b"two"]
    with pytest.raises(UserError, match="hf:someone/others is not in the local Hugging Face cache"):
        open_source("hf:someone/others")


@pytest.mark.parametrize("name", ["hf:", "hf:/etc", "hf:./here", "hf:a/b/c", "hf:a:b:c"])
def test_names_that_are_none_start_nothing(name, monkeypatch):
    monkeypatch.setattr(tables.subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(UserError, match="allowed: hf:NAME or hf:NAME:CONFIG"):
        open_source(name)


def test_long_files_are_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONG_TEXT", 10)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "long.txt").write_bytes(b"0123456789abc")
    (tmp_path / "t" / "long.bin").write_bytes(b"0123456789ab\0")
    (tmp_path / "t" / "short.txt").write_bytes(b"0123456789")
    found = [document.text for document in open_source(tmp_path / "t").read()]
    assert [type(text) for text in found] == [documents.FileText, bytes]
    assert (found[0][:], found[0][3:5], found[0][12:99], len(found[0])) == (b"0123456789abc", b"34", b"c", 13)
    assert load_corpus(tmp_path / "t").description.startswith("2 text files, 29 bytes")
    os.truncate(tmp_path / "t" / "long.txt", 11)
    with pytest.raises(UserError, match="became shorter while it was read"):
        found[0][:]


def test_a_source_that_changed_has_another_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("some text")
    before = open_source(path)
    assert (before.size, open_source(path).mark) == (9, before.mark)
    path.write_text("other words")
    assert open_source(path).mark != before.mark


def test_absent_libraries_are_named(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"needs the package pyarrow; install it with: pip install 'geowidth\[data\]'"):
        open_source(tmp_path / "a.parquet")


def test_lines_that_never_end(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_LINE", 40)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + json.dumps({"text": "x" * 50}))
    with pytest.raises(UserError, match="line 2 is longer than 40 bytes"):
        read(path)
