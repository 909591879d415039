"""The CUDA kernels compiled for sm_80, sm_90a and sm_100 without a GPU: warnings, spills, registers, access widths."""

import csv
import hashlib
import shutil
from dataclasses import astuple
from fnmatch import fnmatch
from pathlib import Path

import pytest

from benchmarks import cuda_resources

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not on PATH: the CUDA kernels are not compiled here")
REGISTERS = 65536  # of a multiprocessor, and so of a block at most
# Kernels that claim 16-byte accesses, and how many (loads, stores) of them their PTX has at least.
WIDE = {
    "epilogue<true, *": (8, 8),
    "pairs_kernel<*": (1, 0),
    "rows_kernel<*": (1, 0),
    "centre_rows<*, true>": (1, 1),
    "row_facts<*, true>": (1, 0),
    "difference_rows<*, true, *>": (1, 0),
    "certificate_sweep<true>": (1, 0),
    "solve<*, [1248]>": (8, 1),
    "form_plan<double, 2>": (1, 1),
    "form_plan<float, 4>": (1, 1),
    "multiply<double, 2>": (1, 0),
    "multiply<float, 4>": (1, 0),
}
# Kernels that need memory of their own for each thread, in bytes at most.
STACK = {}


@pytest.fixture(scope="module")
def compiled(request):
    """[Resources] of all kernels; a warning of any compiler fails here. What was compiled by an earlier run of pytest
    from the same sources is taken from its cache."""
    cache = request.config.cache
    parts = [
        cuda_resources.__file__,
        *cuda_resources.KERNELS.iterdir(),
        *cuda_resources.KERNELS.glob("../../csrc/**/*.h"),
    ]
    digest = hashlib.sha256(" ".join([*cuda_resources.nvcc_flags(), str(cuda_resources.nvcc_release(NVCC))]).encode())
    for path in sorted(map(Path, parts)):
        digest.update(path.name.encode() + path.read_bytes() if path.suffix != ".csv" else b"")
    kept = cache.get("geowidth/cuda_resources", {})
    if kept.get("key") != digest.hexdigest():
        kept = {"key": digest.hexdigest(), "rows": [astuple(row) for row in cuda_resources.compile_all(NVCC)]}
        cache.set("geowidth/cuda_resources", kept)
    return [cuda_resources.Resources(*row) for row in kept["rows"]]


def listed(table, kernel, default):
    return next((value for pattern, value in table.items() if fnmatch(kernel, pattern)), default)


@needs_nvcc
def test_nothing_spills_and_every_block_fits(compiled):
    for row in compiled:
        assert row.spill_stores == row.spill_loads == 0, row
        assert row.stack <= listed(STACK, row.kernel, 0), row
        assert row.static_shared == 0, f"shared memory goes through dynamic_shared(): {row}"
        assert row.threads, f"no launch bounds: {row}"
        # Registers are handed out to a warp 256 at a time, 8 a thread.
        assert -(-row.registers // 8) * 8 * row.threads <= REGISTERS, row


@needs_nvcc
def test_every_file_and_architecture_is_compiled(compiled):
    files = {p.name for p in cuda_resources.KERNELS.glob("*.cu")}
    architectures = {f"sm_{a}" for a in cuda_resources.ARCHITECTURES}
    assert {(r.file, r.architecture) for r in compiled} == {(f, a) for f in files for a in architectures}


@needs_nvcc
def test_wide_accesses_where_they_are_claimed(compiled):
    seen = set()
    for row in compiled:
        loads, stores = listed(WIDE, row.kernel, (0, 0))
        assert row.wide_loads >= loads and row.wide_stores >= stores, row
        seen |= {pattern for pattern in WIDE if fnmatch(row.kernel, pattern)}
    assert seen == set(WIDE)


@needs_nvcc
def test_the_committed_table(compiled):
    """A change of what a kernel needs shows in review: python -m benchmarks.cuda_resources --write."""
    text = cuda_resources.PATH.read_text()
    found = cuda_resources.render(compiled, cuda_resources.nvcc_release(NVCC))
    if text.splitlines()[0] != found.splitlines()[0]:  # other releases give other numbers; the kernels are the same
        names = [{(r["file"], r["kernel"], r["architecture"]) for r in read(t)} for t in (text, found)]
        assert names[0] == names[1]
    else:
        assert text == found


def read(text):
    return list(csv.DictReader(text.splitlines()[1:]))


def test_the_committed_table_spills_nothing():
    for row in read(cuda_resources.PATH.read_text()):
        assert row["spill stores"] == row["spill loads"] == row["static shared"] == "0", row


PLANTED = """
__global__ void __launch_bounds__(64, 1) wide(float4* out, const float4* in) { out[threadIdx.x] = in[threadIdx.x]; }
__global__ void unbounded(int* out, int n) {
  int many[64];
  for (int i = 0; i < 64; ++i) many[i] = out[i];
  for (int i = 0; i < n; ++i) out[i] = many[many[i] & 63];
}
"""


@needs_nvcc
def test_what_a_kernel_needs_is_read_rightly(tmp_path):
    source = tmp_path / "planted.cu"
    source.write_text(PLANTED)
    rows = {r.kernel: r for r in cuda_resources.compile_file(NVCC, source, ("80", "90a"))}
    wide, unbounded = rows["wide"], rows["unbounded"]
    assert (wide.threads, wide.wide_loads, wide.wide_stores, wide.stack) == (64, 1, 1, 0)
    assert (unbounded.threads, unbounded.wide_loads, unbounded.stack) == (0, 0, 256)
    source.write_text("__global__ void careless() { int never_used; }")
    with pytest.raises(RuntimeError, match="never_used"):
        cuda_resources.compile_file(NVCC, source, ("80", "90a"))


def test_short_names():
    assert cuda_resources.short("void geowidth::cuda::(anonymous namespace)::f<float, (int)4>(a::B<float>)") == (
        "f<float, (int)4>"
    )
    assert cuda_resources.short("geowidth::cuda::g(void (*)(int), float)") == "g"
    assert cuda_resources.short("_Z1gv") == "_Z1gv"
