"""Generation with kept keys and values: the same logits as without, at every length; texts that follow their rules."""

import numpy as np
import pytest
import torch

from geowidth import memory
from geowidth.errors import UserError
from geowidth.models import KeyValueCache, ModelConfig, TaperedTransformer, cache_bytes, generate
from geowidth.models.generation import Draw, cache_of, cached_logits, prefill, stream

SHAPES = {
    "plain": ModelConfig(19, 3, 12, 2, (17, 5, 0), 23),
    "heads by layer": ModelConfig(19, 3, 16, 4, (7, 0, 3), 23, layer_heads=(6, 3, 1)),
    "grouped queries": ModelConfig(19, 2, 16, 4, (8, 8), 23, key_heads=2, layer_heads=(6, 2), tied=False),
    "repeated blocks": ModelConfig(19, 3, 16, 4, (7, 5, 3), 23, layer_heads=(6, 3, 1), repeat_last=2, repeat_times=3),
    "scaled positions": ModelConfig(
        19, 2, 16, 2, (8, 8), 23, head_size=6, rope_scaling={"rope_type": "linear", "factor": 2.0}
    ),
}
LENGTHS = (1, 2, 7, 13)


def model_of(config, dtype=torch.float64):
    model = TaperedTransformer(config, seed=3).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def tokens_of(batch, length, seed=0):
    return torch.randint(0, 19, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pieces", ["one by one", "all at once", "in pieces of 3", "half, then one by one"])
@torch.no_grad()
def test_logits_with_a_cache_are_those_without(shape, pieces):
    model = model_of(SHAPES[shape])
    for length in LENGTHS:
        tokens = tokens_of(2, length)
        half = max(1, length // 2)
        sizes = {
            "one by one": [1] * length,
            "all at once": [length],
            "in pieces of 3": [3] * (length // 3) + [length % 3] * (length % 3 > 0),
            "half, then one by one": [half] + [1] * (length - half),
        }[pieces]
        cache = cache_of(model, 2, length)
        found = torch.cat([cached_logits(model, part, cache, every=True) for part in tokens.split(sizes, 1)], 1)
        assert cache.length == length
        assert (found - model(tokens)).abs().max() < 1e-12


@torch.no_grad()
def test_the_last_token_alone_has_the_logits_it_has_among_all():
    model, tokens = model_of(SHAPES["grouped queries"]), tokens_of(3, 11)
    assert (cached_logits(model, tokens, cache_of(model, 3, 11)) - model(tokens)[:, -1]).abs().max() < 1e-12


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("piece", [2, 512])
@torch.no_grad()
def test_texts_of_different_lengths_do_not_see_each_other(shape, piece):
    model = model_of(SHAPES[shape])
    rows = [tokens_of(1, length, seed=length)[0] for length in (1, 7, 4)]
    cache = cache_of(model, 3, 9)
    found = prefill(model, rows, cache, piece)
    following = cached_logits(model, torch.full((3, 1), 5), cache)
    for row, logits, after in zip(rows, found, following, strict=True):
        alone = model(torch.cat([row, torch.tensor([5])])[None])[0]
        assert (logits - alone[-2]).abs().max() < 1e-12
        assert (after - alone[-1]).abs().max() < 1e-12
    cache.clear()
    again = prefill(model, rows[:1] * 3, cache)
    assert (again - model(rows[0][None])[0, -1]).abs().max() < 1e-12


@torch.no_grad()
def test_products_in_bfloat16_keep_keys_in_bfloat16():
    model, tokens = model_of(SHAPES["heads by layer"], torch.float32), tokens_of(2, 9)
    model.compute_in(torch.bfloat16)
    cache = cache_of(model, 2, 9)
    found = torch.cat([cached_logits(model, part, cache, every=True) for part in tokens.split(4, 1)], 1)
    assert cache.bytes == cache_bytes(model.config, 2, 9, torch.bfloat16) == 2 * 2 * 9 * (6 + 3 + 1) * 4 * 2
    assert found.dtype == torch.bfloat16 and (found - model(tokens)).abs().max() < 0.1


def test_each_layer_has_the_bytes_of_its_own_heads():
    for config in SHAPES.values():
        cache = KeyValueCache(config, 3, 17, torch.float64)
        assert cache.bytes == cache_bytes(config, 3, 17, torch.float64)
        heads = [slot.keys.shape[1] for slot in cache.slots]
        assert heads == [config.key_heads_by_layer[layer] for layer in config.order]
        assert sum(slot.keys.nbytes + slot.values.nbytes for slot in cache.slots) == cache.bytes
    uniform = ModelConfig(19, 3, 16, 4, (8,) * 3, 23)
    tapered = ModelConfig(19, 3, 16, 4, (8,) * 3, 23, layer_heads=(6, 4, 2))
    assert cache_bytes(uniform, 1, 10) == cache_bytes(tapered, 1, 10)


@torch.no_grad()
def test_greedy_texts_are_those_without_a_cache():
    model, prompts = model_of(SHAPES["heads by layer"]), tokens_of(2, 4)
    texts = prompts
    for _ in range(9):
        texts = torch.cat([texts, model(texts)[:, -1:].argmax(2)], 1)
    assert generate(model, prompts, 9) == texts[:, 4:].tolist()
    assert generate(model, prompts, 9, piece=1) == texts[:, 4:].tolist()
    assert generate(model, list(prompts), 9)[1] == generate(model, prompts[1:], 9)[0]


def test_a_text_ends_at_the_context_and_at_stop_ids():
    model = model_of(SHAPES["plain"])
    assert [len(text) for text in generate(model, tokens_of(1, 20))] == [3]
    assert [len(text) for text in generate(model, tokens_of(1, 20), 100)] == [3]
    whole = generate(model, tokens_of(2, 4), 12, temperature=2.0, seed=4)
    end = whole[0][5]
    stopped = generate(model, tokens_of(2, 4), 12, temperature=2.0, seed=4, stop=[end])
    for text, full in zip(stopped, whole, strict=True):
        assert text == full[: full.index(end) + 1] if end in full else text == full
    assert generate(model, tokens_of(1, 4), 12, stop=range(19)) == [generate(model, tokens_of(1, 4), 1)[0]]


def test_draws_follow_their_seed_and_their_place():
    model, prompts = model_of(SHAPES["plain"]), tokens_of(1, 4).repeat(3, 1)
    drawn = generate(model, prompts, 12, temperature=1.5, seed=1)
    assert drawn == generate(model, prompts, 12, temperature=1.5, seed=1)
    assert drawn[:1] == generate(model, prompts[:1], 12, temperature=1.5, seed=1)
    assert len({tuple(text) for text in drawn}) == 3
    assert drawn != generate(model, prompts, 12, temperature=1.5, seed=2)


def test_draws_have_the_probabilities_of_the_softmax():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).repeat(20000, 1)
    for top_k, kept in ((None, [0, 1, 2, 3]), (2, [1, 2])):
        found = np.bincount(Draw(20000, 0.7, top_k, seed=0)(logits), minlength=4) / 20000
        weights = np.zeros(4)
        weights[kept] = np.exp(logits[0].numpy()[kept] / 0.7)
        # five standard errors of a share of 20,000 draws
        assert np.abs(found - weights / weights.sum()).max() < 5 * 0.5 / 20000**0.5
        assert not found[weights == 0].any()
    assert Draw(1, 1e-9)(logits[:1]) == Draw(1)(logits[:1]) == Draw(1, 5.0, 1)(logits[:1]) == [1]


def test_tokens_come_one_by_one():
    model = model_of(SHAPES["plain"])
    steps = stream(model, tokens_of(2, 4), 5)
    first = next(steps)
    assert [[*a] for a in zip(first, *steps, strict=True)] == generate(model, tokens_of(2, 4), 5)


def test_long_texts_beyond_the_first_tables():
    config = ModelConfig(19, 1, 4, 1, (4,), 9000)
    model = model_of(config)
    model.cosine, model.sine = model.cosine[:8], model.sine[:8]
    assert len(generate(model, tokens_of(1, 15), 4, piece=4)[0]) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": []}, "holds no token"),
        ({"prompts": [[1, 2], []]}, "holds no token"),
        ({"prompts": [[1, 19]]}, "token id 19"),
        ({"prompts": [[1.5]]}, "token ids are integers"),
        ({"prompts": [[1] * 23]}, "context is 23"),
        ({"new_tokens": 0}, "new_tokens is 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1, "top_k": 0}, "top_k is 0"),
        ({"top_k": 5}, "give a temperature"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": [-2]}, "a stop id is -2"),
        ({"piece": 0}, "piece is 0"),
    ],
)
def test_what_cannot_be_is_refused_before_work(change, words):
    model = model_of(SHAPES["plain"])
    given = {"prompts": [[1, 2]], "new_tokens": 2} | change
    with pytest.raises(UserError, match=words):
        stream(model, given.pop("prompts"), given.pop("new_tokens"), **given)


def test_a_cache_refuses_what_does_not_fit(monkeypatch):
    model = model_of(SHAPES["plain"])
    cache = cache_of(model, 2, 4)
    for shape, words in (((2, 5), "room for 4"), ((1, 1), "needed: .2, 1 or more"), ((2, 0), "1 or more")):
        with pytest.raises(UserError, match=words):
            cached_logits(model, torch.zeros(shape, dtype=torch.int64), cache)
    with pytest.raises(UserError, match="context is 23"):
        KeyValueCache(model.config, 1, 24)
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(UserError, match="this machine has 1,000 free"):
        KeyValueCache(model.config, 1, 23)
