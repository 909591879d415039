"""`geowidth train --ledger`: norms of every step in the metrics, their sums in ledger.json, through interruptions."""

import numpy as np
import pytest

from geowidth import cli, records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade import GradientLedger, residual_blocks
from geowidth.cascade.training import block_norms, write_ledger
from geowidth.errors import UserError
from geowidth.models import load_model
from geowidth.text.corpus import DataOrder, load_corpus
from geowidth.train.checkpoint import read_result
from geowidth.train.loop import train
from geowidth.train.losses import accumulate_gradients


def command(out, text, *more):
    return cli.main(["train", "--preset", "tiny", "--out", str(out), "--corpus", str(text), "--steps", "6", *more])


def test_command_and_pruning_by_what_it_wrote(tiny, text, tmp_path, capsys):
    out = tmp_path / "run"
    assert command(out, text, "--ledger") == 0
    ledger = Ledger.read(out / "ledger.json")
    assert (ledger.steps, ledger.skipped, ledger.blocks) == (6, 0, ("blocks.0", "blocks.1"))
    rows = [
        line["block_gradient_norms"]
        for line in records.read_json_lines(out / "metrics.jsonl")
        if line["split"] == "train"
    ]
    np.testing.assert_allclose(ledger.norms, np.sum(rows, 0))
    assert command(out, text, "--ledger") == 0 and "was finished before" in capsys.readouterr().out
    assert command(tmp_path / "plain", text) == 0
    assert read_result(tmp_path / "plain")["loss"] == read_result(out)["loss"]  # looking changes no bit
    pruned = ["prune", str(out), "--by", "ledger", "--blocks", "1", "--corpus", str(text), "--windows", "3"]
    assert cli.main([*pruned, "--out", str(tmp_path / "short")]) == 0
    weakest = int(np.argmin(ledger.shares))
    assert records.read_json(tmp_path / "short" / "prune.json")["removed"] == [weakest]
    assert load_model(tmp_path / "short").config.layers == 1
    capsys.readouterr()
    assert command(tmp_path / "plain", text, "--ledger") == 2
    assert "was begun without a ledger" in capsys.readouterr().err


def test_norms_are_of_the_whole_batch_before_clipping(tiny, text, tmp_path):
    """By hand, of the first step; with clipping far below the norm, in microbatches of another size."""
    train(tiny, out=tmp_path / "run", corpus=text, steps=1, evaluations=1, microbatch=3, clip=1e-3, look=block_norms)
    first = records.read_json_lines(tmp_path / "run" / "metrics.jsonl")[0]["block_gradient_norms"]
    from geowidth.models import TaperedTransformer

    model = TaperedTransformer(tiny.model, 0)
    batch = DataOrder(load_corpus(text).train, tiny.model.context, tiny.training.batch, 0).batch(0)
    accumulate_gradients(model, batch[:, :-1], batch[:, 1:], 4)
    np.testing.assert_allclose(first, GradientLedger(residual_blocks(model)).record(), rtol=1e-5)


def test_interrupted_and_resumed_is_the_same_ledger(tiny, text, tmp_path):
    """Stopped after steps 2 and 3, the lines after a state dropped: the ledger of an uninterrupted training."""
    options = {"corpus": text, "steps": 6, "look": block_norms, "watch": lambda *_: None}
    train(tiny, out=tmp_path / "a", **options)
    for stop in (2, 1):
        left = iter([False] * (stop - 1) + [True] * 9)
        with pytest.raises(KeyboardInterrupt):
            train(tiny, out=tmp_path / "b", **options, stop=lambda left=left: next(left))
    with open(tmp_path / "b" / "metrics.jsonl", "a") as file:  # written after the last state, and not trained on
        lines = records.read_json_lines(tmp_path / "b" / "metrics.jsonl")
        train_line = next(line for line in lines if line["split"] == "train")
        file.write(records.dumps(train_line | {"step": 4}) + "\n")
    train(tiny, out=tmp_path / "b", **options)
    assert write_ledger(tmp_path / "b").to_json() == write_ledger(tmp_path / "a").to_json()


def test_damaged_metrics(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        records.dumps({"split": "train", "step": 1, "block_gradient_norms": [1.0, 2.0]})
        + "\n"
        + records.dumps({"split": "train", "step": 2, "block_gradient_norms": [1.0]})
        + "\n"
    )
    with pytest.raises(UserError, match="line 2 is damaged: a block is missing"):
        write_ledger(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no step"):
        write_ledger(tmp_path)
