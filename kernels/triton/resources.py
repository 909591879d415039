"""Registers, spills, shared memory and instructions of every kernel, compiled without a GPU: the feed-forward layer's
entries of sm_90 for it, those of other chips for sm_80; distances and Sinkhorn for sm_80, sm_90 and sm_100.

    python -m geowidth.kernels.resources            print the table
    python -m geowidth.kernels.resources --write    write it to kernels/triton/RESOURCES.csv (a source tree only)

Compiles with Triton's own compiler and ptxas; touches no driver. The committed table makes every change of a kernel's
needs show in review, and a test compares it.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from geowidth.kernels.pointwise import GELU, SILU

import triton
import triton.backends.nvidia
import triton.language as tl
from geowidth.kernels import activation, distances, grad_hidden, grad_input, sinkhorn, tiles
from geowidth.kernels import gate_up as gate_up_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CAPABILITY = {"sm_80": 80, "sm_90": 90, "sm_100": 100, "other": 80}
# Bytes of shared memory that one block may have; of the other chips, the least (sm_86 and sm_89).
SHARED_MEMORY = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "other": 101_376}
PATH = Path(__file__).parent / "RESOURCES.csv"


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel needs.

    registers of a thread, of 255; spills: instructions that move registers to memory and back; products: matrix
    instructions; narrow: global accesses of two bytes; shared memory of a block in bytes.
    """

    kernel: str
    chip: str
    tile: str
    registers: int
    spills: int
    products: int
    narrow: int
    shared: int


@dataclass(frozen=True)
class Job:
    """One kernel to compile: the jitted function, its constants, and how many warps and stages. types: of its
    arguments, for kernels that are not of the feed-forward layer; even: integers known to be multiples of 16."""

    name: str
    chip: str
    tile: str
    function: object
    constants: dict
    kind: str
    warps: int
    stages: int
    types: dict = field(default_factory=dict)
    even: tuple = ()


def products(chip, product, tile, bits, ungated=True):
    """The jobs of one table entry, gated and, if wanted, ungated."""
    kind = {16: "bf16", 32: "fp32"}[bits]
    shared = dict(EVEN_K=True, UPCAST=False, PRECISION="ieee", WIDE=tl.float32, BLOCK_M=tile.block_m,
                  BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP=tile.group)  # fmt: skip
    own = {
        "gate_up": dict(ACTIVATION=SILU, GATE_BIAS=False, UP_BIAS=False, KEEP=False, SLICES=tile.slices),
        "gate_up keep": dict(ACTIVATION=SILU, GATE_BIAS=False, UP_BIAS=False, KEEP=True, SLICES=tile.slices),
        "grad_hidden": dict(ACTIVATION=SILU, HIDDEN=True, SLICES=tile.slices),
        "grad_input": {},
    }[product]
    function = {
        "gate_up": gate_up_kernel.gate_up_kernel,
        "gate_up keep": gate_up_kernel.gate_up_kernel,
        "grad_hidden": grad_hidden.grad_hidden_kernel,
        "grad_input": grad_input.grad_input_kernel,
    }[product]
    for words, change in (("swiglu", {"GATED": True}), ("gelu", {"GATED": False, "ACTIVATION": GELU}))[: 1 + ungated]:
        if product == "grad_input":
            change = {"GATED": change["GATED"]}
        name = f"{product}, {words}, {kind}"
        yield Job(name, chip, str(tile), function, shared | own | change, kind, tile.warps, tile.stages)


def _elementwise():
    for words, gated, code in (("swiglu", True, SILU), ("gelu", False, GELU)):
        for function, name, extra in (
            (activation.forward_kernel, "activation forward", {}),
            (activation.backward_kernel, "activation backward", {"HIDDEN": True}),
        ):
            constants = dict(ACTIVATION=code, GATED=gated, PADDED=True, WIDE=tl.float32, COLUMNS=activation.COLUMNS)
            yield Job(f"{name}, {words}, bf16", "sm_90", f"1x{activation.COLUMNS}, {activation.WARPS} warps", function,
                      constants | extra, "bf16", activation.WARPS, 1)  # fmt: skip


def _distances(chip, kind):
    """Of a symmetric matrix in all three geometries."""
    typed = ["x", "y", "raw", "spherical", "hyperbolic"]
    types = dict.fromkeys(typed, f"*{kind}") | dict.fromkeys(("n", "m", "depth"), "i32")
    types |= dict.fromkeys(("gram", "square_x", "square_y", "scale"), "*fp64")
    types |= dict(counts="*i32", tiles="*i32", pairs="*i64", near="fp32")
    every = dict(RAW=True, SPHERICAL=True, HYPERBOLIC=True, SYMMETRIC=True)
    for name, function, own in (
        ("epilogue", distances.epilogue_kernel, dict(TILE=distances.TILE, FEW=distances.FEW)),
        ("pairs", distances.pairs_kernel, dict(COLUMNS=distances.COLUMNS)),
        ("tiles", distances.tiles_kernel, dict(TILE=distances.TILE)),
    ):
        size = f"{distances.TILE}x{distances.TILE}" if "TILE" in own else f"1x{distances.COLUMNS}"
        warps = distances.WARPS[name]
        yield Job(f"distances {name}, {kind}", chip, f"{size}, {warps} warps", function, every | own, kind, warps, 3,
                  types, ("m", "depth"))  # fmt: skip


