"""Where the cells of a sweep are trained: worker processes here, or any `concurrent.futures.Executor`.

A place has a name, and a text such as ``dask://HOST:PORT`` or ``slurm:partition=gpu,time=120`` names one with what it
needs to know. A module outside the package adds its own with ``PLACES.register(Place(name, sentence, function))``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geowidth.errors import UserError, shown
from geowidth.progress import tell
from geowidth.registry import Registry

RETRIES = 2  # of a cell whose process is killed; those of a dead worker are dask's own to count
CONNECT_SECONDS = 10.0  # a scheduler that has not answered by then is not there
_TEXT = re.compile(r"(?P<name>[^:/,=\s]+)(?::(?://)?(?P<rest>.*))?")


@dataclass(frozen=True)
class Place:
    """A place by name. open(rest, folder): a context manager that gives its Executor (None: worker processes here).

    rest: the text behind the name. folder: one that the sweep's workers share, for what the place itself must keep.
    It raises UserError for what cannot work before anything is submitted.
    """

    name: str
    sentence: str
    open: Callable[[str, Path], AbstractContextManager[Executor | None]]


def opened(on: str | Executor | None, folder: Path) -> AbstractContextManager[Executor | None]:
    """The Executor that `on` names: None stands for worker processes here, an Executor is used as it is.

    on: None, an Executor (never shut down here), or a text as in the module's head.
    """
    if on is None or isinstance(on, Executor):
        return contextlib.nullcontext(on)
    place, rest = place_named(on)
    return place.open(rest, folder)


def place_named(text: str) -> tuple[Place, str]:
    """(the Place that a text names, what stands behind the name); raises UserError for what names none."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match["name"] not in PLACES:
        allowed = ", ".join(place.sentence for place in PLACES.values())
        raise UserError(f"on is {shown(text)}; allowed: {allowed}")
    return PLACES[match["name"]], match["rest"] or ""


@contextlib.contextmanager
def _local(rest: str, folder: Path) -> Iterator[None]:
    if rest:
        raise UserError(f"on is 'local:{rest}'; local takes no options: say how many side by side with processes")
    yield None


@contextlib.contextmanager
def _dask(rest: str, folder: Path) -> Iterator[Executor]:
    """The executor of a dask.distributed scheduler: it hands the cells of a dead worker to another one."""
    try:
        from distributed import Client
    except ImportError as error:
        raise UserError(f"on dask needs dask.distributed ({error}); pip install 'geowidth[cluster]'") from error
    if not re.fullmatch(r"[^\s/]+:[0-9]{1,5}", rest):
        raise UserError(f"on is {shown('dask://' + rest)}; needed: dask://HOST:PORT, the address of a dask scheduler")
    try:
        client = Client(f"tcp://{rest}", timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise UserError(
            f"no dask scheduler answers at {rest} within {CONNECT_SECONDS:g} s; start one there (dask scheduler), "
            "or mend the address"
        ) from error
    with client:
        check_workers(client)
        # Not pure: a cell sent twice is two tasks, as what is done is in its folder.
        yield client.get_executor(pure=False, retries=RETRIES)


def check_workers(client: Any) -> None:
    """Refuse a cluster where a worker has no geowidth, or another version of it. client: a distributed.Client."""
    import geowidth

    workers = client.get_versions(packages=["geowidth"])["workers"]
    if not workers:
        tell("the dask scheduler has no workers yet; the cells wait for them")
    for address, facts in sorted(workers.items()):
        found = facts["packages"].get("geowidth")
        if found != geowidth.__version__:
            has = "no geowidth" if found is None else f"geowidth {found}"
            raise UserError(
                f"the dask worker at {address} has {has}, this command {geowidth.__version__}; "
                "install one version everywhere"
            )


def _slurm(rest: str, folder: Path) -> AbstractContextManager[Executor]:
    from geowidth.train.slurm import on_slurm

    return on_slurm(rest, folder)


def _submitit_local(rest: str, folder: Path) -> AbstractContextManager[Executor]:
    from geowidth.train.slurm import on_this_machine

    return on_this_machine(rest, folder)


PLACES = Registry(
    "place of training",
    Place,
    (
        Place("local", "local (worker processes here)", _local),
        Place("dask", "dask://HOST:PORT (a dask.distributed scheduler)", _dask),
        Place("slurm", "slurm:partition=NAME,time=MINUTES,cpus=N,... (Slurm, by submitit)", _slurm),
        Place("submitit-local", "submitit-local (submitit's processes here, to try what slurm does)", _submitit_local),
    ),
)
"""All places by name; a module outside the package adds its own with `PLACES.register(Place(...))`."""
