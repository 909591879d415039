"""TrainingPass: a forward pass that takes losses after several blocks and lets rows pass some blocks by."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TrainingPass:
    """What one forward pass of a TaperedTransformer does beside the plain one.

    loss: from logits (rows, length, vocabulary) to a scalar. exits: places after which it is taken, ascending, the last
    place among them; places are the blocks in the order of ModelConfig.order. kept: which rows pass through each place,
    bool (places, rows), None where all do; the others pass it by. fixed: run every block over all rows and put back
    those it was not for, so that shapes stay: for compiled blocks.
    """

    loss: Callable[[torch.Tensor], torch.Tensor]
    exits: tuple[int, ...]
    kept: torch.Tensor | None = None
    fixed: bool = False

    def through(
        self,
        place: int,
        run: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        x: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The states after a place: `run(states, mask)` of the rows that are kept there, x (rows, length, d) of others.

        The block runs even where no row is kept: its parameters then have a gradient of zeros in every process, however
        rows are spread over them.
        """
        if self.kept is None or bool(self.kept[place].all()):
            return run(x, mask)
        chosen = self.kept[place]
        # Kernels of attention on a GPU need a row; those of the CPU take none.
        if self.fixed or (x.is_cuda and not chosen.any()):
            return torch.where(chosen.to(x.device)[:, None, None], run(x, mask), x)
        rows = chosen.nonzero()[:, 0].to(x.device)
        return x.index_copy(0, rows, run(x[rows], None if mask is None else mask[rows]))
