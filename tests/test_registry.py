"""Tables that extensions add to: lookups, refusals, and loading extensions once."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from geowidth.errors import UserError
from geowidth.registry import Registry


@dataclass(frozen=True)
class Fruit:
    name: str
    colour: str = "green"


def fruits():
    return Registry("fruit", Fruit, [Fruit("pear"), Fruit("apple")])


def test_a_table_reads_like_a_dict_in_the_order_of_registration():
    table = fruits()
    fig = table.register(Fruit("fig"))
    assert list(table) == ["pear", "apple", "fig"] and len(table) == 3
    assert table["fig"] is fig and table.get("fig") is fig
    assert "fig" in table and "kiwi" not in table and ["fig"] not in table
    assert table.get("kiwi") is None and dict(table)["pear"] == Fruit("pear")


@pytest.mark.parametrize("name", ["kiwi", None, ["pear"], 3])
def test_an_unknown_name_lists_what_is_allowed(name):
    with pytest.raises(UserError, match="fruit is .*; allowed: pear, apple"):
        fruits()[name]


@pytest.mark.parametrize("name", ["", "red fig", "a/b", "a=b", "a,b", "a:b", "a\nb", 3])
def test_names_that_options_cannot_carry_are_refused(name):
    with pytest.raises(UserError, match="the name of a fruit is"):
        fruits().register(Fruit(name))


def test_items_of_another_kind_and_taken_names_are_refused():
    table = fruits()
    with pytest.raises(UserError, match="needed: a Fruit"):
        table.register("pear")
    with pytest.raises(UserError, match="there is a fruit 'pear' already"):
        table.register(Fruit("pear", "yellow"))
    assert table["pear"] == Fruit("pear")


def test_the_same_item_twice_is_one_and_a_name_may_be_given():
    table = fruits()
    fig = Fruit("fig")
    assert table.register(fig) is fig and table.register(fig) is fig
    table.register(Fruit("fig"), "other_fig")
    assert list(table) == ["pear", "apple", "fig", "other_fig"]


EXTENSION = """
from geowidth.registry import Registry
import table
assert "pear" in table.FRUITS  # a lookup while extensions load
print("imported")
table.FRUITS.register("a fig", "fig")
"""
TABLE = """
from geowidth.registry import Registry
FRUITS = Registry("fruit")
FRUITS.register("a pear", "pear")
"""


def in_python(folder, program, extensions):
    environment = {**os.environ, "GEOWIDTH_EXTENSIONS": extensions}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_modules_named_in_the_variable_are_imported_once_by_the_first_lookup(tmp_path):
    (tmp_path / "table.py").write_text(TABLE)
    (tmp_path / "extension.py").write_text(EXTENSION)
    program = "import table; print('before'); print(table.FRUITS['fig'], list(table.FRUITS))"
    found = in_python(tmp_path, program, " extension ,")
    assert found.stdout.split("\n") == ["before", "imported", "a fig ['pear', 'fig']", ""], found.stderr


def test_an_installed_entry_point_is_imported(tmp_path):
    (tmp_path / "table.py").write_text(TABLE)
    (tmp_path / "extension.py").write_text(EXTENSION)
    about = tmp_path / "fruit-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fruit\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[geowidth.extensions]\nfruit = extension\n")
    found = in_python(tmp_path, "import table; print(list(table.FRUITS))", "")
    assert found.stdout == "imported\n['pear', 'fig']\n", found.stderr


def test_an_extension_that_cannot_be_imported_is_named_at_every_lookup(tmp_path):
    (tmp_path / "table.py").write_text(TABLE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such fruit')")
    program = """
import table
for _ in range(2):
    try:
        table.FRUITS["pear"]
    except ValueError as error:
        print(error)
"""
    for module, words in (("broken", "no such fruit"), ("absent_module", "No module named 'absent_module'")):
        lines = in_python(tmp_path, program, module).stdout.splitlines()
        assert len(lines) == 2 and lines[0] == lines[1]
        assert f"extension '{module}' (GEOWIDTH_EXTENSIONS) cannot be imported: {words}" in lines[0]
