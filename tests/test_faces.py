"""The faces of packages: what is public there is no submodule, so that `import geowidth.measure.x` gives one thing."""

import ast
import importlib
from pathlib import Path

import pytest

PACKAGES = ("allocate", "cascade", "measure", "ops", "slicing", "train")


def functions_of(path):
    """Names of the public functions that a module, or a package's own file, defines at its top level."""
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


@pytest.mark.parametrize("name", PACKAGES)
def test_no_submodule_has_the_name_of_a_public_function(name):
    package = importlib.import_module(f"geowidth.{name}")
    folder = Path(package.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    defined = set().union(*map(functions_of, folder.rglob("*.py")))
    assert not modules & set(package.__all__)
    assert not modules & defined


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_there(name):
    package = importlib.import_module(f"geowidth.{name}")
    assert package.__all__ and all(getattr(package, public) is not None for public in package.__all__)
    assert set(package.__all__) <= set(dir(package))
