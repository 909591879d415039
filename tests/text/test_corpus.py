"""The corpus: disjoint splits, a digest that is stable and that everything enters, and plain errors."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from geowidth import memory
from geowidth.errors import UserError
from geowidth.text.corpus import SPLITS, DataOrder, build, by_name, load_corpus, windows


def documents(count):
    return [(f"folder/file{i}.txt", b"text %d " % i * (i % 5 + 1)) for i in range(count)]


def test_standard_library():
    one, two = load_corpus("stdlib"), load_corpus()
    assert one.digest == two.digest and len(one.digest) == 64
    sizes = [one.split(name).numel() for name in SPLITS]
    assert sum(sizes) > 4_000_000
    assert sizes[0] > 0.8 * sum(sizes) and min(sizes) > 0.01 * sum(sizes)
    assert all(one.split(name).dtype == torch.uint8 for name in SPLITS)
    assert b"def dumps(obj" in torch.cat([one.split(name) for name in SPLITS]).numpy().tobytes()


def test_splits_are_disjoint_and_whole():
    files = documents(400)
    corpus = build("x", files, "files")
    parts = [set(bytes(corpus.split(name)).split(b"\0")[:-1]) for name in SPLITS]
    assert parts[0] | parts[1] | parts[2] == {text for _, text in files}
    assert sum(map(len, parts)) == len(files)
    assert 0.8 < len(parts[0]) / 400 < 0.97


def test_a_document_keeps_its_split_when_others_come():
    few, many = by_name(documents(100)), by_name(documents(300))
    assert all(set(a) <= set(b) for a, b in zip(few, many, strict=True))


def test_digest_is_that_of_the_bytes_of_the_splits():
    one = build("x", [("a.txt", b"hello world, hello world")], "files")
    assert one.digest == build("y", [("b.txt", b"hello world, hello world")], "files").digest
    assert one.digest != build("x", [("a.txt", b"hello world, hello worle")], "files").digest
    # Pinned: another digest for the same bytes would make old results look incomparable.
    assert one.digest == "9f88f21df977ca2bc31c581bcf16e882dc5ca7ae4d0658171b5c612abd1c004e"


def test_folder_order_is_that_of_the_names(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/é.txt", ".hidden/x.txt", "c.bin"):
        path = tmp_path / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0binary" if name == "c.bin" else name.encode() * 40)
    corpus = load_corpus(tmp_path / "one")
    assert corpus.description.startswith("3 text files")
    assert bytes(corpus.train).startswith(b"a/z.txt")
    assert "each cut" in corpus.description


def test_few_documents_are_cut_by_position(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(1, 101)))
    corpus = load_corpus(path)
    assert [corpus.split(name).tolist() for name in SPLITS] == [
        [*range(1, 91), 0],
        [*range(91, 96), 0],
        [*range(96, 101), 0],
    ]


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    texts = [f"text {i} é \u2028 more" for i in range(200)]
    path.write_text("\n".join(json.dumps({"text": t, "id": 3}) for t in texts + texts[:50]) + "\n\n")
    corpus = load_corpus(path)
    parts = [set(bytes(corpus.split(name)).decode().split("\0")[:-1]) for name in SPLITS]
    assert parts[0] | parts[1] | parts[2] == set(texts)
    assert sum(map(len, parts)) == 200  # a text that comes twice never stands in two splits


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", "line 2 is not JSON"),
        ('{"txt": "a"}', "line 2 has fields txt; needed.*'text'"),
        ('{"text": 3}', "line 2"),
        ("[1]", "line 2 has list"),
        ("{}", "line 2 has fields none"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, line, words):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + '\n{"text": "fine"}\n')
    with pytest.raises(UserError, match=words):
        load_corpus(path)


def test_bad_sources(tmp_path):
    with pytest.raises(UserError, match="does not exist; allowed: stdlib"):
        load_corpus(tmp_path / "nothing")
    with pytest.raises(UserError, match="holds no text"):
        load_corpus(tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="holds no text"):
        load_corpus(tmp_path / "empty.txt")
    (tmp_path / "b.txt").write_bytes(b"ab\0")
    with pytest.raises(UserError, match="zero bytes"):
        load_corpus(tmp_path / "b.txt")


def test_text_larger_than_memory_is_refused_with_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr(memory, "available", lambda: 17)
    with pytest.raises(UserError, match="read whole takes 18 bytes.*geowidth data prepare makes shards of it"):
        load_corpus(tmp_path / "a.txt")


def test_windows():
    stream = torch.arange(23, dtype=torch.uint8)
    assert windows(stream, 4).tolist() == [list(range(s, s + 5)) for s in (0, 4, 8, 12, 16)]
    assert windows(stream, 4, 2)[:, 0].tolist() == [0, 8]
    assert windows(stream, 22).shape == (1, 23)
    with pytest.raises(UserError, match="23 bytes; one window takes 24"):
        windows(stream, 23)


def test_data_order():
    stream = torch.arange(12 * 16 + 1, dtype=torch.int64).to(torch.uint8)
    order = DataOrder(stream, 16, 5, seed=3)
    seen = [int(w[0]) // 16 for step in range(24) for w in order.batch(step)]
    for epoch in range(10):  # every window once a pass, and each pass in another order
        assert sorted(seen[12 * epoch : 12 * epoch + 12]) == list(range(12))
    assert seen[:12] != seen[12:24]
    assert torch.equal(DataOrder(stream, 16, 5, seed=3).batch(7), order.batch(7))
    assert not torch.equal(DataOrder(stream, 16, 5, seed=4).batch(7), order.batch(7))


def test_a_batch_is_the_rows_of_all_ranks():
    stream = torch.arange(40 * 16 + 1, dtype=torch.int64).to(torch.uint8)
    order = DataOrder(stream, 16, 6, seed=3)
    for step in (0, 6, 7, 41):  # 40 windows a pass: step 6 lies in two of them
        whole = order.batch(step)
        for size in (1, 2, 3, 6):
            alone = [DataOrder(stream, 16, 6, seed=3) for _ in range(size)]
            share = 6 // size
            parts = [one.batch(step, range(r * share, (r + 1) * share)) for r, one in enumerate(alone)]
            assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(order.batch(step, slice(1, 4)), whole[1:4])


def test_order_is_that_of_numpy():
    """Pinned by its rule: another order would give other losses under the same seed."""
    stream = torch.arange(12 * 16 + 1, dtype=torch.int64).to(torch.uint8)
    order = DataOrder(stream, 16, 5, seed=3)
    wanted = [place for epoch in range(3) for place in np.random.default_rng([3, epoch]).permutation(12)]
    found = [int(window[0]) // 16 for step in range(7) for window in order.batch(step)]
    assert found == wanted[:35]


def test_long_orders_need_no_list(monkeypatch):
    stream = torch.arange(101 * 2 + 1, dtype=torch.int64)
    monkeypatch.setattr(DataOrder, "LISTED", 100)
    order = DataOrder(stream, 2, 7, seed=3)
    seen = [int(window[0]) // 2 for step in range(44) for window in order.batch(step)]
    for epoch in range(3):
        assert sorted(seen[101 * epoch : 101 * (epoch + 1)]) == list(range(101))
    assert seen[:101] != seen[101:202]
    assert not order.orders
    assert torch.equal(DataOrder(stream, 2, 7, seed=3).batch(29, range(2, 5)), order.batch(29)[2:5])
    assert not torch.equal(DataOrder(stream, 2, 7, seed=4).batch(3), order.batch(3))


def test_documents_of_windows():
    corpus = build("x", [("a.txt", b"text of some length")], "files")
    windows = torch.tensor([[0, 5, 5, 0, 0, 7], [5, 5, 5, 5, 5, 5], [5, 0, 5, 5, 5, 0]])
    # A separator is the last of its document, also where it comes first or twice.
    assert corpus.documents(windows).tolist() == [[0, 1, 1, 1, 2, 3], [0] * 6, [0, 0, 1, 1, 1, 1]]
    with pytest.raises(UserError, match="does not say which id ends a document"):
        replace(corpus, separator=None).documents(windows)


def test_bits_per_byte():
    corpus = build("x", [("a.txt", b"text of some length")], "files")
    assert corpus.bits_per_byte(math.log(2)) == 1.0 and corpus.loss_unit == "nats per byte"
    tokens = replace(corpus, unit="token", byte_counts={"validation": 3 * corpus.validation.numel()})
    assert tokens.bits_per_byte(3 * math.log(2)) == pytest.approx(1.0) and tokens.loss_unit == "nats per token"
    assert replace(tokens, byte_counts={}).bits_per_byte(1.0) is None
    assert "unit" not in corpus.to_json()
    assert tokens.to_json()["tokens"] == corpus.to_json()["bytes"]
