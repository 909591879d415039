"""GradientLedger in the Trainer of transformers.

    from geowidth.cascade.trainer_callback import LedgerCallback

    trainer = Trainer(model=model, ...)
    trainer.add_callback(LedgerCallback(trainer))
    trainer.train()

The Trainer clips gradients before any callback hears of them. So the callback stands in front of the clipping, which is
done by its accelerator: there the gradients are whole, and only a gradient scaler's scale has to be divided out. The
Trainer has divided by the number of microbatches itself.
"""

from pathlib import Path
from typing import Any

from geowidth import files
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade.blocks import residual_blocks
from geowidth.cascade.ledger import GradientLedger
from geowidth.errors import UserError
from geowidth.exchange.library import need_transformers

need_transformers()
from transformers import TrainerCallback  # noqa: E402

LEDGER_FILE = "ledger.json"


class LedgerCallback(TrainerCallback):
    """Records every optimiser step of `trainer` into `ledger`.

    ledger: a GradientLedger, or None for one of the residual blocks of the model that is trained. ledger.json is
    written into every checkpoint, from where it goes on when the training is resumed there, and into the output folder
    at the end.
    """

    def __init__(self, trainer: Any, ledger: GradientLedger | None = None) -> None:
        self.trainer = trainer
        self.ledger: Any = ledger
        self._clip: Any = None
        self._seen = False  # whether this step is recorded

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self.ledger is None:
            self.ledger = GradientLedger(residual_blocks(model))
        if state.global_step:
            self._resume(self._folder(args, state) / LEDGER_FILE)
        accelerator = self.trainer.accelerator
        if accelerator.clip_grad_norm_ != self._recorded:  # a training that failed leaves it there
            self._clip = accelerator.clip_grad_norm_
            accelerator.clip_grad_norm_ = self._recorded

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._seen = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._seen:  # a Trainer that does not clip, and asks for no norm
            self._record()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.ledger.result().write(self._folder(args, state) / LEDGER_FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.accelerator.clip_grad_norm_ = self._clip
        if state.is_world_process_zero:
            self.ledger.result().write(Path(args.output_dir) / LEDGER_FILE)

    def _recorded(self, *arguments, **keywords):
        """What the Trainer calls once a step to clip, or to learn the norm."""
        self._record()
        return self._clip(*arguments, **keywords)

    def _record(self):
        scaler = getattr(self.trainer.accelerator, "scaler", None)
        self.ledger.record(loss_scale=1.0 if scaler is None else scaler.get_scale())
        self._seen = True

    def _resume(self, path):
        if not files.exists(path):
            raise UserError(f"{path} does not exist: the training was begun without a ledger; begin it again with one")
        found = Ledger.read(path).to_json()
        self.ledger.load_state_dict({name: found[name] for name in self.ledger.state_dict()})

    def _folder(self, args, state):
        return Path(args.output_dir) / f"checkpoint-{state.global_step}"
