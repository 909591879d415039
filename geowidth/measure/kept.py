"""What interrupted work has done: kept result by result, so that it loses one at most (a measured layer, a loss)."""

import hashlib
from pathlib import Path

import torch

from geowidth import files, records
from geowidth.errors import whole


class KeptResults:
    """Results so far, one JSON line each in a hidden file beside the final result `out` (None: only in memory).

    fingerprint: of what is worked on and how, in one line; a file with another one is begun anew. results: {name:
    result}. A class of other names says by `key` what their field is called and by `check` which are right.
    """

    key = "name"

    def __init__(self, out, fingerprint):
        self.path = None if out is None else Path(out).with_name(f".{Path(out).name}.partial")
        self.fingerprint, self.written, self.results = fingerprint, False, {}
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.is_file() else ""
        first, *lines = text.splitlines() or [""]
        for line in lines if first == fingerprint else ():
            try:
                record = records.loads(line)
                name, result = self.check(record[self.key], record["result"])
            except (KeyError, TypeError, ValueError):  # the line a kill cut short, or a disk spoiled: done again
                break
            self.results[name] = result

    def check(self, name, result):
        """(name, result) as read from a line; raises ValueError or TypeError for what `add` never wrote."""
        if not isinstance(name, str):
            raise TypeError
        return name, result

    def _line(self, name, result):
        return records.dumps({self.key: name, "result": result})

    def add(self, name, result):
        """Keep the result of a name, on the disk when this returns."""
        # Through JSON and back, so that a resumed run and an uninterrupted one hold the same values.
        line = self._line(name, result)
        self.results[name] = records.loads(line)["result"]
        if self.path is None:
            return
        if not self.written:  # only now: work that is refused leaves nothing behind
            lines = [self.fingerprint, *(self._line(*item) for item in self.results.items())]
            records.write_text(self.path, "\n".join(lines) + "\n")
            self.written = True
            return
        files.append(self.path, f"{line}\n".encode())

    def remove(self):
        """Delete the file: the result is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class KeptLayers(KeptResults):
    """Layers measured so far: `layers` is {layer: result}."""

    key = "layer"

    def check(self, name, result):
        return whole("layer", name, 0), dict(result)

    @property
    def layers(self):
        return self.results

    @layers.setter
    def layers(self, layers):
        self.results = layers


def fingerprint(clouds, settings):
    """A digest of Clouds and MeasureSettings: equal ones give equal results."""
    digest = hashlib.sha256(records.dumps([settings.to_json(), clouds.settings, clouds.precision]).encode())
    for tensor in (clouds.before, clouds.after):
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
