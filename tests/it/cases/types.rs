//! TYP-*: every value comes back as it was given, or is refused before anything is written.

use std::sync::Arc;

use alluvium::{ErrorKind, Lookup, OrderBy, Point, RawState, Store};
use alluvium_log::KeyFilter;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Decimal128Array, Float64Array, Int64Array,
    Int64Builder, MapBuilder, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Decimal128Type, Field, Fields, Float64Type, Int64Type};
use futures::TryStreamExt;

use crate::support::delta;
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, by_version, commit_of, create, live, lookup, n_batch,
    n_of, refused, scan_rows, settings, sql_numbers, sql_texts, upserts, value_batch,
};

async fn value_of(state: &RawState, key: &str, field: &str) -> ArrayRef {
    let row = lookup(state, key).await.found().unwrap();
    row.column_by_name("state_value").unwrap().as_struct().column_by_name(field).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_06_infinities_and_zeros_keep_their_bits_and_the_table_stays_readable() {
    let home = Home::new();
    let store = home.open().await;
    let state = create(
        &store,
        "s",
        &Fields::from(vec![Field::new("d", DataType::Float64, true)]),
        OrderBy::Version,
    )
    .await;
    let values = [f64::INFINITY, f64::NEG_INFINITY, 1e308, 5e-324, 0.0, -0.0, f64::NAN];
    let keys = ["inf", "-inf", "big", "tiny", "zero", "-zero", "nan"];
    let column: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
    let batch = upserts(&keys, 1, vec![("d", column)]);
    state.append(&batch).await.unwrap();
    state.materialize(false).await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    let text = std::fs::read_to_string(home.commit_file("s", 1)).unwrap();
    assert!(
        text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
        "{text}"
    );
    let reopened = home.open().await;
    let again = reopened.raw_state("s").await.unwrap();
    for (key, value) in keys.iter().zip(values) {
        let read = value_of(&again, key, "d").await.as_primitive::<Float64Type>().value(0);
        assert_eq!(read.to_bits(), value.to_bits(), "{key}");
    }
    assert_eq!(
        sql_texts(
            &reopened,
            "SELECT state_key FROM s WHERE d > 1e300 AND d <= 'inf'::double ORDER BY d"
        )
        .await,
        ["big", "inf"]
    );
    // TYP-07: the same row again is no change; with the other zero it is another row.
    state.append(&batch).await.unwrap();
    assert_eq!(state.materialize(false).await.unwrap().stale_keys, Some(7));
    let other: ArrayRef = Arc::new(Float64Array::from(vec![-0.0]));
    let versions = value_batch(
        ["zero"],
        [5],
        &[START + 5 * SECOND],
        Arc::new(StructArray::try_from(vec![("d", other)]).unwrap()),
    );
    state.append(&versions).await.unwrap();
    let report = state.materialize(false).await.unwrap();
    assert_eq!((report.stale_keys, report.rows_folded), (Some(0), 1));
    assert!(
        value_of(&again, "zero", "d")
            .await
            .as_primitive::<Float64Type>()
            .value(0)
            .is_sign_negative()
    );
    assert_sound(&state).await;
    assert_eq!(delta::open(&home.table("s", "log")).await.version(), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_07_the_two_zeros_are_equal_in_queries_and_stay_what_they_are() {
    let home = Home::new();
    let store = home.open().await;
    let fields = Fields::from(vec![Field::new("d", DataType::Float64, true)]);
    let state = create(&store, "s", &fields, OrderBy::Version).await;
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, 1.0]));
    state.append(&upserts(&["a", "b", "c"], 1, vec![("d", zeros)])).await.unwrap();
    for step in 0..2 {
        for (query, expected) in [
            ("SELECT count(DISTINCT d) FROM s", vec![2]),
            ("SELECT count(*) FROM s WHERE d = 0", vec![2]),
            ("SELECT count(*) FROM s WHERE d = -0.0", vec![2]),
            ("SELECT count(*) AS n FROM s GROUP BY d ORDER BY n", vec![1, 2]),
            ("SELECT count(*) FROM (SELECT d FROM s UNION SELECT d FROM s)", vec![2]),
            ("SELECT count(*) FROM s a JOIN s b ON a.d = b.d", vec![5]),
        ] {
            assert_eq!(sql_numbers(&store, query).await, expected, "step {step}: {query}");
        }
        for (key, bits) in [("a", 0.0_f64.to_bits()), ("b", (-0.0_f64).to_bits())] {
            let read = value_of(&state, key, "d").await.as_primitive::<Float64Type>().value(0);
            assert_eq!(read.to_bits(), bits, "step {step}: {key}");
        }
        state.materialize(false).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_08_decimals_up_to_their_precision_are_exact_and_beyond_it_refused() {
    let home = Home::new();
    let store = home.open().await;
    let largest = 10_i128.pow(38) - 1;
    let types = [
        (1_u8, 0_i8, 1_i128),
        (38, 0, largest),
        (38, 18, largest),
        (32, 16, 0),
        (38, 16, 39_178_294_781),
    ];
    let name = |precision: u8, scale: i8| format!("d{precision}_{scale}");
    let field =
        |&(p, s, _): &(u8, i8, i128)| Field::new(name(p, s), DataType::Decimal128(p, s), true);
    let fields: Fields = types.iter().map(field).collect();
    let state = create(&store, "s", &fields, OrderBy::Version).await;
    let decimal = |p: u8, s: i8, value: i128| -> ArrayRef {
        Arc::new(Decimal128Array::from(vec![value]).with_data_type(DataType::Decimal128(p, s)))
    };
    let names: Vec<String> = types.iter().map(|&(p, s, _)| name(p, s)).collect();
    let columns = types
        .iter()
        .zip(&names)
        .map(|(&(p, s, v), name)| (name.as_str(), decimal(p, s, v)))
        .collect();
    state.append(&upserts(&["a"], 1, columns)).await.unwrap();
    state.materialize(false).await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    let reopened = home.open().await;
    let again = reopened.raw_state("s").await.unwrap();
    for &(p, s, value) in &types {
        let read = value_of(&again, "a", &name(p, s)).await;
        assert_eq!(read.as_primitive::<Decimal128Type>().value(0), value);
        let text = Decimal128Array::from(vec![value])
            .with_data_type(DataType::Decimal128(p, s))
            .value_as_string(0);
        let query = format!(
            "SELECT state_key FROM s WHERE {} = arrow_cast('{text}', 'Decimal128({p}, {s})')",
            name(p, s)
        );
        assert_eq!(sql_texts(&reopened, &query).await, ["a"], "{query}");
    }
    let too_long = upserts(&["b"], 2, vec![("d1_0", decimal(1, 0, 10))]);
    refused(&state, state.append(&too_long), ErrorKind::InvalidInput, &["state_value.d1_0"]).await;
    let too_fine = upserts(&["b"], 2, vec![("d38_0", decimal(20, 2, 101))]);
    refused(
        &state,
        state.append(&too_fine),
        ErrorKind::InvalidInput,
        &["state_value.d38_0", "row 0"],
    )
    .await;
    let too_wide = upserts(&["b"], 2, vec![("d32_16", decimal(38, 0, largest))]);
    refused(&state, state.append(&too_wide), ErrorKind::InvalidInput, &["state_value.d32_16"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_09_long_keys_are_found_whole_by_get_range_prefix_and_sql() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    let mut keys: Vec<String> =
        [31, 32, 33, 64, 255, 256, 257, 5_000].map(|n| format!("{}suffix", "z".repeat(n))).to_vec();
    keys.extend([
        "\u{10ffff}".repeat(40),
        "\u{7f}".repeat(40),
        format!("{}😀", "q".repeat(31)),
        format!("{}😀", "q".repeat(254)),
    ]);
    keys.extend([
        format!("{}1", "w".repeat(5_000)),
        format!("{}2", "w".repeat(5_000)),
        "\u{10ffff}".repeat(100),
    ]);
    keys.sort();
    for (n, key) in keys.iter().enumerate() {
        // Each in a file of its own, so that its bounds are those of the file.
        state.append(&n_batch(&[(key, 1, Some(n as i64))])).await.unwrap();
        if n % 4 == 0 {
            state.materialize(false).await.unwrap();
        }
    }
    for round in 0..3 {
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(n_of(&state, Point::LATEST, key).await, Some(n as i64), "round {round}");
            assert_eq!(
                n_of(&state, Point::at_commit(n as i64 + 1), key).await,
                Some(n as i64),
                "round {round}"
            );
            let half: String = key.chars().take(key.chars().count() / 2).collect();
            let filters =
                [KeyFilter::prefix(&half), KeyFilter::Range { from: Some(key.clone()), to: None }];
            for filter in filters {
                let rows: Vec<RecordBatch> = state
                    .scan(Point::LATEST, filter.clone())
                    .await
                    .unwrap()
                    .try_collect()
                    .await
                    .unwrap();
                let found: usize = rows.iter().map(RecordBatch::num_rows).sum();
                assert_eq!(found, keys.iter().filter(|key| filter.matches(key)).count());
            }
        }
        for table in ["s", "log.s"] {
            assert_eq!(
                sql_texts(&store, &format!("SELECT min(state_key) FROM {table}")).await,
                [keys[0].clone()]
            );
            assert_eq!(
                sql_texts(&store, &format!("SELECT max(state_key) FROM {table}")).await,
                [keys[keys.len() - 1].clone()]
            );
        }
        match round {
            0 => drop(delta::optimize(&home.table("s", "log"), 1 << 30).await),
            _ => drop(state.materialize(true).await.unwrap()),
        }
    }
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_10_large_values_stay_out_of_the_delta_log() {
    let home = Home::new();
    let fields = Fields::from(vec![
        Field::new("blob", DataType::Binary, true),
        Field::new("text", DataType::Utf8, true),
    ]);
    let state = create(&home.open().await, "s", &fields, OrderBy::Version).await;
    let blob = vec![7_u8; 5 << 20];
    let text = "t".repeat(5 << 20);
    let keys: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let blobs: ArrayRef = Arc::new(BinaryArray::from_iter_values(keys.iter().map(|_| &blob)));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(keys.iter().map(|_| &text)));
    state.append(&upserts(&keys, 1, vec![("blob", blobs), ("text", texts)])).await.unwrap();
    state.materialize(false).await.unwrap();
    let snapshot = home.table("s", "snapshot").join("_delta_log/00000000000000000001.json");
    for commit in [home.commit_file("s", 1), snapshot] {
        assert!(std::fs::metadata(commit).unwrap().len() < 100 << 10);
    }
    for n in 0..200 {
        let blobs: ArrayRef = Arc::new(BinaryArray::from_iter_values([&blob[..1 << 20]]));
        state.append(&upserts(&["k0"], 100 + n, vec![("blob", blobs)])).await.unwrap();
    }
    state.log().close().await;
    assert!(state.log().table().checkpoint().await.unwrap());
    let log = home.table("s", "log").join("_delta_log");
    let checkpoint = log.join(format!("{:020}.checkpoint.parquet", commit_of(&state).await));
    assert!(std::fs::metadata(checkpoint).unwrap().len() < 1 << 20);
    let again = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(value_of(&again, "k9", "blob").await.as_binary::<i32>().value(0), blob);
    assert_eq!(value_of(&again, "k9", "text").await.as_string::<i32>().value(0), text);
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_13_keys_and_values_of_reserved_characters_survive_optimize_and_vacuum() {
    let home = Home::new();
    let fields = Fields::from(vec![Field::new("text", DataType::Utf8, true)]);
    let state = create(&home.open().await, "s", &fields, OrderBy::Version).await;
    let mut keys: Vec<String> = (' '..='~').map(|c| format!("x{c}y")).collect();
    keys.extend(["/lead", "trail/", "..", "é", "日本", "%41", "a=b"].map(str::to_owned));
    // Each in a commit and on a day of its own: days are the partitions here, and always derived.
    for (n, key) in (1..).zip(&keys) {
        let text: ArrayRef = Arc::new(StringArray::from(vec![key.as_str()]));
        let value = StructArray::try_from(vec![("text", text)]).unwrap();
        let row = value_batch([key.as_str()], [n], &[START - n * DAY], Arc::new(value));
        state.append(&row).await.unwrap();
    }
    keys.sort();
    for step in 0..4 {
        let fresh = home.open().await;
        let query = "SELECT state_key FROM s WHERE state_key = text ORDER BY state_key";
        assert_eq!(sql_texts(&fresh, query).await, keys, "step {step}");
        match step {
            0 => drop(state.materialize(false).await.unwrap()),
            1 => drop(delta::optimize(&home.table("s", "log"), 1 << 20).await),
            _ => {
                for table in ["log", "snapshot"] {
                    delta::vacuum(&home.table("s", table)).await;
                }
            }
        }
    }
    assert_sound(&home.open().await.raw_state("s").await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_14_maps_keep_their_entries_and_refuse_keys_that_are_null_or_given_twice() {
    let home = Home::new();
    let state = create(&home.open().await, "s", &Fields::empty(), OrderBy::Version).await;
    let maps = |rows: &[&[(i64, i64)]]| -> ArrayRef {
        let mut map = MapBuilder::new(None, Int64Builder::new(), Int64Builder::new());
        for row in rows {
            for (key, value) in *row {
                map.keys().append_value(*key);
                map.values().append_value(*value);
            }
            map.append(true).unwrap();
        }
        Arc::new(map.finish())
    };
    let whole = maps(&[&[(10, 100)], &[(20, 200)], &[(30, 300)]]);
    state.append(&upserts(&["b", "c"], 1, vec![("m", whole.slice(1, 2))])).await.unwrap();
    state.append(&upserts(&["empty"], 5, vec![("m", maps(&[&[]]))])).await.unwrap();
    let twice = upserts(&["x", "y"], 9, vec![("m", maps(&[&[(1, 1)], &[(1, 1), (1, 2)]]))]);
    refused(&state, state.append(&twice), ErrorKind::InvalidInput, &["state_value.m", "row 1"])
        .await;
    for _ in 0..2 {
        for (key, expected) in [("b", vec![(20, 200)]), ("c", vec![(30, 300)]), ("empty", vec![])] {
            let map = value_of(&state, key, "m").await;
            let entries = map.as_map().value(0);
            let part =
                |index: usize| entries.column(index).as_primitive::<Int64Type>().values().to_vec();
            assert_eq!(part(0).into_iter().zip(part(1)).collect::<Vec<_>>(), expected, "{key}");
        }
        state.materialize(false).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_15_keys_that_look_alike_are_keys_of_their_own() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    let large = "k".repeat(64 << 10);
    let keys = [
        "",
        " ",
        "é",
        "e\u{301}",
        "Å",
        "\u{212b}",
        "a\0b",
        "\u{feff}a",
        "A",
        "a",
        &large,
        "🇯🇵",
        "🇯",
        "null",
        "%41",
        "a/b",
        "..",
        "a%2Fb",
    ];
    let rows: Vec<_> = keys.iter().enumerate().map(|(n, key)| (*key, 1, Some(n as i64))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    for step in 0..3 {
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(n_of(&state, Point::LATEST, key).await, Some(n as i64), "{step}");
            let quoted = key.replace('\'', "''");
            assert_eq!(
                sql_numbers(&store, &format!("SELECT n FROM s WHERE state_key = '{quoted}'")).await,
                [n as i64]
            );
        }
        state.materialize(step == 1).await.unwrap();
    }
    state
        .append(&n_batch(&[("é", 2, None), ("Å", 2, None), ("A", 2, None), ("", 2, None)]))
        .await
        .unwrap();
    let left: Vec<String> =
        live(&state, Point::LATEST).await.into_iter().map(|row| row.0).collect();
    assert_eq!(left.len(), keys.len() - 4);
    for twin in ["e\u{301}", "\u{212b}", "a", " "] {
        assert!(left.iter().any(|key| key == twin), "{twin:?}");
    }
    assert!(matches!(lookup(&state, "é").await, Lookup::Deleted(_)));
    assert_sound(&state).await;
}

async fn flags(store: &Store) -> RawState {
    let inner = Fields::from(vec![
        Field::new("flag", DataType::Boolean, true),
        Field::new("x", DataType::Int64, true),
    ]);
    let state = create(
        store,
        "s",
        &Fields::from(vec![Field::new("v", DataType::Struct(inner.clone()), true)]),
        OrderBy::Version,
    )
    .await;
    let rows = 3_000;
    let flag: BooleanArray = (0..rows).map(|n| [Some(true), Some(false), None][n % 3]).collect();
    let x: Int64Array = (0..rows).map(|n| (n % 5 != 0).then_some(n as i64 % 200)).collect();
    let nulls = NullBuffer::from_iter((0..rows).map(|n| n % 7 != 0));
    let v: ArrayRef =
        Arc::new(StructArray::new(inner, vec![Arc::new(flag), Arc::new(x)], Some(nulls)));
    let keys: Vec<String> = (0..rows).map(|n| format!("k{n:05}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    state.append(&upserts(&keys, 1, vec![("v", v)])).await.unwrap();
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_16_a_predicate_on_a_struct_its_complement_and_the_unknown_are_all_rows() {
    let home = Home::new();
    let store = home.open_with(alluvium::StoreSettings { partitions: 2, ..settings() }).await;
    let state = flags(&store).await;
    let predicates = [
        "v IS NULL",
        "v.flag",
        "NOT (v.flag)",
        "NOT (v.x NOT BETWEEN v.x AND 100)",
        "v.x IS NULL AND v IS NOT NULL",
        "v.x > 50",
    ];
    for step in 0..2 {
        let all = scan_rows(&state, Point::LATEST).await;
        let memory = datafusion::prelude::SessionContext::new();
        let flat: Vec<RecordBatch> = all
            .iter()
            .map(|batch| {
                RecordBatch::try_from_iter_with_nullable([(
                    "v",
                    batch.column_by_name("state_value").unwrap().as_struct().column(0).clone(),
                    true,
                )])
                .unwrap()
            })
            .collect();
        let table =
            datafusion::datasource::MemTable::try_new(flat[0].schema(), vec![flat]).unwrap();
        memory.register_table("s", Arc::new(table)).unwrap();
        for predicate in predicates {
            let mut counts = Vec::new();
            for form in [
                predicate.to_owned(),
                format!("NOT ({predicate})"),
                format!("({predicate}) IS NULL"),
            ] {
                let query = format!("SELECT count(*) FROM s WHERE {form}");
                let count = sql_numbers(&store, &query).await[0];
                let expected = delta::query(&memory, &query).await[0]
                    .column(0)
                    .as_primitive::<Int64Type>()
                    .value(0);
                assert_eq!(count, expected, "step {step}: {query}");
                counts.push(count);
            }
            assert_eq!(counts.iter().sum::<i64>(), 3_000, "{predicate}: {counts:?}");
        }
        state.materialize(false).await.unwrap();
    }
}
