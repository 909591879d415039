"""Faces of packages whose names load on first use, so that importing one costs milliseconds."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def face(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """(__getattr__, __dir__) of `package`, whose public names live in other modules: homes = {name: module}."""

    def get(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def names():
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
