"""Building the extensions on the spot, what machine this is, and its ceilings."""

import io
import os
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch

from benchmarks.device_stages.session import median, race

ROOT = Path(__file__).resolve().parents[2]


def build(session):
    """Compile geowidth._native and geowidth._cuda in place, for this GPU's architecture alone."""
    environment = dict(os.environ)
    if session.device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        environment.setdefault(
            "GEOWIDTH_CUDA_ARCHITECTURES", f"{major}{minor}{'a' if (major, minor) == (9, 0) else ''}"
        )
    begin = time.monotonic()
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    spent = time.monotonic() - begin
    words = done.stdout + done.stderr
    warnings = words.count("warning:") + words.count("warning #")
    session.facts["build"] = {"seconds": round(spent, 1), "warnings": warnings, "returncode": done.returncode}
    session.note(
        f"build: {spent:.1f} s, {warnings} compiler warnings{'' if shutil.which('nvcc') else '; no nvcc on PATH'}"
    )
    if done.returncode or warnings:
        print(words[-6000:], flush=True)
    if done.returncode:
        raise RuntimeError(f"setup.py build_ext ended with {done.returncode}: {words.strip().splitlines()[-1:]}")


def facts(session):
    """What `geowidth doctor` says here."""
    from geowidth.cli import doctor

    found = doctor.examine()
    session.facts["doctor"] = found
    text = io.StringIO()
    with redirect_stdout(text):
        print(doctor.render(found))
    print(text.getvalue(), flush=True)
    for name, devices in found["operations"].items():
        used = next((c["backend"] for c in devices["cuda"] if c["serves"]), "none")
        session.note(f"op {name} on cuda: {used}")


def ceilings(session):
    """Rates of large library products and of a large copy: what everything else is a fraction of."""
    n = session.pick(8192, 64)
    products = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        a = torch.randn(n, n, device=session.device, dtype=dtype)
        products[str(dtype).removeprefix("torch.")] = lambda a=a: a @ a
    big = torch.empty(session.pick(1 << 29, 1 << 16), device=session.device)
    copy = torch.empty_like(big)
    times = race(session, products | {"copy": lambda: copy.copy_(big)}, most=10)
    for name, values in times.items():
        work = 2 * big.numel() * 4 if name == "copy" else 2 * n**3
        session.ceilings[name] = work / median(values)
        session.add("ceilings", "torch", name, "wall", "n", n, p50=median(values))
    rates = ", ".join(f"{k} {v / 1e12:.1f} TFLOP/s" for k, v in session.ceilings.items() if k != "copy")
    session.note(f"ceilings: copy {session.ceilings['copy'] / 1e12:.2f} TB/s; products: {rates}")
