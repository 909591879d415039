"""Which split a document belongs to: 90 % training, 5 % validation, 5 % test.

A hash of the document's name picks the split. Where that leaves a split empty (few documents), every document is cut at
90 % and 95 % of its bytes instead.
"""

import hashlib

SPLITS = ("train", "validation", "test")
FIRST_CUT, SECOND_CUT = 0.90, 0.95
BY_NAME, BY_POSITION = "split by document", "each cut at 90 % and 95 %"


def split_of(name: bytes) -> str:
    """The split that a document of this name belongs to."""
    number = int.from_bytes(hashlib.sha256(name).digest()[:8], "big") / 2**64
    return SPLITS[0 if number < FIRST_CUT else 1 if number < SECOND_CUT else 2]


def cuts(size: int) -> tuple[int, int]:
    """Where a document of `size` bytes is cut in three."""
    return round(size * FIRST_CUT), round(size * SECOND_CUT)
