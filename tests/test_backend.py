"""How an op's backend is chosen."""

import pytest

from geowidth.errors import UserError
from geowidth.ops.backend import OPERATIONS, Backend, Operation


def _only_float32(dtype="float32", **_):
    return None if dtype == "float32" else "only float32"


@pytest.fixture
def operation(monkeypatch):
    monkeypatch.delenv("GEOWIDTH_BACKEND", raising=False)
    backends = [
        Backend("fast", ("cpu",), run=None, why_not=_only_float32),
        Backend("plain", ("cpu", "cuda"), run=None),
    ]
    yield Operation("an_op", backends)
    del OPERATIONS["an_op"]


def test_the_first_that_can_is_used(operation):
    assert operation.choose("cpu", dtype="float32").name == "fast"
    assert operation.choose("cpu", dtype="float64").name == "plain"
    assert operation.choose("cuda", dtype="float32").name == "plain"


def test_one_asked_for_works_or_says_why(operation, monkeypatch):
    assert operation.choose("cpu", "plain", dtype="float32").name == "plain"
    with pytest.raises(UserError, match="only float32"):
        operation.choose("cpu", "fast", dtype="float64")
    with pytest.raises(UserError, match="allowed: plain"):
        operation.choose("cuda", "fast")
    monkeypatch.setenv("GEOWIDTH_BACKEND", "nonsense")
    with pytest.raises(UserError, match="allowed: fast, plain"):
        operation.choose("cpu")


def test_a_device_nobody_serves(operation):
    with pytest.raises(UserError, match="no backend"):
        operation.choose("tpu")
    assert operation.report("cpu") == [("fast", None), ("plain", None)]
