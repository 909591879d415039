"""lm-evaluation-harness on an export and local text: its bits per byte are those of our own model."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export
from geowidth.models import ModelConfig, TaperedTransformer

TEXTS = ["def f(x):\n    return x + 1\n", "A short sentence, and äöü.", "0123456789 " * 3]
TASK = """
task: local_text
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""
HARNESS = """
import json, sys
import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
model = HFLM(pretrained=sys.argv[1], trust_remote_code=True, device="cpu", batch_size=1, prefix_token_id=0)
tasks = TaskManager(include_path=sys.argv[2], include_defaults=False)
results = lm_eval.simple_evaluate(model=model, tasks=["local_text"], task_manager=tasks, bootstrap_iters=0)
print("ANSWER", results["results"]["local_text"]["bits_per_byte,none"])
"""


def test_language_model_harness(tmp_path):
    if find_spec("lm_eval") is None or find_spec("transformers") is None:
        pytest.skip("the extra eval is not installed; `make test-eval` installs it and runs this")
    model = TaperedTransformer(ModelConfig(256, 3, 64, 4, (100, 37, 80), 64, key_heads=2), seed=3).eval()
    export(checkpoint_from(model), "hf", tmp_path / "model")
    (tmp_path / "tasks").mkdir()
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "tasks" / "local_text.yaml").write_text(TASK.replace("DATA", json.dumps(str(data))))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(tmp_path / "model"), str(tmp_path / "tasks")],
        env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    nats = 0.0
    for text in TEXTS:
        ids = torch.tensor([[0, *text.encode()]])  # the harness begins each text with its prefix token
        with torch.no_grad():
            nats += torch.nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:], reduction="sum").item()
    wanted = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert float(answer.split()[1]) == pytest.approx(wanted, rel=1e-5)
