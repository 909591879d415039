"""The Triton kernels: in the interpreter at prime sizes, and compiled for sm_90 without a GPU."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from geowidth.kernels import tiles
from geowidth.ops.ffn import explain

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CHECKS = (
    "every_activation",
    "bfloat16",
    "prime_sizes",
    "slices",
    "each_product_alone",
    "frozen_and_empty",
    "gradcheck",
    "elementwise",
)

pytest.importorskip("triton")


def run(*command, **environment):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def interpreted():
    """All checks in one process: importing torch and Triton takes longer than most of them."""
    return run(str(HERE / "interpreted_ffn.py"), *CHECKS, TRITON_INTERPRET="1")


@pytest.mark.parametrize("check", CHECKS)
def test_in_the_interpreter(check, interpreted):
    assert f"{check} ok" in interpreted.stdout, interpreted.stdout + interpreted.stderr


@pytest.fixture(scope="module")
def compiled():
    """(version line, rows) of the resource table, compiled now."""
    done = run("-m", "geowidth.kernels.resources")
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def read(text):
    head, body = text.split("\n", 1)
    return head, list(csv.DictReader(body.splitlines()))


def test_every_table_entry_fits_its_chip(compiled):
    limits = {"sm_90": 232_448, "other": 101_376}
    rows = compiled[1]
    listed = {(r["chip"], r["kernel"].split(",")[0], r["tile"]) for r in rows}
    assert {(chip, product, str(tile)) for chip, product, tile, _ in tiles.entries()} <= listed
    for row in rows:
        assert int(row["spills"]) == 0 and int(row["shared"]) <= limits[row["chip"]], row
        if "bf16" in row["kernel"]:
            assert int(row["narrow"]) == 0, row
            assert (int(row["products"]) > 0) == ("activation" not in row["kernel"]), row


def test_the_committed_resource_table(compiled):
    """A change of what a kernel needs shows in review: python -m geowidth.kernels.resources --write."""
    head, rows = read((ROOT / "kernels" / "triton" / "RESOURCES.csv").read_text())
    if head != compiled[0]:
        pytest.skip(f"another Triton wrote the table: {head}")
    assert rows == compiled[1]


def test_imports_touch_no_driver():
    modules = "activation, gate_up, grad_hidden, grad_input, pointwise, resources, tiles"
    code = f"from geowidth.kernels import {modules}; import geowidth.ops.ffn_triton, triton.runtime\n"
    code += "assert triton.runtime.driver._active is None; import torch; assert not torch.cuda.is_initialized()"
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_kernels_are_found_where_they_are_installed(tmp_path):
    library = tmp_path / "lib"
    done = run("setup.py", "-q", "egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(library))
    assert done.returncode == 0, done.stderr
    code = f"import sys; sys.path[0] = {str(library)!r}; import geowidth.kernels.tiles as t; print(t.__file__)"
    done = run("-c", code)
    assert done.stdout.strip() == str(library / "geowidth" / "kernels" / "tiles.py"), done.stdout + done.stderr


def test_no_autotuner():
    text = "".join(path.read_text() for path in (ROOT / "kernels" / "triton").glob("*.py"))
    assert not re.search(r"@triton\.(autotune|heuristics)", text)


def test_the_table_has_a_rule_or_a_reason_for_every_size():
    for chip in (*tiles.CHIPS, "sm_120"):
        for product in tiles.PRODUCTS:
            for d in (64, 1000, 1024, 4096):
                for tokens in (1, 127, 2048, 8192):
                    for width in (1, 500, 1387, 14336):
                        tile, reason = tiles.choose(product, chip, d, tokens, width)
                        assert reason and (tile is None or tile.block_m <= 128)
    assert tiles.choose("gate_up", "sm_90", 1022, 2048, 1387)[0] is None
    assert tiles.choose("gate_up", "sm_90", 1024, 2048, 1387, bits=32)[0] is None


def test_odd_widths_are_served_like_the_next_multiple():
    for product in tiles.PRODUCTS:
        odd, even = (tiles.choose(product, "sm_90", 1024, 8192, width) for width in (1387, 1408))
        assert odd[0] == even[0]


def test_explain():
    import torch

    from geowidth.errors import UserError

    text = explain(8192, 1024, 500)
    assert "grad_hidden" in text and "fused 128x256x64" in text and "library" not in text
    assert "library" in explain(8192, 4096, 1387)
    assert "multiple of 8" in explain(8192, 1023, 1387)
    assert "float32" in explain(8192, 1024, 1387, dtype=torch.float32)
    assert "no float64" in explain(8192, 1024, 1387, dtype=torch.float64)
    assert "1024 of 8192 tokens" in explain(8192, 1024, 1387, dtype=torch.float32, device="cpu")
    with pytest.raises(UserError, match="tpu"):
        explain(1, 8, 8, device="tpu")
