"""Norms of the gradients of a model's blocks, measured once a step however many ask, and all brought to one norm.

Under DDP every process holds the whole gradient after the exchange, and nothing is summed again; of gradients in shards
(FSDP2, DTensor) the squares of the parts are, by one exchange a step. So every process has the same numbers.

Equal gradients are the intervention of Ahmad, Nam, Yun (arXiv 2606.26538): does a late block learn less because less
gradient reaches it? SGD moves each block by its gradient, so there it acts. AdamW divides a parameter's gradient by the
root of its own running mean square: a constant factor on a block's gradient is undone up to `epsilon`, and what is left
is the change of the factor from step to step and its place before the clipping. Muon undoes it whole. A study of this
intervention has to report SGD beside AdamW.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from geowidth.errors import UserError


class GradientNorms:
    """The L2 norms of the gradients of `parameters` and of blocks of them.

    blocks: the parameters of each block; one that several blocks share counts in each. parameters: all that are
    measured, in their order (None: those of the blocks).
    """

    def __init__(
        self, blocks: Sequence[Sequence[torch.nn.Parameter]], parameters: Iterable[torch.nn.Parameter] | None = None
    ) -> None:
        of_blocks = [parameter for own in blocks for parameter in own]
        self.blocks = [list(own) for own in blocks]
        self.parameters = list(dict.fromkeys(of_blocks if parameters is None else parameters))
        places = {parameter: place for place, parameter in enumerate(self.parameters)}
        # Which of the parameters each block has, as pairs (parameter, block).
        self._taken = torch.tensor([places[parameter] for parameter in of_blocks], dtype=torch.int64)
        self._owners = torch.tensor([block for block, own in enumerate(blocks) for _ in own], dtype=torch.int64)
        self.each: list[torch.Tensor] | None = None

    @torch.no_grad()
    def measure(self) -> torch.Tensor:
        """The norms of the blocks, float64 (blocks,), on the device of the gradients; a missing gradient counts as 0.

        `each` holds the norms of the single gradients after it, of those parameters that have one, where every process
        holds them whole (None elsewhere). Raises UserError for gradients that are not exchanged yet.
        """
        self.each = None
        parts: dict[Any, list[tuple[int, torch.Tensor]]] = {}  # gradients by the processes among which they are cut
        for place, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                groups, grad = own_part(parameter.grad)
                parts.setdefault(groups, []).append((place, grad))
        device = next((grad.device for own in parts.values() for _, grad in own), torch.device("cpu"))
        squares = torch.zeros(len(self.parameters), dtype=torch.float64, device=device)
        for groups, own in parts.items():
            norms = norms_of([grad for _, grad in own])
            self.each = norms if not groups and len(parts) == 1 else None
            found = torch.stack([norm.to(device) for norm in norms]).double().square()
            for group in groups:
                torch.distributed.all_reduce(found, group=group)
            if len(own) == len(self.parameters):
                squares = found
            else:
                squares[torch.tensor([place for place, _ in own]).to(device)] = found
        return self._of_blocks(squares).sqrt()

    def _of_blocks(self, squares):
        if self._taken.device != squares.device:
            self._taken, self._owners = self._taken.to(squares.device), self._owners.to(squares.device)
        total = squares.new_zeros(len(self.blocks))
        return total.index_add_(0, self._owners, squares[self._taken])

    @torch.no_grad()
    def equalise(self, norms: torch.Tensor) -> None:
        """Scale the gradient of each block to the mean of `norms`, which `measure` gave: their sum stays.

        A block without gradient stays as it is and is not in the mean; parameters outside the blocks stay too.
        """
        there = norms > 0
        mean = norms.sum() / there.sum().clamp(min=1)
        scales = torch.where(there, mean / norms, 1.0)
        for scale, parameters in zip(scales, self.blocks, strict=True):
            grads = [own_part(parameter.grad)[1] for parameter in parameters if parameter.grad is not None]
            for dtype in {grad.dtype for grad in grads}:
                torch._foreach_mul_([grad for grad in grads if grad.dtype == dtype], scale.to(dtype))
        self.each = None


def own_part(grad: torch.Tensor) -> tuple[tuple[Any, ...], torch.Tensor]:
    """(process groups among which a gradient is cut, the part of it that lies here)."""
    if not hasattr(grad, "placements"):
        return (), grad
    mesh = grad.device_mesh  # type: ignore[attr-defined]
    if any(place.is_partial() for place in grad.placements):
        raise UserError("a gradient is not summed over the processes yet; measure it after the exchange")
    groups = tuple(mesh.get_group(axis) for axis, place in enumerate(grad.placements) if place.is_shard())
    return groups, grad.to_local()  # type: ignore[attr-defined]


def norms_of(grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """L2 norms of tensors, one fused pass over all; in float32 or more: the square of a float16 norm may be beyond its
    range."""
    kinds = {grad.dtype for grad in grads}
    if kinds == {torch.float32}:
        return list(torch._foreach_norm(grads, 2))
    return list(torch._foreach_norm(grads, 2, dtype=torch.float64 if torch.float64 in kinds else torch.float32))
