"""The files of a sliced model in the making: one a block, one for all else, named as transformers names shards."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from geowidth import records
from geowidth.exchange.checkpoint import tensor_shapes
from geowidth.slicing.correction import LayerReport

INDEX = "model.safetensors.index.json"
REQUEST = "request.json"


class Shards:
    """The shards in a folder, of a model of so many `layers`.

    request   what they are made for: shards of another request, which a stopped work left, are removed
    reports   {layer: LayerReport}, which a block's shard keeps in its header
    """

    def __init__(self, folder: Path, layers: int, request: dict[str, Any]) -> None:
        self.folder, self.layers = folder, layers
        note = folder / REQUEST
        if folder.is_dir() and not (note.is_file() and records.read_json(note) == request):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        records.write_json(note, request)
        self.reports = {layer: self._report(layer) for layer in range(layers) if self.has(layer)}

    def path(self, layer: int) -> Path:
        """Of a block's shard; the one after the last holds what belongs to no block."""
        return self.folder / f"model-{layer + 1:05d}-of-{self.layers + 1:05d}.safetensors"

    def has(self, layer: int) -> bool:
        return self.path(layer).is_file()

    def read(self, layer: int) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        return load_file(self.path(layer))

    def _report(self, layer):
        from safetensors import safe_open

        with safe_open(self.path(layer), "pt") as file:
            return LayerReport.from_json(json.loads(file.metadata()["report"]))

    def write(self, layer: int, tensors: dict[str, torch.Tensor]) -> None:
        """Write a block, with its report."""
        self._save(self.path(layer), tensors, {"format": "pt", "report": json.dumps(self.reports[layer].to_json())})

    def write_outside(self, tensors: dict[str, torch.Tensor]) -> None:
        """Write what belongs to no block, then the index of all."""
        self._save(self.path(self.layers), tensors, {"format": "pt"})
        paths = [self.path(layer) for layer in range(self.layers + 1)]
        places = {name: path.name for path in paths for name in tensor_shapes(path)}
        size = sum(path.stat().st_size for path in paths)
        records.write_json(
            self.folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        )

    def _save(self, path, tensors, metadata):
        """Aside, then renamed. Straight to the disk: records.write_bytes would hold all of it in memory once more."""
        from safetensors.torch import save_file

        aside = self.folder / "writing"
        save_file(tensors, aside, metadata)
        os.replace(aside, path)
