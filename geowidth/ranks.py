"""The processes of one job, as torchrun starts them: which one this is, what all of them know, and how all of them end.

A launcher says who is who in the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. `joined` makes the processes
find each other; between them go sums, flags and small values. Work that may fail in one of them alone runs inside
`together`, so that no other waits for what will never come. Whoever fails first leaves its reason where the others find
it: one line is printed by all of them together, and all end.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from geowidth.errors import UserError, number

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 600.0  # seconds that a process waits for the others: they may read a corpus, or compile, until then
PATIENCE = 10.0
PARALLEL = ("auto", "none", "ddp", "fsdp")  # ways for the processes of one training to share the work
USER, FAULT = 2, 1  # exit codes: bad input, a fault


class ElsewhereError(Exception):
    """This process ends because another one failed, which has said why. code: the exit code that goes with it."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class LostError(RuntimeError):
    """Another process of the job ended, or did not answer in time, without a word."""


def launched() -> int:
    """How many processes a launcher started beside this one, itself included; 1 where there was none.

    Raises UserError for a number of processes, or of this one, that cannot be.
    """
    if not all(os.environ.get(name) for name in VARIABLES):
        return 1
    try:
        rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise UserError(
            f"RANK is {os.environ['RANK']!r} and WORLD_SIZE {os.environ['WORLD_SIZE']!r}; start all processes with "
            "torchrun, or unset both"
        )
    return size


def is_first() -> bool:
    """Whether this process speaks for all that a launcher started: it prints, shows progress and writes."""
    return launched() == 1 or int(os.environ["RANK"]) == 0


def without_ranks(environment: dict[str, str]) -> dict[str, str]:
    """`environment` for a process that is none of the job: it must not think that it is one."""
    return {
        name: value
        for name, value in environment.items()
        if name not in (*VARIABLES, "LOCAL_RANK") and not name.startswith("TORCHELASTIC_")
    }


def own_device(name: str) -> str:
    """The device of this process where all were told `name`: for "cuda" the GPU of its LOCAL_RANK."""
    if name.startswith("cuda:") and launched() > 1:
        raise UserError(
            f"device is {name!r}, which {launched()} processes would share; name cuda, and each takes a GPU of its own"
        )
    local = os.environ.get("LOCAL_RANK", "0") if launched() > 1 else "0"
    return f"cuda:{local}" if name == "cuda" and local != "0" else name


class Ranks:
    """One process alone; `Group` is the same for many.

    rank: the number of this process, from 0. size: how many there are.
    """

    rank, size = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all: it writes the files and shows the progress."""
        return self.rank == 0

    def rows(self, count: int) -> range:
        """The rows of `count` that are this process's; every row is exactly one process's."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def dealt(self, things: Sequence[Value]) -> Sequence[Value]:
        """Every `size`-th of `things`, beginning with number `rank`: those that are this process's."""
        return things[self.rank :: self.size]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of `tensor` (any shape, the same in every process) over all processes."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any process: all decide alike."""
        return flag

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in the order of their ranks, in every process."""
        return [value]

    def of_first(self, make: Callable[[], Value]) -> Value:
        """What `make` gives in the first process, in every process; the others do not call it."""
        return make()

    def together(self, work: Callable[[], Value]) -> Value:
        """The result of `work`, which every process calls. Where it fails in one, it fails in all."""
        return work()

    def in_turn(self, work: Callable[[], Value]) -> Value:
        """The result of `work`, which the first process calls before the others: it may fetch what all then find."""
        return work()

    def most(self, value: int) -> int:
        """The largest `value` of any process."""
        return value

    def barrier(self) -> None:
        """Wait until all processes are here."""


class Group(Ranks):
    """The processes of torch.distributed's default group. Small values go over the CPU (gloo), whatever the device."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        self.dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        return bool(self.most(int(flag)))

    def gather(self, value: Value) -> list[Value]:
        found: list[Any] = [None] * self.size
        self.dist.all_gather_object(found, value)
        return found

    def of_first(self, make: Callable[[], Value]) -> Value:
        made = self.together(lambda: make() if self.is_first else None)
        found: list[Any] = [made]
        self.dist.broadcast_object_list(found, src=0)
        return found[0]

    def together(self, work: Callable[[], Value]) -> Value:
        failed, words, result = None, None, None
        try:
            result = work()
        except Exception as error:
            failed, words = error, fault_words(error, self.rank)
        first = next((found for found in self.gather(words) if found is not None), None)
        if first is None:
            return result  # type: ignore[return-value]
        if failed is not None and words == first:
            raise failed
        raise ElsewhereError(*first)

    def in_turn(self, work: Callable[[], Value]) -> Value:
        first = self.together(lambda: work() if self.is_first else None)
        return self.together(lambda: first if self.is_first else work())  # type: ignore[return-value]

    def most(self, value: int) -> int:
        found = self.torch.tensor(value)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return int(found)

    def barrier(self) -> None:
        self.most(0)


def fault_words(error: BaseException, rank: int) -> tuple[str, int]:
    """(reason, exit code) of an error, for the other processes."""
    user = isinstance(error, UserError)
    words = " ".join(str(error).split()) or type(error).__name__
    return f"rank {rank}: {words if user else f'{type(error).__name__}: {words}'}", USER if user else FAULT


