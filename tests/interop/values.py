"""Values of engines and of JSON in one form that compares by `==`, by the types that the Delta schema declares."""

import base64
import datetime as dt
import decimal
import json
import pathlib
import re
import struct

import pyarrow as pa
from deltalake import DeltaTable

SHOWN_DIFFERENCES = 5
RESULT = ["state_key", "version", "event_time", "state_value"]


def canonical(value, kind):
    """`value` of an engine or of JSON, as something that compares by `==`; `kind` is a Delta type."""
    if value is None:
        return None
    if isinstance(kind, dict):
        return canonical_nested(value, kind)
    if kind in ("long", "integer", "short", "byte"):
        return int(value)
    if kind in ("double", "float"):
        number = float(value)
        if kind == "float":
            (number,) = struct.unpack("f", struct.pack("f", number))
        return "NaN" if number != number else number
    if kind.startswith("decimal"):
        return decimal.Decimal(value)
    if kind == "boolean":
        return bool(value)
    if kind == "binary":
        return value if isinstance(value, str) else base64.b64encode(value).decode()
    if kind == "date":
        return value if isinstance(value, str) else value.isoformat()
    if kind in ("timestamp", "timestamp_ntz"):
        return moment(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a {kind}")
    return value


def canonical_nested(value, kind):
    if kind["type"] == "struct":
        return {field["name"]: canonical(value.get(field["name"]), field["type"]) for field in kind["fields"]}
    if kind["type"] == "array":
        return [canonical(item, kind["elementType"]) for item in value]
    if isinstance(value, list):  # a map: pairs from Arrow, entries from Polars
        value = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in value]
    pairs = dict(value)
    return {canonical(k, kind["keyType"]): canonical(v, kind["valueType"]) for k, v in pairs.items()}


def moment(value) -> str:
    """A time in UTC, or one without a zone, to the microsecond."""
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(re.sub(r"(\.\d{1,6})\d*", lambda m: m[1].ljust(7, "0"), value))
    if value.tzinfo is not None:
        value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return value.isoformat(timespec="microseconds")


def value_kind(state: pathlib.Path):
    fields = json.loads(DeltaTable(state / "log").schema().to_json())["fields"]
    return next(field["type"] for field in fields if field["name"] == "state_value")


def rows_of_arrow(table: pa.Table, kind) -> dict:
    """Rows by key, of a table with the columns RESULT."""
    rows = {}
    for row in table.select(RESULT).to_pylist():
        key = row["state_key"]
        if key in rows:
            raise Mismatch(f"two rows of key {key!r}")
        rows[key] = {
            "version": row["version"],
            "event_time": moment(row["event_time"]),
            "value": canonical(row["state_value"], kind),
        }
    return rows


def rows_of_json(file: pathlib.Path, kind) -> dict:
    rows, last = {}, None
    for number, line in enumerate(file.read_text().splitlines(), 1):
        row = json.loads(line, parse_float=decimal.Decimal)
        key = row["key"].encode()
        if last is not None and key <= last:
            raise Mismatch(f"{file}:{number}: key {row['key']!r} is not greater than the one before it")
        last = key
        rows[row["key"]] = {
            "version": int(row["version"]),
            "event_time": moment(row["event_time"]),
            "value": canonical(row["value"], kind),
        }
    return rows


class Mismatch(Exception):
    pass


def compare(found: dict, expected: dict) -> None:
    if found == expected:
        return
    lines = []
    for key in sorted(found.keys() | expected.keys(), key=str.encode):
        if key not in found:
            lines.append(f"key {key!r}: missing")
        elif key not in expected:
            lines.append(f"key {key!r}: should be absent, found {found[key]}")
        elif found[key] != expected[key]:
            lines += [f"key {key!r}{path}: expected {b!r}, found {a!r}" for path, a, b in differences(found[key], expected[key], "")]
    more = len(lines) - SHOWN_DIFFERENCES
    raise Mismatch("\n".join(lines[:SHOWN_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])))


def differences(found, expected, path):
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted(found.keys() | expected.keys()):
            yield from differences(found.get(name), expected.get(name), f"{path}.{name}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (a, b) in enumerate(zip(found, expected)):
            yield from differences(a, b, f"{path}[{index}]")
    elif found != expected:
        yield path, found, expected
