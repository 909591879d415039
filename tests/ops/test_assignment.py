"""The assignment solver against scipy's, and its duals against their definition."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from geowidth.errors import UserError
from geowidth.ops.linear_assignment.operation import assignment
from geowidth.ops.linear_assignment.reference import assignment_reference
from geowidth.ops.linear_assignment.result import AssignmentResult

BACKENDS = ("native", "torch")
SIZES = (1, 2, 3, 5, 7, 8, 9, 17, 31, 64, 97)


def matrices(n):
    """Costs of every kind: generic, many ties, all equal, inner products, large offsets, negative."""
    g = np.random.default_rng(n)
    x, y = g.standard_normal((n, 3)), g.standard_normal((n, 3))
    yield "generic", g.random((n, n))
    yield "ties", g.integers(0, 3, (n, n)).astype(float)
    yield "equal", np.full((n, n), 2.5)
    yield "identity is best", -x @ (x + 0.01 * y).T
    yield "nearly the identity", -x @ (x + 0.5 * y).T
    yield "unrelated", -x @ y.T
    yield "offset", g.random((n, n)) - 1e6
    yield "wide range", np.exp(8 * g.standard_normal((n, n)))


def check(result, cost):
    n = len(cost)
    rows, columns = linear_sum_assignment(cost)
    scale = n * np.abs(cost).max()
    assert sorted(result.column.tolist()) == list(range(n))
    assert result.cost == pytest.approx(cost[rows, columns].sum(), abs=1e-13 * scale)
    assert result.bound == pytest.approx(result.cost, abs=1e-12 * scale)
    assert result.bound <= result.cost + 1e-14 * scale
    slack = torch.from_numpy(cost) - result.row_dual[:, None] - result.column_dual
    assert slack.min() >= -1e-15 * (np.abs(cost).max() + result.column_dual.abs().max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", SIZES)
def test_is_optimal_and_the_duals_prove_it(n, backend):
    for _, cost in matrices(n):
        check(assignment(cost, backend=backend), cost)


@pytest.mark.parametrize("n", SIZES)
def test_costs_as_the_reference(n):
    for _, cost in matrices(n):
        expected = assignment_reference(torch.from_numpy(cost))
        scale = n * np.abs(cost).max(initial=1.0)
        assert assignment(cost, backend="native").cost == pytest.approx(expected.cost, abs=1e-13 * scale)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ("cuda", "torch"))
@pytest.mark.parametrize("n", SIZES)
def test_costs_on_a_gpu(n, backend):
    for _, cost in matrices(n):
        found = assignment(torch.from_numpy(cost).cuda(), backend=backend)
        assert found.column.is_cuda and found.row_dual.is_cuda and found.column_dual.is_cuda
        tensors = (t.cpu() for t in (found.column, found.row_dual, found.column_dual))
        check(AssignmentResult(*tensors, found.cost, found.bound), cost)


@pytest.mark.parametrize("n", (5, 31, 64))
def test_any_start_and_any_duals_give_the_same_cost(n):
    g = np.random.default_rng(1)
    for _, cost in matrices(n):
        best = assignment(cost)
        for _ in range(3):
            again = assignment(cost, start=g.permutation(n), column_dual=10 * g.standard_normal(n))
            check(again, cost)
        check(assignment(cost, start=best.column, column_dual=best.column_dual), cost)


def test_strides_do_not_matter():
    cost = np.random.default_rng(2).random((46, 60))
    expected = assignment(np.ascontiguousarray(cost[::2, 1:24]))
    for view in (cost[::2, 1:24], torch.from_numpy(cost)[::2, 1:24], np.asfortranarray(cost[::2, 1:24])):
        assert torch.equal(assignment(view).column, expected.column)
    integers = torch.randint(0, 9, (13, 13), generator=torch.Generator().manual_seed(0))
    check(assignment(integers), integers.double().numpy())


def test_inputs_are_left_alone():
    cost = np.random.default_rng(3).random((19, 19))
    start, dual, before = np.arange(19)[::-1].copy(), np.ones(19), cost.copy()
    assignment(cost, start=start, column_dual=dual)
    assert (cost == before).all() and (start == np.arange(19)[::-1]).all() and (dual == 1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    result = assignment(np.empty((0, 0)), backend=backend)
    assert result.column.shape == (0,) and result.cost == 0 == result.bound


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cost": np.zeros((2, 3))}, r"cost has shape \(2, 3\)"),
        ({"cost": [[0.0, 1.0], [float("nan"), 1.0]]}, r"cost\[1, 0\] is nan"),
        ({"cost": [[0.0, float("inf")], [0.0, 1.0]]}, r"cost\[0, 1\] is inf"),
        ({"cost": np.eye(3), "start": [0, 0, 2]}, "start is not a permutation"),
        ({"cost": np.eye(3), "start": [0, 1]}, "start is not a permutation"),
        ({"cost": np.eye(3), "column_dual": [0, 0, float("nan")]}, "column_dual must hold 3 finite numbers"),
        ({"cost": np.eye(3), "backend": "cuda"}, "allowed: native, torch"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        assignment(**arguments)
