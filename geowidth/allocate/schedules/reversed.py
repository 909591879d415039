"""Reversed control: another schedule's widths from last layer to first."""

from geowidth.allocate.schedules import Rule


def reverse(widths, problem):
    """The widths in reverse order."""
    return widths[::-1]


RULE = Rule("reversed", "control: another schedule's widths from last layer to first", reverse, control=True)
