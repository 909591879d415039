"""Fields of a config.json of the Llama family. Each is in one of three states: absent, null, or a value.

An absent field has the library's default, which differs by family. A null field means what the library takes null for,
where it takes it at all: no window, one key head a head, a head size of dimension / heads. The two are never mixed.
"""

from dataclasses import dataclass
from typing import Any

from geowidth.errors import UserError, positive, whole

# What transformers 4.57 and 5.24 take for an absent field; None: worked out from the other fields.
_SIZES: dict[str, Any] = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "rms_norm_eps": 1e-6}
_SIZES |= {"hidden_act": "silu", "tie_word_embeddings": False, "head_dim": None}
_QWEN: dict[str, Any] = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_QWEN |= {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}
_LLAMA = {"vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": None, "max_position_embeddings": 2048}
_MISTRAL = {"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_SIZES, **_LLAMA, "attention_bias": False, "mlp_bias": False},
    "mistral": {**_SIZES, **_MISTRAL, "max_position_embeddings": 131072},
    "qwen2": {**_SIZES, **_QWEN},
    "qwen3": {**_SIZES, **_QWEN, "head_dim": 128, "attention_bias": False},
}
REFUSED = object()


@dataclass(frozen=True)
class Fields:
    """The fields of one config.json, read with its family's defaults.

    config, where   the object, and what to call it in messages
    family          llama, mistral, qwen2 or qwen3
    """

    config: dict
    where: str
    family: str

    def value(self, name, null=REFUSED):
        """The stated value, or the family's default where the field is absent; `null` for one that is null."""
        stated = name in self.config
        value = self.config[name] if stated else DEFAULTS[self.family][name]
        if value is None and stated and null is REFUSED:
            raise UserError(f"{self.where}: {name} is null; the {self.family} family needs a value, or no such field")
        return null if value is None else value

    def whole(self, name, least=1, null=REFUSED):
        """A whole number of at least `least`, or `null`."""
        value = self.value(name, null)
        return value if value is null else whole(f"{self.where}: {name}", value, least)

    def flag(self, name):
        """True or false; false for a field that the family does not have."""
        value = self.value(name) if name in DEFAULTS[self.family] else False
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: {name} is {value!r}; allowed: true, false")
        return value

    def positive(self, name):
        """A finite float above 0."""
        return positive(f"{self.where}: {name}", self.value(name))

    def windows(self, layers):
        """How far back each layer's attention reaches, in tokens, or None where it reaches to the beginning."""
        if self.family == "llama":
            return (None,) * layers
        if self.family == "mistral":
            if "layer_types" in self.config:  # newer versions of the library take such a model for another family
                raise UserError(f"{self.where}: layer_types in a mistral model; remove it, or name the model's family")
            return (self.whole("sliding_window", null=None),) * layers
        window = self.whole("sliding_window", null=None) if self.flag("use_sliding_window") else None
        return tuple(window if sliding else None for sliding in self._sliding(window, layers))

    def _sliding(self, window, layers):
        """Which layers of a Qwen model have a window: by layer_types, else all from max_window_layers on."""
        types = self.value("layer_types", null=None)
        if types is None:
            first = layers if window is None else self.whole("max_window_layers", 0)
            return [layer >= first for layer in range(layers)]
        known = ("full_attention", "sliding_attention")
        if not isinstance(types, list) or len(types) != layers or any(kind not in known for kind in types):
            raise UserError(f"{self.where}: layer_types must be a list with one of {', '.join(known)} for each layer")
        sliding = [kind == "sliding_attention" for kind in types]
        if any(sliding) and window is None:
            raise UserError(f"{self.where}: layer_types has sliding_attention, but sliding_window is not in use")
        return sliding
