"""The Triton kernels. In a source tree they lie in kernels/triton; an installed GeoWidth has that folder here."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "kernels" / "triton")]