def _sinkhorn(chip, kind):
    typed = ["x", "y", "r", "s", "f", "g", "a", "b", "k", "u", "v", "v_next", "tops", "sums", "plan"]
    types = dict.fromkeys(typed, f"*{kind}") | dict.fromkeys(("scale", "errors", "parts"), "*fp64")
    types |= dict.fromkeys(("n", "m", "slab", "programs", "turn", "count"), "i32")
    types |= dict(stride="fp32", momentum="fp32")
    held, looped = (sinkhorn.tile(m, int(kind[2:]) // 8) for m in (4096, 1 << 20))
    for name, function, size, own in (
        ("enter", sinkhorn.enter_kernel, sinkhorn.ENTER, {}),
        ("advance, held", sinkhorn.advance_kernel, held[:2], dict(HELD=held[2])),
        ("advance, looped", sinkhorn.advance_kernel, looped[:2], dict(HELD=looped[2])),
        ("finish, entered", sinkhorn.finish_kernel, sinkhorn.FINISH, dict(ENTERED=True)),
        ("finish", sinkhorn.finish_kernel, sinkhorn.FINISH, dict(ENTERED=False)),
        ("plan", sinkhorn.plan_kernel, sinkhorn.PLAN, {}),
        ("inner", sinkhorn.inner_kernel, (1, sinkhorn.INNER), {}),
    ):
        arguments = {"finish": ("COLUMNS", "PARTIALS"), "inner": ("_", "BLOCK")}
        names = arguments.get(name.split(",")[0], ("ROWS", "COLUMNS"))
        constants = {n: v for n, v in zip(names, size, strict=True) if n != "_"} | own
        warps = sinkhorn.WARPS[name.split(",")[0]]
        yield Job(f"sinkhorn {name}, {kind}", chip, f"{size[0]}x{size[1]}, {warps} warps", function, constants, kind,
                  warps, 3, types, ("m",))  # fmt: skip


def measurement():
    """The jobs of distances and Sinkhorn: float64 on sm_90 only."""
    for chip in ("sm_80", "sm_90", "sm_100"):
        for kind in ("fp32", "fp64") if chip == "sm_90" else ("fp32",):
            yield from _distances(chip, kind)
            yield from _sinkhorn(chip, kind)


def jobs():
    """Every kernel; of the feed-forward layer ungated, only the largest tile of each product."""
    yield from measurement()
    yield from _elementwise()
    seen = set()
    for entry in tiles.entries():
        yield from products(*entry, ungated=entry[1] not in seen)
        seen.add(entry[1])


def compile_job(job):
    """Compile one job and say what it needs."""
    names = job.function.arg_names
    integers = {n for n in names if n in ("tokens", "width") or n.endswith(("d8", "stride", "stride8"))}
    types = job.types or {n: "i32" if n in integers else f"*{job.kind}" for n in names}
    signature = {n: "constexpr" if n in job.constants else types[n] for n in names}
    # Pointers on 16 bytes, as every allocation and hidden buffer has them; integers unknown, as in do_not_specialize,
    # or even, as kernels find most of them.
    known = {n for n in names if signature[n].startswith("*") or n in job.even}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in known}
    constants = {(names.index(n),): v for n, v in job.constants.items()}
    source = ASTSource(job.function, signature, constants, aligned)
    options = {"num_warps": job.warps, "num_stages": job.stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", CAPABILITY[job.chip], 32), options=options)
    return Resources(job.name, job.chip, job.tile, shared=compiled.metadata.shared, **_examine(compiled.asm["cubin"]))


def _examine(cubin):
    """Registers, and instructions counted in the machine code itself."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = _tool("cuobjdump", "-res-usage", file.name), _tool("nvdisasm", file.name)

    def count(pattern):
        return len(re.findall(rf"\b(?:{pattern})", code))

    return dict(
        registers=int(re.search(r"REG:(\d+)", usage).group(1)),
        spills=count(r"STL|LDL"),
        products=count(r"HGMMA|HMMA"),
        narrow=count(r"(?:LDG|STG)\S*\.[US]16"),
    )


def _tool(name, *arguments):
    """Output of one of the CUDA tools that Triton brings."""
    program = Path(triton.backends.nvidia.__file__).parent / "bin" / name
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr or done.stdout}")
    return done.stdout


def render(rows):
    """The table as CSV text, with the compiler's version in its first line."""
    from io import StringIO

    text = StringIO()
    text.write(f"# triton {triton.__version__}; python -m geowidth.kernels.resources --write\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f.name for f in fields(Resources)])
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue()


def main(argv=None):
    """Compile everything and print or write the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PATH.name} beside the kernels")
    arguments = parser.parse_args(argv)
    text = render([compile_job(job) for job in jobs()])
    if arguments.write:
        PATH.write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
