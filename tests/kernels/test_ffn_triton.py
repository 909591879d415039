"""The Triton kernels of the feed-forward layer in the interpreter, at prime sizes, and their tile table."""

import re

import pytest
from processes import HERE, ROOT, run

from geowidth.kernels import tiles
from geowidth.ops.feed_forward.operation import explain

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


@pytest.fixture(scope="module")
def interpreted():
    """All checks in one process: importing torch and Triton takes longer than most of them."""
    return run(str(HERE / "interpreted_ffn.py"), *CHECKS, TRITON_INTERPRET="1")


@pytest.mark.parametrize("check", CHECKS)
def test_in_the_interpreter(check, interpreted):
    assert f"{check} ok" in interpreted.stdout, interpreted.stdout + interpreted.stderr


def test_imports_touch_no_driver():
    modules = ", ".join(sorted(path.stem for path in (ROOT / "kernels" / "triton").glob("[a-z]*.py")))
    code = f"from geowidth.kernels import {modules}; import geowidth.ops.feed_forward.triton, triton.runtime\n"
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
