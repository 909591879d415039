"""How much memory this machine has to give, asked before a file or an argument decides how much is taken."""

import os
from pathlib import Path

from geowidth.errors import UserError

_GROUPS = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes that can be taken: free or reclaimable ones, within the control group's limit; None where nobody says."""
    found = [n for n in (_free(), _left_in_group()) if n is not None]
    return min(found) if found else None


def _free():
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _left_in_group():
    """Bytes up to the control group's limit; cached files count as free, for they are given up when memory is short."""
    try:
        most = int((_GROUPS / "memory.max").read_text())  # "max" where there is no limit
        used = int((_GROUPS / "memory.current").read_text())
        facts = dict(line.split() for line in (_GROUPS / "memory.stat").read_text().splitlines())
        return max(0, most - used + int(facts.get("file", 0)))
    except (OSError, ValueError):
        return None


def check(what: str, size: int, advice: str) -> None:
    """Raise a UserError when `what`, of `size` bytes, is more than is available. advice: what to do then."""
    there = available()
    if there is not None and size > there:
        raise UserError(f"{what} takes {size:,} bytes; this machine has {there:,} free: {advice}")
