"""torch.compile for the blocks of a model, with the graphs counted.

Block by block, each width's shapes fixed (dynamic=False): a uniform model and a tapered one are compiled by the same
rules, one graph for every distinct shape of a block and every way it runs (training, evaluation, a last smaller piece),
however many layers there are. torch stops compiling after eight versions of a function; the limit is raised to fit.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import torch

from geowidth.errors import UserError
from geowidth.models.transformer import TaperedTransformer

# Ways a block runs: with gradients or without, for a whole microbatch or the rest of a batch, of the held-out windows.
WAYS = 8
BACKEND = "inductor"


class Graphs:
    """How many graphs torch.compile made, and how often it had to break one."""

    def __init__(self, backend: str = BACKEND) -> None:
        from torch._dynamo.backends.registry import lookup_backend

        self.count, self.inner = 0, lookup_backend(backend)
        self.before = self._all_breaks()

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        """What torch.compile calls with every graph."""
        self.count += 1
        return self.inner(graph, inputs, **options)

    @property
    def breaks(self) -> int:
        """Breaks since this was made; expected: none."""
        return self._all_breaks() - self.before

    def to_json(self) -> dict[str, int]:
        return {"graphs": self.count, "breaks": self.breaks}

    @staticmethod
    def _all_breaks():
        from torch._dynamo.utils import counters

        return sum(counters["graph_break"].values())


def check_compiler(device: torch.device) -> None:
    """Refuse torch.compile where there is no compiler for what it writes: C++ on the CPU, a C compiler for Triton's
    launchers on a GPU."""
    names = [os.environ.get("CXX", "g++")] if device.type == "cpu" else [os.environ.get("CC", "gcc"), "clang", "cc"]
    if not any(shutil.which(name) for name in names):
        wanted = "C++" if device.type == "cpu" else "C"
        raise UserError(
            f"compile needs a {wanted} compiler, and {names[0]} is not found; install one (or name it in "
            f"{'CXX' if device.type == 'cpu' else 'CC'}), or train without compile"
        )


def compile_blocks(model: TaperedTransformer, backend: str = BACKEND) -> Graphs:
    """Compile every block of `model` in place, at its first calls; returns the count of the graphs that come of it."""
    graphs = Graphs(backend)
    for block in model.blocks:
        block.compile(backend=graphs, dynamic=False)
    return graphs


@contextlib.contextmanager
def room_for_graphs(layers: int) -> Iterator[None]:
    """Let torch compile as many versions of a block as `layers` layers of different shapes need."""
    import torch._dynamo

    most = WAYS * layers
    config = torch._dynamo.config
    limits: dict[str, Any] = {"recompile_limit": max(config.recompile_limit, most)}
    limits["accumulated_recompile_limit"] = max(config.accumulated_recompile_limit, most)
    with config.patch(limits):
        yield
