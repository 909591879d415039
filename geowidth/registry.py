"""Tables of named items that code outside the package may add to: geometries, statistics, schedules and the like.

An extension is a module that calls `register` of the tables it adds to when it is imported. The first lookup in any
table imports all extensions: the entry points of group ``geowidth.extensions`` (in the order of their names), then the
modules that the environment variable GEOWIDTH_EXTENSIONS lists, separated by commas. Worker processes inherit the
variable, so an extension is there wherever the work goes.

    [project.entry-points."geowidth.extensions"]
    mine = "my_package.geowidth_extension"
"""

import os
import threading
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, TypeGuard

from geowidth.errors import UserError, choose, shown

GROUP = "geowidth.extensions"
VARIABLE = "GEOWIDTH_EXTENSIONS"


class Registry(Mapping):
    """Items by name, in the order in which they were registered; read like a dict.

    what     the noun of its errors, such as "geometry"
    kind     the class of its items; None takes any
    items    those that are there from the start

    An unknown name raises a UserError that lists what is allowed; `get` and `in` answer as a dict's do.
    """

    def __init__(self, what: str, kind: type | None = None, items: Iterable[Any] = ()) -> None:
        self.what, self.kind = what, kind
        self._items: dict[str, Any] = {}
        for item in items:
            self.register(item)

    def register(self, item: Any, name: str | None = None) -> Any:
        """Add `item` under `name` (default: its own `name`) and return it, so that this serves as a decorator too.

        Raises UserError for an item of another kind, for a name that option texts could not carry, and for a name
        that another item has. The same item twice is one item.
        """
        if self.kind is not None and not isinstance(item, self.kind):
            raise UserError(f"{self.what} is {shown(item)}; needed: a {self.kind.__name__}")
        name = getattr(item, "name", None) if name is None else name
        if not _fits(name):
            raise UserError(
                f"the name of a {self.what} is {shown(name)}; needed: text without spaces and without / , = :"
            )
        if self._items.get(name, item) is not item:
            raise UserError(f"there is a {self.what} {name!r} already; give yours another name")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> Any:
        load_extensions()
        return self._items[choose(self.what, name, self._items)]

    def __contains__(self, name):
        load_extensions()
        return isinstance(name, str) and name in self._items

    def get(self, name: Any, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __iter__(self):
        load_extensions()
        return iter(tuple(self._items))

    def __len__(self):
        load_extensions()
        return len(self._items)

    def __repr__(self):
        return f"Registry({self.what!r}, {list(self._items)})"


def _fits(name: object) -> TypeGuard[str]:
    """Whether option texts such as NAME/NAME=1,NAME can carry a name."""
    return isinstance(name, str) and name.isprintable() and name != "" and not set(name) & set(" /,=:")


class _Extensions:
    """Loads each extension once, and remembers why one could not be."""

    def __init__(self):
        self.lock, self.begun, self.done, self.problem = threading.RLock(), False, False, None

    def load(self):
        if not self.done:
            with self.lock:
                if not self.begun:  # an extension that looks something up while it is imported comes here too
                    self.begun = True
                    self.problem = _load_all()
                    self.done = True
        if self.problem is not None:
            raise UserError(self.problem)


_EXTENSIONS = _Extensions()


def load_extensions() -> None:
    """Import all extensions, the first time; a UserError names one that cannot be imported."""
    _EXTENSIONS.load()


def extension_names() -> list[tuple[str, str]]:
    """What `load_extensions` imports: [(where it was named, module)]."""
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return [(f"entry point {p.name!r}", p.module) for p in points] + [(VARIABLE, name) for name in named if name]


def _load_all():
    """Import every extension; the sentence about the first that fails, or None."""
    for where, module in extension_names():
        try:
            import_module(module)
        except Exception as error:  # it may fail in any way; which one it was must be said
            words = " ".join(str(error).split()) or type(error).__name__
            return f"extension {shown(module)} ({where}) cannot be imported: {words}; mend it, or take its name out"
    return None
