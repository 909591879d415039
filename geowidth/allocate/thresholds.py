"""The greedy rule without its queue: all steps that gain more than a threshold, found by bisection.

Where every layer's next step gains less than its last one, the greedy order is the order of gains. Taking steps one at
a time would need as many visits as there are steps, 2^50 of them in a wide model; here the threshold is bisected over
the ordered float64 numbers, at most 64 times whatever the scale of the gains, and the steps of each layer above it are
counted by a binary search.
"""

import numpy as np


def split(gain, low, high, fits, least=-np.inf):
    """(sure, possible, threshold): counts of steps, int64 (layers,), that gain more than the threshold and at least it.

    gain(counts) -> float64 (layers,): what each layer's next step gains, never rising with the counts. low, high:
    bounds of the counts. fits(counts): whether they may be taken; it holds for `low`, and for fewer where it holds for
    more. The steps of `sure` fit, those of `possible` do not, unless the two are equal; no step that gains `least` or
    less is counted.
    """
    possible = _count(gain, low, high, least)
    if fits(possible):
        return possible, possible, least
    sure = low
    bottom, top = _place(least), _place(float(gain(low)[low < high].max()))
    while top - bottom > 1:
        middle = (top + bottom) // 2
        counts = _count(gain, sure, possible, _number(middle))
        if fits(counts):
            sure, top = counts, middle
        else:
            possible, bottom = counts, middle
    return sure, possible, _number(top)


def widen(gain, low, high, sure, possible, threshold, slack):
    """(sure, possible) where gains within `slack` of the threshold count as equal to it."""
    return _count(gain, low, sure, threshold + slack), _count(gain, possible, high, threshold - slack)


def hand_out(sure, possible, left):
    """`sure` and `left` more steps, or all of `possible`: the earlier layer first."""
    more = np.minimum(np.cumsum(np.minimum(possible - sure, left).astype(np.float64)), left)
    return sure + np.diff(more, prepend=0).astype(np.int64)


def _count(gain, low, high, threshold):
    """`low` plus the number of steps up to `high` that gain more than `threshold` (vectorised binary search)."""
    if threshold == -np.inf:
        return high
    start, end = low.copy(), high.copy()
    while (start < end).any():
        middle = start + (end - start) // 2
        open_to = start < end
        more = (gain(middle) > threshold) & open_to
        start, end = np.where(more, middle + 1, start), np.where(open_to & ~more, middle, end)
    return start


def _place(number):
    """The place of a float64 among all of them in rising order; 0 is at place 0."""
    bits = int(np.float64(abs(number)).view(np.int64))
    return bits if number >= 0 else -bits


def _number(place):
    """The float64 at a place."""
    number = float(np.int64(abs(place)).view(np.float64))
    return number if place >= 0 else -number
