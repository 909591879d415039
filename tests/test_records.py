"""Strict JSON that reads back exactly, atomic writes, and errors before work."""

import json
import math
import os

import numpy as np
import pytest
import torch

from geowidth import records
from geowidth.errors import UserError


def strict(text):
    def refuse(word):
        raise AssertionError(f"bare {word}")

    return json.loads(text, parse_constant=refuse)


def test_non_finite_values_read_back_and_strings_are_untouched():
    value = {
        "bar": math.inf,
        "low": -math.inf,
        "text": "NaN",
        "list": [1, 2.5, None, True],
        "float32": np.float32(1.5),
        "int64": np.int64(7),
        "array": np.array([1.0, np.inf]),
        "tensor": torch.tensor([[1, 2]]),
        "nothing": float("nan"),
    }
    text = records.dumps(value)
    strict(text)
    back = records.loads(text)
    assert back["bar"] == math.inf and back["low"] == -math.inf and math.isnan(back["nothing"])
    assert back["text"] == "NaN" and back["list"] == [1, 2.5, None, True]
    assert back["float32"] == 1.5 and back["int64"] == 7
    assert back["array"] == [1.0, math.inf] and back["tensor"] == [[1, 2]]


@pytest.mark.parametrize("value", [0.1, 1e-308, 5e-324, 1.7976931348623157e308, 2**53 + 1, "ä\n☃"])
def test_scalars_round_trip_exactly(value):
    assert records.loads(records.dumps(value)) == value


def test_bare_nan_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": NaN}')
    with pytest.raises(UserError, match="not valid JSON"):
        records.read_json(path)


def test_unknown_types_are_refused():
    with pytest.raises(TypeError, match="set"):
        records.dumps({"a": {1, 2}})


def test_kind_and_schema_are_checked(tmp_path):
    path = tmp_path / "with space and ü.json"
    records.write_json(path, {"kind": "geowidth.work", "schema": 2})
    assert records.read_json(path, "geowidth.work", 2)["schema"] == 2
    with pytest.raises(UserError, match="upgrade"):
        records.read_json(path, "geowidth.work", 1)
    with pytest.raises(UserError, match=r"geowidth\.schedule"):
        records.read_json(path, "geowidth.schedule", 2)
    with pytest.raises(UserError, match="cannot read"):
        records.read_json(tmp_path / "absent.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    records.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        records.write_json(path, {"a": object()})
    assert records.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_unwritable_places_are_noticed_before_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        records.check_writable(tmp_path / "file" / "out.json")
    with pytest.raises(UserError, match="is a folder"):
        records.check_writable(tmp_path)
    records.check_writable(tmp_path / "new" / "deeper" / "out.json")
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(UserError, match="name too long"):
        records.check_writable(tmp_path / ("x" * 255))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system that takes no files")
def test_file_systems_that_take_no_files_are_noticed_even_by_root():
    with pytest.raises(UserError, match="cannot write"):
        records.check_writable("/proc/out.json")


def test_json_lines_without_a_torn_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert records.read_json_lines(path) == []
    path.write_text('{"a": 1}\n\n[2]\n{"a": ')
    assert records.read_json_lines(path) == [{"a": 1}, [2]]
    path.write_text('{"a": 1\n[2]\n')
    with pytest.raises(UserError, match="line 1 is not JSON"):
        records.read_json_lines(path)


def test_a_folder_keeps_to_one_set_of_settings(tmp_path):
    record = {"kind": "k", "schema": 1, "settings": {"seeds": (0, 1), "steps": 5}}
    records.claim_folder(tmp_path / "run" / "settings.json", record, "a run")
    records.claim_folder(tmp_path / "run" / "settings.json", record, "a run")
    other = {**record, "settings": {"seeds": (0, 1), "steps": 6}}
    with pytest.raises(UserError, match="holds a run with steps 5, not 6"):
        records.claim_folder(tmp_path / "run" / "settings.json", other, "a run")


def test_text_that_is_no_record_is_a_value_error():
    for text in ('{"$float": []}', '{"$float": {}}'):
        assert records.loads(text) == json.loads(text)
    with pytest.raises(ValueError, match="nested too deeply"):
        records.loads("[" * 100_000)


def test_file_names_that_are_not_utf8_are_written_and_read_back(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    records.write_json(tmp_path / "a.json", {"corpus": name})
    assert (tmp_path / "a.json").read_bytes().decode("utf-8").count("\\udce9") == 1
    assert records.read_json(tmp_path / "a.json") == {"corpus": name}
