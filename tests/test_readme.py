"""The README says what the committed results say, and its quick start is valid Python."""

import ast
import re
from pathlib import Path

from benchmarks import summary
from geowidth import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_comes_from_the_committed_results():
    assert summary.table() in README


def test_pictures_and_files_are_there():
    names = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert names
    assert all((ROOT / name).exists() for name in names)


def test_commands_exist():
    named = set(re.findall(r"^    geowidth ([a-z]+)", README, re.MULTILINE))
    assert named and named <= set(cli.COMMANDS)


def test_the_quick_start_names_what_exists():
    from importlib import import_module

    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    tree = ast.parse(code)
    assert len(code.strip().splitlines()) <= 15
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                assert hasattr(import_module(node.module), name.name)
