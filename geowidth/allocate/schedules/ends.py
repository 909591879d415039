"""Checks of the options that shapes over depth share."""

from geowidth.errors import positive


def check_ends(start, end):
    """The first and the last layer's multiple of the base width, both positive."""
    return positive("start", start), positive("end", end)
