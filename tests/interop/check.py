"""Checks that engines we did not write read and append to the tables of a state as docs/engines.md says.

The statements are taken from that page, block by block, so that what is documented is what is run. Each engine's
rows are compared, by value, with the JSON lines that the program `alluvium` wrote.

usage: check.py STORE STATE EXPECTED_DIR [--sail] [--foreign-copy DIR]

EXPECTED_DIR holds lines {"key":..,"value":{..},"version":..,"event_time":".."} in key order:
  latest.jsonl            the latest state
  points.json             {"time":"..","version":..}, and "commit":N where as_of_commit.jsonl is given
  as_of_time.jsonl        as of that time
  as_of_version.jsonl     as of that version
  as_of_commit.jsonl      as of that commit       } optional: where one is absent, the rows are folded here, in
  snapshot.jsonl          as of the snapshot      } plain Python, from the log at that commit
  base.jsonl              what the base tier says } (base: absent, its check is made only if there are no runs)

The log must hold no two different UPSERTs of one key, event time and version in different commits, unless
compacted: plain SQL cannot tell which is later (docs/engines.md, section 1).

--foreign-copy DIR   copies the state to DIR/store/STATE, appends rows to its log with other engines, checks
                     the result, and leaves it there; DIR/expected/latest.jsonl says key, version and event time
                     of what is then the latest. For the values, let the program scan DIR/store, and run this
                     check again on DIR/store with what it wrote.
"""

import argparse
import contextlib
import datetime as dt
import json
import pathlib
import shutil
import sys
import time

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from engines import BLOCKS, DeltaRs, DuckDb, Engine, Point, Polars, PyArrow, Sail
from values import Mismatch, canonical, compare, moment, rows_of_arrow, rows_of_json, value_kind

MICROSECOND = dt.timedelta(microseconds=1)


# --- what is expected -----------------------------------------------------------------------------------


def fold_in_python(state: pathlib.Path, order: str, kind, commit: int) -> dict:
    """The documented order over the log at a commit, without any engine's sort."""
    rows = DeltaTable(state / "log", version=commit).to_pyarrow_table().to_pylist()

    def rank(row):
        first, second = (row["event_time"], row["version"]) if order == "event_time" else (row["version"], row["event_time"])
        commit = row["commit"] if row["commit"] is not None else 1 << 62
        return first, second, row["op_type"] == "DELETE", commit, row["append_seq"] or 0

    winners = {}
    for row in rows:
        if row["state_key"] not in winners or rank(row) > rank(winners[row["state_key"]]):
            winners[row["state_key"]] = row
    return {
        key: {"version": row["version"], "event_time": moment(row["event_time"]), "value": canonical(row["state_value"], kind)}
        for key, row in winners.items() if row["op_type"] == "UPSERT"
    }


