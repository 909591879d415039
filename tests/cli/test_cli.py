"""The command line as a user meets it."""

import os
import subprocess
import sys

import pytest

from geowidth import cli


def call(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "geowidth", *arguments], capture_output=True, text=True, **options)


def test_overview_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


def test_no_command_shows_the_overview_and_fails(capsys):
    assert cli.main([]) == 2
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"geowidth {name}" in text
    assert "rites" in text and "eads" in text  # what it reads and writes


@pytest.mark.parametrize(
    "arguments",
    [
        ["measur"],
        ["measure", "no-such-folder"],
        ["measure", "no-such-folder", "--tokens", "0"],
        ["report", "no-such-folder"],
        ["compare", "no-such-folder"],
        ["run", "--preset", "nono"],
        ["run", "--steps", "1e3"],
        ["run", "--seeds", "0", "one"],
        ["run", "--processes"],
        ["run", "--out", ""],
        ["run", "pico"],
        ["train", "--preset", "pico"],
        ["train", "--out", "x", "--learning-rate", "fast"],
        ["measure", "model", "--bootstrap", "2.5"],
        ["allocate", "--layers", "4", "--base", "64", "--budget"],
        ["compare", "--effect", "0.1"],
        ["doctor", "--json=0"],
        ["doctor", "--json", "False"],
        ["doctor", "--jso"],
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    found = capsys.readouterr()
    assert found.err.startswith("geowidth: ") and found.err.count("\n") == 1 and not found.out
    assert not any(tmp_path.iterdir())


def test_wrong_words_are_named(capsys):
    for arguments, words in (
        (["run", "--steps", "1e3"], "--steps is '1e3'; allowed: whole numbers from 1 up"),
        (["train"], "no folder was named for the run; give one"),
        (["export", "x"], "required: --out; geowidth export --help"),
        (["plan", "run", "--bogus"], "unknown words: --bogus; geowidth plan --help"),
        (["compare", ""], "argument folders: the value is empty"),
    ):
        assert cli.main(arguments) == 2
        assert words in capsys.readouterr().err


def test_help_shows_defaults_of_zero(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "data order (default: 0)" in " ".join(capsys.readouterr().out.split())


def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run([sys.executable, "-m", "geowidth", "--help"], stdout=closed, stderr=subprocess.PIPE)
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_closed_outputs_are_no_error():
    command = f'"{sys.executable}" -m geowidth allocate --list >&- 2>&-'
    assert subprocess.run(["sh", "-c", command]).returncode == 0


def test_a_terminal_without_our_signs_is_no_error(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = call("report", str(tmp_path / "für"), env=environment)
    assert done.returncode == 2 and "f\\xfcr does not exist" in done.stderr


def test_import_needs_neither_torch_nor_the_extension():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['triton'] = None; sys.modules['geowidth._native'] = None;"
        "import geowidth, geowidth.cli; print(geowidth.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert call("--version").stdout.strip().endswith(done.stdout.strip())


def test_doctor_names_backends_and_reasons():
    import json

    done = call("doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["extensions"]["geowidth._native"]["built"]
    for devices in facts["operations"].values():
        assert any(choice["serves"] for choice in devices["cpu"])
        assert all(choice["reason"] for choice in devices["cpu"] + devices["cuda"] if not choice["serves"])
    text = call("doctor").stdout
    assert "pairwise_distances: native" in text


def test_doctor_tells_a_gpu_machine_well():
    from geowidth.cli import doctor

    facts = doctor.examine() | {"driver": "13.0"}
    facts["gpu"] = {"usable": True, "name": "NVIDIA H200", "count": 8, "capability": "9.0", "multiprocessors": 132}
    facts["gpu"]["memory_gib"] = 139.8
    facts["extensions"]["geowidth._cuda"] = {"built": True, "architectures": "90a", "ptx": "", "runtime": 13000}
    text = doctor.render(facts)
    assert "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139.8 GiB; the first of 8" in text
    assert "processes     gloo" in text and "one alone" in doctor.render(facts | {"distributed": []})
    assert "driver        for CUDA up to 13.0" in text and "built: architectures 90a, runtime CUDA 13.0" in text
    assert doctor.nvcc_words("Cuda compilation tools, release 13.0, V13.0.88").endswith("V13.0.88")
    assert doctor.nvcc_words("Cuda compilation tools, release 10.2, V10.2.89").endswith("which need 11.2")
    assert "unknown" in doctor.nvcc_words("")


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_shows_examples_and_names_its_values(name):
    parser, _ = cli.parser_for(name)
    examples = parser.description.partition("\nExamples\n")[2].splitlines()
    assert examples and all(line.startswith(("  geowidth ", "  torchrun ")) for line in examples if line)
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            assert action.metavar and action.metavar == action.metavar.upper(), (name, action.dest)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_no_number_of_any_command_takes_odd_spellings_or_comes_twice(name, capsys):
    """Every option of numbers reads plain digits alone, and says in the same words what is allowed."""
    parser, _ = cli.parser_for(name)
    for action in parser._actions:
        if not action.option_strings or action.nargs == 0 or action.metavar in ("ARM", "NAME=VALUE"):
            continue
        flag = action.option_strings[0]
        if action.type is not None and action.metavar in ("N", "X"):
            for word in ("1_000", "٣", "0x10", "nan", " 4", "four", "-"):
                assert cli.main([name, f"{flag}={word}"]) == 2
                line = capsys.readouterr().err
                assert f"{flag} is {word!r}; allowed: " in line and line.count("\n") == 1
        if action.type is None and not action.required and action.nargs is None:
            assert cli.main([name, flag, "a", flag, "b"]) == 2
            assert f"argument {flag}: it came twice; give it once" in capsys.readouterr().err
