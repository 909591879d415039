"""Cases of files and disks: H2 (full disks), G2 (JSON and flags that lie), H8 (sizes in files), damaged files."""

import errno
import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from geowidth import cli, files, memory, records
from geowidth.cli.npy import filling, read_npy, write_npy
from geowidth.errors import UserError
from geowidth.progress import printable


def refused(capsys, *arguments):
    """The one line with which the command line refuses `arguments`, exit code 2."""
    assert cli.main([str(a) for a in arguments]) == 2
    line = capsys.readouterr().err
    assert line.startswith("geowidth: ") and line.count("\n") == 1 and len(line) < 2100, line[:3000]
    return line


def small_disk(free):
    """Code for a child process in which no file may grow beyond `free` bytes."""
    return (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({free}, {free}));"
        "from geowidth.cli import main; sys.exit(main(sys.argv[1:]))"
    )


def on_small_disk(free, *arguments):
    return subprocess.run(
        [sys.executable, "-c", small_disk(free), *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


# H2: full disks


def test_H2_a_distance_matrix_that_does_not_fit_is_refused_before_work(tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "big.npy", np.zeros((1000, 2)))
    monkeypatch.setattr(files, "free_bytes", lambda path: 1_048_576)
    line = refused(capsys, "distances", tmp_path / "big.npy", "--out", tmp_path / "out.npy")
    assert "8,000,128 bytes are needed" not in line and "8,000,000 bytes are needed, 1,048,576 are free" in line
    assert os.listdir(tmp_path) == ["big.npy"]


def test_H2_three_times_ten_to_the_seven_rows_are_refused_by_the_disk(tmp_path):
    with pytest.raises(UserError, match=r"7,200,000,000,000,000 bytes are needed, [\d,]+ are free"):
        filling(tmp_path / "out.npy", (30_000_000, 30_000_000), np.float64).__enter__()
    assert not os.listdir(tmp_path)


def test_H2_a_file_that_may_not_grow_is_one_line_and_no_signal(tmp_path):
    np.save(tmp_path / "big.npy", np.zeros((1000, 2)))
    done = on_small_disk(1_000_000, "distances", tmp_path / "big.npy", "--out", tmp_path / "out.npy")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert "8,000,000 bytes are needed" in done.stderr and os.listdir(tmp_path) == ["big.npy"]


def test_H2_space_is_there_before_the_map_is_written(tmp_path):
    """A sparse file has fewer blocks than bytes; its map kills the process where the disk ends."""
    with filling(tmp_path / "out.npy", (300, 300), np.float64) as target:
        (aside,) = tmp_path.iterdir()
        assert aside.stat().st_blocks * 512 >= 720_000
        target[...] = 2.0
    assert (np.load(tmp_path / "out.npy") == 2).all()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_H2_a_file_system_that_cannot_reserve_gets_zeros(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with open(tmp_path / "a", "w+b") as file:
        file.write(b"head")
        files.reserve(file, 3 << 20)
        assert os.fstat(file.fileno()).st_size == 3 << 20
    assert (tmp_path / "a").stat().st_blocks * 512 >= 3 << 20
    assert (tmp_path / "a").read_bytes()[:5] == b"head\0"


def test_H2_a_disk_that_fills_in_between_leaves_the_old_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    records.write_text(tmp_path / "a.json", "{}")
    write_npy(tmp_path / "a.npy", np.ones(3))
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: records.write_json(tmp_path / "a.json", [1]),
        lambda: records.write_bytes(tmp_path / "b.bin", b"12"),
        lambda: write_npy(tmp_path / "a.npy", np.zeros(4)),
    ):
        with pytest.raises(UserError, match=r"No space left on device \(\d+ bytes are needed, [\d,]+ are free\)"):
            write()
    assert records.read_json(tmp_path / "a.json") == {} and (np.load(tmp_path / "a.npy") == 1).all()
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.npy"]


def dead_process():
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_H2_what_a_killed_process_left_is_swept_at_the_next_start(tmp_path):
    dead = dead_process()
    for name in (f".out.json.{dead}.tmp", f".out.json.{os.getppid()}.tmp", f".other.json.{dead}.tmp", "out.json.1.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / f".out.json.{dead_process()}.tmp").mkdir()
    (tmp_path / f".out.json.{10**30}.tmp").write_text("no process has this number")
    records.check_writable(tmp_path / "out.json")
    kept = {f".out.json.{os.getppid()}.tmp", f".other.json.{dead}.tmp", "out.json.1.tmp"}
    assert set(os.listdir(tmp_path)) == kept  # of a living process, of another file, and not ours at all
    (tmp_path / f".out.json.{dead}.tmp").write_text("half")
    records.write_json(tmp_path / "out.json", 1)
    assert set(os.listdir(tmp_path)) == kept | {"out.json"}


def test_H2_a_temporary_file_that_somebody_holds_is_left(tmp_path):
    """A writer on another machine: its process number says nothing here, its lock does."""
    path = tmp_path / f".out.json.{dead_process()}.tmp"
    with open(path, "w") as file:
        assert files.lock(file)
        files.sweep(tmp_path / "out.json")
        assert path.exists()
    files.sweep(tmp_path / "out.json")
    assert not path.exists()
    path.mkdir()
    with files.holding(path) as free:
        files.sweep(tmp_path / "out.json")
        assert free and path.exists()
    files.sweep(tmp_path / "out.json")
    assert not path.exists()


def run_with(arguments, **streams):
    return subprocess.run([sys.executable, "-m", "geowidth", *arguments], text=True, timeout=120, **streams)


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@needs_full
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["allocate", "--list"],
        ["allocate", "--layers", "4", "--base", "64", "--schedule", "cosine"],
        ["doctor", "--json"],
        [],
    ],
)
def test_H2_a_full_disk_behind_standard_output_is_one_line_and_code_2(arguments):
    with open("/dev/full", "w") as full:
        done = run_with(arguments, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == (
        "geowidth: cannot use standard output: No space left on device; make room, or name another file or folder\n"
    )


@needs_full
def test_H2_a_full_disk_behind_standard_error_changes_no_exit_code(tmp_path):
    with open("/dev/full", "w") as full:
        assert run_with(["bogus"], stdout=subprocess.PIPE, stderr=full).returncode == 2
        assert run_with(["bogus"], stdout=full, stderr=full).returncode == 2
        assert run_with(["--version"], stdout=subprocess.PIPE, stderr=full).returncode == 0


@needs_full
def test_H2_a_device_is_never_replaced_by_a_file(tmp_path, capsys):
    np.save(tmp_path / "d.npy", np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0))))
    before = os.listdir("/dev")
    line = refused(capsys, "gromov", tmp_path / "d.npy", tmp_path / "d.npy", "--out", "/dev/full")
    assert "it is a device" in line
    with pytest.raises(UserError, match="it is a device"):
        records.write_text("/dev/full", "x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode) and os.listdir("/dev") == before


# Paths


def test_impossible_paths_are_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    os.mkfifo(tmp_path / "pipe.npy")
    for place in (tmp_path / ("n" * 300), tmp_path / "file" / "inside", tmp_path / "new" / ("n" * 300), "a\0b"):
        refused(capsys, "distances", tmp_path / "x.npy", "--out", f"{place}/out.npy")
        refused(capsys, "distances", f"{place}.npy", "--out", tmp_path / "out.npy")
        for arguments in (["report", place], ["compare", place], ["measure", place], ["run", "--out", f"{place}/o"]):
            refused(capsys, *arguments)
        refused(capsys, "train", "--preset", "pico", "--out", place, "--schedule", place)
        refused(capsys, "train", "--preset", "pico", "--out", f"{place}/out")
    refused(capsys, "distances", tmp_path / "x.npy", "--out", f"{tmp_path}/{'n/' * 3000}o.npy")
    assert "it is a pipe" in refused(capsys, "distances", tmp_path / "pipe.npy", "--out", tmp_path / "out.npy")
    assert "it is a folder" in refused(capsys, "distances", tmp_path, "--out", tmp_path / "out.npy")
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe.npy", "x.npy"]


# Arrays


def npy(descr="'<f8'", shape="(2, 2)", order="False", body=bytes(32), version=b"\x01\x00", header=None):
    text = header or f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    text = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + body


DAMAGED_ARRAYS = {
    "empty": (b"", "is empty"),
    "magic only": (b"\x93NUMPY", "damaged header"),
    "cut header": (npy()[:40], "damaged header"),
    "cut numbers": (npy(body=bytes(31)), "cut short"),
    "a shape of 2**60": (npy(shape=f"({2**60}, 2)"), "cut short"),
    "a shape of 2**64 by 2**64": (npy(shape=f"({2**64}, {2**64})"), "cut short"),
    "a negative length": (npy(shape="(-2, 2)"), "damaged header"),
    "a length that is a truth value": (npy(shape="(True, 4)"), "damaged header"),
    "a shape that is a text": (npy(shape="'ab'"), "damaged header"),
    "a header that calls": (npy(header="__import__('os').system('false')"), "damaged header"),
    "a header that is nested": (npy(header="(" * 5000 + ")" * 5000), "damaged header"),
    "a header that is a number": (npy(header="7"), "damaged header"),
    "an unknown dtype": (npy(descr="'<q99'"), "damaged header"),
    "a dtype that is a number": (npy(descr="5"), "damaged header"),
    "an unknown version": (npy(version=b"\x09\x00"), "damaged header"),
    "objects": (npy(descr="'|O'"), "Python objects"),
    "texts": (npy(descr="'<U2'"), "allowed: 2 axes of real numbers"),
    "fields": (npy(descr="[('a', '<f4'), ('b', '<f4')]"), "allowed: 2 axes of real numbers"),
    "complex numbers": (npy(descr="'<c16'", body=bytes(64)), "real numbers"),
    "dates": (npy(descr="'<M8[s]'"), "allowed: 2 axes of real numbers"),
    "no axis": (npy(shape="()"), "allowed: 2 axes"),
    "one axis": (npy(shape="(4,)"), "allowed: 2 axes"),
    "three axes": (npy(shape="(2, 2, 1)"), "allowed: 2 axes"),
    "an archive": (b"PK\x03\x04" + bytes(40), "archive"),
    "an empty archive": (b"PK\x05\x06" + bytes(18), "archive"),
    "a pickle": (b"\x80\x04\x95" + bytes(40), "is not a .npy file"),
    "a text": (b"1,2\n3,4\n", "is not a .npy file"),
}


@pytest.mark.parametrize("name", DAMAGED_ARRAYS)
def test_damaged_arrays_are_one_line_for_every_command(tmp_path, capsys, name):
    data, words = DAMAGED_ARRAYS[name]
    bad, good = tmp_path / "bad.npy", tmp_path / "good.npy"
    bad.write_bytes(data)
    np.save(good, np.zeros((2, 2)))
    for arguments in (
        ["distances", bad, "--out", tmp_path / "out.npy"],
        ["gromov", good, bad, "--out", tmp_path / "out.json"],
        ["topology", bad, "--out", tmp_path / "out.npy"],
    ):
        assert words in refused(capsys, *arguments)
    assert sorted(os.listdir(tmp_path)) == ["bad.npy", "good.npy"]


def test_arrays_of_every_layout_are_read_as_numpy_reads_them(tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 4))
    empty, low = (x[:, :0], x[:0]), (x[0], np.float64(3.5))
    same = x, np.asfortranarray(x), x.astype(">f4"), x.astype(np.longdouble), x > 0
    for k, array in enumerate((*same, *empty, *low)):
        np.save(tmp_path / "a.npy", array)
        found = read_npy(tmp_path / "a.npy")
        assert found.dtype == np.asarray(array).dtype and np.array_equal(found, array), k
        write_npy(tmp_path / "b.npy", array)
        again = np.load(tmp_path / "b.npy")
        assert again.dtype == np.asarray(array).dtype and np.array_equal(again, array), k


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((100, 10)))
    (tmp_path / "a.json").write_text('{"kind": "geowidth.work"}' + " " * 5000)
    monkeypatch.setattr(memory, "available", lambda: 4096)
    for read in (read_npy, records.read_json):
        with pytest.raises(UserError, match=r"takes [\d,]+ bytes; this machine has 4,096 free"):
            read(tmp_path / ("a.npy" if read is read_npy else "a.json"))


