"""The marked blocks of docs/engines.md, and the engines that run them."""

import datetime as dt
import os
import pathlib
import re

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from values import RESULT

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "engines.md"


# --- the page -------------------------------------------------------------------------------------------


class Blocks(dict):
    """The marked blocks of docs/engines.md by name ("duckdb open"), remembering which were used."""

    def __init__(self):
        for language, name, text in re.findall(r"^```(sql|python) (\w[\w ]*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
            name = f"{language} {name}" if name == "spark commit" else name
            assert name not in self, f"two blocks {name!r} in {PAGE}"
            self[name] = text
        self.used = set()

    def __getitem__(self, name):
        self.used.add(name)
        return super().__getitem__(name)


BLOCKS = Blocks()
OPTIONAL_LINE = re.compile(r"(\s*)(?:--|#) (.*?)\s+(?:--|#) as of an? (.*)")


def statement(name: str, order: str, point: str | None = None, table: str = "log") -> str:
    """A block with its optional line of one point made active, for the state's order and the table."""
    lines = BLOCKS[name].splitlines()
    for index, line in enumerate(lines):
        optional = OPTIONAL_LINE.fullmatch(line)
        if optional and optional[3] == point:
            lines[index] = optional[1] + optional[2]
    text = "\n".join(lines) + "\n"
    if order == "version":
        text = text.replace("event_time DESC, version DESC", "version DESC, event_time DESC").replace('"event_time", "version"', '"version", "event_time"')
    return text.replace("FROM log\n", f"FROM {table}\n")


# --- the engines ----------------------------------------------------------------------------------------


class Point:
    def __init__(self, points: dict):
        self.time = dt.datetime.fromisoformat(points["time"]).astimezone(dt.timezone.utc)
        self.version = points["version"]
        self.day = self.time.strftime("%Y-%m-%d")


class Engine:
    """What differs between engines: opening the tables, and running a statement of the page."""

    name = "?"
    version = "?"

    def open(self, state: pathlib.Path) -> None: ...
    def open_log_at(self, state: pathlib.Path, commit: int) -> None: ...
    def base(self) -> pa.Table: ...
    def fold(self, order: str, table: str, kind: str | None, point: Point) -> pa.Table: ...
    def counts(self) -> dict: ...
    def sorted_keys(self) -> list: ...


class SqlEngine(Engine):
    time_literal = "TIMESTAMPTZ '{}Z'"

    def run(self, sql: str) -> pa.Table: ...

    def base(self):
        return self.run(BLOCKS["base"])

    def fold(self, order, table, kind, point):
        literal = self.time_literal.format(point.time.strftime("%Y-%m-%d %H:%M:%S.%f"))
        sql = statement("fold", order, kind, table)
        return self.run(sql.replace("{time}", literal).replace("{day}", point.day).replace("{version}", str(point.version)))

    def counts(self):
        tiers = self.run("SELECT tier, count(*) AS n FROM snapshot GROUP BY tier").to_pylist()
        return {row["tier"]: row["n"] for row in tiers} | {"log": self.run("SELECT count(*) AS n FROM log")["n"][0].as_py()}

    def sorted_keys(self):
        return self.run("SELECT state_key FROM log ORDER BY state_key")["state_key"].to_pylist()


class DuckDb(SqlEngine):
    name, version = "duckdb", duckdb.__version__

    def open(self, state):
        scope = {"state": state}
        exec(BLOCKS["duckdb open"], scope)
        self.con = scope["con"]
        self.con.execute("SET TimeZone = 'America/New_York'")  # the answers must not depend on it

    def open_log_at(self, state, commit):
        self.con.register("log", DeltaTable(state / "log", version=commit).to_pyarrow_dataset())

    def run(self, sql):
        return self.con.sql(sql).to_arrow_table()


class DeltaRs(SqlEngine):
    name, version = "delta-rs SQL", deltalake.__version__

    def open(self, state):
        scope = {"state": state}
        exec(BLOCKS["deltars open"], scope)
        self.sql = scope["sql"]

    def open_log_at(self, state, commit):
        self.sql = deltalake.QueryBuilder().register("log", DeltaTable(state / "log", version=commit))

    def run(self, sql):
        return pa.RecordBatchReader.from_stream(self.sql.execute(sql)).read_all()


class Sail(SqlEngine):
    name = "sail"
    time_literal = "TIMESTAMP '{}Z'"

    def __init__(self):
        os.environ.setdefault("RUST_LOG", "off")
        import pysail
        from pysail.spark import SparkConnectServer
        from pyspark.sql import SparkSession

        self.version = pysail.__version__
        self.server = SparkConnectServer()
        self.server.start(background=True)
        host, port = self.server.listening_address
        self.spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
        self.spark.conf.set("spark.sql.session.timeZone", "America/New_York")

    def open(self, state):
        exec(BLOCKS["spark open"], {"spark": self.spark, "state": state})

    def open_log_at(self, state, commit):
        exec(BLOCKS["python spark commit"], {"spark": self.spark, "state": state, "commit": commit})

    def run(self, sql):
        return self.spark.sql(sql).toArrow()

    def rows_at(self, state, commit) -> int:
        sql = BLOCKS["sql spark commit"].replace("{log}", str(state / "log")).replace("{commit}", str(commit))
        return self.spark.sql(sql).count()

    def stop(self):
        self.spark.stop()
        self.server.stop()


class Polars(Engine):
    name, version = "polars", pl.__version__

    def open(self, state):
        self.scope = {"state": state}
        exec(BLOCKS["polars open"], self.scope)

    def open_log_at(self, state, commit):
        self.scope["log"] = pl.scan_delta(state / "log", version=commit)

    def run(self, code, **scope):
        scope = self.scope | scope
        exec(code, scope)
        return scope["rows"].select(RESULT).collect().to_arrow()

    def base(self):
        return self.run(BLOCKS["polars base"])

    def fold(self, order, table, kind, point):
        return self.run(statement("polars fold", order, kind), log=self.scope[table], **vars(point))

    def counts(self):
        tiers = self.scope["snapshot"].group_by("tier").len().collect()
        return dict(tiers.iter_rows()) | {"log": self.scope["log"].select(pl.len()).collect().item()}

    def sorted_keys(self):
        return self.scope["log"].select("state_key").sort("state_key").collect()["state_key"].to_list()


class PyArrow(Engine):
    name, version = "pyarrow", pa.__version__

    def open(self, state):
        self.scope = {"state": state}
        exec(BLOCKS["pyarrow open"], self.scope)

    def open_log_at(self, state, commit):
        self.scope["log"] = DeltaTable(state / "log", version=commit).to_pyarrow_dataset()

    def run(self, code, **scope):
        scope = self.scope | scope
        exec(code, scope)
        return scope["rows"]

    def base(self):
        return self.run(BLOCKS["pyarrow base"])

    def fold(self, order, table, kind, point):
        return self.run(statement("pyarrow fold", order, kind), log=self.scope[table], **vars(point))

    def counts(self):
        tiers = self.scope["snapshot"].to_table(columns=["tier"]).group_by("tier").aggregate([([], "count_all")])
        return dict(zip(tiers["tier"].to_pylist(), tiers["count_all"].to_pylist())) | {"log": self.scope["log"].count_rows()}

    def sorted_keys(self):
        return self.scope["log"].to_table(columns=["state_key"]).sort_by("state_key")["state_key"].to_pylist()
