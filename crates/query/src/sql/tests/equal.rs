//! Pushing a filter down never changes an answer: random filters over a state, its log and its history give what the same
//! filters give over a copy of the rows in memory, where nothing can be pushed down.
//!
//! `ALLUVIUM_SEED` replays a run.

use std::sync::Arc;

use alluvium_log::OrderBy;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::fixture::{Commit, LAYOUTS, session, state, storage};
use super::slt::{collect, lines};
use crate::sql::SqlSession;

const FILTERS: usize = 60;
/// Keys that have gone wrong in some engine: empty, wildcards, escapes, boundaries of prefixes, the greatest character.
const KEYS: [&str; 14] = [
    "",
    "a",
    "a\0",
    "ab",
    "a%",
    "a_b",
    "a\\",
    "a\\b",
    "aé",
    "b",
    "B",
    "日本",
    "\u{d7ff}",
    "\u{10ffff}",
];

/// A generator that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % bound as u64).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn key(&mut self) -> String {
        KEYS[self.below(KEYS.len())].replace('\'', "''")
    }

    fn comparison(&mut self) -> &'static str {
        self.pick(&["=", "<>", "<", "<=", ">", ">="])
    }

    /// A condition on the columns that all the tables have; `#n` stands for the value's field.
    fn leaf(&mut self) -> String {
        let (comparison, key) = (self.comparison(), self.key());
        let version = self.below(60);
        let time = format!("2024-01-15T10:{:02}:00Z", self.below(59));
        match self.below(14) {
            0 => format!("state_key {comparison} '{key}'"),
            1 => format!("'{key}' {comparison} state_key"),
            2 => format!("state_key IN ('{key}', '{}', '{}')", self.key(), self.key()),
            3 => format!("state_key NOT IN ('{key}', '{}')", self.key()),
            4 => format!("state_key BETWEEN '{key}' AND '{}'", self.key()),
            5 => format!("state_key LIKE '{key}%'"),
            6 => format!(
                "state_key LIKE '{}'",
                self.pick(&["a%", "a\\%", "a\\_%", "a_", "_", "%b", "a\\\\%", ""])
            ),
            7 => format!("starts_with(state_key, '{key}')"),
            8 => format!("version {comparison} {version}"),
            9 => format!("version BETWEEN {version} AND {}", version + self.below(20)),
            10 => format!("event_time {comparison} '{time}'"),
            11 => format!("event_time {comparison} TIMESTAMP '{}'", time.trim_end_matches('Z')),
            12 => format!("#n {comparison} {}", self.below(5)),
            _ => "#n IS NULL".to_owned(),
        }
    }

    fn filter(&mut self, depth: usize) -> String {
        match (depth, self.below(5)) {
            (0, _) | (_, 0) => self.leaf(),
            (_, 1) => format!("NOT ({})", self.filter(depth - 1)),
            (_, 2) => format!("({} OR {})", self.filter(depth - 1), self.filter(depth - 1)),
            _ => format!("({} AND {})", self.filter(depth - 1), self.filter(depth - 1)),
        }
    }
}

fn commits(random: &mut Random) -> Vec<Commit> {
    let mut version = 0;
    (0..6)
        .map(|_| {
            let count = 1 + random.below(8);
            let mut rows: Vec<(&'static str, i64, i64)> = Vec::new();
            for _ in 0..count {
                version += 1;
                let minute = i64::try_from(random.below(59)).unwrap();
                rows.push((KEYS[random.below(KEYS.len())], version, minute));
            }
            let deleted = if random.below(2) == 0 { vec![rows[0].0] } else { vec![] };
            let numbers: Int64Array =
                rows.iter().map(|row| (row.1 % 4 != 0).then_some(row.1 % 5)).collect();
            Commit { rows, deleted, value: vec![Arc::new(numbers) as ArrayRef] }
        })
        .collect()
}

/// The rows of a query as a table that knows nothing but rows.
async fn copy(session: &SqlSession, context: &SessionContext, name: &str, sql: &str) {
    let stream = session.query(sql).await.unwrap();
    let schema = stream.schema();
    let rows: Vec<RecordBatch> = datafusion::physical_plan::common::collect(stream).await.unwrap();
    let table = MemTable::try_new(schema, vec![rows]).unwrap();
    context.register_table(name, Arc::new(table)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_give_what_they_give_over_a_copy_in_memory() {
    let seed = std::env::var("ALLUVIUM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_240_115);
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    for (layout, order_by) in
        LAYOUTS.into_iter().zip([OrderBy::EventTime, OrderBy::Version, OrderBy::EventTime])
    {
        let mut random = Random(seed | 1);
        let commits = commits(&mut random);
        let storage = storage();
        let session =
            session(vec![state(&storage, "s", order_by, fields.clone(), &commits, layout).await]);
        let mut config = SessionConfig::new();
        config.options_mut().sql_parser.enable_ident_normalization = false;
        let plain = SessionContext::new_with_config(config);
        let tables = [
            ("s", "state_key, version, n FROM s"),
            ("past", "state_key, version, n FROM as_of('s', 'commit:4,time:2024-01-15T10:40:00Z')"),
            ("logged", "state_key, version, op_type, commit, state_value.n FROM log.s"),
            ("story", "state_key, version, commit, is_late, state_value.n FROM history('s')"),
            ("lean", "state_key, version, commit, state_value.n FROM history('s')"),
            ("feed", "state_key, version, commit, state_value.n FROM changes('s', 1)"),
        ];
        for (name, columns) in tables {
            let from = columns.split(" FROM ").nth(1).unwrap();
            copy(&session, &plain, name, &format!("SELECT * FROM {from}")).await;
        }
        for _ in 0..FILTERS {
            let (name, columns) = tables[random.below(tables.len())];
            let from = columns.split(" FROM ").nth(1).unwrap();
            let value = if name == "s" || name == "past" { "n" } else { "state_value.n" };
            let filter = random.filter(3).replace("#n", value);
            let sql = format!("SELECT {columns} WHERE {filter} ORDER BY version");
            let pushed = lines(&collect(&session, &sql).await.unwrap());
            let copied = sql.replace(&format!("FROM {from}"), &format!("FROM {name}"));
            let kept = plain.sql(&copied).await.unwrap().collect().await.unwrap();
            assert_eq!(pushed, lines(&kept), "ALLUVIUM_SEED={seed} {layout:?} {sql}");
        }
    }
}
