"""What an interrupted measurement has done: kept layer by layer, so that it loses one layer at most."""

import hashlib
from pathlib import Path

import torch

from geowidth import files, records
from geowidth.errors import whole


class KeptLayers:
    """Layers measured so far, one JSON line each in a hidden file beside the result `out` (None: only in memory).

    fingerprint: of what is measured and how; a file with another one is begun anew. layers: {layer: result}.
    """

    def __init__(self, out, fingerprint):
        self.path = None if out is None else Path(out).with_name(f".{Path(out).name}.partial")
        self.fingerprint, self.written, self.layers = fingerprint, False, {}
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.is_file() else ""
        first, *lines = text.splitlines() or [""]
        for line in lines if first == fingerprint else ():
            try:
                record = records.loads(line)
                layer, result = whole("layer", record["layer"], 0), dict(record["result"])
            except (KeyError, TypeError, ValueError):  # the line a kill cut short, or a disk spoiled: measured again
                break
            self.layers[layer] = result

    @staticmethod
    def _line(layer, result):
        return records.dumps({"layer": layer, "result": result})

    def add(self, layer, result):
        """Keep the result of one layer, on the disk when this returns."""
        # Through JSON and back, so that a resumed run and an uninterrupted one hold the same values.
        line = self._line(layer, result)
        self.layers[layer] = records.loads(line)["result"]
        if self.path is None:
            return
        if not self.written:  # only now: a measurement that is refused leaves nothing behind
            lines = [self.fingerprint, *(self._line(*item) for item in self.layers.items())]
            records.write_text(self.path, "\n".join(lines) + "\n")
            self.written = True
            return
        files.append(self.path, f"{line}\n".encode())

    def remove(self):
        """Delete the file: the result is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def fingerprint(clouds, settings):
    """A digest of Clouds and MeasureSettings: equal ones give equal results."""
    digest = hashlib.sha256(records.dumps([settings.to_json(), clouds.settings, clouds.precision]).encode())
    for tensor in (clouds.before, clouds.after):
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
