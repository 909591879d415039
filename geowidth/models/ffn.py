"""The feed-forward layer as a module, around geowidth.ops.feed_forward, and its way to and from nn.Linear layouts."""

import math

import torch
from torch import nn

from geowidth import memory
from geowidth.devices import Device
from geowidth.errors import flag, whole
from geowidth.ops.activation.functions import activation_function, is_gated_name
from geowidth.ops.feed_forward.operation import ffn

# For every parameter the names other libraries give it: (module name, whether its weight is stored [input, output]).
# nn.Linear stores [output, input]: gate and up as here, down transposed. GPT-2's Conv1D stores the reverse.
FOREIGN_NAMES = {
    "gate": (("gate_proj", False), ("w1", False)),
    "up": (("up_proj", False), ("w3", False), ("fc1", False), ("c_fc", True)),
    "down": (("down_proj", False), ("w2", False), ("fc2", False), ("c_proj", True)),
}


class FeedForward(nn.Module):
    """y = (act(x gate^T) * (x up^T)) down for x (..., dimension), or act(x up^T) down when ungated.

    dimension: d. width: any whole number from 0 up. activation: a name of geowidth.ops.activation; a GLU name
    ("swiglu", "geglu", "geglu_tanh", "reglu") makes the layer gated, a plain one ("gelu", "silu", ...) ungated unless
    gated=True, as in configs that say "silu" for a SwiGLU layer. bias: biases on every projection. recompute, backend,
    input_precision: as in geowidth.ops.ffn. device, dtype: of the parameters.

    Parameters gate, up and down are (width, dimension) each; gate_bias and up_bias (width,), down_bias (dimension,).
    With `compute_dtype` set they are cast to it where they are used, and x has it; gradients keep their own dtype.
    They start uniform in +-1/sqrt(inputs), like nn.Linear's. `load_state_dict` also takes the names and layouts of
    nn.Linear and Conv1D models (FOREIGN_NAMES); `linear_state_dict` gives the former.
    """

    gate: nn.Parameter | None
    up: nn.Parameter
    down: nn.Parameter
    gate_bias: nn.Parameter | None
    up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None
    compute_dtype: torch.dtype | None = None

    def __init__(
        self,
        dimension: int,
        width: int,
        activation: str = "swiglu",
        *,
        gated: bool | None = None,
        bias: bool = False,
        recompute: str | None = None,
        backend: str | None = None,
        input_precision: str = "ieee",
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dimension, width = whole("dimension", dimension, 1), whole("width", width, 0)
        if torch.device(torch.get_default_device() if device is None else device).type == "cpu":
            size = 2 * (dtype or torch.get_default_dtype()).itemsize * dimension * width
            memory.check(f"an FFN of width {width}", size, "use a narrower one")
        gated = is_gated_name(activation) if gated is None else flag("gated", gated)
        activation_function(activation, gated)
        bias = flag("bias", bias)
        self.activation = activation
        self.recompute, self.backend, self.input_precision = recompute, backend, input_precision
        shapes: dict[str, tuple[int, ...] | None]
        shapes = {"gate": (width, dimension) if gated else None, "up": (width, dimension), "down": (width, dimension)}
        shapes |= {"gate_bias": (width,) if gated and bias else None}
        shapes |= {"up_bias": (width,) if bias else None, "down_bias": (dimension,) if bias else None}
        for name, shape in shapes.items():
            tensor = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, tensor)
        self.register_load_state_dict_pre_hook(_translate_foreign_names)
        self.reset_parameters()

    @property
    def width(self) -> int:
        """Number of hidden units."""
        return self.up.shape[0]

    @property
    def dimension(self) -> int:
        """Size of the residual stream."""
        return self.up.shape[1]

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        for name, parameter in self.named_parameters(recurse=False):
            inputs = self.width if name.startswith("down") else self.dimension
            bound = 1 / math.sqrt(max(1, inputs))
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., dimension) -> y of that shape and dtype."""
        gate, up, down, gate_bias, up_bias, down_bias = map(
            self._cast, (self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias)
        )
        return ffn(
            x,
            gate,
            up,
            down,
            self.activation,
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=down_bias,
            recompute=self.recompute,
            backend=self.backend,
            input_precision=self.input_precision,
        )

    def _cast(self, weight):
        return weight if weight is None or self.compute_dtype is None else weight.to(self.compute_dtype)

    def linear_state_dict(self) -> dict[str, torch.Tensor]:
        """The parameters as gate_proj, up_proj and down_proj of nn.Linear modules: down's weight is (d, width)."""
        names = {name: foreign[0][0] for name, foreign in FOREIGN_NAMES.items()}
        state = {}
        for name, foreign in names.items():
            weight, bias = getattr(self, name), getattr(self, f"{name}_bias")
            if weight is not None:
                state[f"{foreign}.weight"] = weight.detach().T.contiguous() if name == "down" else weight.detach()
            if bias is not None:
                state[f"{foreign}.bias"] = bias.detach()
        return state

    def extra_repr(self) -> str:
        gated = "gated" if self.gate is not None else "ungated"
        bias = ", biases" if self.up_bias is not None else ""
        return f"{self.dimension}, {self.width}, {self.activation}, {gated}{bias}"


def _translate_foreign_names(module, state, prefix, *_):
    """Before loading: foreign entries under `prefix` become ours, transposed where their layout differs."""
    for name, foreign_names in FOREIGN_NAMES.items():
        for foreign, reverse in foreign_names:
            weight = state.pop(f"{prefix}{foreign}.weight", None)
            if weight is not None:
                transpose = reverse != (name == "down")
                state[prefix + name] = weight.T.contiguous() if transpose else weight
            bias = state.pop(f"{prefix}{foreign}.bias", None)
            if bias is not None:
                state[f"{prefix}{name}_bias"] = bias
