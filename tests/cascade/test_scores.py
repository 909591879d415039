"""The rules of pruning against their definitions, and the order they give."""

import numpy as np
import pytest
import torch
from cascade_models import library, ours
from test_importance import text_of

from geowidth.artifacts.ledger import Ledger
from geowidth.cascade import residual_blocks
from geowidth.cascade.held_out import HeldOut, token_losses
from geowidth.cascade.scores import RULES, Evidence, angles_between, block_scores, removal_order
from geowidth.errors import UserError


def evidence(model=None, **more):
    return Evidence(residual_blocks(model or ours()), **{"text": text_of()} | more)


def test_similarity_by_definition():
    given = evidence()
    model, states = given.blocks.model, []
    with torch.no_grad(), given.blocks.reading(lambda i, x, y: states.append((x[:, 1:].double(), y[:, 1:].double()))):
        model(given.text.tokens)
    wanted = [torch.arccos(torch.cosine_similarity(x, y, dim=-1)).mean() for x, y in states]
    np.testing.assert_allclose(block_scores("similarity", given), wanted, rtol=1e-6)


def test_angles_at_their_edges():
    x = torch.tensor([[1.0, 0], [1, 2], [0.3, 0.3], [0, 0]])
    y = torch.tensor([[1.0, 1e-4], [-2, -4], [0.3, 0.3], [1, 0]])
    np.testing.assert_allclose(angles_between(x, y), [9.9999997e-5, np.pi, 0, np.pi / 2], rtol=1e-6)


@pytest.mark.parametrize("make", [ours, lambda: library("llama")], ids=["ours", "llama"])
def test_taylor_and_magnitude_by_definition(make):
    model, text = make(), text_of()
    given = Evidence(residual_blocks(model), text)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found, sizes = block_scores("taylor", given), block_scores("magnitude", given)
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    (token_losses(model, text.tokens, text.targets).sum() / (text.targets >= 0).sum()).backward()
    for block in range(3):
        pairs = [(p.detach(), p.grad) for p in given.blocks.parameters(block)]
        assert found[block] == pytest.approx(sum(float((p * grad).abs().sum()) for p, grad in pairs), rel=1e-4)
        assert sizes[block] == pytest.approx(sum(float(p.abs().sum()) for p, _ in pairs), rel=1e-5)


@pytest.mark.parametrize("rule", ["similarity", "taylor", "magnitude"])
def test_a_block_that_is_an_identity_goes_first(rule):
    """Without its parameters a pre-norm block changes nothing: angle, first-order change and size are all 0."""
    model = ours()
    with torch.no_grad():
        for parameter in model.blocks[1].parameters():
            parameter.zero_()
    scores = block_scores(rule, evidence(model))
    assert scores[1] == 0 and scores[[0, 2]].min() > 0 and removal_order(scores)[0] == 1


def test_ledger_and_random():
    ledger = Ledger(("a", "b", "c"), 2, 0, [3, 1, 4], [0, 0, 0])
    assert removal_order(block_scores("ledger", evidence(ledger=ledger))) == (1, 0, 2)
    orders = {removal_order(block_scores("random", evidence(seed=seed))) for seed in range(40)}
    assert len(orders) == 6  # all of them, each from some seed
    assert removal_order(block_scores("random", evidence(seed=3))) == removal_order(
        block_scores("random", evidence(seed=3))
    )


def test_order_of_equal_scores_is_that_of_the_model():
    assert removal_order(np.array([1.0, 0.5, 1.0, 0.5])) == (1, 3, 0, 2)


def test_scores_are_summed_over_processes():
    """Cases F3: of [3, 1, 0] here and [0, 1, 4] there, unit 1 goes."""

    class World:
        device = torch.device("cpu")

        def sum(self, tensor):
            return tensor + torch.tensor([0.0, 1.0, 4.0])

    RULES.register(type(RULES["random"])("local", "scores of this process", lambda _: np.array([3.0, 1.0, 0.0])))
    try:
        assert removal_order(block_scores("local", evidence())) == (2, 1, 0)
        assert removal_order(block_scores("local", evidence(), World())) == (1, 0, 2)
    finally:
        del RULES._items["local"]


def test_half_precision_gradients_are_added_up_in_float32():
    """Of sixteen times the windows as of them once; in bfloat16 each sum of gradients would be rounded."""
    model = ours().to(torch.bfloat16)
    one = text_of(4)
    many = HeldOut(one.tokens.repeat(16, 1), one.targets.repeat(16, 1), {})
    found = [block_scores("taylor", Evidence(residual_blocks(model), text)) for text in (one, many)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_refusals():
    with pytest.raises(UserError, match="rule ledger needs a ledger"):
        block_scores("ledger", evidence())
    with pytest.raises(UserError, match="rule taylor needs a text"):
        block_scores("taylor", evidence(text=None))
    with pytest.raises(UserError, match="pruning rule is 'best'; allowed: ledger, similarity"):
        block_scores("best", evidence())
    with pytest.raises(UserError, match="the ledger has 2 blocks, the model 3"):
        block_scores("ledger", evidence(ledger=Ledger(("a", "b"), 1, 0, [1, 1], [1, 1])))
    model = ours()
    with torch.no_grad():
        model.blocks[1].ffn.up[0, 0] = float("nan")
    with pytest.raises(UserError, match="score by magnitude of layer 1 is nan"):
        block_scores("magnitude", evidence(model))
