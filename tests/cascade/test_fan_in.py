"""Gradient fan-in: the formulas against paths that are enumerated, and against derivatives of linear stacks."""

import itertools

import numpy as np
import pytest
import torch

from geowidth.cascade import predicted_fan_in
from geowidth.errors import UserError

WEIGHTS = {"plain": None, "supervised": None, "weighted": [0.5, 0.0, 2.0, 1.0, 0.25]}


def predicted(layers, kind):
    weights = None if WEIGHTS[kind] is None else WEIGHTS[kind][-layers:]
    return predicted_fan_in(layers, supervised=kind == "supervised", head_weights=weights)


def heads(layers, kind):
    return {"plain": [0.0] * (layers - 1) + [1.0], "supervised": [1.0] * layers}.get(kind) or WEIGHTS[kind][-layers:]


def paths(block, head):
    """All gradient paths from `head` (after that block) back to the output of `block`: the blocks each passes."""
    between = range(block + 1, head + 1)
    return [chosen for size in range(len(between) + 1) for chosen in itertools.combinations(between, size)]


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_counted_by_enumerating_paths(layers, kind):
    """The identity path and those through one block downstream, of every head with its weight."""
    counted = [
        sum(
            w * sum(len(path) <= 1 for path in paths(block, head))
            for head, w in enumerate(heads(layers, kind))
            if head >= block
        )
        for block in range(layers)
    ]
    np.testing.assert_allclose(predicted(layers, kind), counted)


def gradients(factors, kind):
    """d loss / d (output of each block) of a stack x + f_l x of linear blocks; the loss weights all states."""
    x, states, loss = torch.ones((), dtype=torch.float64, requires_grad=True), [], 0.0
    for factor, weight in zip(factors, heads(len(factors), kind), strict=True):
        x = x + factor * x
        states.append(x)
        loss = loss + weight * x
    return torch.stack(torch.autograd.grad(loss, states, create_graph=True))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_paths_sum_to_the_gradient(kind):
    """Of linear blocks with known derivatives the gradient is the sum over all paths of the product along them."""
    factors = [0.3, -0.7, 1.1, 0.4, -0.2]
    summed = [
        sum(
            weight * sum(np.prod([factors[i] for i in path]) for path in paths(block, head))
            for head, weight in enumerate(heads(5, kind))
            if head >= block
        )
        for block in range(5)
    ]
    np.testing.assert_allclose(gradients(factors, kind).detach().numpy(), summed, rtol=1e-12)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_counted_by_derivatives(kind):
    """With all blocks' derivatives e, fan-in is the gradient's value at e = 0 plus its slope there."""
    e = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = gradients([e] * 5, kind)
    slopes = torch.stack(
        [torch.autograd.grad(g, e, retain_graph=True, allow_unused=True, materialize_grads=True)[0] for g in found]
    )
    np.testing.assert_allclose(predicted(5, kind), (found + slopes).detach().numpy())


@pytest.mark.parametrize("kind", ["plain", "supervised"])
def test_repeated_blocks_have_the_sum_over_their_places(kind):
    """The derivative by a shared factor is the sum over its places of the gradient there times what enters it.

    With all factors e at 0 every state is 1, so it is the sum of the gradients; their slopes are those of the paths.
    """
    order = (0, 1, 2, 3, 2, 3, 2, 3)
    e = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = gradients([e] * len(order), kind)
    slopes = [torch.autograd.grad(g, e, retain_graph=True, allow_unused=True, materialize_grads=True)[0] for g in found]
    at_places = (found + torch.stack(slopes)).detach().numpy()
    summed = [at_places[[place for place, own in enumerate(order) if own == block]].sum() for block in range(4)]
    predicted = predicted_fan_in(4, supervised=kind == "supervised", repeat_last=2, repeat_times=3)
    np.testing.assert_allclose(predicted, summed)
    np.testing.assert_allclose(predicted_fan_in(4, repeat_last=2), predicted_fan_in(4))


def test_refusals():
    with pytest.raises(UserError, match="layers is 0"):
        predicted_fan_in(0)
    with pytest.raises(UserError, match="head weight has 2 numbers for 3 layers"):
        predicted_fan_in(3, head_weights=[1, 2])
    with pytest.raises(UserError, match="repeat_last is 4; allowed: whole numbers from 0 to 3"):
        predicted_fan_in(3, repeat_last=4, repeat_times=2)
    with pytest.raises(UserError, match="supervised is 'false'"):
        predicted_fan_in(3, supervised="false")
