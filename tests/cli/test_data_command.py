"""`geowidth data` as a user meets it."""

import json

import pytest

from geowidth import cli
from geowidth.text.corpus import load_corpus


@pytest.fixture
def articles(tmp_path):
    path = tmp_path / "articles.jsonl"
    path.write_text("\n".join(json.dumps({"body": f"article {i} of some words"}) for i in range(80)))
    return path


def run(capsys, *words):
    code = cli.main(["data", *map(str, words)])
    return code, capsys.readouterr()


def test_prepare_and_check(articles, tmp_path, capsys):
    out = tmp_path / "shards"
    words = ["prepare", articles, "--field", "body", "--tokenizer", "bpe:280", "--out", out, "--shard-tokens", 200]
    code, printed = run(capsys, *words)
    assert code == 0 and "prepare: 1/1 megabytes" in printed.err and f"corpus: {out}" in printed.out
    corpus = load_corpus(out)
    assert corpus.tokenizer == "bpe:280" and f"digest {corpus.digest}" in printed.out
    row = next(line for line in printed.out.splitlines() if line.startswith("train")).split()
    assert row[2] == f"{corpus.train.numel():,}"
    again = run(capsys, *words)
    assert again[0] == 0 and again[1].out == printed.out
    code, checked = run(capsys, "check", out)
    assert code == 0 and checked.out.splitlines()[:-1] == printed.out.splitlines()[:-1]
    assert f"every hash is as stated: {out}" in checked.out
    index = json.loads((out / "index.json").read_text())
    (out / "index.json").write_text(json.dumps(index | {"digest": "0" * 64}))
    code, checked = run(capsys, "check", out)
    assert code == 2 and "its index states 0000" in checked.err
    (out / "train-00000.bin").write_bytes(b"\0" * (out / "train-00000.bin").stat().st_size)
    code, checked = run(capsys, "check", out)
    assert code == 2 and "train-00000.bin does not have the hash" in checked.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["make", "x"], "ACTION is 'make'; allowed: prepare, check"),
        (["prepare", "stdlib"], "needs --out DIR"),
        (["prepare", "nothing.txt", "--out", "OUT"], "'nothing.txt' does not exist; allowed: stdlib, a text file"),
        (["prepare", "empty.txt", "--out", "OUT"], "corpus 'empty.txt' holds no text"),
        (["prepare", "binary.txt", "--out", "OUT"], "'binary.txt' holds zero bytes, so it is not text"),
        (["prepare", "bad.jsonl", "--out", "OUT"], "bad.jsonl line 2 is not JSON"),
        (["prepare", "bad.parquet", "--out", "OUT"], "bad.parquet is no Parquet file"),
        (["prepare", "ids.bin", "--out", "OUT"], "ids.bin holds token ids, not text; give it to --corpus as it is"),
        (["prepare", "lines", "--out", "OUT"], "lines holds JSONL files, not text files; name the files themselves"),
        (["prepare", "stdlib", "--out", "OUT", "--tokenizer", "bpe:3"], "allowed: bpe:N with N from 257"),
        (["prepare", "stdlib", "--out", "OUT", "--tokenizer", "no.json"], "tokenizer 'no.json' does not exist"),
        (["prepare", "stdlib", "--out", "OUT", "--tokenizer", "bad.jsonl"], "bad.jsonl is no tokenizer"),
        (["prepare", "stdlib", "--out", "OUT", "--end-of-text", "x"], "the tokenizer bytes has its own end of text"),
        (["prepare", "stdlib", "--out", "OUT", "--shard-tokens", "0"], "--shard-tokens is 0; allowed: whole numbers"),
        (["prepare", "stdlib", "--out", "ids.bin"], "ids.bin is a file, not a folder"),
        (["prepare", "lines/..", "--out", "OUT"], "OUT lies in the source lines/.., which must stay as it is"),
        (["check", "lines"], "lines holds no index.json"),
        (["check", "lines", "more"], "takes one folder of shards and nothing else; leave out more"),
        (["check", "lines", "--field", "body"], "leave out --field"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, words, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"a\0")
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{bad\n')
    (tmp_path / "bad.parquet").write_bytes(b"none")
    (tmp_path / "ids.bin").write_bytes(b"abcd")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text('{"text": "fine"}\n')
    code, printed = run(capsys, *words)
    assert code == 2 and error in printed.err
    assert printed.err.count("\n") == 1 and printed.err.startswith("geowidth: ")
    assert not list(tmp_path.rglob("*-00000.bin"))
