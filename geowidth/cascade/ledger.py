"""GradientLedger: the gradient norm of every residual block, step by step, in any training loop.

    ledger = GradientLedger(residual_blocks(model))
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        ledger.record()
        optimizer.step()
    ledger.result().write("ledger.json")

`record` stands after the last backward of a step, where gradients of several processes are exchanged (DDP and FSDP do
so in that backward), and before they are clipped. Under DDP every process then holds the whole gradient, and nothing is
summed again; of gradients in shards (FSDP2, DTensor) the squares of the parts are, by one exchange a step. So every
process records the same numbers, and what is decided by them is decided alike.

Cost: one pass over the gradients of the blocks, fused over all tensors, without waiting for a GPU. Our own loop shares
that pass with the clipping (geowidth.train.gradients, geowidth.cascade.training).
"""

from collections.abc import Mapping
from typing import Any

import torch

from geowidth import forms
from geowidth.artifacts.ledger import RECORD, Ledger
from geowidth.cascade.blocks import ResidualBlocks
from geowidth.errors import UserError, positive, whole
from geowidth.train.gradients import GradientNorms

STATE = {name: form for name, form in RECORD.items() if name != "settings"}


class GradientLedger:
    """Sums of the gradient norms of `blocks` (ResidualBlocks of the model in training) over its steps.

    Parameters that several blocks share count in each. Parameters are those the blocks have when the ledger is made:
    make it after the model was wrapped or sharded.
    """

    def __init__(self, blocks: ResidualBlocks) -> None:
        self.names = blocks.names
        self._gradients = GradientNorms([blocks.parameters(block) for block in range(len(blocks))])
        # Sums over steps, on the device of the gradients: of norms, of shares, and of (steps, skipped ones).
        self._norms, self._shares = (torch.zeros(len(blocks), dtype=torch.float64) for _ in range(2))
        self._counted = torch.zeros(2, dtype=torch.int64)

    @torch.no_grad()
    def record(self, *, loss_scale: float = 1.0, accumulation: int = 1) -> torch.Tensor:
        """Add the gradients as they stand; returns this step's norms, float64 (blocks,), on their device.

        loss_scale: what the loss was multiplied by before backward (a gradient scaler's scale), where the gradients
        still hold it. accumulation: microbatches whose mean losses were added up without dividing by their number. A
        step with a gradient that is not finite (which a gradient scaler skips) enters no sum and is counted apart.
        """
        divisor = positive("loss_scale", loss_scale) * whole("accumulation", accumulation, 1)
        norms = self._gradients.measure() / divisor
        self._follow(norms.device)
        finite = norms.isfinite().all()
        total = norms.sum()
        self._norms += torch.where(finite, norms, 0.0)
        self._shares += torch.where(finite & (total > 0), norms / total, 0.0)
        self._counted += torch.stack([finite, ~finite])
        return norms

    def result(self, settings: dict[str, Any] | None = None) -> Ledger:
        """The Ledger of the steps so far."""
        state = self.state_dict()
        return Ledger(**state, settings=settings or {})

    def state_dict(self) -> dict[str, Any]:
        """The sums so far as JSON values that read back exactly, for a checkpoint."""
        steps, skipped = self._counted.tolist()
        return {
            "blocks": list(self.names),
            "steps": steps,
            "skipped": skipped,
            "norms": self._norms.tolist(),
            "step_shares": self._shares.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; UserError for what it did not, and for other blocks than these."""
        wrong = forms.fault(state, STATE)
        if wrong:
            raise UserError(f"the state of the ledger is damaged: {wrong}; take another checkpoint")
        found = Ledger(**{name: state[name] for name in STATE})
        if found.blocks != self.names:
            raise UserError(
                f"the state of the ledger is of {len(found.blocks)} blocks ({found.blocks[0]} ...), the model has "
                f"{len(self.names)} ({self.names[0]} ...); take a checkpoint of this model"
            )
        self._norms, self._shares = torch.from_numpy(found.norms.copy()), torch.from_numpy(found.step_shares.copy())
        self._counted = torch.tensor([found.steps, found.skipped])

    def _follow(self, device):
        """Have the sums on the device of the gradients."""
        if self._norms.device != device:
            self._norms, self._shares = self._norms.to(device), self._shares.to(device)
            self._counted = self._counted.to(device)
