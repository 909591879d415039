"""The Triton kernels compiled without a GPU, and the committed table of what they need."""

import csv

import pytest
from processes import ROOT, run

from geowidth.kernels import tiles

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def compiled():
    """(version line, rows) of the resource table, compiled now."""
    done = run("-m", "geowidth.kernels.resources")
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def read(text):
    head, body = text.split("\n", 1)
    return head, list(csv.DictReader(body.splitlines()))


def test_every_kernel_fits_its_chip(compiled):
    """No spills, no more shared memory than a block may have, matrix instructions where they are meant."""
    limits = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "other": 101_376}
    rows = compiled[1]
    assert {r["chip"] for r in rows} == set(limits)
    listed = {(r["chip"], r["kernel"].split(",")[0], r["tile"]) for r in rows}
    assert {(chip, product, str(tile)) for chip, product, tile, _ in tiles.entries()} <= listed
    for row in rows:
        assert int(row["spills"]) == 0 and int(row["shared"]) <= limits[row["chip"]], row
        assert 0 < int(row["registers"]) <= 255, row
        if "bf16" in row["kernel"]:
            assert int(row["narrow"]) == 0, row
            assert (int(row["products"]) > 0) == ("activation" not in row["kernel"]), row


def test_distances_and_sinkhorn_are_compiled_for_every_chip(compiled):
    for chip in ("sm_80", "sm_90", "sm_100"):
        found = {row["kernel"] for row in compiled[1] if row["chip"] == chip}
        for name in ("epilogue", "pairs", "tiles"):
            assert f"distances {name}, fp32" in found
        for name in ("enter", "advance, held", "advance, looped", "finish, entered", "finish", "plan", "inner"):
            assert f"sinkhorn {name}, fp32" in found
    rows = [row for row in compiled[1] if row["kernel"].endswith("fp64")]
    assert len(rows) == 10 and all(row["products"] == "0" for row in rows)


def test_the_committed_resource_table(compiled):
    """A change of what a kernel needs shows in review: python -m geowidth.kernels.resources --write."""
    head, rows = read((ROOT / "kernels" / "triton" / "RESOURCES.csv").read_text())
    if head != compiled[0]:
        pytest.skip(f"another Triton wrote the table: {head}")
    assert rows == compiled[1]
