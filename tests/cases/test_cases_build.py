"""Builds in folders with odd letters: case N23. A small C++ program stands in for the extensions."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LETTERS = ["a b é (d)", "a b $c (d)", "it's", 'a "b"', "a`b`;&", "50%#1", "$$", "$in $out", "a:b", "~a*[b]?"]


@pytest.fixture
def module(monkeypatch):
    """setup.py as a module; it builds nothing when imported."""
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("geowidth_setup", ROOT / "setup.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    for name in ("CXX", "CXXFLAGS", "LDFLAGS", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    return found


def program(folder):
    """Sources of a program that prints the value of a header beside it, in `folder`."""
    for place in ("csrc/cpu", "csrc/bindings", "kernels/cuda"):
        (folder / place).mkdir(parents=True)
    (folder / "csrc/cpu/value.h").write_text("#define VALUE 41\n")
    text = '#include "cpu/value.h"\n#include <cstdio>\nint main() { std::printf("%d", VALUE + MORE); }\n'
    (folder / "csrc/cpu/main.cpp").write_text(text)


def built(module, folder, monkeypatch):
    """Build the program of `folder` by the rules of geowidth._native and return what it prints."""
    monkeypatch.setattr(module, "ROOT", folder)
    monkeypatch.setattr(module.sys, "platform", "linux")
    ninja = module.NinjaFile(folder / "build")
    output = folder / "build" / "program"
    module.add_native(ninja, output)
    ninja.commands["link"] = ninja.commands["link"].replace(" -shared", "")
    ninja.lines = [line.replace(" -shared", "") for line in ninja.lines]
    ninja.run()
    return subprocess.run([output], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("letters", LETTERS)
def test_N23_a_source_folder_with_odd_letters_builds(module, tmp_path, monkeypatch, letters):
    folder = tmp_path / letters
    program(folder)
    monkeypatch.setenv("CXXFLAGS", "-O0 -DMORE=1")
    assert built(module, folder, monkeypatch) == "42"
    if module.ninja_program() is None:
        return
    (folder / "csrc/cpu/value.h").write_text("#define VALUE 6\n")  # the header is a known dependency
    assert built(module, folder, monkeypatch) == "7"


@pytest.mark.parametrize("letters", LETTERS)
def test_N23_without_ninja_too(module, tmp_path, monkeypatch, letters):
    monkeypatch.setattr(module, "ninja_program", lambda: None)
    program(tmp_path / letters)
    monkeypatch.setenv("CXXFLAGS", "-O0 -DMORE=2")
    assert built(module, tmp_path / letters, monkeypatch) == "43"


def test_N23_compiler_and_flags_reach_the_compiler_as_they_are(module, tmp_path, monkeypatch):
    """A compiler in a folder with odd letters, a flag with a space, a dollar that the loader is to read."""
    wrapper = tmp_path / "my $tools" / "cc wrap"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("c++")} "$@"\n')
    wrapper.chmod(0o755)
    program(tmp_path / "sources")
    monkeypatch.setenv("CXX", f"'{wrapper}' -O0")
    monkeypatch.setenv("CXXFLAGS", "'-DMORE=1 + 1' -DUNUSED='\"$c\"'")
    monkeypatch.setenv("LDFLAGS", "-Wl,-rpath,'$ORIGIN/lib'")
    assert built(module, tmp_path / "sources", monkeypatch) == "43"
    assert b"$ORIGIN/lib" in (tmp_path / "sources/build/program").read_bytes()


def test_N23_the_compiler_is_named_without_its_options(module):
    assert module.compiler_name(["/x/my tools/ccache", "g++", "-O0"]) == "g++"
    assert module.compiler_name(['/x/"odd" $c++']) == "_odd___c++"


@pytest.mark.parametrize("letter", ["$", '"', "'", "`", "\\"])
def test_N23_nvcc_refuses_a_folder_by_its_letter(module, letter):
    with pytest.raises(SystemExit, match="holds the letter .*which nvcc cannot read.*GEOWIDTH_CUDA=0"):
        module.refuse_unreadable("nvcc", Path("/plain"), Path(f"/a {letter} b"))
    module.refuse_unreadable("ninja", Path(f"/a {letter} b"))
    module.refuse_unreadable("nvcc", Path("/a b é (d)"))


@pytest.mark.parametrize("letter", ["\n", "|"])
def test_N23_ninja_refuses_a_folder_by_its_letter(module, letter):
    with pytest.raises(
        SystemExit, match=f"letter {re.escape(repr(letter))}, which ninja cannot read; build in a folder"
    ):
        module.refuse_unreadable("ninja", Path(f"/a{letter}b"))


@pytest.mark.parametrize("name", ["CXX", "CXXFLAGS", "LDFLAGS"])
def test_N23_quotes_that_do_not_close_are_named(module, monkeypatch, name):
    monkeypatch.setenv(name, "g++ '-O2")
    with pytest.raises(SystemExit, match=f"{name} is .*No closing quotation; quote it as for a shell"):
        module.from_environment(name)
