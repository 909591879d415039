#!/usr/bin/env bash
# Builds GeoWidth and tries it on this machine's GPU: benchmarks/device.sh [options of python -m benchmarks.device]
# Needs no network and installs nothing. PYTHON picks the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"

command -v nvcc >/dev/null || PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"
command -v "$python" >/dev/null || { echo "$python was not found; name a Python 3.10 or newer in PYTHON" >&2; exit 2; }
"$python" - <<'CHECK'
import importlib.util, shutil, sys, sysconfig
from pathlib import Path

def has(name):
    return importlib.util.find_spec(name) is not None

missing = [n for n in ("torch", "numpy", "scipy", "safetensors", "tqdm", "setuptools") if not has(n)]
if missing:
    sys.exit(f"{sys.executable} lacks {', '.join(missing)}: install them, or name another interpreter in PYTHON")
headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
for there, words in (
    (has("pybind11"), "pybind11 is not installed: torch's copy of its headers is used"),
    (has("ninja") or shutil.which("ninja"), "ninja is not here: setup.py runs the compilers itself"),
    (headers.is_file(), f"{headers} is not here: the extensions cannot be built (python3-dev)"),
    (shutil.which("nvcc"), "nvcc is not on PATH: no CUDA kernels, Triton and torch are measured alone"),
    (shutil.which("c++"), "c++ is not on PATH: the extensions cannot be built (g++)"),
    (has("triton"), "triton is not installed: its kernels are left out"),
):
    if not there:
        print(words)
CHECK
exec "$python" -m benchmarks.device "$@"
