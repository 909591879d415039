"""The Triton kernels. In a source tree they lie in kernels/triton; an installed GeoWidth has those files here."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if not Path(__file__).with_name("tiles.py").exists():
    __path__ = [str(Path(__file__).resolve().parents[2] / "kernels" / "triton")]

if TYPE_CHECKING:  # type checkers do not follow __path__, and Triton's language has no types

    def __getattr__(name: str) -> Any: ...