# JSON

BAD_JSON = {
    "empty": b"",
    "nested 100,000 deep": b"[" * 100_000,
    "nested 100,000 deep and closed": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested 500 deep": b"[" * 500 + b"]" * 500,
    "a whole number of 401 digits": b'{"schema": 1' + b"0" * 400 + b"}",
    "a whole number of 100,000 digits": b'{"schema": 1' + b"0" * 100_000 + b"}",
    "a float beyond floats": b'{"a": 1e400}',
    "a key twice": b'{"kind": "geowidth.work", "schema": 1, "schema": 2}',
    "a key twice inside": b'{"a": [{"b": 1, "b": 1}]}',
    "bare NaN": b'{"a": NaN}',
    "bare -Infinity": b"[-Infinity]",
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "Latin-1": '{"a": "ü"}'.encode("latin-1"),
    "a zero byte": b'{"a": 1}\0',
    "two values": b"{} {}",
    "a comment": b'{"a": 1} // one',
    "single quotes": b"{'a': 1}",
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_G2_json_that_is_not_strict_is_refused_in_one_line(tmp_path, capsys, name):
    path = tmp_path / "work.json"
    path.write_bytes(BAD_JSON[name])
    with pytest.raises(UserError) as error:
        records.read_json(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 400
    refused(capsys, "allocate", "--work", path, "--schedule", "geometry", "--out", tmp_path / "s.json")


def test_G2_what_dumps_writes_is_read_back_at_the_edges_of_numbers():
    for value in (sys.float_info.max, -sys.float_info.max, 5e-324, int(sys.float_info.max), 2**64, -0.0, True, None):
        assert repr(records.loads(records.dumps(value))) == repr(value)
    assert records.loads(records.dumps({"a": float("inf"), "b": {"$float": "x"}})) == {
        "a": float("inf"),
        "b": {"$float": "x"},
    }
    nested = [1]
    for _ in range(90):
        nested = [nested]
    assert records.loads(records.dumps(nested)) == nested


@pytest.mark.parametrize("schema", [True, False, -5, 0, 1.0, 1.5, "1", None, [1], {}, 10**300, 2])
def test_H8_a_schema_is_a_whole_number_up_to_the_newest(tmp_path, schema):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"kind": "geowidth.work", "schema": schema}))
    with pytest.raises(UserError, match=r"has schema .*(allowed: whole numbers from 1 to 1|upgrade it)"):
        records.read_json(path, "geowidth.work", 1)
    path.write_text('{"kind": "geowidth.work"}')
    with pytest.raises(UserError, match="has schema None"):
        records.read_json(path, "geowidth.work", 1)


