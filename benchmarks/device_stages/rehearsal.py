"""A rehearsal on a CPU: the CUDA kernels in the tests' emulator, the Triton kernels in Triton's interpreter."""

import dataclasses
import importlib
import os
import sys
from pathlib import Path

EMULATOR = Path(__file__).resolve().parents[2] / "tests" / "emulator"


def prepare():
    """Before Triton or an op is imported: Triton interprets."""
    os.environ["TRITON_INTERPRET"] = "1"


def install():
    """Let the backends "cuda" and "triton" of every op serve CPU tensors; returns a function that undoes it."""
    from geowidth.ops import backend

    importlib.import_module("geowidth.ops")
    sys.path.insert(0, str(EMULATOR))
    import emulated_build

    module = emulated_build.load(emulated_build.build())
    before = backend.cuda, {name: operation.backends for name, operation in backend.OPERATIONS.items()}
    backend.cuda = lambda: (module, None)
    for operation in backend.OPERATIONS.values():
        operation.backends = tuple(_on_the_cpu(b, backend.always) for b in operation.backends)

    def undo():
        backend.cuda = before[0]
        sys.path.remove(str(EMULATOR))
        for name, backends in before[1].items():
            backend.OPERATIONS[name].backends = backends

    return undo


def _on_the_cpu(found, always):
    if found.name not in ("cuda", "triton"):
        return found
    return dataclasses.replace(found, devices=tuple({*found.devices, "cpu"}), why_not=always)
