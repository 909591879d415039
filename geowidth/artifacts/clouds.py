"""Token clouds: the states before and after every FFN, for the same tokens in every layer."""

from dataclasses import dataclass
from typing import Any

import torch

from geowidth import inputs, records
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.precision import coarsest
from geowidth.tensors import read_tensors, write_tensors

KIND, SCHEMA = "geowidth.clouds", 1


@dataclass(frozen=True)
class Clouds:
    """States of one set of tokens around the FFN sub-block of every layer.

    before, after   (layers, tokens, dimension) on one device, from whatever geowidth.inputs takes; row i is the same
                    token in every layer
    token_ids       (tokens,) int64, the vocabulary index of each token
    positions       (tokens,) int64, its position in its sequence
    widths          FFN width of each layer
    projections     matrices per FFN: 3 when gated, else 2
    settings        how the tokens were drawn, from which model and text
    precision       name of the precision in which the states were produced: that of their dtype, or a coarser one given
                    here (a model run in bfloat16 whose states were widened afterwards). States of one point may differ
                    by its rounding
    experts         (experts, those that each token visits) of every layer's FFN; () where that is not known
    """

    before: torch.Tensor
    after: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    widths: tuple[int, ...]
    projections: int
    settings: dict[str, Any]
    precision: str | None = None
    experts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        for name in ("before", "after"):
            states = inputs.tensor(name, getattr(self, name), ("layers", "tokens", "dimension")).detach()
            object.__setattr__(self, name, states)
        if self.before.shape != self.after.shape:
            shapes = tuple(self.before.shape), tuple(self.after.shape)
            raise UserError(f"before has shape {shapes[0]}, after {shapes[1]}; they must agree")
        found = coarsest(self.precision, self.before.dtype, self.after.dtype)
        object.__setattr__(self, "precision", found)

    @property
    def layers(self) -> int:
        return self.before.shape[0]

    @property
    def tokens(self) -> int:
        return self.before.shape[1]

    def write(self, path: PathLike) -> None:
        """Write everything into one safetensors file, atomically."""
        # Cloned, since callers may give one tensor as both and safetensors refuses shared memory.
        names = ("before", "after", "token_ids", "positions")
        tensors = {name: getattr(self, name).contiguous().clone() for name in names}
        facts = {"kind": KIND, "schema": SCHEMA, "widths": self.widths, "projections": self.projections}
        facts |= {"precision": self.precision, "experts": self.experts}
        write_tensors(path, tensors, {"geowidth": records.dumps({**facts, "settings": self.settings})})

    @classmethod
    def read(cls, path: PathLike) -> "Clouds":
        """Read a file that `write` made; anything else is refused with what it is."""
        tensors, metadata = read_tensors(path)
        try:
            facts = records.loads(metadata.get("geowidth", "{}"))
            if facts["kind"] != KIND or facts["schema"] > SCHEMA:
                raise KeyError("kind")
            parts: dict[str, Any] = {name: facts[name] for name in ("projections", "settings")}
            parts["precision"] = facts.get("precision")  # files of earlier versions lack it
            parts["experts"] = tuple((int(total), int(active)) for total, active in facts.get("experts", ()))
            found = cls(**{**tensors, **parts}, widths=tuple(facts["widths"]))
        except UserError as error:
            raise UserError(
                f"{path} holds clouds whose parts do not fit each other ({error}); capture them again"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} holds no GeoWidth clouds; make some with geowidth measure --save-clouds FILE"
            ) from error
        found._check(path)
        return found

    def _check(self, path):
        """Refuse tensors that are no clouds: shapes that do not fit each other, states that are no numbers."""
        shape = tuple(self.before.shape)
        good = len(shape) == 3 and tuple(self.after.shape) == shape and len(self.widths) == shape[0]
        if not good or any(tuple(t.shape) != shape[1:2] for t in (self.token_ids, self.positions)):
            raise UserError(f"{path} holds clouds whose parts do not fit each other; capture them again")
        for name in ("before", "after"):
            states = getattr(self, name)
            if not states.is_floating_point() or not bool(torch.isfinite(states).all()):
                raise UserError(f"{path}: the states {name} the FFN are no finite numbers; capture them again")
