"""Documents in pieces that can be tokenised one by one, each with the split it belongs to."""

from collections.abc import Iterator
from dataclasses import dataclass

from geowidth.text.documents import Document, FileText
from geowidth.text.splits import SPLITS, cuts, split_of

PIECE = 1 << 20  # bytes of text that are tokenised as one


@dataclass(frozen=True)
class Piece:
    """Some of what a document gives to a split. last: whether that ends here. whole: bytes of all of it."""

    split: str
    text: bytes
    last: bool
    whole: int


def pieces_of(document: Document, by_name: bool, characters: bool) -> Iterator[Piece]:
    """The pieces of one document, in order.

    by_name: all of it goes to the split of its name; else it is cut in three. characters: whether no character may be
    cut apart, and lines only where they are longer than PIECE.
    """
    text, size = document.text, len(document.text)
    if by_name:
        spans = [(split_of(document.name), 0, size)]
    else:
        first, second = (_at_character(text, cut) if characters else cut for cut in cuts(size))
        spans = list(zip(SPLITS, (0, first, second), (first, second, size), strict=True))
    for split, start, stop in spans:
        yield from _cut(text, split, start, stop, characters)


def _cut(text, split, start, stop, characters):
    """Pieces of text[start:stop]; at least one, so that its end is marked even where it is empty."""
    at = start
    while at < stop or at == start:
        part = text[at : min(at + PIECE, stop)]
        if characters and at + len(part) < stop:
            part = part[: part.rfind(b"\n") + 1] or part[: _at_character(text, at + len(part), -1) - at]
        at += len(part)
        yield Piece(split, part, at >= stop, stop - start)
        if not part:
            return


def _at_character(text: bytes | FileText, place: int, step: int = 1) -> int:
    """The nearest place from `place` on, in the direction of `step`, where no UTF-8 character is cut apart."""
    for near in range(place, place + 4 * step, step):
        if text[near : near + 1][:1] == b"" or text[near : near + 1][0] & 0xC0 != 0x80:
            return near
    return place  # no UTF-8 text: any place is as good
