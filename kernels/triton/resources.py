"""Registers, spills, shared memory and instructions of every table entry, compiled without a GPU: the entries of sm_90
for it, those of other chips for sm_80.

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
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from geowidth.kernels.pointwise import GELU, SILU

import triton
import triton.backends.nvidia
import triton.language as tl
from geowidth.kernels import activation, grad_hidden, grad_input, tiles
from geowidth.kernels import gate_up as gate_up_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CAPABILITY = {"sm_90": 90, "other": 80}
# Bytes of shared memory that one block may have; of the other chips, the least (sm_86 and sm_89).
SHARED_MEMORY = {"sm_90": 232_448, "other": 101_376}
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
    """One kernel to compile: the jitted function, its constants, and how many warps and stages."""

    name: str
    chip: str
    tile: str
    function: object
    constants: dict
    kind: str
    warps: int
    stages: int


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


def jobs():
    """Every kernel of the tables; ungated, only the largest tile of each product."""
    yield from _elementwise()
    seen = set()
    for entry in tiles.entries():
        yield from products(*entry, ungated=entry[1] not in seen)
        seen.add(entry[1])


def compile_job(job):
    """Compile one job and say what it needs."""
    names = job.function.arg_names
    integers = {n for n in names if n in ("tokens", "width") or n.endswith(("d8", "stride", "stride8"))}
    signature = {
        n: "constexpr" if n in job.constants else "i32" if n in integers else f"*{job.kind}" for n in names
    }  # fmt: skip
    # Pointers on 16 bytes, as every allocation and hidden buffer has them; integers unknown, as in do_not_specialize.
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
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
