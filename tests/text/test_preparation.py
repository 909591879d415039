"""Shards: what was text is what comes back, whatever the size of shards and pieces, and whoever was killed."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.text import pieces, preparation, shards
from geowidth.text.corpus import SPLITS, load_corpus
from geowidth.text.preparation import prepare
from geowidth.text.tokenisation import load_tokenizer
from geowidth.train.processes import python_environment

WORDS = ["the ", "width ", "of ", "a ", "layer\n", "größe ", "naïve\n\n", "漢字 ", "🙂", "<|endoftext|>"]


@pytest.fixture
def folder(tmp_path):
    """A hundred small text files, one that is empty and one that is no text."""
    drawn, root = random.Random(5), tmp_path / "texts"
    for number in range(100):
        path = root / f"{number % 7}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(drawn.choices(WORDS, k=1 + number % 40)))
    (root / "empty.txt").touch()
    (root / "x.bin").write_bytes(b"\0\1")
    return root


@pytest.fixture
def small(monkeypatch):
    """Texts in pieces of 100 bytes, 300 bytes side by side."""
    monkeypatch.setattr(pieces, "PIECE", 100)
    monkeypatch.setattr(preparation, "BATCH", 300)


def contents(folder):
    """{name: bytes} of a folder, without the note of what was checked."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != shards.CHECKED_FILE}


def texts_of(corpus, split):
    """The texts of a split, from its ids."""
    library = load_tokenizer(corpus.tokenizer_files["tokenizer.json"], "x")
    documents, ids = [[]], corpus.split(split)[:].tolist()
    for number in ids:
        documents[-1].append(number)
        if number == corpus.separator:
            documents.append([])
    assert documents.pop() == []
    return [library.decode(one[:-1], skip_special_tokens=False) for one in documents]


@pytest.mark.parametrize("shard_tokens", [997, 1 << 26])
def test_bytes_are_those_of_the_corpus_that_was_not_prepared(folder, tmp_path, small, shard_tokens):
    single = folder / "1" / "1.txt"
    single.write_text("".join(WORDS * 9))
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(json.dumps({"text": f"line {i} \0é"}) for i in range(70)))
    for source in (folder, single, lines):
        out = tmp_path / f"{source.name}-{shard_tokens}"
        index = prepare(source, out, shard_tokens=shard_tokens)
        plain, prepared = load_corpus(source), load_corpus(out)
        for name in SPLITS:
            assert torch.equal(prepared.split(name)[:], plain.split(name).long())
            sizes = [shard["tokens"] for shard in index["splits"][name]["shards"]]
            assert set(sizes[:-1]) <= {shard_tokens} and 0 < sizes[-1] <= shard_tokens
            assert prepared.split(name).dtype == torch.uint8
        assert prepared.to_json() == plain.to_json() | {"source": str(out)}
        assert (prepared.vocabulary, prepared.unit, prepared.separator, prepared.tokenizer) == (256, "byte", 0, None)


def test_a_bpe_of_its_own(folder, tmp_path, small):
    index = prepare([folder], tmp_path / "a", tokenizer="bpe:300", shard_tokens=200)
    corpus, plain = load_corpus(tmp_path / "a"), load_corpus(folder)
    assert (corpus.vocabulary, corpus.unit, corpus.separator, corpus.tokenizer) == (300, "token", 0, "bpe:300")
    for name in SPLITS:
        wanted = [bytes(text).decode() for text in bytes(plain.split(name)).split(b"\0")[:-1]]
        assert texts_of(corpus, name) == wanted
        assert corpus.bytes_in(name) == sum(len(text.encode()) for text in wanted)
        assert index["splits"][name]["documents"] == len(wanted)
        assert int(corpus.documents(corpus.split(name)[:][None]).max()) == len(wanted) - 1
    record = corpus.to_json()
    assert record["tokens"]["train"] == corpus.train.numel() < plain.train.numel()
    per_token = corpus.byte_counts["validation"] / corpus.validation.numel()
    assert corpus.bits_per_byte(math.log(2)) == pytest.approx(1 / per_token) and per_token > 1.5
    assert corpus.train.dtype == torch.uint16
    prepare(folder, tmp_path / "b", tokenizer="bpe:300", shard_tokens=200)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    prepare(folder, tmp_path / "c", tokenizer="bpe:300")
    assert load_corpus(tmp_path / "c").digest == corpus.digest


def test_a_bpe_learns_from_training_text_alone(folder, tmp_path):
    prepare(folder, tmp_path / "a", tokenizer="bpe:300")
    held_out = [path for path in folder.rglob("*.txt") if path.stat().st_size and shards_split(path, folder) != "train"]
    assert held_out
    for path in held_out:
        path.write_text("zzzz " * 300)
    prepare(folder, tmp_path / "b", tokenizer="bpe:300")
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in "ab")
    assert one == two


def shards_split(path, root):
    from geowidth.text.splits import split_of

    return split_of(os.fsencode(path.relative_to(root).as_posix()))


def test_one_long_text_is_cut_in_three_between_characters(tmp_path, small):
    path = tmp_path / "one.txt"
    path.write_text("漢" * 700 + "ü" * 700)
    prepare(path, tmp_path / "out", tokenizer="bpe:270", shard_tokens=64)
    corpus = load_corpus(tmp_path / "out")
    parts = [texts_of(corpus, name) for name in SPLITS]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert "".join(part[0] for part in parts) == path.read_text()
    assert [len(part[0].encode()) for part in parts] == [corpus.bytes_in(name) for name in SPLITS]


