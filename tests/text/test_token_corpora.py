"""A corpus of tokens through the chain: trained on, measured, compared, exported; what does not fit is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from geowidth import cli, records
from geowidth.chain import resolve, run_chain
from geowidth.errors import UserError
from geowidth.measure import check_enough_text, measure
from geowidth.measure.opening import open_model
from geowidth.text.corpus import load_corpus
from geowidth.text.preparation import prepare
from geowidth.train import train
from geowidth.train.compare import compare_folders

STEPS = {"steps": 4, "watch": lambda *_: None}


@pytest.fixture(scope="module")
def shards(tmp_path_factory, text):
    """The session's text in tokens, and as bytes."""
    folder = tmp_path_factory.mktemp("shards")
    prepare(text, folder / "tokens", tokenizer="bpe:280", shard_tokens=1500)
    prepare(text, folder / "bytes", shard_tokens=3000)
    return folder


@pytest.fixture(scope="module")
def trained(shards, tmp_path_factory):
    """Two arms of a tiny model of tokens."""
    from tiny_preset import TINY

    folder = tmp_path_factory.mktemp("trained")
    preset = replace(TINY, model=replace(TINY.model, vocabulary=280))
    for arm, widths in (("uniform", (24, 24)), ("tapered", (32, 16))):
        train(preset, widths, 0, folder / "arms" / arm / "seed-0", arm=arm, corpus=shards / "tokens", **STEPS)
    return folder


def test_shards_of_bytes_train_to_the_same_bits(tiny, shards, text, tmp_path):
    one = train(tiny, None, 0, tmp_path / "a", corpus=text, **STEPS)
    two = train(tiny, None, 0, tmp_path / "b", corpus=shards / "bytes", **STEPS)
    assert one["loss"] == two["loss"] and one["corpus"]["digest"] == two["corpus"]["digest"]
    assert one["bits_per_byte"] == one["loss"] / np.log(2)


def test_a_result_says_what_its_loss_is_in(trained, shards, capsys):
    result = records.read_json(trained / "arms" / "uniform" / "seed-0" / "result.json")
    corpus = load_corpus(shards / "tokens")
    assert result["corpus"] == corpus.to_json()
    bits = result["loss"] / np.log(2) * corpus.validation.numel() / corpus.bytes_in("validation")
    assert result["bits_per_byte"] == pytest.approx(bits) and bits < result["loss"] / np.log(2)
    record = compare_folders(trained)
    assert record["settings"]["unit"] == "nats per token of the validation set"
    assert "nats per token" in record["sentence"] and "per byte" not in record["sentence"]
    assert cli.main(["compare", str(trained)]) == 0 and "nats/token" in capsys.readouterr().out
    assert cli.main(["report", str(trained)]) == 0
    page = (trained / "report.html").read_text()
    assert "nats per token" in page and "nats per byte" not in page and "tokens of bpe:280" in page


def test_a_model_carries_its_tokenizer(trained, shards, text, tmp_path):
    folder = trained / "arms" / "uniform" / "seed-0"
    assert (folder / "tokenizer.json").read_bytes() == (shards / "tokens" / "tokenizer.json").read_bytes()
    corpus, opened = load_corpus(shards / "tokens"), open_model(folder)
    rows = torch.cat(opened.held_out(corpus))
    assert torch.equal(rows, corpus.test[: len(rows)])
    # The same text, not tokenised before: its ids but for the ends of documents.
    again = torch.cat(opened.held_out(load_corpus(text)))
    assert again[:200].tolist() == rows[:200].tolist()
    profile = measure(folder, corpus=shards / "tokens", tokens=16)
    assert profile.settings["clouds"]["corpus"] == corpus.digest
    check_enough_text(corpus, 16, 16)
    with pytest.raises(UserError, match="tokens asked for, but the corpus's test split has at most"):
        check_enough_text(corpus, 16, 10**6)


def test_exports_carry_it_too(trained, shards, tmp_path, text):
    transformers = pytest.importorskip("transformers")
    folder, out = trained / "arms" / "uniform" / "seed-0", tmp_path / "out"
    assert cli.main(["export", str(folder), "--format", "hf-padded", "--out", str(out)]) == 0
    found = transformers.AutoTokenizer.from_pretrained(out)
    words = text.read_text()[:300]
    assert found.decode(found(words)["input_ids"]) == words and found.eos_token_id == 0
    corpus = load_corpus(shards / "tokens")
    ids = corpus.test[:16][None]
    stock = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    torch.testing.assert_close(stock(ids).logits, open_model(folder).model(ids), rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.cat(open_model(out).held_out(corpus))[:99], corpus.test[:99])


def test_ids_of_another_tokenizer_are_refused(trained, shards, text, tiny, tmp_path, rng):
    folder = trained / "arms" / "uniform" / "seed-0"
    prepare(text, tmp_path / "other", tokenizer="bpe:270")
    with pytest.raises(UserError, match="holds ids of bpe:270, and .* has another tokenizer; give text"):
        measure(folder, corpus=tmp_path / "other", tokens=16)
    rng.integers(0, 61, 3000).astype("<u2").tofile(tmp_path / "ids.bin")
    with pytest.raises(UserError, match="holds ids of an unknown tokenizer, and .* has another tokenizer"):
        measure(folder, corpus=tmp_path / "ids.bin", tokens=16)
    train(tiny, None, 0, tmp_path / "bytes", corpus=text, **STEPS)
    with pytest.raises(UserError, match="holds ids of bpe:280, and .* has no tokenizer.json; give text"):
        measure(tmp_path / "bytes", corpus=shards / "tokens", tokens=16)
    with pytest.raises(UserError, match="has 280 token ids; the model knows 256"):
        train(tiny, None, 0, tmp_path / "none", corpus=shards / "tokens", **STEPS)
    with pytest.raises(UserError, match="has 280 token ids; the model knows 256"):
        run_chain(resolve(tiny, corpus=shards / "tokens", steps=4), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_ids_without_a_tokenizer(tiny, text, tmp_path, rng):
    """A model of nanoGPT's ids: no bits per byte, measured on its own corpus and on no text."""
    rng.integers(0, 61, 9000).astype("<u2").tofile(tmp_path / "ids.bin")
    preset = replace(tiny, model=replace(tiny.model, vocabulary=61))
    result = train(preset, None, 0, tmp_path / "model", corpus=tmp_path / "ids.bin", **STEPS)
    assert result["bits_per_byte"] is None and result["corpus"]["tokenizer"] is None
    assert measure(tmp_path / "model", corpus=tmp_path / "ids.bin", tokens=16).layers == 2
    with pytest.raises(UserError, match="has 61 token ids and no tokenizer.json"):
        measure(tmp_path / "model", corpus=text, tokens=16)