@pytest.mark.parametrize("kind", [None, True, 3, [], ["geowidth.work"], {"a": 1}, "geowidth.works", "x" * 10_000])
def test_G2_a_kind_of_another_type_is_refused(tmp_path, kind):
    (tmp_path / "a.json").write_text(json.dumps({"kind": kind, "schema": 1}))
    with pytest.raises(UserError, match=r"a file of kind 'geowidth\.work' is needed here") as error:
        records.read_json(tmp_path / "a.json", "geowidth.work", 1)
    assert len(str(error.value)) < 400


def test_G2_what_is_not_a_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    for name, words in (
        ("", "it is a folder"),
        ("pipe", "it is a pipe"),
        ("/dev/zero", "it is a device"),
        ("absent", "does not exist"),
        ("gone", "does not exist"),
        ("loop", "symbolic links"),
        ("x" * 300, "too long"),
    ):
        for read in (records.read_json, records.read_json_lines):
            if read is records.read_json_lines and words == "does not exist":
                assert read(tmp_path / name) == []
                continue
            with pytest.raises(UserError, match=words):
                read(tmp_path / name)


# Words


def test_no_help_says_a_default_twice():
    for name in cli.COMMANDS:
        parser, _ = cli.parser_for(name)
        formatter = parser._get_formatter()
        for action in parser._actions:
            text = formatter._expand_help(action) if action.help else ""
            assert text.count("default") <= 1, (name, action.dest, text)


