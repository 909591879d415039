"""Emulated kernels under AddressSanitizer: every read and write outside a buffer ends the process with a report.

Its library must be loaded before all others, so these tests run Python processes of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import emulated_build
import pytest

# Python's memory at exit is no leak of ours; a symbolizer that is a process of its own may outlive the one it serves.
OPTIONS = "detect_leaks=0:external_symbolizer_path="

PLANT = """
import sys
import numpy as np
import emulated_build
from selftest import Selftest

selftest = Selftest(emulated_build.load(sys.argv[1]))
name, (fault, block, shared) = sys.argv[2], map(int, sys.argv[3:])
source, out = np.ones(307, np.float32).view(np.int32), np.zeros(307, np.int32)
print("failure:", selftest.failure(name, source, out, block=block, shared=shared, n=307, fault=fault))
"""


@pytest.fixture(scope="module")
def sanitized():
    """(path of the module with AddressSanitizer, environment that loads its library first)."""
    libraries = emulated_build.address_sanitizer_libraries()
    if not libraries:
        pytest.skip(f"{' '.join(emulated_build.compiler())} has no AddressSanitizer library")
    here = str(Path(__file__).resolve().parent)
    environment = dict(os.environ, LD_PRELOAD=" ".join(map(str, libraries)), ASAN_OPTIONS=OPTIONS, PYTHONPATH=here)
    return emulated_build.build(address_sanitizer=True), environment | {"GEOWIDTH_ADDRESS_SANITIZER": "1"}


def python(environment, *arguments):
    """(exit status, what the process wrote)."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=emulated_build.ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("name", "fault", "block", "shared", "words"),
    [
        ("careless", 0, 320, 0, "^failure: $"),
        ("careless", 1, 320, 0, "heap-buffer-overflow(.|\n)*WRITE of size 4"),
        ("careless", 2, 320, 0, "heap-buffer-overflow(.|\n)*READ of size 4"),
        ("careless", 3, 320, 0, "^failure: CUDA kernel launch: .*a sum overflows"),
        ("neighbours", 0, 307, 4 * 307, "^failure: $"),
        ("neighbours", 2, 307, 4 * 307, "use-after-poison(.|\n)*WRITE of size 4"),
    ],
)
def test_address_sanitizer_finds_planted_faults(sanitized, name, fault, block, shared, words):
    path, environment = sanitized
    status, output = python(environment, "-c", PLANT, str(path), name, str(fault), str(block), str(shared))
    assert re.search(words, output, re.MULTILINE), output
    assert (status == 0) == words.startswith("^failure"), output


def test_marked_tests_pass_under_address_sanitizer(sanitized):
    status, output = python(sanitized[1], "-m", "pytest", "-m", "sanitized", "-p", "no:cacheprovider", "tests/emulator")
    assert status == 0 and " passed" in output, output
