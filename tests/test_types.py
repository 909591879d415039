"""Public names carry types: every parameter and return of the packages' faces, for editors and type checkers.

That the annotations hold is mypy's to say (make lint); here no public function may be without them.
"""

import ast
import functools
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import geowidth
from geowidth import artifacts, ops, text

PACKAGE = Path(geowidth.__file__).parent
LAZY = ("allocate", "cascade", "diagnose", "measure", "train")


def submodules(package, folders=False):
    """Names of the modules of a package; with `folders` those that are packages."""
    found = pkgutil.iter_modules(package.__path__, package.__name__ + ".")
    return [module.name for module in found if module.ispkg or not folders]


FACES = [
    *("geowidth.errors", "geowidth.inputs", "geowidth.records", "geowidth.registry", "geowidth.geometry"),
    *("geowidth.models", "geowidth.plan", "geowidth.report", "geowidth.chain", "geowidth.ops"),
    *(f"geowidth.{name}" for name in LAZY),
    *submodules(ops, folders=True),
    *submodules(artifacts),
    *submodules(text),
    "geowidth.exchange.formats",
    "geowidth.exchange.checkpoint",
    "geowidth.exchange.convert",
]


def public_names(module):
    """{name: object} of what a module lists in __all__, or else defines itself under a name without underscore."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if getattr(value, "__module__", None) == module.__name__}


def functions_of(name, value):
    """(name, function) of a function, or of a class's constructor, methods and properties of its own."""
    if inspect.isfunction(value):
        yield name, inspect.unwrap(value)
    if not inspect.isclass(value) or getattr(value, "_is_protocol", False):
        return
    fields = getattr(value, "__dataclass_fields__", {})  # a default of one may be a function, and __init__ is made
    for part, member in vars(value).items():
        if part in fields or (part.startswith("_") and (part != "__init__" or fields)):
            continue
        inner = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if inspect.isfunction(inner):
            yield f"{name}.{part}", inspect.unwrap(inner)


def untyped(name, function):
    """What a function leaves without annotation: its parameters (but for the first of a method) and "return"."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    bare = [f"{name}({p.name})" for p in own if p.annotation is inspect.Parameter.empty]
    return bare + ([f"{name} -> ?"] if signature.return_annotation is inspect.Signature.empty else [])


@pytest.mark.parametrize("face", FACES)
def test_every_public_function_says_its_types(face):
    names = public_names(import_module(face))
    assert names, face
    missing = [gap for item in names.items() for one in functions_of(*item) for gap in untyped(*one)]
    assert not missing


def test_a_function_without_types_is_noticed():
    class Sample:
        def __init__(self, size): ...

        @property
        def wide(self): ...

        @functools.cached_property
        def deep(self): ...

        @classmethod
        def read(cls, path: str): ...

    found = [gap for one in functions_of("Sample", Sample) for gap in untyped(*one)]
    assert found == [
        "Sample.__init__(size)",
        "Sample.__init__ -> ?",
        "Sample.wide -> ?",
        "Sample.deep -> ?",
        "Sample.read -> ?",
    ]


def checked_names(face):
    """{name: module} of what a lazy face imports for type checkers alone."""
    tree = ast.parse((PACKAGE / face / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {name.asname: node.module for node in block.body for name in node.names}


@pytest.mark.parametrize("face", LAZY)
def test_type_checkers_see_what_a_lazy_face_gives(face):
    module = import_module(f"geowidth.{face}")
    assert checked_names(face) == module._HOMES


def test_the_package_says_that_it_has_types():
    assert (PACKAGE / "py.typed").is_file()
