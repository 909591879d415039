"""What an operation must have: a reference, a test that compares with it, a benchmark, a line of `geowidth doctor`."""

from pathlib import Path

import pytest

from geowidth.cli.doctor import examine, render
from geowidth.ops.backend import OPERATIONS, Operation

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(OPERATIONS)


def lacking(operation, facts, page):
    """Which of the parts an operation lacks, in words."""
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests/ops").glob("*.py")]
    name = getattr(operation.reference, "__name__", "no reference")
    found = {
        "reference": callable(operation.reference),
        "comparison with the reference": any(f"{name}(" in text for text in tests),
        "benchmark": (ROOT / f"benchmarks/micro/test_{operation.name}.py").is_file(),
        "line of doctor": operation.name in facts["operations"] and f"  {operation.name}: " in page,
    }
    return [part for part, there in found.items() if not there]


@pytest.fixture(scope="module")
def doctor():
    facts = examine()
    return facts, render(facts)


def test_all_operations_are_here():
    assert {"persistence", "diagram_distance", "dimension", "pairwise_distances", "sinkhorn", "ffn"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_has_all_its_parts(name, doctor):
    assert lacking(OPERATIONS[name], *doctor) == []


def test_one_that_lacks_them_is_noticed(doctor):
    bare = Operation("bare", [])
    del OPERATIONS["bare"]
    assert lacking(bare, *doctor) == ["reference", "comparison with the reference", "benchmark", "line of doctor"]
