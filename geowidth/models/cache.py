"""Keys and values of the tokens a model has read, so that the next one costs one token's work.

Every application of a block has its own room, preallocated, as large as that layer's own heads of keys need: a layer
with half the heads takes half the bytes. A block that is applied several times sees different states each time, so each
application has its own.
"""

from dataclasses import dataclass

import torch

from geowidth import memory
from geowidth.devices import Device, device_named
from geowidth.errors import UserError, whole
from geowidth.models.config import ModelConfig


@dataclass(frozen=True)
class Slot:
    """Room of one application of a block: keys and values (batch, key heads, capacity, head size), `length` filled."""

    keys: torch.Tensor
    values: torch.Tensor
    length: int = 0

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put (batch, key heads, tokens, head size) behind what is there; returns all keys and all values so far."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        return self.keys[:, :, :end], self.values[:, :, :end]


class KeyValueCache:
    """Keys and values of up to `capacity` tokens of `batch` texts, for a model of `config`.

    capacity: at most the context. dtype: that of the model's attention (see `cache_of`). `length` counts the tokens
    that were read; `clear` forgets them and keeps the memory. starts: int64 (batch,), the position at which each text
    begins, where texts of different lengths end together; None where all begin at 0.

    Raises UserError for more than the context, and on a CPU for more than this machine has free.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: Device = "cpu",
    ) -> None:
        self.batch, self.capacity = whole("batch", batch, 1), whole("capacity", capacity, 1)
        if capacity > config.context:
            raise UserError(f"capacity is {capacity}; this model's context is {config.context}: give at most that")
        self.device = device_named(device)
        if self.device.type == "cpu":
            size = cache_bytes(config, batch, capacity, dtype)
            memory.check(f"a cache of {capacity} tokens of {batch} texts", size, "use fewer texts or tokens")
        self.config, self.length = config, 0
        self.starts: torch.Tensor | None = None
        shapes = [(batch, heads, capacity, config.head_dimension) for heads in cached_heads(config)]
        self._room = [tuple(torch.zeros(s, dtype=dtype, device=self.device) for _ in range(2)) for s in shapes]

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values that there is room for; `cache_bytes` counts the same without making them."""
        return sum(part.nbytes for room in self._room for part in room)

    @property
    def slots(self) -> list[Slot]:
        """Room of every application of a block, in the order in which blocks are applied."""
        return [Slot(keys, values, self.length) for keys, values in self._room]

    def clear(self) -> None:
        """Forget what was read."""
        self.length, self.starts = 0, None

    def places(self, tokens: int) -> slice | torch.Tensor:
        """Where in their texts the next `tokens` tokens stand: a slice, or int64 (batch, tokens) where texts differ."""
        if self.starts is None:
            return slice(self.length, self.length + tokens)
        places = torch.arange(self.length, self.length + tokens, device=self.device)
        return (places - self.starts[:, None]).clamp(min=0)

    def mask(self, tokens: int) -> torch.Tensor | None:
        """Which keys each of the next `tokens` queries sees, bool (1 or batch, 1, tokens, keys): none that stands
        later, none before its text begins. None where plain causal attention over what there is says the same."""
        if self.starts is None and (tokens == 1 or self.length == 0):
            return None
        query = torch.arange(self.length, self.length + tokens, device=self.device)[:, None]
        key = torch.arange(self.length + tokens, device=self.device)
        seen = key <= query
        if self.starts is not None:  # what stands before a text sees itself: a query that sees nothing gives NaN
            seen = seen & ((key >= self.starts[:, None, None]) | (key == query))
        return seen[None, None] if seen.ndim == 2 else seen[:, None]


def cached_heads(config: ModelConfig) -> list[int]:
    """Heads of keys of every application of a block, in order."""
    return [config.key_heads_by_layer[layer] for layer in config.order]


def cache_bytes(config: ModelConfig, batch: int, tokens: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of keys and values of `tokens` tokens of `batch` texts: the sum over layers of what their heads need."""
    return 2 * batch * tokens * sum(cached_heads(config)) * config.head_dimension * dtype.itemsize
