"""setup.py: what is compiled for which GPU, and machines that lack ninja, nvcc or the right one."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def module():
    """setup.py as a module; it builds nothing when imported."""
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("geowidth_setup", ROOT / "setup.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def nvcc(tmp_path):
    """A function that makes an nvcc which knows the given architectures and can do nothing else."""

    def make(*architectures):
        path = tmp_path / "nvcc"
        path.write_text("#!/bin/sh\necho '" + "\n".join(f"compute_{a}" for a in architectures) + "'\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_default_architectures_are_those_that_nvcc_knows(module, nvcc, monkeypatch):
    monkeypatch.delenv("GEOWIDTH_CUDA_ARCHITECTURES", raising=False)
    assert module.cuda_architectures(nvcc(75, 80, 86, 90, 100, 120)) == ["80", "90a", "100"]
    assert module.cuda_architectures(nvcc(52, 80, 86)) == ["80"]
    with pytest.raises(SystemExit, match=r"install CUDA 11\.2 or newer"):
        module.cuda_architectures(nvcc(52, 70, 75))


@pytest.mark.parametrize("listed", ["8.0", "80a", "90aa", "a", "52", "999", "80;sm_90", "80,f"])
def test_an_architecture_that_nvcc_does_not_know_is_named(module, nvcc, monkeypatch, listed):
    monkeypatch.setenv("GEOWIDTH_CUDA_ARCHITECTURES", listed)
    with pytest.raises(SystemExit, match=r"GEOWIDTH_CUDA_ARCHITECTURES names '.*'; allowed .*75, 80, 90, 100, those"):
        module.cuda_architectures(nvcc(52, 75, 80, 90, 100))


def test_architectures_as_listed(module, nvcc, monkeypatch):
    program = nvcc(80, 86, 90, 100)
    for listed, wanted in (("80;90a", ["80", "90a"]), ("86, 86 100f", ["86", "100f"])):
        monkeypatch.setenv("GEOWIDTH_CUDA_ARCHITECTURES", listed)
        assert module.cuda_architectures(program) == wanted
    monkeypatch.setenv("GEOWIDTH_CUDA_ARCHITECTURES", ";")
    with pytest.raises(SystemExit, match="name at least one"):
        module.cuda_architectures(program)


def test_ptx_is_kept_of_the_newest_that_newer_gpus_can_use(module):
    assert module.cuda_ptx(["80", "90a", "100"]) == "100"
    assert module.cuda_ptx(["86", "80", "100f"]) == "86"
    assert module.cuda_ptx(["90a"]) == ""


def test_switches_are_checked(module, monkeypatch):
    monkeypatch.setenv("GEOWIDTH_CUDA", "yes")
    with pytest.raises(SystemExit, match="GEOWIDTH_CUDA is 'yes'; allowed: 0"):
        module.find_nvcc()
    monkeypatch.setenv("GEOWIDTH_CUDA", "1")
    monkeypatch.setenv("CUDA_HOME", "nowhere")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="neither in CUDA_HOME/bin nor on PATH"):
        module.find_nvcc()
    monkeypatch.setenv("MAX_JOBS", "0")
    with pytest.raises(SystemExit, match="MAX_JOBS is '0'"):
        module.jobs()
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(SystemExit, match="'no-such-compiler -O3' was not found"):
        module.host_compiler()


@pytest.mark.parametrize("with_ninja", [True, False])
def test_rules_run_with_and_without_ninja(module, tmp_path, monkeypatch, with_ninja):
    if not with_ninja:
        monkeypatch.setattr(module, "ninja_program", lambda: None)
    elif module.ninja_program() is None:
        pytest.skip("ninja is not here")
    sources = [tmp_path / name for name in ("a b", "c")]
    for source in sources:
        source.write_text(source.name)
    file = module.NinjaFile(tmp_path / "built here")
    file.rule("join", "cat $in > $out")
    file.rule("copy", "cat $in > $out; echo $extra >> $out")
    parts = [file.folder / (s.name + ".o") for s in sources]
    file.build("join", file.folder / "whole", parts)
    for part, source in zip(parts, sources, strict=True):
        file.build("copy", part, [source], extra="!")
    file.run()
    assert (file.folder / "whole").read_text() == "a b!\nc!\n"
    file.rule("fail", "exit 3")
    file.build("fail", file.folder / "never", [sources[0]])
    with pytest.raises(SystemExit, match="compiling GeoWidth's extensions failed"):
        file.run()


def test_headers_are_taken_from_torch_where_pybind11_is_missing(module, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pybind11", None)
    assert module.pybind11_headers().parts[-2:] == ("torch", "include")


def test_kept_headers_are_touched_only_where_they_changed(module, tmp_path):
    source, target = tmp_path / "source", tmp_path / "kept"
    (source / "detail").mkdir(parents=True)
    for name in ("one.h", "detail/two.h"):
        (source / name).write_text(name)
    module.keep_headers(source, target)
    first = {path: path.stat().st_mtime_ns for path in target.rglob("*.h")}
    assert sorted(path.read_text() for path in first) == ["detail/two.h", "one.h"]
    (source / "one.h").write_text("changed")
    os.utime(source / "detail/two.h", (1, 1))
    module.keep_headers(source, target)
    changed = {path.name for path, when in first.items() if path.stat().st_mtime_ns != when}
    assert changed == {"one.h"} and (target / "one.h").read_text() == "changed"


def test_editable_installs_keep_their_build_folder(module):
    from setuptools import Distribution

    command = module.NinjaBuild(Distribution())
    command.build_temp = "elsewhere"
    assert command.folder() == Path("elsewhere").resolve()
    command.editable_mode = True
    assert command.folder().is_relative_to(ROOT / "build")
