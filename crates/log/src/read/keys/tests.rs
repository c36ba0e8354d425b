//! Lookups against the rows that a file was made of, through pages of a few rows and caches of a few pages.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, Int32Array, Int64Array, StructArray, TimestampMicrosecondArray};
use arrow::array::{StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::super::known::{KnownRow, LookupFile};
use super::*;
use crate::columns::{log_schema, value_field};
use crate::table::{FileAdd, TAG_SORTED};
use crate::{Durability, Log, LogOptions, OrderBy, StateDefinition, StateSettings, Storage};

/// A row: key, version, value.
type Row = (String, i64, Option<i64>);

fn fields() -> Fields {
    Fields::from(vec![Field::new("n", DataType::Int64, true)])
}

fn key(rng: &mut StdRng) -> String {
    // Bounds of pages are cut at 64 bytes, so pages of long keys seem to overlap.
    let long = "k".repeat(if rng.random_bool(0.3) { 70 } else { 1 });
    format!("{long}{:02}", rng.random_range(0..60))
}

fn some_rows(rng: &mut StdRng) -> Vec<Row> {
    let count = rng.random_range(1..160);
    let mut rows: Vec<Row> = (0..count)
        .map(|version| (key(rng), version, rng.random_bool(0.8).then_some(version * 10)))
        .collect();
    rows.sort();
    rows
}

fn batch_of(rows: &[Row]) -> RecordBatch {
    let n: ArrayRef = Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>());
    let times = TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.1));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "UPSERT"))),
        Arc::new(StructArray::new(fields(), vec![n], None)),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "w-0"))),
        Arc::new(Int32Array::from(vec![0; rows.len()])),
        new_null_array(&DataType::Int64, rows.len()),
    ];
    RecordBatch::try_new(log_schema(&fields()), columns).unwrap()
}

fn properties(rng: &mut StdRng) -> WriterProperties {
    let key = ColumnPath::from(STATE_KEY);
    let mut builder = WriterProperties::builder()
        .set_write_batch_size(1)
        .set_data_page_row_count_limit(rng.random_range(1..7))
        .set_max_row_group_row_count(Some(rng.random_range(5..90)))
        .set_statistics_truncate_length(Some(64))
        .set_column_bloom_filter_enabled(key.clone(), rng.random_bool(0.5));
    if rng.random_bool(0.5) {
        builder = builder
            .set_column_dictionary_enabled(key.clone(), false)
            .set_column_encoding(key, Encoding::DELTA_BYTE_ARRAY);
    }
    builder.build()
}

async fn write(log: &Log, path: &str, rows: &[Row], rng: &mut StdRng) -> Arc<DataFile> {
    let batch = batch_of(rows);
    let mut writer =
        ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties(rng))).unwrap();
    writer.write(&batch).unwrap();
    let bytes = Bytes::from(writer.into_inner().unwrap());
    let add = FileAdd {
        path: path.to_owned(),
        size: bytes.len() as u64,
        partition: BTreeMap::new(),
        modified_ms: 0,
        data_change: true,
        stats: Some(crate::statistics(&batch).unwrap().to_string()),
        tags: BTreeMap::from([(TAG_SORTED.to_owned(), "true".to_owned())]),
    };
    log.table().put_new(path, bytes).await.unwrap();
    Arc::new(DataFile::uncommitted(add))
}

