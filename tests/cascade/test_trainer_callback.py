"""The ledger in the Trainer of transformers: what a gradient is before it is clipped, and through checkpoints."""

import numpy as np
import pytest
import torch
import transformers
from cascade_models import TOKENS, library, ours
from test_ledger import loss_of, norms_of
from transformers.trainer_callback import CallbackHandler

from geowidth.artifacts.ledger import Ledger
from geowidth.cascade import residual_blocks
from geowidth.cascade.trainer_callback import LedgerCallback
from geowidth.errors import UserError


class _Accelerator:
    """As much of one as the callback meets: it clips in place and may hold a scaler."""

    scaler = None

    def __init__(self, model):
        self.model = model

    def clip_grad_norm_(self, parameters, most):
        return torch.nn.utils.clip_grad_norm_(parameters, most)


@pytest.mark.parametrize("clipped", [True, False])
def test_trainer_callback_records_before_clipping(tmp_path, clipped):
    """The events and the order of a Trainer, by its own handler of callbacks; the ledger goes through a checkpoint."""
    model = ours()
    args = transformers.TrainingArguments.__new__(transformers.TrainingArguments)
    args.output_dir = str(tmp_path)

    def train(callback, accelerator, first, last):
        state = transformers.TrainerState(global_step=first)
        control = transformers.TrainerControl()
        handler = CallbackHandler([callback], model, None, None, None)
        handler.on_train_begin(args, state, control)
        for step in range(first, last):
            model.zero_grad()
            handler.on_step_begin(args, state, control)
            loss_of(model).backward()
            if clipped:
                accelerator.clip_grad_norm_(model.parameters(), 1e-3)
            handler.on_pre_optimizer_step(args, state, control)
            state.global_step = step + 1
        handler.on_save(args, state, control)
        handler.on_train_end(args, state, control)

    accelerator = _Accelerator(model)
    trainer = type("Trainer", (), {"accelerator": accelerator})
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-3").mkdir()
    train(LedgerCallback(trainer), accelerator, 0, 2)
    train(LedgerCallback(trainer), accelerator, 2, 3)
    model.zero_grad()
    loss_of(model).backward()
    found = Ledger.read(tmp_path / "ledger.json")
    assert found.steps == 3
    np.testing.assert_allclose(found.norms, 3 * np.array(norms_of(residual_blocks(model))), rtol=1e-5)
    with pytest.raises(UserError, match="begun without a ledger"):
        train(LedgerCallback(trainer), accelerator, 1, 2)


def test_in_a_trainer(tmp_path):
    """A Trainer itself, where accelerate is installed. Nothing is learned, so each step has the gradient of the first;
    clipping, accumulation and a training resumed from its checkpoint change nothing of the ledger."""
    pytest.importorskip("accelerate", reason="the Trainer needs it, geowidth does not")
    model, row = library("llama").train(), TOKENS[0]
    model(row[None], labels=row[None]).loss.backward()
    wanted = 4 * np.array(norms_of(residual_blocks(model)))
    model.zero_grad()
    options = {"max_steps": 4, "save_steps": 2, "optim": "sgd", "learning_rate": 0.0, "max_grad_norm": 1e-3}
    options |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "use_cpu": True}
    options |= {"report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    args = transformers.TrainingArguments(output_dir=str(tmp_path), **options)
    for resumed in (None, str(tmp_path / "checkpoint-2")):
        trainer = transformers.Trainer(model=model, args=args, train_dataset=[{"input_ids": row, "labels": row}] * 16)
        usual = trainer.accelerator.clip_grad_norm_
        trainer.add_callback(LedgerCallback(trainer))
        trainer.train(resume_from_checkpoint=resumed)
        assert trainer.accelerator.clip_grad_norm_ == usual
        found = Ledger.read(tmp_path / "ledger.json")
        assert (found.steps, found.skipped) == (4, 0)
        np.testing.assert_allclose(found.norms, wanted, rtol=1e-5)
        assert Ledger.read(tmp_path / "checkpoint-2" / "ledger.json").steps == 2
