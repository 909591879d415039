"""An order of 0 .. n - 1 that needs no memory: where a list of all n places would be too long to hold.

A Feistel network is a permutation of the numbers of b bits, whatever its round function is. Numbers beyond n - 1 are
sent through it again until one falls below n ("cycle walking"; Black and Rogaway, Ciphers with arbitrary finite
domains, 2002): that is a permutation of 0 .. n - 1. The domain has under 4 n numbers, so a number is sent through under
4 times on average. The rounds mix with the finaliser of SplitMix64 (Steele, Lea and Flood 2014). It is a good shuffle,
not a secret.
"""

import numpy as np

ROUNDS = 8


def scattered(places: np.ndarray, count: int, key: tuple[int, ...]) -> np.ndarray:
    """Where a permutation of 0 .. count - 1 sends `places`.

    places: (k,) integers from 0 to count - 1. count: 1 to 2^62. key: whole numbers that choose the permutation.
    returns: (k,) int64.
    """
    half = max(1, -(-(count - 1).bit_length() // 2))  # bits of each half
    keys = np.random.default_rng(key).integers(0, 2**64, ROUNDS, np.uint64)
    found = np.asarray(places, np.uint64)
    todo = np.arange(len(found))
    while len(todo):
        found[todo] = _network(found[todo], np.uint64(half), keys)
        todo = todo[found[todo] >= count]
    return found.astype(np.int64)


def _network(values, half, keys):
    """The Feistel network on uint64 numbers of 2 * half bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(values):
    """SplitMix64's finaliser: every bit of the result hangs on every bit of a uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