fn rows_of(batches: &[RecordBatch]) -> Vec<Row> {
    let mut rows = Vec::new();
    for batch in batches {
        let versions = batch.column(1).as_primitive::<Int64Type>();
        let values = batch.column(6).as_struct().column(0).as_primitive::<Int64Type>().clone();
        for (row, key) in batch.column(0).as_string::<i32>().iter().enumerate() {
            let value = values.is_valid(row).then(|| values.value(row));
            rows.push((key.unwrap().to_owned(), versions.value(row), value));
        }
    }
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_finds_the_rows_of_its_keys_whatever_the_pages_and_the_cache_are() {
    let storage = Storage::open("memory://", Durability::Os).unwrap();
    let settings = StateSettings { order_by: OrderBy::Version, ..Default::default() };
    let definition = StateDefinition::new(&fields(), settings).unwrap();
    let (log, _) = Log::create(&storage, "s", &definition, LogOptions::default()).await.unwrap();
    let payload = vec![value_field(&fields())];
    let (mut hits, mut evictions, mut sweeps, mut spilled) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let rows = some_rows(&mut rng);
        let file = write(&log, &format!("dt=2024-01-01/f-{seed}.parquet"), &rows, &mut rng).await;
        let footers = FooterCache::new(1 << 20);
        let budget = *[0, 20_000, 1 << 20].choose(&mut rng).unwrap();
        let spill_bytes = *[0, 200_000, 1 << 20].choose(&mut rng).unwrap();
        let pages = PageCache::spilling(budget, spill_bytes, std::env::temp_dir());
        for _ in 0..40 {
            let wanted: Vec<String> =
                (0..*[1, 3, 40].choose(&mut rng).unwrap()).map(|_| key(&mut rng)).collect();
            let max_version = rng.random_bool(0.3).then(|| rng.random_range(0..160));
            let keys = KeyFilter::keys(wanted.iter().cloned());
            let filter = RowFilter { keys, max_version, ..RowFilter::default() };
            let spec = ReadSpec { payload: payload.clone(), filter };
            let expected: Vec<Row> = rows
                .iter()
                .filter(|row| wanted.contains(&row.0) && max_version.is_none_or(|max| row.1 <= max))
                .cloned()
                .collect();
            let known = pages.stats();
            let found = read_keys(log.table(), &file, &spec, &footers, &pages).await.unwrap();
            assert_eq!(rows_of(&found), expected, "seed {seed}, {spec:?}");
            let streamed = read_file(log.table(), &file, &spec, &footers).await.unwrap();
            let streamed: Vec<RecordBatch> = streamed.try_collect().await.unwrap();
            assert_eq!(rows_of(&streamed), expected, "seed {seed}, {spec:?}");
            let stats = pages.stats();
            assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
            sweeps += u64::from(stats.misses > known.misses && stats.bytes == 0);
        }
        hits += pages.stats().hits;
        evictions += pages.stats().evictions;
        spilled += pages.stats().spill_hits;
    }
    let seen = [hits, evictions, sweeps, spilled];
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_of_a_key_is_what_a_lookup_finds_once_its_pages_are_in_memory() {
    let storage = Storage::open("memory://", Durability::Os).unwrap();
    let definition = StateDefinition::new(&fields(), StateSettings::default()).unwrap();
    let (log, _) = Log::create(&storage, "s", &definition, LogOptions::default()).await.unwrap();
    let payload = vec![value_field(&fields())];
    let schema = ReadSpec { payload: payload.clone(), filter: RowFilter::default() }.schema();
    let (mut found, mut absent, mut unread, mut spilled) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut rows = some_rows(&mut rng);
        // As in files of a snapshot, each key comes once.
        rows.dedup_by(|a, b| a.0 == b.0);
        let file = write(&log, &format!("dt=2024-01-02/f-{seed}.parquet"), &rows, &mut rng).await;
        let footers = FooterCache::new(1 << 20);
        let budget = *[0, 2_500, 1 << 20].choose(&mut rng).unwrap();
        let spill_bytes = *[0, 200_000, 1 << 20].choose(&mut rng).unwrap();
        let pages = PageCache::spilling(budget, spill_bytes, std::env::temp_dir());
        let known_file = LookupFile::new(log.table(), &file);
        for _ in 0..600 {
            let key = key(&mut rng);
            let expected = rows.iter().find(|row| row.0 == key);
            match known_file.known_row(&key, &schema, &footers, &pages) {
                KnownRow::Unread => {
                    unread += 1;
                    let keys = KeyFilter::keys([key]);
                    let filter = RowFilter { keys, ..RowFilter::default() };
                    let spec = ReadSpec { payload: payload.clone(), filter };
                    read_keys(log.table(), &file, &spec, &footers, &pages).await.unwrap();
                }
                KnownRow::Absent => {
                    absent += 1;
                    assert_eq!(expected, None, "seed {seed}, {key}");
                }
                KnownRow::At(page, row) => {
                    found += 1;
                    let rows = rows_of(&[page.slice(row, 1)]);
                    assert_eq!(rows.first(), expected, "seed {seed}, {key}");
                }
            }
        }
        spilled += pages.stats().spill_hits;
    }
    let seen = [found, absent, unread, spilled];
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_decoded_anew_when_the_state_has_more_fields() {
    let storage = Storage::open("memory://", Durability::Os).unwrap();
    let definition = StateDefinition::new(&fields(), StateSettings::default()).unwrap();
    let (log, _) = Log::create(&storage, "s", &definition, LogOptions::default()).await.unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let rows = vec![("a".to_owned(), 1, Some(10))];
    let file = write(&log, "dt=2024-01-01/f.parquet", &rows, &mut rng).await;
    let (footers, pages) = (FooterCache::new(1 << 20), PageCache::new(1 << 20));
    let grown: Fields =
        fields().iter().cloned().chain([Arc::new(Field::new("m", DataType::Utf8, true))]).collect();
    for fields in [&fields(), &grown, &fields()] {
        let filter = RowFilter { keys: KeyFilter::keys(["a".to_owned()]), ..RowFilter::default() };
        let spec = ReadSpec { payload: vec![value_field(fields)], filter };
        let found = read_keys(log.table(), &file, &spec, &footers, &pages).await.unwrap();
        assert_eq!(found[0].schema(), spec.schema());
        assert_eq!(rows_of(&found), rows);
    }
    assert_eq!(pages.stats().hits, 0);
}
