#!/usr/bin/env python3
"""The latest state of a log by DuckDB and Polars, on its Parquet files.

usage: engines.py LOG_FOLDER --expected ROWS [--rounds N]

For each way that a user would pick: the newest row of each key by event time and version, deleted keys left out, all
columns made. JSON lines as the benches print them go to standard output, the same figures for people to standard error.
Each way must find as many rows as expected. Needs duckdb and polars: `target/interop-venv` of tests/interop has both.
"""

import argparse
import json
import statistics
import sys
import time

import duckdb
import polars as pl

COLUMNS = "state_key, version, event_time, op_type, state_value"


def duckdb_window(files):
    """The window query, as QUALIFY."""
    query = f"""
        SELECT {COLUMNS} FROM read_parquet('{files}')
        QUALIFY row_number() OVER (PARTITION BY state_key ORDER BY event_time DESC, version DESC) = 1
            AND op_type <> 'DELETE'"""
    return duckdb_rows(query)


def duckdb_arg_max(files):
    """The row of the greatest (event time, version), without a sort."""
    query = f"""
        SELECT unnest(newest) FROM (
            SELECT arg_max(struct_pack({", ".join(f"{c} := {c}" for c in COLUMNS.split(", "))}),
                           (event_time, version)) AS newest
            FROM read_parquet('{files}') GROUP BY state_key)
        WHERE newest.op_type <> 'DELETE'"""
    return duckdb_rows(query)


def duckdb_rows(query):
    """Reads a result to its end, batch by batch; nothing is kept."""
    with duckdb.connect() as connection:
        return sum(batch.num_rows for batch in connection.sql(query).to_arrow_reader())


def polars_sort(files):
    """Sorted by the order, and the last row of each key."""
    rows = (
        pl.scan_parquet(files, hive_partitioning=False)
        .select(COLUMNS.split(", "))
        .sort("event_time", "version")
        .unique("state_key", keep="last")
        .filter(pl.col("op_type") != "DELETE")
    )
    return rows.collect(engine="streaming").height


def polars_group(files):
    """The last row of each key's rows sorted by the order."""
    order = ["event_time", "version"]
    others = [name for name in COLUMNS.split(", ") if name != "state_key"]
    rows = (
        pl.scan_parquet(files, hive_partitioning=False)
        .group_by("state_key")
        .agg(pl.col(others).sort_by(order).last())
        .filter(pl.col("op_type") != "DELETE")
    )
    return rows.collect(engine="streaming").height


WAYS = [
    ("duckdb", "latest state, QUALIFY row_number()", duckdb_window),
    ("duckdb", "latest state, arg_max", duckdb_arg_max),
    ("polars", "latest state, sort and unique", polars_sort),
    ("polars", "latest state, group_by and last", polars_group),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("--expected", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    files = f"{arguments.log}/dt=*/*.parquet"
    for side, metric, way in WAYS:
        took = []
        for _ in range(arguments.rounds):
            started = time.perf_counter()
            rows = way(files)
            took.append(time.perf_counter() - started)
            if rows != arguments.expected:
                sys.exit(f"{side}, {metric}: {rows} rows, {arguments.expected} expected")
        value = round(statistics.median(took) * 1e3, 4)
        line = {"bench": "engines", "side": side, "metric": metric, "value": value, "unit": "ms", "n": len(took)}
        print(json.dumps(line), flush=True)
        print(f"   {side:<10} {metric:<44} {value:>14.3f} ms (n={len(took)})", file=sys.stderr)


if __name__ == "__main__":
    main()
