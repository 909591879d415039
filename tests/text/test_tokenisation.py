"""Tokenizers: what ends a document, what is refused, and that a special token's name in a text is text."""

import json

import numpy as np
import pytest

from geowidth.errors import UserError
from geowidth.text import tokenisation
from geowidth.text.tokenisation import BYTES, bpe_size, tokeniser_from, tokeniser_of, train_bpe

tokenizers = pytest.importorskip("tokenizers")
TEXTS = [b"the width of a layer", "größe 漢字\n".encode(), b"<|endoftext|>", b""]


def word_level(*names, special=()):
    """The text of a tokenizer.json with a token for each name."""
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, names[0]))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(list(special))
    return library.to_str()


def test_bytes():
    assert [ids.tolist() for ids in BYTES.encode([b"ab", b""])] == [[97, 98], []]
    assert (BYTES.vocabulary, BYTES.separator, BYTES.digest) == (256, 0, None)


def test_a_trained_bpe_gives_back_every_text():
    files = train_bpe(TEXTS * 20, 290)
    found = tokeniser_of(files, "x", "bpe:290")
    assert (found.vocabulary, found.separator, found.item_bytes, found.unit) == (290, 0, 2, "token")
    ids = found.encode(TEXTS)
    assert [found.library.decode(row.tolist()).encode() for row in ids] == TEXTS
    assert not any((row == found.separator).any() for row in ids)  # a name in a text ends no document
    assert found.encode([b"\xff"])[0].tolist() == found.encode(["\ufffd".encode()])[0].tolist()
    assert train_bpe(TEXTS * 20, 290) == files
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "<|endoftext|>"


def test_large_vocabularies_take_four_bytes():
    found = tokeniser_of({"tokenizer.json": word_level("a", special=[f"<{i}>" for i in range(1 << 16)])}, "x", "x", "a")
    assert (found.vocabulary, found.item_bytes) == ((1 << 16) + 1, 4)
    assert found.encode([b"a <65535>"])[0].dtype == np.dtype("<u4")


def test_the_token_that_ends_a_text(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(word_level("a", "</s>", "<end>", "[SEP]"))
    assert tokeniser_from(str(path)).separator == 1
    assert tokeniser_from(str(tmp_path), "<end>").separator == 2
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "[SEP]"}}))
    assert tokeniser_from(str(path)).separator == 3
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    assert tokeniser_from(str(path)).separator == 2
    assert set(tokeniser_from(str(path)).files) == {p.name for p in tmp_path.iterdir()}
    with pytest.raises(UserError, match="has no token 'stop'; name one of its tokens with --end-of-text"):
        tokeniser_from(str(path), "stop")


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(
        UserError, match="nothing' does not exist; allowed: bytes, bpe:N, a tokenizer.json or its folder"
    ):
        tokeniser_from(str(tmp_path / "nothing"))
    (tmp_path / "a.json").write_text('{"model": 3}')
    with pytest.raises(UserError, match="a.json is no tokenizer"):
        tokeniser_from(str(tmp_path / "a.json"))
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="b.json is not UTF-8"):
        tokeniser_from(str(tmp_path / "b.json"))
    (tmp_path / "c.json").write_text(word_level("a", "b"))
    with pytest.raises(UserError, match="names no token that ends a text; name one with --end-of-text TOKEN"):
        tokeniser_from(str(tmp_path / "c.json"))
    monkeypatch.setattr(tokenisation, "MOST_IDS", 1)
    with pytest.raises(UserError, match="has 2 token ids; allowed: 2 to 1"):
        tokeniser_from(str(tmp_path / "c.json"))


def test_sizes_of_a_bpe():
    assert bpe_size("bpe:257") == 257 and bpe_size("bytes") is None and bpe_size("bpe.json") is None
    for text in ("bpe:", "bpe:256", "bpe:1e3", "bpe:-3", "bpe:9999999", "bpe:" + "9" * 40):
        with pytest.raises(UserError, match="allowed: bpe:N with N from 257"):
            bpe_size(text)
