"""Writes a tiny store by the letter of docs/formats.md, and the rows expected of it.

A second implementation of the format, in Python, that shares nothing with the Rust crates: it lets the
interop check run without them, and shows what the page of formats is enough for. The two states differ
in their order; `by_version` also has a TIMESTAMP_NTZ field, hence the newer protocol.

usage: fixture.py STORE EXPECTED      writes STORE/<state>/{log,snapshot} and EXPECTED/<state>/*.json[l]
"""

import base64
import datetime as dt
import decimal
import json
import math
import pathlib
import random
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = dt.timedelta(microseconds=1)
AS_OF_TIME = dt.datetime(2024, 1, 15, 12, 0, 0, 250_001, tzinfo=UTC)
AS_OF_VERSION = (1_705_312_800_000 << 20) + 1
SNAPSHOT_COMMIT, BASE_COMMIT, COMPACTION_COMMIT, GROWTH_COMMIT, LAST_COMMIT = 7, 4, 6, 5, 8
STATES = {"by_time": "event_time", "by_version": "version"}


# --- the schema ---------------------------------------------------------------------------------------


def value_type(ntz: bool, grown: bool) -> pa.DataType:
    timestamp = pa.timestamp("us", tz="UTC")
    geo = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
    address = [("zip", pa.string()), ("geo", geo)] + ([("country", pa.string())] if grown else [])
    fields = [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("tiny", pa.int8()),
        ("count", pa.int32()),
        ("ratio", pa.float64()),
        ("ratio32", pa.float32()),
        ("ok", pa.bool_()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", timestamp),
        ("price", pa.decimal128(38, 18)),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("attrs", pa.map_(pa.string(), pa.int64())),
        ("address", pa.struct(address)),
        ("stops", pa.list_(pa.struct([("code", pa.string()), ("at", timestamp)]))),
    ]
    fields += [("local", pa.timestamp("us"))] if ntz else []
    fields += [("note", pa.string())] if grown else []
    return pa.struct(fields)


def table_schema(kind: str, ntz: bool, grown: bool) -> pa.Schema:
    required = [
        pa.field("state_key", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("op_type", pa.string(), nullable=False),
        pa.field("state_value", value_type(ntz, grown)),
    ]
    append_id = [pa.field("append_id", pa.string())] if kind == "log" else []
    bookkeeping = [pa.field("append_seq", pa.int32()), pa.field("commit", pa.int64())]
    partition = [pa.field("dt" if kind == "log" else "tier", pa.string())]
    return pa.schema(required + append_id + bookkeeping + partition)


# --- the rows -----------------------------------------------------------------------------------------


def random_value(rng: random.Random, ntz: bool, grown: bool) -> dict:
    def maybe(value):
        return None if rng.random() < 0.15 else value

    def moment():
        return dt.datetime(2024, 1, 1, tzinfo=UTC) + rng.randrange(10**13) * MICROSECOND

    floats = [0.1, -0.0, 1e300, 5e-324, math.nan, math.inf, -math.inf, rng.random()]
    address = {"zip": maybe("0%d" % rng.randrange(9999)), "geo": maybe({"lat": rng.random(), "lon": maybe(-1.5)})}
    if grown:
        address["country"] = maybe("NL")
    value = {
        "id": rng.choice([2**63 - 1, -(2**63), 2**53 + 1, rng.randrange(100)]),
        "small": maybe(rng.randrange(-(2**15), 2**15)),
        "tiny": maybe(rng.randrange(-128, 128)),
        "count": maybe(rng.randrange(1000)),
        "ratio": maybe(rng.choice(floats)),
        "ratio32": maybe(0.10000000149011612),
        "ok": maybe(rng.random() < 0.5),
        "name": maybe(rng.choice(["", "NULL", "a\"b\\c\n\t", "żółw 🐢", "x" * 70])),
        "day": maybe(rng.choice([dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)])),
        "at": maybe(rng.choice([moment(), dt.datetime(1600, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)])),
        "price": maybe(decimal.Decimal(rng.choice(["0.1", "-12345678901234567890.123456789012345678", "0"]))),
        "blob": maybe(bytes(rng.randrange(256) for _ in range(rng.randrange(5)))),
        "tags": maybe([maybe(t) for t in ["a", "", "β"][: rng.randrange(4)]]),
        "attrs": maybe({k: maybe(rng.randrange(9)) for k in ["x", "y z", ""][: rng.randrange(4)]}),
        "address": maybe(address),
        "stops": maybe([maybe({"code": "S%d" % i, "at": maybe(moment())}) for i in range(rng.randrange(3))]),
    }
    if ntz:
        value["local"] = maybe(moment().replace(tzinfo=None))
    if grown:
        value["note"] = maybe("grown")
    return value


def all_rows(ntz: bool) -> list[dict]:
    """Every row of the log with the commit that wrote it: first the named cases, then random ones."""
    rng = random.Random(20240115)
    keys = ["", " ", "a", "A", "é", "e\u0301", "日本", "🐢", "part\x00two", "part\x01\x01\x00", "NULL", "'; --"]
    keys += ["k" * 300] + ["user-%02d" % i for i in range(40)]
    rows = []

    def row(commit, key, time, version, delete=False, seq=0):
        value = None if delete else random_value(rng, ntz, commit >= GROWTH_COMMIT)
        op = "DELETE" if delete else "UPSERT"
        rows.append(dict(state_key=key, version=version, event_time=time, op_type=op, state_value=value, append_seq=seq, commit=commit))

    base = AS_OF_TIME
    for offset in (-1, 0, 1):  # either side of the point, one microsecond or one version apart
        row(2, "edge", base + offset * MICROSECOND, AS_OF_VERSION + offset)
    row(3, "deleted last", base, 5)
    row(3, "deleted last", base + MICROSECOND, 6, delete=True)
    row(4, "late delete loses", base, 9)
    row(8, "late delete loses", base - dt.timedelta(days=9), 7, delete=True)
    row(1, "tie: delete wins", base, 3, delete=True)
    row(2, "tie: delete wins", base, 3)
    row(2, "tie: later row of the commit", base, 3)
    row(2, "tie: later row of the commit", base, 3, seq=1)
    row(2, "tie: later row of the commit", base, 3, seq=2)
    row(1, "tie: later commit, compacted", base, 3, seq=1)
    row(3, "tie: later commit, compacted", base, 3)
    row(2, "time against version", base + MICROSECOND, 10)
    row(3, "time against version", base - MICROSECOND, 11)
    row(1, "before 1970", dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 1)
    row(8, "after the snapshot", base, 1)
    row(7, "resurrected", base + 2 * MICROSECOND, 4)
    row(3, "resurrected", base + MICROSECOND, 3, delete=True)
    days = [base - dt.timedelta(days=d) for d in range(-2, 4)]
    used = set()
    for commit in (1, 2, 3, 4, 5, 7, 8):
        for _ in range(45):
            key, time = rng.choice(keys), rng.choice(days) + rng.randrange(3 * 10**6) * MICROSECOND
            version = AS_OF_VERSION + rng.randrange(-1000, 1000)
            if (key, version) not in used:  # ties across commits are for the named cases
                used.add((key, version))
                row(commit, key, time, version, delete=rng.random() < 0.2)
    return rows


def rank(order: str, row: dict) -> tuple:
    first, second = (row["event_time"], row["version"]) if order == "event_time" else (row["version"], row["event_time"])
    return (first, second, row["op_type"] == "DELETE", row["commit"], row["append_seq"])


def fold(order: str, rows: list[dict]) -> list[dict]:
    winners = {}
    for row in rows:
        key = row["state_key"].encode()
        if key not in winners or rank(order, row) > rank(order, winners[key]):
            winners[key] = row
    return [winners[key] for key in sorted(winners)]


# --- the tables ---------------------------------------------------------------------------------------


class Table:
    """One Delta table whose commits we write by hand, as formats.md says."""

    def __init__(self, path: pathlib.Path, kind: str, ntz: bool, order: str):
        self.path, self.kind, self.ntz, self.version = path, kind, ntz, 0
        self.partition = "dt" if kind == "log" else "tier"
        properties = {
            "alluvium.formatVersion": "1",
            "alluvium.orderBy": order,
            "alluvium.requiredFields": json.dumps([["id"]]),
            "alluvium.maxFutureMs": "86400000",
            "delta.dataSkippingNumIndexedCols": "4",
            "delta.enableExpiredLogCleanup": "false",
            "delta.checkpointInterval": "2147483647",
        }
        path.mkdir(parents=True)
        DeltaTable.create(
            path, table_schema(kind, ntz, grown=False), partition_by=[self.partition],
            configuration=properties, raise_if_key_not_exists=False,
        )

    def grow(self) -> dict:
        """The metaData action of a schema with the later fields."""
        lines = (self.path / "_delta_log" / ("%020d.json" % 0)).read_text().splitlines()
        metadata = next(json.loads(line)["metaData"] for line in lines if "metaData" in line)
        metadata["schemaString"] = Schema.from_arrow(table_schema(self.kind, self.ntz, grown=True)).to_json()
        return {"metaData": metadata}

    def add(self, name: str, partition: str, rows: list[dict], grown: bool, tags: dict, data_change=True) -> dict:
        """Writes a file of rows sorted by the caller; gives its `add`."""
        schema = table_schema(self.kind, self.ntz, grown)
        schema = schema.remove(schema.get_field_index(self.partition))
        relative = f"{self.partition}={partition}/{name}.parquet"
        file = self.path / relative
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), file, compression="zstd", compression_level=1)
        return {"add": {
            "path": relative, "partitionValues": {self.partition: partition}, "size": file.stat().st_size,
            "modificationTime": 1_705_312_800_000, "dataChange": data_change,
            "stats": json.dumps(statistics(rows), ensure_ascii=False), "tags": tags,
        }}

    def commit(self, operation: str, actions: list[dict], note: dict) -> None:
        self.version += 1
        info = {"timestamp": 1_705_312_800_000 + self.version, "operation": operation, "engineInfo": "alluvium/fixture",
                "isBlindAppend": operation == "WRITE", "alluvium": note}
        file = self.path / "_delta_log" / ("%020d.json" % self.version)
        lines = [json.dumps(action, ensure_ascii=False) for action in [{"commitInfo": info}, *actions]]
        file.write_text("\n".join(lines) + "\n")


