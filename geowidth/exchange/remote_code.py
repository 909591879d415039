"""The modelling file an export carries: a stock family of transformers with its FFNs rebuilt, one width per layer.

Attention is rebuilt too where its heads differ by layer, and FFNs without a gate take the place of the family's.
"""

from geowidth.errors import choose
from geowidth.exchange.shape import MODULE

# model_type: (config class, causal model class, backbone class); all build their FFN as type(layer.mlp)(config)
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", "LlamaModel"),
    "mistral": ("MistralConfig", "MistralForCausalLM", "MistralModel"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", "Qwen2Model"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", "Qwen3Model"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", "Gemma2Model"),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM", "Gemma3TextModel"),
    "granite": ("GraniteConfig", "GraniteForCausalLM", "GraniteModel"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", "Olmo2Model"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", "Phi3Model"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", "SmolLM3Model"),
}

HEAD = '''"""A {family} model whose FFNs each have a width of their own, written by `geowidth export`.

Load with AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True); transformers 4.57 or later.
"""

import copy

import torch
from torch import nn
from transformers import {config}, {causal}, {backbone}
from transformers.activations import ACT2FN


class PlainFeedForward(nn.Module):
    """Without a gate: act(x up) down."""

    def __init__(self, config):
        super().__init__()
        bias = getattr(config, "mlp_bias", False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden_states):
        return self.down_proj(self.act_fn(self.up_proj(hidden_states)))


class NoFeedForward(nn.Module):
    """Of a layer of width 0: adds nothing."""

    def forward(self, hidden_states):
        return torch.zeros_like(hidden_states)


def taper(layers, config):
    """Rebuild every layer's FFN at its own width, and its attention with its own heads."""
    gated = getattr(config, "mlp_gated", True)
    for layer, width in zip(layers, config.intermediate_sizes):
        if width == 0:
            layer.mlp, layer.post_attention_layernorm = NoFeedForward(), nn.Identity()
        elif width != config.intermediate_size or not gated:
            narrow = copy.copy(config)
            narrow.intermediate_size = width
            layer.mlp = (type(layer.mlp) if gated else PlainFeedForward)(narrow)
    group = config.num_attention_heads // (config.num_key_value_heads or config.num_attention_heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for index, heads in enumerate(getattr(config, "layer_attention_heads", None) or []):
        if heads != config.num_attention_heads:
            other = copy.copy(config)
            other.num_attention_heads, other.num_key_value_heads, other.head_dim = heads, heads // group, size
            layers[index].self_attn = type(layers[index].self_attn)(other, index)
'''

TAPERED_CONFIG = '''

class {prefix}Config({config}):
    """{config} with `intermediate_sizes`: one FFN width per layer.

    layer_attention_heads: heads of every layer where they differ. mlp_gated: whether FFNs have a gate.
    """

    model_type = "{model_type}"

    def __init__(self, intermediate_sizes=None, layer_attention_heads=None, mlp_gated=True, **arguments):
        super().__init__(**arguments)
        self.layer_attention_heads, self.mlp_gated = layer_attention_heads, mlp_gated
        widths = [self.intermediate_size] * self.num_hidden_layers if intermediate_sizes is None else intermediate_sizes
        if len(widths) != self.num_hidden_layers:
            raise ValueError(f"{{len(widths)}} intermediate_sizes for {{self.num_hidden_layers}} layers")
        self.intermediate_sizes = list(widths)
'''

BLOCKS_CONFIG = '''

class Block(dict):
    """A dict whose entries are attributes too, as the readers of block_configs expect."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class {prefix}Config({config}):
    """{config} with `block_configs`: attention and FFN of every layer, as in Llama-Nemotron."""

    model_type = "{model_type}"

    def __init__(self, block_configs=None, **arguments):
        super().__init__(**arguments)
        blocks = [{{"attention": Block(b["attention"]), "ffn": Block(b["ffn"])}} for b in block_configs or []]
        self.block_configs = [Block(block) for block in blocks]

    @property
    def intermediate_sizes(self):
        return [self._width(block.ffn) for block in self.block_configs]

    def _width(self, ffn):
        if ffn.no_op:
            return 0
        return -(-int(2 * ffn.ffn_mult * self.hidden_size / 3) // 256) * 256
'''

MODELS = """

class Whole:
    \"\"\"Refuses files whose tensors are not the model's own: the library fills the missing ones at random.\"\"\"

    unread = ("rotary_emb.inv_freq",)  # of older files

    @classmethod
    def from_pretrained(cls, *arguments, output_loading_info=False, **options):
        model, found = super().from_pretrained(*arguments, output_loading_info=True, **options)
        for what in ("missing", "mismatched", "unexpected"):
            keys = (key if isinstance(key, str) else key[0] for key in found[what + "_keys"])
            names = sorted(name for name in keys if not name.endswith(cls.unread))
            if names:
                raise ValueError(f"{{names[0]}} is {{what}} in the weights of {{cls.__name__}} ({{len(names)}})")
        return (model, found) if output_loading_info else model


class {prefix}Model(Whole, {backbone}):
    config_class = {prefix}Config
    unread = (*Whole.unread, "lm_head.weight")

    def __init__(self, config):
        super().__init__(config)
        taper(self.layers, config)
        self.post_init()


class {prefix}ForCausalLM(Whole, {causal}):
    config_class = {prefix}Config

    def __init__(self, config):
        super().__init__(config)
        taper(self.model.layers, config)
        self.post_init()
"""


def modelling_file(family, model_type, prefix, blocks=False):
    """(text of the file, auto_map for config.json) of a tapered model of `family`.

    blocks   whether the config states widths as block_configs (nemotron-nas) or as intermediate_sizes
    """
    choose("family of the export", family, list(CLASSES))
    config, causal, backbone = CLASSES[family]
    text = (HEAD + (BLOCKS_CONFIG if blocks else TAPERED_CONFIG) + MODELS).format(
        family=family, config=config, causal=causal, backbone=backbone, prefix=prefix, model_type=model_type
    )
    classes = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    return text, {auto: f"{MODULE}.{prefix}{kind}" for auto, kind in classes.items()}