class Expected:
    def __init__(self, state: pathlib.Path, folder: pathlib.Path):
        self.state, self.folder, self.kind = state, folder, value_kind(state)
        log, snapshot = DeltaTable(state / "log"), DeltaTable(state / "snapshot")
        self.order = log.metadata().configuration["alluvium.orderBy"]
        points = json.loads((folder / "points.json").read_text())
        self.point, self.log_commit = Point(points), log.version()
        self.snapshot_commit = snapshot.transaction_version("alluvium/materializer")
        self.commit = points.get("commit", self.log_commit // 2)
        self.latest, self.time, self.version = (rows_of_json(folder / f"{n}.jsonl", self.kind) for n in ("latest", "as_of_time", "as_of_version"))
        self.at_commit = self.given_or_folded("as_of_commit", self.commit)
        self.snapshot = self.given_or_folded("snapshot", self.snapshot_commit)
        self.counts = {"log": recorded_rows(log, None)}
        self.counts |= {tier: n for tier in ("base", "run") if (n := recorded_rows(snapshot, tier))}
        if (folder / "base.jsonl").exists():
            self.base = rows_of_json(folder / "base.jsonl", self.kind)
        else:
            self.base = self.snapshot if "run" not in self.counts else None

    def given_or_folded(self, name: str, commit: int) -> dict:
        file = self.folder / f"{name}.jsonl"
        return rows_of_json(file, self.kind) if file.exists() else fold_in_python(self.state, self.order, self.kind, commit)


def recorded_rows(table: DeltaTable, tier: str | None) -> int:
    adds = pa.table(table.get_add_actions(flatten=True))
    return sum(row["num_records"] for row in adds.to_pylist() if tier is None or row["partition.tier"] == tier)


# --- the checks -----------------------------------------------------------------------------------------


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    @contextlib.contextmanager
    def check(self, engine: str, what: str):
        started, note = time.monotonic(), {}
        try:
            yield note
        except Exception as error:  # an engine may raise anything; the other checks still run
            self.failed += 1
            text = str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
            print(f"FAILED  {engine:<12}  {what}\n        " + text.strip()[:4000].replace("\n", "\n        "), flush=True)
        else:
            self.passed += 1
            print(f"ok      {engine:<12}  {what}  ({note.get('rows', '')}{time.monotonic() - started:.2f} s)", flush=True)


def check_engine(engine: Engine, expected: Expected, report: Report) -> None:
    state, order, point = expected.state, expected.order, expected.point

    def rows(what, run, wanted):
        with report.check(engine.name, what) as note:
            compare(rows_of_arrow(run(), expected.kind), wanted)
            note["rows"] = f"{len(wanted)} rows, "

    with report.check(engine.name, "opens log and snapshot"):
        engine.open(state)
    rows("latest, from the log", lambda: engine.fold(order, "log", None, point), expected.latest)
    if expected.base is not None:
        rows("latest, from the snapshot's base", engine.base, expected.base)
    else:
        print(f"skipped {engine.name:<12}  latest, from the snapshot's base: there are runs, and no base.jsonl")
    rows("latest, from both tiers", lambda: engine.fold(order, "snapshot", None, point), expected.snapshot)
    rows("as of an event time", lambda: engine.fold(order, "log", "event time", point), expected.time)
    rows("as of a version", lambda: engine.fold(order, "log", "version", point), expected.version)
    with report.check(engine.name, "row counts") as note:
        found = engine.counts()
        note["rows"] = f"{found}, "
        if found != expected.counts:
            raise Mismatch(f"the Delta logs say {expected.counts}, found {found}")

    with report.check(engine.name, "keys in the order of their bytes"):
        keys = engine.sorted_keys()
        if keys != sorted(keys, key=str.encode):
            raise Mismatch("the keys of the log are in another order")

    def at_commit():
        engine.open_log_at(state, expected.commit)
        return engine.fold(order, "log", None, point)

    rows(f"as of commit {expected.commit}", at_commit, expected.at_commit)
    if isinstance(engine, Sail):
        with report.check(engine.name, f"VERSION AS OF {expected.commit}"):
            found, wanted = engine.rows_at(state, expected.commit), recorded_rows(DeltaTable(state / "log", version=expected.commit), None)
            if found != wanted:
                raise Mismatch(f"the Delta log says {wanted} rows, found {found}")


def check_layout(expected: Expected, report: Report) -> None:
    """What the documented statements rely on."""
    with report.check("layout", "dt is the UTC day of event_time"):
        for row in DeltaTable(expected.state / "log").to_pyarrow_dataset().to_table(columns=["event_time", "dt"]).to_pylist():
            if row["event_time"].astimezone(dt.timezone.utc).strftime("%Y-%m-%d") != row["dt"]:
                raise Mismatch(f"{row['event_time']} lies in {row['dt']}")
    with report.check("layout", "base has one row per key"):
        table = DeltaTable(expected.state / "snapshot").to_pyarrow_dataset()
        keys = table.to_table(columns=["state_key"], filter=pa.compute.field("tier") == "base")["state_key"]
        if len(keys) != len(keys.unique()):
            raise Mismatch(f"{len(keys)} rows of {len(keys.unique())} keys")


# --- appending ------------------------------------------------------------------------------------------


def foreign_rows(state: pathlib.Path, tag: str) -> pa.Table:
    """Rows that another engine could append, whatever the state's schema: an update that wins, a DELETE that wins,
    a new key, and an UPSERT that comes too late. They are made of rows that the log has."""
    log = DeltaTable(state / "log").to_pyarrow_table()
    rows = [row for row in log.to_pylist() if row["op_type"] == "UPSERT"]
    keys = sorted({row["state_key"] for row in rows}, key=str.encode)
    time, version = max(row["event_time"] for row in rows) + MICROSECOND, max(row["version"] for row in rows) + 1
    first = min(row["event_time"] for row in rows)
    donor = rows[0]["state_value"]

    def row(key, time, version, value):
        op = "DELETE" if value is None else "UPSERT"
        return {"state_key": key, "version": version, "event_time": time, "op_type": op, "state_value": value, "dt": time.strftime("%Y-%m-%d")}

    some = [
        row(keys[0], time, version, donor),
        row(keys[-1], time, version, None),
        row(f"foreign/{tag}", time, version, donor),
        row(keys[len(keys) // 2], first, min(row["version"] for row in rows) - 1, donor),
    ]
    return pa.Table.from_pylist(some, log.schema)


def check_appends(source: Expected, folder: pathlib.Path, sail: Sail | None, report: Report) -> None:
    state = folder / "store" / source.state.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source.state, state)
    (folder / "expected").mkdir()

    def deltalake_append(rows):
        exec(BLOCKS["deltalake append"], {"state": state, "changes": rows})

    def polars_append(rows):
        exec(BLOCKS["polars append"], {"state": state, "changes": pl.from_arrow(rows)})

    def duckdb_append(rows):
        con = duckdb.connect()
        con.register("changes", rows)
        exec(BLOCKS["duckdb append"], {"state": state, "con": con})

    def sail_append(rows):
        sail.spark.conf.set("spark.sql.session.timeZone", "UTC")
        sail.spark.createDataFrame(rows.select(rows.column_names[:5])).createOrReplaceTempView("changes")
        for sql in BLOCKS["spark insert"].replace("{log}", str(state / "log")).split(";"):
            sail.run(sql)

    appends = [("deltalake", deltalake_append), ("polars", polars_append), ("duckdb", duckdb_append)]
    appends += [("sail", sail_append)] if sail else []
    for name, append in appends:
        with report.check(name, "appends to a copy of the log"):
            before = fold_in_python(state, source.order, source.kind, DeltaTable(state / "log").version())
            rows = foreign_rows(state, name)
            append(rows)
            update, delete, new, _ = rows.to_pylist()
            wanted = {k: v for k, v in before.items() if k != delete["state_key"]}
            for row in (update, new):
                wanted[row["state_key"]] = {"version": row["version"], "event_time": moment(row["event_time"]), "value": canonical(row["state_value"], source.kind)}
            log = DeltaTable(state / "log")
            compare(fold_in_python(state, source.order, source.kind, log.version()), wanted)
            added = pa.table(log.to_pyarrow_table()).filter(pa.compute.field("state_key") == f"foreign/{name}").to_pylist()
            if [(row["append_id"], row["append_seq"], row["commit"]) for row in added] != [(None, None, None)]:
                raise Mismatch(f"bookkeeping columns are not null: {added}")
    write_latest(folder / "expected" / "latest.jsonl", fold_in_python(state, source.order, source.kind, DeltaTable(state / "log").version()))


def write_latest(file: pathlib.Path, rows: dict) -> None:
    """Key, version and event time of what the log now says; to compare values, run this check on the copy."""
    with file.open("w") as out:
        for key in sorted(rows, key=str.encode):
            line = {"key": key, "version": rows[key]["version"], "event_time": rows[key]["event_time"] + "Z"}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=pathlib.Path)
    parser.add_argument("state")
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--sail", action="store_true", help="check Sail (Spark SQL) too")
    parser.add_argument("--foreign-copy", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    report = Report()
    expected = Expected((options.store / options.state).resolve(), options.expected)
    sail = Sail() if options.sail else None
    engines = [PyArrow(), DeltaRs(), Polars(), DuckDb()] + ([sail] if sail else [])
    print(f"{options.state}: ordered by {expected.order}, log at {expected.log_commit}, snapshot of {expected.snapshot_commit}; "
          + ", ".join(f"{engine.name} {engine.version}" for engine in engines))
    check_layout(expected, report)
    for engine in engines:
        check_engine(engine, expected, report)
    if options.foreign_copy:
        check_appends(expected, options.foreign_copy.resolve(), sail, report)
    if sail:
        sail.stop()
    if sail and options.foreign_copy and expected.base is not None:
        with report.check("layout", "every marked block of docs/engines.md was run"):
            if unused := BLOCKS.keys() - BLOCKS.used:
                raise Mismatch(f"not run: {sorted(unused)}")
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
