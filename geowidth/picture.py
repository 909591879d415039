"""Pictures as bytes that are the same every time."""

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture_bytes(figure: "Figure", kind: str, **options: Any) -> bytes:
    """The file of a matplotlib figure, kind "svg" or "png"; equal figures give equal bytes: no date, no random names.

    options: for `savefig`, such as dpi.
    """
    import matplotlib

    found = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "geowidth"}):
        figure.savefig(found, format=kind, metadata={"Date": None} if kind == "svg" else None, **options)
    return found.getvalue()
