"""Token clouds: the states before and after every FFN, for the same tokens in every layer."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from geowidth import records
from geowidth.errors import UserError

KIND, SCHEMA = "geowidth.clouds", 1


@dataclass(frozen=True)
class Clouds:
    """States of one set of tokens around the FFN sub-block of every layer.

    before, after   (layers, tokens, dimension) float tensors on one device; row i is the same token in every layer
    token_ids       (tokens,) int64, the vocabulary index of each token
    positions       (tokens,) int64, its position in its sequence
    widths          FFN width of each layer
    projections     matrices per FFN: 3 when gated, else 2
    settings        how the tokens were drawn, from which model and text
    """

    before: torch.Tensor
    after: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    widths: tuple[int, ...]
    projections: int
    settings: dict

    @property
    def layers(self):
        return self.before.shape[0]

    @property
    def tokens(self):
        return self.before.shape[1]

    def write(self, path):
        """Write everything into one safetensors file, atomically."""
        path = Path(path)
        records.check_writable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        tensors = {name: getattr(self, name).contiguous() for name in ("before", "after")}
        # Cloned, since callers may give one tensor as both and safetensors refuses shared memory.
        tensors |= {name: getattr(self, name).clone() for name in ("token_ids", "positions")}
        facts = {"kind": KIND, "schema": SCHEMA, "widths": self.widths, "projections": self.projections}
        save_file(tensors, aside, metadata={"geowidth": records.dumps({**facts, "settings": self.settings})})
        aside.replace(path)

    @classmethod
    def read(cls, path):
        """Read a file that `write` made; anything else is refused with what it is."""
        try:
            with safe_open(str(path), framework="pt") as file:
                text = (file.metadata() or {}).get("geowidth")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read clouds from {path}: {error}") from error
        facts = records.loads(text) if text else {}
        if facts.get("kind") != KIND or not {"before", "after", "token_ids", "positions"} <= set(tensors):
            raise UserError(f"{path} holds no GeoWidth clouds; make some with geowidth measure --save-clouds FILE")
        return cls(
            **tensors, widths=tuple(facts["widths"]), projections=facts["projections"], settings=facts["settings"]
        )
