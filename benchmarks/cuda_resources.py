"""Registers, spills, shared memory and access widths of every CUDA kernel, compiled without a GPU.

    python -m benchmarks.cuda_resources            compile kernels/cuda/*.cu and print the table
    python -m benchmarks.cuda_resources --write    write it to kernels/cuda/RESOURCES.csv

Needs nvcc and a C++ compiler; touches no driver. Warnings are errors, and the flags are those of setup.py. The
committed table makes every change of a kernel's needs show in review, and a test compares it.
"""

import argparse
import ast
import csv
import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "kernels" / "cuda"
PATH = KERNELS / "RESOURCES.csv"
ARCHITECTURES = ("80", "90a", "100")
JOBS = 2


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel needs on one architecture.

    threads of a block at most, by its launch bounds (0: none given); registers of a thread; bytes of stack, spill
    stores and loads a thread; bytes of static shared memory a block; barriers used; bytes of constant memory (ptxas
    says so for sm_80 alone); wide: loads and stores of 16 bytes or more in its PTX, shared memory not counted.
    """

    file: str
    kernel: str
    architecture: str
    threads: int
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    barriers: int
    constant: str
    wide_loads: int
    wide_stores: int


def nvcc_release(nvcc):
    """The release as nvcc names it, for example "13.0"; None if it says nothing of the kind."""
    words = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", words)
    return found and found[1]


@cache
def nvcc_flags():
    """NVCC_FLAGS of setup.py, read and not run."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "NVCC_FLAGS":
            return ast.literal_eval(node.value)
    raise RuntimeError("setup.py assigns no NVCC_FLAGS")


def compile_file(nvcc, source, architectures=ARCHITECTURES):
    """[Resources] of every kernel of one .cu file, for two architectures or more.

    Raises RuntimeError with nvcc's words if it warns or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        codes = [word for a in architectures for word in ("-gencode", f"arch=compute_{a},code=sm_{a}")]
        options = [*nvcc_flags(), "-Werror", "all-warnings", "-Xptxas", "-v", "-keep", "--keep-dir", folder]
        paths = [f"-I{ROOT / 'csrc'}", f"-I{KERNELS}", "-o", f"{folder}/object"]
        command = [nvcc, *options, *codes, *paths, "-c", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        words = done.stdout + done.stderr
        if done.returncode or re.search(r"\bwarning\b", words, re.IGNORECASE):
            raise RuntimeError(f"{source.name}: {words}")
        texts = {a: Path(folder) / f"{source.stem}.compute_{a}.ptx" for a in architectures}
        ptx = {a: kernels_of(path.read_text()) for a, path in texts.items()}
    rows = []
    for name, architecture, text in entries(words):
        rows.append((name, Resources(source.name, "", architecture, **ptx[architecture[3:]][name], **needs(text))))
    names = dict(zip([n for n, _ in rows], demangled([n for n, _ in rows]), strict=True))
    return [Resources(r.file, names[mangled], *astuple(r)[2:]) for mangled, r in rows]


def entries(words):
    """(mangled name, "sm_..", what ptxas -v says of it) of every kernel."""
    parts = re.split(r"Compiling entry function '(\w+)' for '(sm_\w+)'", words)[1:]
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))


def needs(text):
    """The numbers of one kernel in ptxas's words, functions that it calls included."""

    def numbers(pattern):
        return [int(n) for n in re.findall(pattern, text)] or [0]

    return {
        "registers": max(numbers(r"Used (\d+) registers")),
        "stack": max(numbers(r"(\d+) bytes stack frame")),
        "spill_stores": sum(numbers(r"(\d+) bytes spill stores")),
        "spill_loads": sum(numbers(r"(\d+) bytes spill loads")),
        "static_shared": sum(numbers(r"(\d+) bytes smem")),
        "barriers": max(numbers(r"used (\d+) barriers")),
        "constant": str(sum(numbers(r"(\d+) bytes cmem")) or ""),
    }


def kernels_of(ptx):
    """{mangled name: threads, wide_loads and wide_stores} of every kernel in a PTX text."""
    found = {}
    for part in re.split(r"^(?:\.visible |\.weak )?\.entry ", ptx, flags=re.MULTILINE)[1:]:
        bounds = re.search(r"^\.maxntid ([\d, ]+)", part, re.MULTILINE)
        found[re.match(r"\w+", part)[0]] = {
            "threads": math.prod(map(int, bounds[1].split(","))) if bounds else 0,
            "wide_loads": wide("ld", part),
            "wide_stores": wide("st", part),
        }
    return found


def wide(instruction, ptx):
    """How many instructions of a kind move 16 bytes or more a thread to or from device memory."""
    pattern = rf"^\s*(?:@!?%\w+ )?{instruction}\.(?!shared|param|local)[\w.:]*?\.v(\d)\.[a-z]+(\d+)"
    return sum(int(count) * int(bits) >= 128 for count, bits in re.findall(pattern, ptx, re.MULTILINE))


def demangled(names):
    """Kernel names without namespaces and parameters, as in "epilogue<float>"; as they are if c++filt is missing."""
    if shutil.which("c++filt") is None:
        return names
    words = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [short(line) for line in words.splitlines()]


def short(name):
    """'void a::(anonymous namespace)::f<float>(int)' -> 'f<float>'."""
    name = name.removeprefix("void ")
    depth, end = 0, len(name)
    for end in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[end], 0)
        if depth == 0:
            break
    name = name[:end] if name.endswith(")") else name
    return re.sub(r"(?:\(anonymous namespace\)|\b(?:geowidth|cuda))::", "", name)


def compile_all(nvcc):
    """[Resources] of all kernels, by file, kernel and architecture."""
    nvcc_flags()  # once, before there are threads: Python 3.11 may fail where two of them parse at a time
    with ThreadPoolExecutor(JOBS) as pool:
        rows = [
            row for found in pool.map(lambda s: compile_file(nvcc, s), sorted(KERNELS.glob("*.cu"))) for row in found
        ]
    order = {f"sm_{a}": i for i, a in enumerate(ARCHITECTURES)}
    return sorted(rows, key=lambda r: (r.file, r.kernel, order[r.architecture]))


def render(rows, release):
    """The table as CSV text, with the compiler's release in its first line."""
    text = io.StringIO()
    text.write(f"# nvcc {release}; python -m benchmarks.cuda_resources --write\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f.name.replace("_", " ") for f in fields(Resources)])
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue()


def main(argv=None):
    """Compile everything and print or write the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write kernels/cuda/RESOURCES.csv")
    arguments = parser.parse_args(argv)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("nvcc is not on PATH", file=sys.stderr)
        return 2
    try:
        text = render(compile_all(nvcc), nvcc_release(nvcc))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.write:
        PATH.write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
