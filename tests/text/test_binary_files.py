"""Token ids as nanoGPT and llm.c write them, told apart by their headers."""

import pickle

import numpy as np
import pytest
import torch

from geowidth.errors import UserError
from geowidth.text.corpus import DataOrder, load_corpus
from geowidth.text.tokenisation import train_bpe


class Trap:
    """Unpickled, it fails the test."""

    def __reduce__(self):
        return (pytest.fail, ("meta.pkl was unpickled",))


@pytest.fixture
def nano(tmp_path, rng):
    """A folder as nanoGPT makes it, and its ids."""
    folder = tmp_path / "nano"
    folder.mkdir()
    train, held_out = (rng.integers(0, 65, n).astype("<u2") for n in (1000, 101))
    train[3] = 64
    train.tofile(folder / "train.bin")
    held_out.tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "trap": Trap()}))
    return folder, train, held_out


def with_header(path, ids, magic=20240520, version=1, count=None):
    head = np.zeros(256, "<i4")
    head[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(head.tobytes() + ids.tobytes())
    return path


def test_nanogpt(nano):
    folder, train, held_out = nano
    corpus = load_corpus(folder)
    assert torch.equal(corpus.train[:], torch.from_numpy(train.astype(np.int64)))
    assert corpus.validation[:].tolist() == held_out[:50].tolist() and corpus.test[:].tolist() == held_out[50:].tolist()
    assert (corpus.vocabulary, corpus.unit, corpus.tokenizer, corpus.separator) == (65, "token", None, None)
    assert corpus.description == "2 .bin files, 1,101 tokens, test is the second half of the validation ids"
    assert corpus.bits_per_byte(1.0) is None and corpus.to_json()["bytes"] == dict.fromkeys(corpus.to_json()["tokens"])
    assert corpus.train.dtype == torch.uint16
    assert DataOrder(corpus.train, 16, 4, 0).batch(2).shape == (4, 17)
    changed = held_out.copy()
    changed[100] ^= 1
    changed.tofile(folder / "val.bin")
    assert load_corpus(folder).digest != corpus.digest


def test_files_with_headers(tmp_path, rng):
    folder = tmp_path / "modded"
    folder.mkdir()
    parts = [rng.integers(0, 50257, n).astype("<u2") for n in (300, 200, 90)]
    parts[0][0] = 50256
    for name, ids in zip(("x_train_000001", "x_train_000002", "x_val_000000"), parts, strict=True):
        with_header(folder / f"{name}.bin", ids)
    corpus = load_corpus(folder)
    assert corpus.train[:].tolist() == np.concatenate(parts[:2]).tolist()
    assert (corpus.vocabulary, corpus.separator, corpus.test.numel()) == (50257, 50256, 45)
    assert corpus.documents(corpus.train[:3][None])[0, 1] == 1
    alone = load_corpus(folder / "x_train_000002.bin")
    assert [alone.split(n).numel() for n in ("train", "validation", "test")] == [180, 10, 10]
    wide = with_header(tmp_path / "wide.bin", rng.integers(0, 1 << 20, 100).astype("<u4"), 20240801, 7)
    assert load_corpus(wide).train.dtype == torch.uint32
    with_header(folder / "y_train.bin", np.arange(5, dtype="<u4"), 20240801, 7)
    with pytest.raises(UserError, match="holds files with ids of 2 and of 4 bytes"):
        load_corpus(folder)


def test_a_tokenizer_beside_them(nano):
    folder, _, held_out = nano
    files = train_bpe([b"the width of a layer"] * 9, 270)
    for name, text in files.items():
        (folder / name).write_text(text)
    corpus = load_corpus(folder)
    size = corpus.vocabulary
    assert size > 256 and corpus.separator == 0 and set(corpus.tokenizer_files) == set(files)
    held_out[7] = size
    held_out.tofile(folder / "val.bin")
    with pytest.raises(UserError, match=f"holds id {size}, beyond the vocabulary of {size}"):
        load_corpus(folder)


def test_refusals(nano, tmp_path):
    folder, train, _ = nano
    (folder / "val.bin").write_bytes(b"abc")
    with pytest.raises(
        UserError, match="val.bin has 3 bytes, which are not whole ids of 2 bytes; write the file again"
    ):
        load_corpus(folder)
    (folder / "val.bin").write_bytes(b"")
    with pytest.raises(UserError, match="val.bin holds no ids"):
        load_corpus(folder)
    for arguments, words in [
        ({"version": 2}, "is of version 2; with magic 20240520, version 1 can be read"),
        ({"count": 999}, "has 2,000 bytes, which are not 999 ids of 2 bytes"),
        ({"count": -1}, "has 2,000 bytes, which are not"),
        ({"magic": 20240801}, "is of version 1; with magic 20240801, version 7"),
    ]:
        with pytest.raises(UserError, match=words):
            load_corpus(with_header(tmp_path / "a.bin", train, **arguments))
    (tmp_path / "a.bin").write_bytes(with_header(tmp_path / "b.bin", train).read_bytes()[:100])
    with pytest.raises(UserError, match="a.bin ends within its header"):
        load_corpus(tmp_path / "a.bin")
