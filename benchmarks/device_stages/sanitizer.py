"""compute-sanitizer over every CUDA kernel at tiny sizes, in a process of its own; `python -m` this file is what runs
there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck")
SECONDS = 75  # each tool may take
ERROR_CODE = 99


def sanitizer(session):
    """memcheck, then racecheck; what they report counts as wrong."""
    program = find()
    if program is None:
        return session.note("sanitizer: compute-sanitizer is not here")
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that every tensor has bounds of its own
    choice = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    only = next((o for o in ("--kernel-name", "--filter") if f"{o} " in choice or f"{o}=" in choice), None)
    for tool in TOOLS:
        limit = min(SECONDS, session.left() - 20)
        if limit < 20:
            return session.note(f"sanitizer: no time for {tool}")
        command = [
            program,
            "--tool",
            tool,
            "--error-exitcode",
            str(ERROR_CODE),
            *([only, "kns=geowidth"] if only else []),
        ]
        command += [sys.executable, "-m", "benchmarks.device_stages.sanitizer"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, errors="replace"
            )
        except subprocess.TimeoutExpired:
            session.note(f"sanitizer: {tool} did not end in {limit:.0f} s")
            continue
        words = done.stdout + done.stderr
        last = [line for line in words.splitlines() if "SUMMARY" in line][-1:] or words.strip().splitlines()[-1:]
        session.note(f"sanitizer: {tool}: {' '.join(last)}")
        if done.returncode == ERROR_CODE:
            session.wrong.append(f"compute-sanitizer {tool}: {' '.join(last)}")
        if done.returncode:
            print(words[-6000:], flush=True)
            if done.returncode != ERROR_CODE:
                session.errors.append(f"compute-sanitizer {tool} ended with {done.returncode}")


def find():
    """Path of compute-sanitizer: on PATH, or beside nvcc."""
    nvcc = shutil.which("nvcc")
    beside = str(Path(nvcc).resolve().parent) if nvcc else None
    return shutil.which("compute-sanitizer") or (beside and shutil.which("compute-sanitizer", path=beside))


def every_kernel(device="cuda"):
    """Each public op on the CUDA backend, at sizes that are no multiple of anything."""
    import torch

    from geowidth.ops import entropic_gromov_wasserstein, gromov_wasserstein, pairwise_distances, sinkhorn

    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, y = (torch.randn(n, 19, generator=generator).to(device, dtype) for n in (67, 41))
        x[1] = x[0]
        pairwise_distances(x, geometry="all", backend="cuda")
        pairwise_distances(x, y, geometry="all", backend="cuda")
    for dtype in (torch.float32, torch.float64):
        costs = [
            pairwise_distances(torch.randn(53, 5, generator=generator).to(device, dtype), backend="torch")
            for _ in range(2)
        ]
        sinkhorn(costs[0], 0.5, max_iterations=20, backend="cuda")
        entropic_gromov_wasserstein(*costs, max_iterations=3, backend="cuda")
        gromov_wasserstein(*costs, max_iterations=3, backend="cuda")
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    every_kernel()
