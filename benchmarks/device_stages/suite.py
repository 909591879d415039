"""The project's own tests that run on a GPU where there is one, in a process of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100
FOLDERS = ("tests/ops", "tests/measure", "tests/emulator", "tests/kernels")
# What is named after the card; the emulator's own checks and the offline compilation need none.
PATTERN = "(cuda or gpu or device or measure_interpreted) and not offline and not support and not sanitized"


def suite(session):
    """pytest over the tests named after the GPU; failures count as wrong."""
    limit = min(session.pick(SECONDS, 60), session.left() - 15)
    what = session.pick(["-k", PATTERN, *FOLDERS], ["tests/ops/test_cuda_support.py"])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", *what]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, errors="replace")
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode("utf-8", "replace")
        return session.note(f"tests: not done in {limit:.0f} s; {text.count('F')} failures so far")
    lines = done.stdout.strip().splitlines() or ["pytest said nothing"]
    session.note(f"tests: {lines[-1]}")
    if done.returncode:
        print(done.stdout[-8000:] + done.stderr[-2000:], flush=True)
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        session.wrong += failed[:20] or [f"pytest ended with {done.returncode}: {lines[-1]}"]
