"""Faces of packages whose names load on first use, so that importing one costs milliseconds."""

import sys
from importlib import import_module


def face(package, homes):
    """(__getattr__, __dir__) of `package`, whose public names live in other modules: homes = {name: module}."""

    def get(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def names():
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
