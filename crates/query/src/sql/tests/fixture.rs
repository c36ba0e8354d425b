//! The states that the tests of SQL ask: small, and each with something that has gone wrong somewhere before.
//!
//! | state | what is in it |
//! |---|---|
//! | `user_status` | ordered by event time; 3 commits: inserts, an update, a delete, a late row |
//! | `orders` | one commit; to be joined with `user_status` by `user` |
//! | `by-version` | ordered by version; a name with a dash |
//! | `odd` | fields with dashes, dots, quotes, other scripts, and named like columns of the table |
//! | `floats` | NaN, infinities, both zeros, the greatest and the least numbers |
//! | `flags` | structs that are null, and structs with null fields (TYP-16) |
//! | `empty` | no commit but its creation |
//! | `bare` | no value fields |
//! | `gone` | every key deleted |
//!
//! Versions are as shown in the code; event times are minutes after 2024-01-15T10:00:00Z.

use std::sync::Arc;

use alluvium_log::{
    Durability, FooterCache, Log, LogOptions, OrderBy, StateDefinition, StateSettings, Storage,
    event_time_type,
};
use alluvium_materializer::{
    FoldSettings, LayoutSettings, MaterializeOptions, Snapshot, materialize,
};
use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};

use crate::reader::{Reader, ReaderOptions};
use crate::sql::{SqlSession, SqlSettings};

/// 2024-01-15T10:00:00Z in microseconds.
const START: i64 = 1_705_312_800_000_000;
const MINUTE: i64 = 60_000_000;

/// How much of the log is folded into the snapshot: no answer may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Nothing: all is in the log.
    LogOnly,
    /// What was there before the last commit of each state.
    Partly,
    /// All of it.
    Whole,
}

pub(super) const LAYOUTS: [Layout; 3] = [Layout::LogOnly, Layout::Partly, Layout::Whole];

/// Rows of one commit: keys, versions, minutes, and the columns of the value. A key in `deleted` has no value.
pub(super) struct Commit {
    pub(super) rows: Vec<(&'static str, i64, i64)>,
    pub(super) deleted: Vec<&'static str>,
    pub(super) value: Vec<ArrayRef>,
}

pub(super) fn changes(fields: &Fields, commit: &Commit) -> RecordBatch {
    let rows = &commit.rows;
    let keys = StringArray::from_iter_values(rows.iter().map(|row| row.0));
    let versions = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
    let times =
        TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| START + row.2 * MINUTE))
            .with_data_type(event_time_type());
    let live: Vec<bool> = rows.iter().map(|row| !commit.deleted.contains(&row.0)).collect();
    let operations: StringArray =
        live.iter().map(|live| Some(if *live { "UPSERT" } else { "DELETE" })).collect();
    let nulls = Some(NullBuffer::from(live));
    let value = StructArray::new(fields.clone(), commit.value.clone(), nulls);
    RecordBatch::try_from_iter([
        ("state_key", Arc::new(keys) as ArrayRef),
        ("version", Arc::new(versions)),
        ("event_time", Arc::new(times)),
        ("op_type", Arc::new(operations)),
        ("state_value", Arc::new(value)),
    ])
    .unwrap()
}

async fn fold_in(snapshot: &Snapshot) {
    let options = MaterializeOptions {
        fold: FoldSettings::default(),
        rebuild: false,
        layout: LayoutSettings::default(),
        footers: FooterCache::new(1 << 20),
    };
    materialize(snapshot, &options).await.unwrap();
}

/// Makes a state, with the snapshot that the layout asks for.
pub(super) async fn state(
    storage: &Storage,
    name: &str,
    order_by: OrderBy,
    fields: Fields,
    commits: &[Commit],
    layout: Layout,
) -> Reader {
    let settings = StateSettings { order_by, ..StateSettings::default() };
    let definition = StateDefinition::new(&fields, settings).unwrap();
    let (log, _) = Log::create(storage, name, &definition, LogOptions::default()).await.unwrap();
    let snapshot = Snapshot::open(storage, &log).await.unwrap();
    for (index, commit) in commits.iter().enumerate() {
        if layout == Layout::Partly && index + 1 == commits.len() {
            fold_in(&snapshot).await;
        }
        log.append(&changes(&fields, commit)).await.unwrap();
    }
    if layout == Layout::Whole {
        fold_in(&snapshot).await;
    }
    Reader::new(log, snapshot, ReaderOptions::default())
}

pub(super) fn storage() -> Storage {
    Storage::open("memory://", Durability::Os).unwrap()
}

