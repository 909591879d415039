"""Small models of every family that can be sliced, and windows of ids for them."""

import torch
import transformers
from torch.nn import functional

from geowidth.cascade.held_out import IGNORED, HeldOut
from geowidth.models import ModelConfig, TaperedTransformer

TOKENS = {"vocab_size": 31, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE = TOKENS | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SHAPE |= {"max_position_embeddings": 16}
GROUPED = SHAPE | {"num_key_value_heads": 1}
HEADS = GROUPED | {"head_dim": 8}
GPT2 = TOKENS | {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "n_inner": 24}
OPT = {"ffn_dim": 24, "word_embed_proj_dim": 16}
DISTILBERT = {"vocab_size": 31, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 16}
NO_DROPOUT = {"attention_dropout": 0.0}

# name: model class, config class, config
CAUSAL = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "llama with biases": ("LlamaForCausalLM", "LlamaConfig", GROUPED | {"mlp_bias": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", HEADS),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", HEADS),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", HEADS),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", HEADS),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", HEADS),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED | {"residual_multiplier": 0.22}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "phi": ("PhiForCausalLM", "PhiConfig", SHAPE),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt_neox parallel": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SHAPE),
    "gpt_neox sequential": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SHAPE | {"use_parallel_residual": False}),
    "opt": ("OPTForCausalLM", "OPTConfig", SHAPE | OPT),
    "opt post-norm": ("OPTForCausalLM", "OPTConfig", SHAPE | OPT | {"do_layer_norm_before": False}),
}
ENCODERS = {
    "bert": ("BertModel", "BertConfig", SHAPE),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SHAPE | {"max_position_embeddings": 18}),
    "electra": ("ElectraModel", "ElectraConfig", SHAPE | {"embedding_size": 16}),
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTILBERT),
}
OWN = {
    "ours": {},
    "ours, plain": {"activation": "gelu"},
    "ours, a layer without FFN": {"widths": (24, 0)},
}
NAMES = (*OWN, *CAUSAL, *ENCODERS)


def made(name, dtype=torch.float64):
    """The model of a name, with drawn weights and biases, in evaluation mode."""
    if name in OWN:
        options = {"widths": (24, 19)} | OWN[name]
        model = TaperedTransformer(ModelConfig(31, 2, 16, 2, context=16, **options), seed=3)
    else:
        kind, config, values = (CAUSAL | ENCODERS)[name]
        model = getattr(transformers, kind)(getattr(transformers, config)(**values))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    return model.to(dtype).eval()


def text_of(windows=8, length=12, seed=0):
    """Windows of random ids."""
    tokens = torch.randint(3, 31, (windows, length), generator=torch.Generator().manual_seed(seed))
    return HeldOut(tokens, functional.pad(tokens[:, 1:], (0, 1), value=IGNORED), {"seed": seed})


def output(model, tokens):
    """Logits, or the last states of an encoder."""
    with torch.no_grad():
        found = model(tokens)
    if isinstance(found, torch.Tensor):
        return found
    return found.logits if hasattr(found, "logits") else found.last_hidden_state