@contextlib.contextmanager
def joined(device: str = "cpu", timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """The Ranks of this job, found and, at the end of the block, left again; one process alone needs nothing.

    device: "cpu" (gloo), or "cuda" (NCCL; this process takes its `own_device`, and gloo carries what is on the CPU).
    timeout: seconds after which a process that waits for another gives up. An error in the block is left for the other
    processes to find; those that it made fail raise ElsewhereError. A process that is gone without a word
    makes the others raise LostError.
    """
    timeout = number("timeout", timeout, "numbers of seconds above 0", lambda t: 0 < t < 1e9)
    if not all(os.environ.get(name) for name in VARIABLES):
        yield Ranks()
        return
    import torch.distributed as dist

    store = _begin(device, timedelta(seconds=timeout))
    try:
        ranks = Group()
        yield ranks
        ranks.barrier()  # nobody leaves while another still asks for something
    except BaseException as error:
        reason = _reason_of(error, store)
        if device == "cpu" or isinstance(error, KeyboardInterrupt):  # NCCL may wait here for a process that is gone
            dist.destroy_process_group()
        if reason is error:
            raise
        raise reason from error
    dist.destroy_process_group()


def _begin(device, timeout):
    """Find the other processes; returns the store that all of them reach."""
    import torch
    import torch.distributed as dist

    launched()
    if not dist.is_available():
        raise UserError("this torch was built without torch.distributed; start one process alone")
    backend = "gloo"
    if device.startswith("cuda"):
        own, there = torch.device(own_device(device)), torch.cuda.device_count()
        if (own.index or 0) >= there:
            raise UserError(f"{own} is not there: this machine has {there} CUDA devices; start one process for each")
        torch.cuda.set_device(own.index or 0)
        backend = "cpu:gloo,cuda:nccl"
    global _groups
    store = _meeting(timeout)
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    # What an earlier group of this job left in the store leads to sockets that are closed.
    own, _groups = dist.PrefixStore(f"group {_groups}", store), _groups + 1
    with _not_found():
        dist.init_process_group(backend, timeout=timeout, store=own, rank=rank, world_size=size)
    return store


_groups = 0  # how often this process has joined the others: as often as they


def _meeting(timeout):
    """The key-value store in which all processes of the job meet."""
    import torch.distributed as dist

    with _not_found():
        store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
    return dist.PrefixStore("geowidth", store)


@contextlib.contextmanager
def _not_found():
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:  # DistStoreError and its kin are RuntimeErrors
        words = " ".join(str(error).split())[:200]
        raise UserError(
            f"the {os.environ['WORLD_SIZE']} processes of this job did not find each other at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({words}); start all of them with torchrun"
        ) from error


@contextlib.contextmanager
def elected() -> Iterator[None]:
    """Around work that may find a UserError before it is `joined`, the same in all processes: one of them raises it,
    the others ElsewhereError."""
    try:
        yield
    except UserError as error:
        if error is _first_fault or launched() == 1:
            raise
        try:
            reason = _reason_of(error, _meeting(timedelta(seconds=TIMEOUT)))
        except UserError:  # nobody to agree with
            reason = error
        if reason is error:
            raise
        raise reason from error


_first_fault: BaseException | None = None  # what this process raised as the first of its job to fail


def _reason_of(error, store):
    """What this process raises for `error`: an ElsewhereError unless it is the first fault of the job."""
    if isinstance(error, (ElsewhereError, KeyboardInterrupt, GeneratorExit)):
        return error
    if not isinstance(error, UserError) and is_of_connection(error):
        error = LostError(
            "another process of this job ended, or did not answer in time, without a word; the last whole state is "
            "kept, and the same command goes on from there"
        )
    global _first_fault
    words, code = fault_words(error, int(os.environ["RANK"]))
    try:
        if store.add("faults", 1) == 1:
            _first_fault = error
            store.set("fault", f"{code} {words}")
            _tell_launcher(error)
            return error
        code, _, words = store.get("fault").decode().partition(" ")
        return ElsewhereError(words, int(code))
    except RuntimeError:  # the process that held the store is gone
        return error


def _tell_launcher(error):
    """Let torchrun name the fault in its own summary: it reads a file that it named to this process."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None:
        return
    words = str(error) if isinstance(error, (UserError, LostError)) else "".join(traceback.format_exception(error))
    told = {"message": str(error), "extraInfo": {"py_callstack": words, "timestamp": str(int(time.time()))}}
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"message": told}, file)


def said() -> None:
    """Let the other processes end: the line that tells the fault is out. A launcher ends all once one has ended."""
    _after_fault(lambda store: store.set("said", "1"))


def wait_until_said() -> None:
    """Wait until the process that failed has said why, or for `PATIENCE` seconds."""
    _after_fault(lambda store: store.wait(["said"], timedelta(seconds=PATIENCE)))


def _after_fault(act):
    if launched() > 1:
        with contextlib.suppress(RuntimeError, UserError):  # nobody is there any more
            act(_meeting(timedelta(seconds=PATIENCE)))


def is_of_connection(error: BaseException) -> bool:
    """Whether an error came out of torch.distributed for want of another process."""
    import torch.distributed as dist

    kinds = tuple(getattr(dist, name) for name in ("DistError", "DistBackendError") if hasattr(dist, name))
    words = str(error).lower()
    found = ("gloo", "connection closed", "connection reset", "broken pipe", "timed out", "timeout", "nccl")
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and any(word in words for word in found))