pub(super) fn session(readers: Vec<Reader>) -> SqlSession {
    let settings = SqlSettings { target_partitions: 2, ..SqlSettings::default() };
    SqlSession::new(readers, &settings).unwrap()
}

/// A session over all the states above.
pub(super) async fn all_states(layout: Layout) -> SqlSession {
    let storage = storage();
    session(vec![
        user_status(&storage, layout).await,
        orders(&storage, layout).await,
        by_version(&storage, layout).await,
        odd(&storage, layout).await,
        floats(&storage, layout).await,
        flags(&storage, layout).await,
        integers(&storage, "empty", &[], layout).await,
        bare(&storage, layout).await,
        gone(&storage, layout).await,
    ])
}

fn text(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn integer(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// A column with one field named and typed like an array.
fn field(name: &str, array: &ArrayRef) -> Field {
    Field::new(name, array.data_type().clone(), true)
}

fn address_fields() -> Fields {
    Fields::from(vec![
        Field::new("city", DataType::Utf8, true),
        Field::new("zip", DataType::Utf8, true),
    ])
}

/// Cities and postal codes; neither means no address at all.
fn addresses(values: &[(Option<&str>, Option<&str>)]) -> ArrayRef {
    let cities = text(&values.iter().map(|value| value.0).collect::<Vec<_>>());
    let codes = text(&values.iter().map(|value| value.1).collect::<Vec<_>>());
    let known =
        values.iter().map(|value| value.0.is_some() || value.1.is_some()).collect::<Vec<_>>();
    Arc::new(StructArray::new(address_fields(), vec![cities, codes], Some(NullBuffer::from(known))))
}

pub(super) async fn user_status(storage: &Storage, layout: Layout) -> Reader {
    let fields = Fields::from(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("login_count", DataType::Int64, true),
        Field::new("submittedAt", DataType::Int64, true),
        Field::new("URL", DataType::Utf8, true),
        Field::new("address", DataType::Struct(address_fields()), true),
    ]);
    let commits = [
        Commit {
            rows: vec![("u1", 10, 0), ("u2", 11, 1), ("u3", 12, 2), ("x9", 13, 3)],
            deleted: vec![],
            value: vec![
                text(&[Some("Ann"), Some("Bob"), Some("Cid"), Some("Xen")]),
                integer(&[Some(1), Some(2), Some(3), Some(9)]),
                integer(&[Some(100), Some(200), None, Some(900)]),
                text(&[Some("http://a"), None, Some("http://c"), Some("http://x")]),
                addresses(&[
                    (Some("Oslo"), Some("0150")),
                    (None, None),
                    (None, Some("1")),
                    (Some("Rome"), Some("00100")),
                ]),
            ],
        },
        Commit {
            rows: vec![("u1", 20, 10), ("u4", 21, 11)],
            deleted: vec![],
            value: vec![
                text(&[Some("Ann"), Some("Dan")]),
                integer(&[Some(5), Some(0)]),
                integer(&[Some(150), Some(400)]),
                text(&[Some("http://a2"), None]),
                addresses(&[(Some("Oslo"), Some("0151")), (None, None)]),
            ],
        },
        Commit {
            rows: vec![("u2", 30, 20), ("u1", 31, 5), ("u3", 32, 21)],
            deleted: vec!["u2"],
            value: vec![
                text(&[None, Some("Late"), Some("Cid")]),
                integer(&[None, Some(99), Some(4)]),
                integer(&[None, Some(120), Some(300)]),
                text(&[None, None, Some("http://c")]),
                addresses(&[(None, None), (Some("Bergen"), None), (Some("Paris"), Some("75001"))]),
            ],
        },
    ];
    state(storage, "user_status", OrderBy::EventTime, fields, &commits, layout).await
}

async fn orders(storage: &Storage, layout: Layout) -> Reader {
    let fields = Fields::from(vec![
        Field::new("user", DataType::Utf8, true),
        Field::new("amount", DataType::Int64, true),
    ]);
    let commits = [Commit {
        rows: vec![("o1", 1, 0), ("o2", 2, 1), ("o3", 3, 2), ("o4", 4, 3)],
        deleted: vec![],
        value: vec![
            text(&[Some("u1"), Some("u1"), Some("u3"), Some("nobody")]),
            integer(&[Some(10), Some(25), Some(7), Some(1_000)]),
        ],
    }];
    state(storage, "orders", OrderBy::EventTime, fields, &commits, layout).await
}

async fn by_version(storage: &Storage, layout: Layout) -> Reader {
    let commits = [
        Commit {
            rows: vec![("k", 5, 9), ("l", 6, 8)],
            deleted: vec![],
            value: vec![integer(&[Some(1), Some(2)])],
        },
        Commit {
            rows: vec![("k", 7, 1), ("l", 3, 30)],
            deleted: vec![],
            value: vec![integer(&[Some(3), Some(4)])],
        },
    ];
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    state(storage, "by-version", OrderBy::Version, fields, &commits, layout).await
}

async fn odd(storage: &Storage, layout: Layout) -> Reader {
    let nested = Fields::from(vec![Field::new("b", DataType::Int64, true)]);
    let a: ArrayRef = Arc::new(StructArray::new(nested, vec![integer(&[Some(3)])], None));
    let value = vec![
        ("y--1", integer(&[Some(1)])),
        ("a.b", integer(&[Some(2)])),
        ("a", a),
        ("quo\"te", integer(&[Some(5)])),
        ("back`tick", integer(&[Some(6)])),
        ("日本", integer(&[Some(7)])),
        ("Version", integer(&[Some(8)])),
        ("state_key", text(&[Some("mine")])),
        ("select", integer(&[Some(9)])),
    ];
    let fields: Fields = value.iter().map(|(name, array)| field(name, array)).collect();
    let value = value.into_iter().map(|(_, array)| array).collect();
    let commits = [Commit { rows: vec![("the key", 1, 0)], deleted: vec![], value }];
    state(storage, "odd", OrderBy::EventTime, fields, &commits, layout).await
}

async fn floats(storage: &Storage, layout: Layout) -> Reader {
    let numbers = Float64Array::from(vec![
        Some(f64::NAN),
        Some(f64::INFINITY),
        Some(f64::NEG_INFINITY),
        Some(0.0),
        Some(-0.0),
        Some(1e308),
        Some(5e-324),
        None,
    ]);
    let rows = ["nan", "inf", "neg_inf", "zero", "neg_zero", "great", "least", "none"];
    let rows = rows.iter().zip(1..).map(|(key, version)| (*key, version, version)).collect();
    let commits = [Commit { rows, deleted: vec![], value: vec![Arc::new(numbers)] }];
    let fields = Fields::from(vec![Field::new("d", DataType::Float64, true)]);
    state(storage, "floats", OrderBy::EventTime, fields, &commits, layout).await
}

/// Two days; `v` is null, has null fields, or has values.
async fn flags(storage: &Storage, layout: Layout) -> Reader {
    let fields = Fields::from(vec![
        Field::new("flag", DataType::Boolean, true),
        Field::new("x", DataType::Int64, true),
    ]);
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![
        Some(true),
        Some(false),
        None,
        Some(true),
        None,
        Some(false),
    ]));
    let numbers = integer(&[Some(1), Some(200), Some(3), None, None, Some(50)]);
    let known = NullBuffer::from(vec![true, true, true, true, false, true]);
    let v: ArrayRef = Arc::new(StructArray::new(fields.clone(), vec![flags, numbers], Some(known)));
    let day = 24 * 60;
    let rows = vec![
        ("f1", 1, 0),
        ("f2", 2, day),
        ("f3", 3, 0),
        ("f4", 4, day),
        ("f5", 5, 0),
        ("f6", 6, day),
    ];
    let commits = [Commit { rows, deleted: vec![], value: vec![v] }];
    let fields = Fields::from(vec![Field::new("v", DataType::Struct(fields), true)]);
    state(storage, "flags", OrderBy::EventTime, fields, &commits, layout).await
}

pub(super) async fn integers(
    storage: &Storage,
    name: &str,
    commits: &[Commit],
    layout: Layout,
) -> Reader {
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    state(storage, name, OrderBy::EventTime, fields, commits, layout).await
}

/// The log takes no rows of such a state (Parquet has no empty structs), but it can be created, and must answer.
async fn bare(storage: &Storage, layout: Layout) -> Reader {
    state(storage, "bare", OrderBy::EventTime, Fields::empty(), &[], layout).await
}

async fn gone(storage: &Storage, layout: Layout) -> Reader {
    let none = new_null_array(&DataType::Int64, 1);
    let commits = [
        Commit { rows: vec![("g", 1, 0)], deleted: vec![], value: vec![integer(&[Some(1)])] },
        Commit { rows: vec![("g", 2, 1)], deleted: vec!["g"], value: vec![none] },
    ];
    integers(storage, "gone", &commits, layout).await
}
