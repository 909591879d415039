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

from geowidth.errors import UserError, choose, shown
from geowidth.registry import load_extensions

logger = logging.getLogger("geowidth")
VARIABLE = "GEOWIDTH_BACKEND"


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
    run: Any
    why_not: Callable[..., str | None] = always


class Operation:
    """A public op with its backends, best first, and the plain float64 function that they are compared with."""

    def __init__(self, name, backends, reference=None):
        self.name, self.backends, self.reference = name, tuple(backends), reference
        OPERATIONS[name] = self

    def add(self, backend: Backend, *, first: bool = False) -> None:
        """Add a Backend of your own, last in order unless `first`; a module outside the package may do so.

        Its `run` and the facts its `why_not` is asked about are those of the op's other backends. Raises UserError
        where a device has a backend of that name already.
        """
        if not isinstance(backend, Backend):
            raise UserError(f"the backend of {self.name} is {shown(backend)}; needed: a geowidth.ops.backend.Backend")
        if any(b.name == backend.name and set(b.devices) & set(backend.devices) for b in self.backends):
            raise UserError(f"{self.name} has a backend {backend.name!r} already; give yours another name")
        self.backends = (backend, *self.backends) if first else (*self.backends, backend)

    def choose(self, device: str, backend: str | None = None, **request: Any) -> Backend:
        """The backend to use on device type `device` for `request` (facts such as dtype that `why_not` may ask of)."""
        load_extensions()
        wanted = self.wanted(device) if backend is None else backend
        if wanted is not None:
            candidates = {b.name: b for b in self.backends if device in b.devices}
            chosen = candidates[choose(f"backend of {self.name} on {device}", wanted, tuple(candidates))]
            reason = chosen.why_not(**request)
            if reason:
                raise UserError(f"backend {wanted!r} cannot serve {self.name}: {reason}")
            return chosen
        reasons = []
        for candidate in self.backends:
            if device not in candidate.devices:
                continue
            reason = candidate.why_not(**request)
            if reason is None:
                return candidate
            reasons.append(f"{candidate.name}: {reason}")
            _log_once(f"{self.name}: stepping past backend {candidate.name}: {reason}")
        raise UserError(f"no backend serves {self.name} on device {device!r}" + "".join(f"; {r}" for r in reasons))

    def wanted(self, device: str) -> str | None:
        """The name of the backend that GEOWIDTH_BACKEND asks for here, or None."""
        plain, by_name = requested()
        found = by_name.get(self.name)
        if found is None and plain is not None:
            found = plain if any(b.name == plain and device in b.devices for b in self.backends) else None
        return found

    def names(self) -> tuple[str, ...]:
        """Names of its backends, on any device."""
        return tuple(dict.fromkeys(b.name for b in self.backends))

    def check_name(self, backend: str | None) -> None:
        """Refuse what is not the name of a backend of the op, or None, where the device is not known yet."""
        if backend is not None:
            load_extensions()
            choose(f"backend of {self.name}", backend, self.names())

    def report(self, device: str) -> list[tuple[str, str | None]]:
        """[(backend name, None or the sentence against it)] on `device`, in order of preference."""
        load_extensions()
        return [(b.name, b.why_not(device_type=device)) for b in self.backends if device in b.devices]


def requested() -> tuple[str | None, dict[str, str]]:
    """What GEOWIDTH_BACKEND asks for: (a backend for every op that has one of that name, {op: backend}).

    The variable holds OPERATION=BACKEND as often as needed, and one BACKEND alone at most, separated by commas; None
    and {} where it is not set. Raises UserError for the name of an op or backend that is not there.
    """
    plain: str | None = None
    by_name: dict[str, str] = {}
    for part in filter(None, (text.strip() for text in os.environ.get(VARIABLE, "").split(","))):
        name, equals, backend = (text.strip() for text in part.partition("="))
        if equals:
            choose(f"the operation in {VARIABLE}", name, sorted(OPERATIONS))
            choose(f"the backend of {name} in {VARIABLE}", backend, OPERATIONS[name].names())
        else:
            every = {known for operation in OPERATIONS.values() for known in operation.names()}
            choose(VARIABLE, name, [*sorted(every), "OPERATION=BACKEND"])
        if name in by_name or (plain is not None and not equals):
            raise UserError(
                f"{VARIABLE} is {os.environ[VARIABLE]}; allowed: one BACKEND alone, and one for each operation"
            )
        plain, by_name = (plain, {**by_name, name: backend}) if equals else (name, by_name)
    return plain, by_name


OPERATIONS: dict[str, Operation] = {}


@cache
def _log_once(message):
    logger.info(message)
