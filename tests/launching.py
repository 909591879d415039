"""Several processes of one job, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

import geowidth

PATIENCE = 900  # seconds; no test waits for it
TESTS = Path(__file__).resolve().parent


def torchrun(processes, *command, **more):
    """The finished process of torchrun over `command` (a script and its arguments, or "-m", a module, ...)."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    paths = [str(Path(geowidth.__file__).parent.parent), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [*line, *map(str, command)], capture_output=True, text=True, timeout=PATIENCE, env=environment | more
    )


def own_lines(finished):
    """What the processes of geowidth themselves said on standard error, without progress and torchrun's summary."""
    return [line for line in finished.stderr.splitlines() if line.startswith("geowidth: ")]
