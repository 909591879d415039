"""Exports read back by the tools they are for, each in a fresh process: transformers 5 and 4, llama.cpp, Megatron."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import FORMATS, export, export_untrained
from geowidth.models import ModelConfig, TaperedTransformer

READER = Path(__file__).with_name("exchange_reader.py")
# Put there by `make test`; beside the environment's own transformers 5.
TRANSFORMERS_4 = Path(os.environ.get("GEOWIDTH_TRANSFORMERS_4", Path(sys.prefix) / "transformers-4"))
TEXT = "def fünf():\n    return  5\n"
WIDTHS = (100, 37, 0, 200)
FAMILY = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}
FAMILY |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0}
FAMILY |= {"bos_token_id": 1, "eos_token_id": 2}
UNTRAINED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "granite", "olmo2", "phi3", "smollm3")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """(folder with one export per format, token ids, logits of our own model)."""
    home = tmp_path_factory.mktemp("exports")
    config = ModelConfig(256, 4, 64, 4, WIDTHS, 64, key_heads=2, rope_base=5000.0)
    model = TaperedTransformer(config, seed=3).eval()
    ids = list(TEXT.encode())
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0]
    for name in FORMATS:
        export(checkpoint_from(model), name, home / name)
    for family in UNTRAINED:
        export_untrained({**FAMILY, "model_type": family}, (17, 0, 80), home / family)
    return home, ids, logits, model


def read(exports, path=None):
    home, ids, *_ = exports
    job = {"ids": ids, "text": TEXT, "out": str(home / "answers.json")}
    job["folders"] = {name: str(home / name) for name in ("hf", "hf-padded", "nemotron-nas")}
    job["untrained"] = {name: str(home / name) for name in UNTRAINED}
    (home / "job.json").write_text(json.dumps(job))
    environment = {**os.environ, "HF_MODULES_CACHE": str(home / "modules"), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(path or ""), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, str(READER), str(home / "job.json")],
        env=environment, cwd=home, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((home / "answers.json").read_text())


@pytest.mark.parametrize("major", [5, 4])
def test_transformers(exports, major):
    if major == 5 and find_spec("transformers") is None:
        pytest.skip("the extra hf is not installed")
    if major == 4 and not TRANSFORMERS_4.is_dir():
        pytest.skip(f"no transformers 4 in {TRANSFORMERS_4}; `make test` puts it there")
    answers = read(exports, TRANSFORMERS_4 if major == 4 else None)
    assert answers["transformers"].startswith(f"{major}.")
    _, ids, logits, model = exports
    parameters = {"hf": model.parameter_count() - 64}  # the norm of the empty layer is left out
    for name, made in (("hf", "TaperedLlama"), ("hf-padded", "Llama"), ("nemotron-nas", "DeciLM")):
        answer = answers[name]
        assert answer["class"] == f"{made}ForCausalLM" and answer["loading"] == {}
        torch.testing.assert_close(torch.tensor(answer["logits"]), logits, rtol=0, atol=2e-5)
        torch.testing.assert_close(torch.tensor(answer["bfloat16"]), logits, rtol=0, atol=0.2)
        assert answer["compiled"] == 0 and answer["gradients"] and answer["saved again"]
        assert answer["tokens"] == ids and answer["text"] == TEXT
        assert answer["generated"] == greedy(model, ids, 4)
        assert answer["parameters"] == parameters.get(name, answer["parameters"])
    for family in UNTRAINED:
        assert answers[family] == {"widths": [17, 80], "finite": True}, family


def greedy(model, ids, count):
    """The next `count` tokens by our own model."""
    with torch.no_grad():
        for _ in range(count):
            ids = [*ids, int(model(torch.tensor([ids]))[0, -1].argmax())]
    return ids[-count:]


LLAMA_CPP = """
import json, sys
import xllamacpp as llama
parameters = llama.CommonParams()
parameters.model.path, ids = sys.argv[1], json.loads(sys.argv[2])
parameters.n_predict, parameters.n_ctx, parameters.n_parallel, parameters.warmup = 1, 128, 1, False
parameters.cpuparams.n_threads = 1
parameters.cache_type_k = parameters.cache_type_v = llama.ggml_type.GGML_TYPE_F32
parameters.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = llama.Server(parameters)
answers = []
for count in range(1, len(ids) + 1):
    question = {"prompt": ids[:count], "n_predict": 1, "n_probs": 20, "temperature": 0.0, "cache_prompt": False}
    choice = server.handle_completions(question)["choices"][0]
    if choice["logprobs"] is not None:  # a byte that is no whole character has none
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        answers.append([count, [[token["id"], token["logprob"]] for token in top]])
print("ANSWERS", json.dumps(answers))
"""


def test_llama_cpp(exports):
    """The log-probabilities of llama.cpp's deci, with a width per layer, are ours."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp (llama.cpp) is not installed; `make test` installs it")
    home, ids, logits, _ = exports
    done = subprocess.run(
        [sys.executable, "-c", LLAMA_CPP, str(home / "gguf" / "model.gguf"), json.dumps(ids[:20])],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS"))
    answers = json.loads(line.removeprefix("ANSWERS "))
    assert len(answers) >= 5
    ours = torch.log_softmax(logits.double(), -1)
    for count, top in answers:
        assert top[0][0] == int(ours[count - 1].argmax())
        for token, value in top:
            assert abs(value - ours[count - 1, token].item()) < 2e-4


def test_megatron(exports):
    """Megatron's own reader finds every layer's width and key heads."""
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed; `make test` installs it")
    home, *_ = exports
    code = (
        "import sys, json; from megatron.core.transformer.heterogeneous.heterogeneous_config import "
        "HeterogeneousTransformerConfig as C; c = C(num_layers=4, hidden_size=64, num_attention_heads=4, "
        "ffn_hidden_size=200, heterogeneous_layers_config_path=sys.argv[1]); "
        "print('ANSWERS', json.dumps([[b.mlp.ffn_hidden_size, b.mlp.no_op, b.attention.num_query_groups, "
        "c.get_config_for_layer(i + 1).ffn_hidden_size] for i, b in enumerate(c.per_block_parameters)]))"
    )
    path = home / "megatron" / "heterogeneous_layers.json"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS"))
    blocks = json.loads(line.removeprefix("ANSWERS "))
    assert [block[0] for block in blocks] == [100, 37, None, 200]
    assert [block[1] for block in blocks] == [False, False, True, False]
    assert all(block[2] == 2 for block in blocks) and [blocks[i][3] for i in (0, 1, 3)] == [100, 37, 200]


def test_gguf_structure(exports):
    """What gguf-py finds in the file: architecture, the array of widths, tensors and their types."""
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    home, *_ = exports
    reader = gguf.GGUFReader(str(home / "gguf" / "model.gguf"))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "deci"
    assert fields["deci.feed_forward_length"] == [100, 37, 32, 200]
    assert fields["deci.attention.head_count_kv"] == [2] * 4
    shapes = {tensor.name: tuple(int(n) for n in tensor.shape) for tensor in reader.tensors}
    assert shapes["blk.1.ffn_down.weight"] == (37, 64) and shapes["blk.1.ffn_up.weight"] == (64, 37)
    empty = next(tensor for tensor in reader.tensors if tensor.name == "blk.2.ffn_gate.weight")
    assert np.count_nonzero(empty.data) == 0
    assert "output.weight" not in shapes