def test_wrong_numbers_are_named_without_inverted_words(capsys):
    assert "--seed is '1e3'; allowed: whole numbers from 0 up" in refused(
        capsys, "train", "--out", "x", "--seed", "1e3"
    )
    line = refused(capsys, "train", "--out", "x", "--learning-rate", "fast")
    assert "--learning-rate is 'fast'; allowed: finite numbers above 0" in line


def test_control_characters_reach_no_terminal(tmp_path, capsys):
    assert printable("a\x1b[31m\r\x07\x9b\u202e\u2028é\u202f1\n") == "a\\x1b[31m\\r\\x07\\x9b\\u202e\\u2028é\u202f1\n"
    line = refused(capsys, "report", tmp_path / "a\x1b]0;title\x07b")
    assert "\x1b" not in line and "a\\x1b]0;title\\x07b" in line
    assert "\x9b" not in records.dumps("\x9b") and records.loads(records.dumps("\x9b\x7f\u2028")) == "\x9b\x7f\u2028"
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    assert cli.main(["distances", str(tmp_path / "x.npy"), "--out", str(tmp_path / "a\x1bb.npy")]) == 0
    assert "a\\x1bb.npy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"text": 1' + "0" * 5000 + "}", "line 1 is not JSON"),
        ('{"text": "a"}\n{"text": ["a"]}', "line 2 has fields text"),
        ('{"text": "a"}\n7', "line 2 has int"),
        ("\ufeff", "line 1 is not JSON"),
        ("", "holds no text"),
        ('{"text": ""}', "holds no text"),
    ],
    ids=range(7),
)
def test_damaged_corpora_are_refused_in_one_line(tmp_path, data, words):
    from geowidth.train import load_corpus

    (tmp_path / "a.jsonl").write_text(data, encoding="utf-8")
    with pytest.raises(UserError, match=words) as error:
        load_corpus(tmp_path / "a.jsonl")
    assert len(str(error.value)) < 500
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", "/dev/zero", "a\0b", "x" * 300, tmp_path / "a.jsonl" / "inside"):
        with pytest.raises(UserError, match=r"cannot read|does not exist"):
            load_corpus(path)