def statistics(rows: list[dict]) -> dict:
    keys = sorted((r["state_key"] for r in rows), key=str.encode)
    versions, times, ops = ([r[c] for r in rows] for c in ("version", "event_time", "op_type"))
    low = (min(times) - EPOCH) // dt.timedelta(milliseconds=1)
    high = -((EPOCH - max(times)) // dt.timedelta(milliseconds=1))

    def text(milliseconds: int) -> str:
        time = EPOCH + dt.timedelta(milliseconds=milliseconds)
        return time.strftime("%Y-%m-%dT%H:%M:%S.") + "%03dZ" % (time.microsecond // 1000)

    minimum = {"state_key": keys[0].encode()[:256].decode(errors="ignore"), "version": min(versions), "event_time": text(low), "op_type": min(ops)}
    maximum = {"state_key": keys[-1], "version": max(versions), "event_time": text(high), "op_type": max(ops)}
    if len(keys[-1].encode()) > 256:
        del maximum["state_key"]
    return {"numRecords": len(rows), "minValues": minimum, "maxValues": maximum, "nullCount": {c: 0 for c in minimum}}


def write_log(path: pathlib.Path, order: str, ntz: bool, rows: list[dict]) -> None:
    table = Table(path, "log", ntz, order)
    writer = "00c0ffee00c0ffee"
    live: dict[str, list] = {}

    def day(row):
        return row["event_time"].strftime("%Y-%m-%d")

    def in_order(some):
        return sorted(some, key=lambda r: (r["state_key"].encode(), rank(order, r)))

    for commit in range(1, LAST_COMMIT + 1):
        if commit == COMPACTION_COMMIT:  # merges the files of one day and stamps their rows' commits
            compacted = day({"event_time": AS_OF_TIME})
            removes = [{"remove": {"path": add["add"]["path"], "dataChange": False, "deletionTimestamp": 1, "extendedFileMetadata": True,
                                   "partitionValues": add["add"]["partitionValues"], "size": add["add"]["size"]}} for add, _ in live[compacted]]
            merged = in_order([row | {"append_id": row["append_id"]} for _, some in live[compacted] for row in some])
            add = table.add("compacted-0", compacted, merged, grown=True, tags={"alluvium.sorted": "true"}, data_change=False)
            live[compacted] = [(add, merged)]
            table.commit("OPTIMIZE", [*removes, add], {})
            continue
        append_id = f"{writer}-{commit}"
        mine = [row | {"append_id": append_id} for row in rows if row["commit"] == commit]
        tags = {"alluvium.commit": str(commit), "alluvium.append": append_id, "alluvium.sorted": "true"}
        actions = [table.grow()] if commit == GROWTH_COMMIT else []
        for k, partition in enumerate(sorted({day(row) for row in mine})):
            some = in_order([row for row in mine if day(row) == partition])
            add = table.add(f"{append_id}-{k}", partition, [row | {"commit": None} for row in some], commit >= GROWTH_COMMIT, tags)
            live.setdefault(partition, []).append((add, some))
            actions.append(add)
        table.commit("WRITE", actions, {"appendId": append_id, "rows": len(mine)})


def write_snapshot(path: pathlib.Path, order: str, ntz: bool, rows: list[dict]) -> None:
    table = Table(path, "snapshot", ntz, order)

    def tags(some, commit):
        return {
            "alluvium.maxVersion": str(max(r["version"] for r in some)),
            "alluvium.maxEventTime": str((max(r["event_time"] for r in some) - EPOCH) // MICROSECOND),
            "alluvium.maxCommit": str(max(r["commit"] for r in some)),
            "alluvium.tombstones": str(sum(r["op_type"] == "DELETE" for r in some)),
            "alluvium.logCommit": str(commit),
        }

    def progress(commit):
        return {"txn": {"appId": "alluvium/materializer", "version": commit, "lastUpdated": 1_705_312_800_000}}

    base = fold(order, [row for row in rows if row["commit"] <= BASE_COMMIT])
    half = len(base) // 2
    adds = [table.add(f"base-{k}", "base", some, False, tags(some, BASE_COMMIT)) for k, some in enumerate([base[:half], base[half:]])]
    table.commit("WRITE", [progress(BASE_COMMIT), *adds], {})
    for after, upto in ((BASE_COMMIT, 5), (5, SNAPSHOT_COMMIT)):
        run = fold(order, [row for row in rows if after < row["commit"] <= upto])
        growth = [table.grow()] if upto == 5 else []
        table.commit("WRITE", [*growth, progress(upto), table.add(f"run-{upto}", "run", run, True, tags(run, upto))], {})


# --- what is expected ---------------------------------------------------------------------------------


def plain(value):
    """A value as the JSON that the program `alluvium` writes."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items() if v is not None}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def expect(file: pathlib.Path, order: str, rows: list[dict]) -> None:
    with file.open("w") as out:
        for row in fold(order, rows):
            if row["op_type"] == "UPSERT":
                line = {"key": row["state_key"], "value": json_value(row), "version": row["version"], "event_time": plain(row["event_time"])}
                out.write(json.dumps(line, ensure_ascii=False) + "\n")


def json_value(row: dict) -> dict:
    value = plain(row["state_value"])
    attrs = row["state_value"]["attrs"]
    if attrs is not None:  # a map keeps its null values
        value["attrs"] = attrs
    return value


def main(store: pathlib.Path, expected: pathlib.Path) -> None:
    for state, order in STATES.items():
        for folder in (store / state, expected / state):
            shutil.rmtree(folder, ignore_errors=True)
        (expected / state).mkdir(parents=True)
        ntz = state == "by_version"
        rows = all_rows(ntz)
        write_log(store / state / "log", order, ntz, rows)
        write_snapshot(store / state / "snapshot", order, ntz, rows)
        expect(expected / state / "latest.jsonl", order, rows)
        expect(expected / state / "as_of_time.jsonl", order, [r for r in rows if r["event_time"] <= AS_OF_TIME])
        expect(expected / state / "as_of_version.jsonl", order, [r for r in rows if r["version"] <= AS_OF_VERSION])
        for name, commit in (("base", BASE_COMMIT), ("snapshot", SNAPSHOT_COMMIT), ("as_of_commit", COMPACTION_COMMIT)):
            expect(expected / state / f"{name}.jsonl", order, [r for r in rows if r["commit"] <= commit])
        points = {"time": plain(AS_OF_TIME), "version": AS_OF_VERSION, "commit": COMPACTION_COMMIT}
        (expected / state / "points.json").write_text(json.dumps(points) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
