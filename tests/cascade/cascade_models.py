"""Small models with residual blocks, of every kind."""

import torch
import transformers

from geowidth.models import ModelConfig, TaperedTransformer

TOKENS = torch.arange(12).view(2, 6) % 20
SMALL = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 2, "max_position_embeddings": 16}


def ours():
    return TaperedTransformer(ModelConfig(20, 3, 16, 2, (24, 8, 0), 16, layer_heads=(4, 2, 2)), seed=1).eval()


def library(kind, **changes):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SMALL | changes)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_embd=16, n_layer=3, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config).eval()


def resnet(layer_type="bottleneck"):
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2], layer_type=layer_type, num_labels=3
    )
    return transformers.ResNetForImageClassification(config).eval()


def bert():
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SMALL)).eval()


def first(output):
    return output if isinstance(output, torch.Tensor) else output[0]


MODELS = {
    "ours": (ours, TOKENS, ("blocks.0", "blocks.1", "blocks.2")),
    "llama": (lambda: library("llama"), TOKENS, tuple(f"model.layers.{i}" for i in range(3))),
    "gemma3": (
        lambda: library("gemma3_text", head_dim=8, num_key_value_heads=1),
        TOKENS,
        tuple(f"model.layers.{i}" for i in range(3)),
    ),
    "gpt2": (gpt2, TOKENS, tuple(f"transformer.h.{i}" for i in range(3))),
    "bert": (bert, TOKENS, tuple(f"encoder.layer.{i}" for i in range(3))),
    "resnet": (
        resnet,
        torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        tuple(f"resnet.encoder.stages.{s}.layers.{i}" for s in range(2) for i in range(2)),
    ),
}
