"""What is shipped: every source and data file, and nothing of one machine."""

import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = (
    "csrc/",
    "kernels/",
    "geowidth/",
    "tests/",
    "benchmarks/",
    "setup.py",
    "pyproject.toml",
    "LICENSE",
    "README.md",
)


def tracked_files():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [line for line in done.stdout.splitlines() if (ROOT / line).exists()]


def setup_py(*arguments):
    done = subprocess.run([sys.executable, "setup.py", "-q", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_source_distribution_holds_every_tracked_file(tmp_path):
    setup_py("egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    missing = [f for f in tracked_files() if f.startswith(SHIPPED) and f not in names]
    assert not missing


def test_the_package_holds_every_module_and_data_file(tmp_path):
    setup_py("egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib"))
    built = {str(p.relative_to(tmp_path / "lib")) for p in (tmp_path / "lib").rglob("*") if p.is_file()}
    wanted = [f for f in tracked_files() if f.startswith("geowidth/")]
    assert not [f for f in wanted if f not in built]


def test_no_file_names_a_path_of_one_machine():
    pattern = re.compile("/(" + "|".join(("work", "farm", "root")) + r")/|/tmp/[a-z]")
    guilty = []
    for name in tracked_files():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data and pattern.search(data.decode("utf-8", "replace")):
            guilty.append(name)
    assert not guilty


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_supported_python_may_install_the_tested_set(python):
    """One pin per package and Python, and none that the pinned version itself says it is not for."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line]
    pins = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"python_version": python})]
    names = [pin.name.lower() for pin in pins]
    assert len(set(names)) == len(names) and {"torch", "numpy", "scipy", "matplotlib", "transformers"} <= set(names)
    for pin in pins:
        try:
            found = metadata.distribution(pin.name)
        except metadata.PackageNotFoundError:
            continue
        if pin.specifier.contains(found.version.partition("+")[0]):  # the others are for another Python
            needed = found.metadata.get("Requires-Python") or ""  # [] raises where importlib_metadata is loaded
            assert SpecifierSet(needed).contains(f"{python}.9"), pin