KILLED = """
import os, signal, sys
from geowidth.text import pieces, preparation, writing
pieces.PIECE, preparation.BATCH = 100, 300
add, found = writing.Journal.add, []
def killed(self, split, entry):
    found.append(entry)
    if len(found) == 7 and sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, split, entry)
    if len(found) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
writing.Journal.add = killed
preparation.prepare(sys.argv[1], sys.argv[2], tokenizer="bpe:300", shard_tokens=150)
"""


def test_killed_again_and_again_it_ends_with_the_same_bytes(folder, tmp_path, small):
    """Every process dies at its seventh shard: before it is noted, or after."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    index = prepare(folder, whole, tokenizer="bpe:300", shard_tokens=150)
    count = sum(len(split["shards"]) for split in index["splits"].values())
    assert count > 14
    kept = {}
    for when in ("after", "before"):
        command = [sys.executable, "-c", KILLED, str(folder), str(out), when]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=python_environment())
        assert done.returncode == -signal.SIGKILL, done.stderr
        noted = [e["file"] for found in records.read_json(out / "progress.json")["shards"].values() for e in found]
        times = {file: (out / file).stat().st_mtime_ns for file in noted}
        assert len(times) == len(kept) + (7 if when == "after" else 6) and kept.items() <= times.items()
        kept = times
    prepare(folder, out, tokenizer="bpe:300", shard_tokens=150)
    assert all((out / file).stat().st_mtime_ns == time for file, time in kept.items())  # never written again
    assert contents(out) == contents(whole)


def test_a_kept_shard_that_was_changed_is_written_again(folder, tmp_path, small, monkeypatch, capsys):
    from geowidth.text import writing

    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(folder, whole, shard_tokens=500)

    class StopError(Exception):
        pass

    add = writing.Journal.add

    def stop(self, split, entry):
        add(self, split, entry)
        if entry["file"] == "train-00003.bin":
            raise StopError

    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(writing.Journal, "add", stop)
        prepare(folder, out, shard_tokens=500)
    assert {p.suffix for p in out.iterdir()} == {".bin", ".json"}  # nothing that was begun is left
    changed = bytearray((out / "train-00002.bin").read_bytes())
    changed[3] ^= 1
    (out / "train-00002.bin").write_bytes(changed)
    (out / "train-00003.bin").unlink()
    prepare(folder, out, shard_tokens=500)
    assert "train-00002.bin is not as it was written" in capsys.readouterr().err
    assert contents(out) == contents(whole)


def test_a_finished_folder_is_left_as_it_is(folder, tmp_path):
    index = prepare(folder, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert prepare(folder, tmp_path / "out") == index
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
    with pytest.raises(UserError, match="holds shards with tokenizer 'bytes', not 'bpe:300'"):
        prepare(folder, tmp_path / "out", tokenizer="bpe:300")
    (folder / "0" / "new.txt").write_text("more")
    with pytest.raises(UserError, match="holds shards with marks"):
        prepare(folder, tmp_path / "out")


def test_a_full_disk_is_one_line_and_leaves_nothing_torn(tmp_path):
    path, out = tmp_path / "one.txt", tmp_path / "out"
    path.write_text("some words and more of them\n" * 20_000)
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from geowidth.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", limited, "data", "prepare", str(path), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=python_environment())
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr and "make room" in done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["progress.json", "settings.json"]
    prepare(path, out)
    assert load_corpus(out).digest == load_corpus(path).digest


def test_shards_that_are_not_those_of_the_index(folder, tmp_path):
    first = tmp_path / "out"
    prepare(folder, first, tokenizer="bpe:300", shard_tokens=300)

    def copied(name):
        return shutil.copytree(first, tmp_path / name)

    for name, change, words in [
        ("short", lambda f: (f / "test-00000.bin").write_bytes(b"ab"), "test-00000.bin has 2 bytes, which are not"),
        (
            "gone",
            lambda f: (f / "train-00001.bin").unlink(),
            "train-00001.bin does not exist; prepare the folder again",
        ),
        ("other", lambda f: flip(f / "train-00001.bin"), "train-00001.bin does not have the hash"),
        ("beyond", lambda f: edit(f, vocabulary=290), "holds id 29[0-9], beyond the vocabulary of 290"),
        ("wide", lambda f: edit(f, vocabulary=70_000), "its vocabulary is 70000"),
        ("sums", lambda f: edit(f, splits={}), "is damaged: splits.train"),
        ("name", lambda f: edit(f, digest=3), "is damaged: digest is 3, not a text"),
        ("tokenizer", lambda f: (f / "tokenizer.json").write_text("{}"), "is not the tokenizer the shards were made"),
        ("kind", lambda f: (f / "index.json").write_text("{}"), "holds no GeoWidth record"),
    ]:
        out = copied(name)
        change(out)
        with pytest.raises(UserError, match=words):
            load_corpus(out)


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def edit(folder, **changes):
    (folder / shards.CHECKED_FILE).unlink(missing_ok=True)
    records.write_json(folder / "index.json", records.read_json(folder / "index.json") | changes)


def test_hashes_are_checked_once_and_when_a_file_changes(folder, tmp_path):
    out = tmp_path / "out"
    prepare(folder, out, shard_tokens=300)
    path = out / "train-00001.bin"
    times = path.stat().st_mtime_ns
    flip(path)
    os.utime(path, ns=(times, times))
    load_corpus(out)  # nothing to be seen from outside
    with pytest.raises(UserError, match="does not have the hash"):
        shards.open_splits(out, shards.read_index(out), again=True)
    os.utime(path, ns=(times, times + 1))
    with pytest.raises(UserError, match="does not have the hash"):
        load_corpus(out)


def test_a_folder_that_is_being_written_is_refused(folder, tmp_path):
    from geowidth import files

    out = tmp_path / "out"
    out.mkdir()
    with files.holding(out), pytest.raises(UserError, match="another process is preparing"):
        prepare(folder, out)
