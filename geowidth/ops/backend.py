"""Which implementation serves an op: chosen once per call, by device and by what each one says against itself.

An Operation lists its backends in order of preference. A backend's `why_not(**request)` returns None if it can serve
the request, else a sentence. With no backend asked for, the first that can is used, and stepping past a better one is
logged once per reason. A backend asked for by argument or by GEOWIDTH_BACKEND works or raises its sentence.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from geowidth.errors import UserError, choose

logger = logging.getLogger("geowidth")


def _words(error):
    """Why an extension did not import: that it is not there, or the loader's own words."""
    return "not built" if "cannot import name" in str(error) else str(error)


@cache
def native() -> tuple[Any, str | None]:
    """(geowidth._native, None), or (None, a sentence) when the extension was not built."""
    try:
        from geowidth import _native
    except ImportError as error:
        return None, f"geowidth._native is not importable ({_words(error)}); reinstall GeoWidth with a C++17 compiler"
    return _native, None


@cache
def cuda() -> tuple[Any, str | None]:
    """(geowidth._cuda, None), or (None, a sentence) when the extension was not built."""
    try:
        from geowidth import _cuda
    except ImportError as error:
        how = "install the CUDA toolkit (nvcc), then GEOWIDTH_CUDA=1 pip install --force-reinstall --no-deps ."
        return None, f"geowidth._cuda is not importable ({_words(error)}); {how}"
    return _cuda, None


def why_not_native(**_):
    """The `why_not` of a backend that needs geowidth._native and nothing else."""
    return native()[1]


def always(**_):
    """The `why_not` of a backend that serves every request."""
    return None


@dataclass(frozen=True)
class Backend:
    """One implementation of an op on the device types it names ("cpu", "cuda")."""

    name: str
    devices: tuple[str, ...]
    run: Callable
    why_not: Callable[..., str | None] = always


class Operation:
    """A public op with its backends, best first."""

    def __init__(self, name, backends):
        self.name = name
        self.backends = tuple(backends)
        OPERATIONS[name] = self

    def choose(self, device, backend=None, **request):
        """The backend to use on device type `device` for `request` (facts such as dtype that `why_not` may ask of)."""
        wanted = (os.environ.get("GEOWIDTH_BACKEND") or None) if backend is None else backend
        if wanted is not None:
            candidates = {b.name: b for b in self.backends if device in b.devices}
            chosen = candidates[choose(f"backend of {self.name} on {device}", wanted, tuple(candidates))]
            reason = chosen.why_not(**request)
            if reason:
                raise UserError(f"backend {wanted!r} cannot serve {self.name}: {reason}")
            return chosen
        for candidate in self.backends:
            if device not in candidate.devices:
                continue
            reason = candidate.why_not(**request)
            if reason is None:
                return candidate
            _log_once(f"{self.name}: stepping past backend {candidate.name}: {reason}")
        raise UserError(f"no backend serves {self.name} on device {device!r}")

    def check_name(self, backend):
        """Refuse what is not the name of a backend of the op, or None, where the device is not known yet."""
        if backend is not None:
            choose(f"backend of {self.name}", backend, tuple(dict.fromkeys(b.name for b in self.backends)))

    def report(self, device):
        """[(backend name, None or the sentence against it)] on `device`, in order of preference."""
        return [(b.name, b.why_not(device_type=device)) for b in self.backends if device in b.devices]


OPERATIONS: dict[str, Operation] = {}


@cache
def _log_once(message):
    logger.info(message)
