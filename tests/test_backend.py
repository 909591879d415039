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


def test_the_variable_asks_for_one_everywhere_or_op_by_op(operation, monkeypatch):
    def chosen(text, device="cpu", **request):
        monkeypatch.setenv("GEOWIDTH_BACKEND", text)
        return operation.choose(device, **request).name

    assert chosen("plain") == "plain" and chosen(" an_op = plain ") == "plain" and chosen("") == "fast"
    assert chosen("fast", "cuda") == "plain"  # no op is asked for a backend that it has not on the device
    assert chosen("triton") == "fast" and chosen("ffn=triton, gromov_wasserstein=cuda") == "fast"
    assert chosen("fast,an_op=plain") == "plain" and chosen("an_op=fast,plain") == "fast"
    with pytest.raises(UserError, match="backend 'fast' cannot serve an_op: only float32"):
        chosen("fast", dtype="float64")
    with pytest.raises(UserError, match="backend of an_op on cuda is 'fast'; allowed: plain"):
        chosen("an_op=fast", "cuda")
    assert operation.choose("cpu", "fast").name == "fast"  # an argument goes before the variable


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "GEOWIDTH_BACKEND is 'nonsense'; allowed: .*native.*triton, OPERATION=BACKEND"),
        ("nothing=triton", "the operation in GEOWIDTH_BACKEND is 'nothing'; allowed: an_op, assignment, .*sinkhorn"),
        ("an_op=cuda", "the backend of an_op in GEOWIDTH_BACKEND is 'cuda'; allowed: fast, plain"),
        ("an_op=", "the backend of an_op in GEOWIDTH_BACKEND is ''; allowed: fast, plain"),
        ("=plain", "the operation in GEOWIDTH_BACKEND is ''"),
        ("fast,plain", "GEOWIDTH_BACKEND is fast,plain; allowed: one BACKEND alone"),
        ("an_op=fast,an_op=plain", "GEOWIDTH_BACKEND is an_op=fast,an_op=plain; allowed: one"),
    ],
)
def test_wrong_names_in_the_variable_are_refused_by_name(operation, monkeypatch, text, words):
    monkeypatch.setenv("GEOWIDTH_BACKEND", text)
    with pytest.raises(UserError, match=words):
        operation.choose("cpu")


def test_doctor_says_what_the_variable_chooses(monkeypatch, capsys):
    from geowidth.cli import main

    monkeypatch.setenv("GEOWIDTH_BACKEND", "gromov_wasserstein=torch")
    main(["doctor"])
    text = capsys.readouterr().out
    assert "gromov_wasserstein: torch\n    not native: GEOWIDTH_BACKEND asks for torch" in text
    assert "  ffn: native" in text and "GEOWIDTH_BACKEND=gromov_wasserstein=torch is set" in text
    monkeypatch.setenv("GEOWIDTH_BACKEND", "nonsense")
    main(["doctor"])
    assert "every op will refuse it: GEOWIDTH_BACKEND is 'nonsense'; allowed" in capsys.readouterr().out


def test_a_backend_from_outside_comes_first_or_last(operation):
    mine, last = Backend("mine", ("cpu",), run=None, why_not=_only_float32), Backend("last", ("cuda",), run=None)
    operation.add(mine, first=True)
    operation.add(last)
    assert operation.choose("cpu", dtype="float32").name == "mine"
    assert operation.choose("cpu", dtype="float64").name == "plain"
    assert operation.choose("cuda").name == "plain" and operation.choose("cuda", "last").name == "last"
    operation.check_name("mine")
    with pytest.raises(UserError, match="an_op has a backend 'plain' already"):
        operation.add(Backend("plain", ("cuda",), run=None))
    with pytest.raises(UserError, match="needed: a geowidth.ops.backend.Backend"):
        operation.add("mine")


def test_a_device_nobody_serves(operation):
    with pytest.raises(UserError, match="no backend"):
        operation.choose("tpu")
    assert operation.report("cpu") == [("fast", None), ("plain", None)]
