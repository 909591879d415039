"""One CSV schema for every benchmark, so that one plot and one table read them all."""

import csv
import math
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path


@cache
def versions():
    """'name version' of the packages a time may depend on, separated by semicolons."""
    from importlib.metadata import PackageNotFoundError, version

    import geowidth

    found = [f"geowidth {geowidth.__version__}"]
    for name in ("torch", "triton", "numpy", "scipy", "POT", "gudhi", "redzed-tda", "ripser", "giotto-ph", "ott-jax"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return "; ".join(found)


@cache
def device_name():
    """The processor's model name (the GPU's name is for rows measured there)."""
    import platform

    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@dataclass
class Row:
    """One provider at one size: three quantiles of one metric, with the answer's quality beside it.

    op         what was computed ("distances", "gromov", ...)
    provider   who computed it ("geowidth", "torch.cdist", ...)
    mode       the variant of the task ("raw", "all geometries", "forward", ...)
    metric     what p20, p50 and p80 are: "wall" or "cpu" seconds, "ratio", "bytes", "relative error"
    x_name, x_value   what is swept, usually "n"
    error      largest relative error against the float64 reference, where there is one
    objective  value of what was minimised, where something was
    note       anything a reader must know ("did not finish in 60 s")
    """

    op: str
    provider: str
    mode: str
    metric: str
    x_name: str
    x_value: float
    p20: float = math.nan
    p50: float = math.nan
    p80: float = math.nan
    error: float = math.nan
    objective: float = math.nan
    threads: int = 1
    note: str = ""
    device: str = field(default_factory=device_name)
    versions: str = field(default_factory=versions)


COLUMNS = [f.name for f in fields(Row)]
_NUMBERS = {
    "x_value": float,
    "p20": float,
    "p50": float,
    "p80": float,
    "error": float,
    "objective": float,
    "threads": int,
}


def _text(value):
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def write_rows(path, rows):
    """Write rows as CSV; an empty cell is a number that does not exist."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _text(value) for name, value in asdict(row).items()})


def read_rows(path):
    """The rows of a CSV that `write_rows` wrote."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            Row(**{k: _NUMBERS.get(k, str)(v or "nan") if k in _NUMBERS else v for k, v in line.items()})
            for line in csv.DictReader(file)
        ]


def table(rows):
    """Rows as a text table for the terminal, medians first."""
    head = ("mode", "provider", "x", "metric", "median", "20 %", "80 %", "error", "objective", "note")
    lines = [head]
    for r in rows:
        x = f"{r.x_name}={r.x_value:g}"
        numbers = ["" if math.isnan(v) else f"{v:.4g}" for v in (r.p50, r.p20, r.p80, r.error, r.objective)]
        lines.append((r.mode, r.provider, x, r.metric, *numbers, r.note))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
