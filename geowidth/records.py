"""Result files: strict JSON that reads back exactly, written aside and then renamed, so a killed process loses nothing.

Non-finite floats have no JSON form. They are written as {"$float": "inf"}, {"$float": "-inf"} or {"$float": "nan"} and
read back as floats; strings are never touched. Every record carries `kind` and `schema`, checked on reading.
"""

import json
import math
import platform
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from geowidth.errors import UserError, shown
from geowidth.files import PathLike, check_writable, exists, read_bytes, read_text, write_bytes

__all__ = [
    "check_writable", "claim_folder", "dumps", "environment", "loads", "read_json", "read_json_lines", "read_table",
    "to_jsonable", "write_bytes", "write_json", "write_text",
]  # fmt: skip

MOST_NESTED = 100
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")  # what JSON may hold and a terminal, or a reader of lines, obeys
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_jsonable(value: object) -> Any:
    """Plain lists, dicts and scalars for any mix of those with numpy or torch arrays and scalars, tuples and paths."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars alike
        return to_jsonable(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")


def _revive(pairs):
    """The dict of a JSON object's (key, value) pairs, or the float that one stands for."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shown(next(n for n in names if names.count(n) > 1))} stands twice in one object")
    if len(found) == 1 and isinstance(word := found.get("$float"), str) and word in _NON_FINITE:
        return _NON_FINITE[word]
    return found


def dumps(value: object, **options: Any) -> str:
    """`value` as strict JSON text."""
    text = json.dumps(to_jsonable(value), allow_nan=False, ensure_ascii=False, **options)
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    # File names that are not UTF-8 reach us with lone surrogates; as JSON escapes they can be written and read back.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def loads(text: str) -> Any:
    """The value that `dumps` wrote.

    Raises ValueError for text that is not strict JSON (bare NaN and Infinity, a key twice in one object), for numbers
    beyond a 64-bit float, and for more than MOST_NESTED levels.
    """

    def refuse(word):
        raise ValueError(f"bare {word} is not JSON")

    try:
        value = json.loads(
            text, object_pairs_hook=_revive, parse_constant=refuse, parse_float=_bounded_float, parse_int=_bounded_int
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MOST_NESTED):
        level = [part for v in level if isinstance(v, (dict, list)) for part in (v.values() if type(v) is dict else v)]
    if level:
        raise ValueError("it is nested too deeply")
    return value


def _bounded_float(text):
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{shown(text)} is beyond a 64-bit float")
    return value


def _bounded_int(text):
    if len(text) > 300 and math.isinf(float(text)):
        raise ValueError(f"a whole number of {len(text)} digits is beyond a 64-bit float")
    return int(text)


def write_text(path: PathLike, text: str) -> None:
    """Write `text` in UTF-8 beside `path`, then rename it into place: readers see the old file or the whole new one."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: PathLike, value: object) -> None:
    """Write `value` as indented strict JSON, atomically."""
    write_text(path, dumps(value, indent=1) + "\n")


def read_json_lines(path: PathLike) -> list[Any]:
    """The values of a file with one JSON value a line; [] without a file. A last line that a kill cut short is left
    out, any other that is not JSON is refused."""
    path = Path(path)
    if not exists(path):
        return []
    found, lines = [], read_bytes(path).decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(loads(line))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path} line {number} is not JSON ({error}); delete that line") from error
    return found


def claim_folder(path: PathLike, record: dict[str, Any], what: str, later: dict[str, Any] | None = None) -> None:
    """Write `record` to `path`, a settings.json, or check that the one there has the same settings, so that one folder
    never mixes two sets of them. what: "a run", for the message. later: {name: value} of settings that older files
    lack, which then count as having that value. Raises UserError naming the first that differs."""
    check_writable(path)
    path = Path(path)
    if not path.exists():
        return write_json(path, record)
    found = read_json(path, record["kind"], record["schema"]).get("settings")
    if not isinstance(found, dict):
        raise UserError(f"{path} lacks its settings; delete the folder, or name another with --out")
    wanted, found = loads(dumps(record["settings"])), {**(later or {}), **found}
    differ = next((name for name in wanted if found.get(name) != wanted[name]), None)
    if differ is not None:
        raise UserError(
            f"{path.parent} holds {what} with {differ} {shown(found.get(differ))}, not {wanted[differ]!r}; "
            "name another folder with --out, or ask for the same settings to go on"
        )


def read_json(path: PathLike, kind: str | None = None, schema: int | None = None) -> Any:
    """Read a JSON file; with `kind` and `schema`, refuse a file of another kind or of a newer schema."""
    path, text = Path(path), read_text(path)
    try:
        value = loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if kind is not None:
        found = value.get("kind") if isinstance(value, dict) else None
        if found != kind:
            raise UserError(
                f"{path} holds {shown(found) if found else 'no GeoWidth record'}; "
                f"a file of kind {kind!r} is needed here"
            )
        if schema is not None:
            _check_schema(path, value.get("schema"), schema)
    return value


def read_table(path: PathLike) -> dict[str, Any]:
    """The table in a settings file that a person wrote: TOML (.toml) or a JSON object (.json)."""
    path = Path(path)
    if path.suffix == ".json":
        value = read_json(path)
        if not isinstance(value, dict):
            raise UserError(f"{path} holds {shown(value)}; an object with one entry a setting is needed")
        return value
    if path.suffix != ".toml":
        raise UserError(f"settings file {path} ends in {path.suffix or 'nothing'}; allowed: .toml, .json")
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def _check_schema(path, found, newest):
    if type(found) is not int or found < 1:
        raise UserError(f"{path} has schema {shown(found)}; allowed: whole numbers from 1 to {newest}")
    if found > newest:
        raise UserError(f"{path} has schema {shown(found)}; this GeoWidth reads up to {newest}: upgrade it")


def environment() -> dict[str, str | int]:
    """Versions and machine facts that every result file carries."""
    from importlib.metadata import version

    import numpy
    import torch

    import geowidth

    return {
        "geowidth": geowidth.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": version("scipy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }
