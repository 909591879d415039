"""Where the tests of the Triton kernels run: in processes of their own, since Triton reads TRITON_INTERPRET when it is
imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def run(*command, **environment):
    """python *command from the project's root, with these variables set."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
