//! Reading a checkpoint that is one Parquet file, which is what most are: a single pass over the columns that count.
//!
//! `deltalake` lists the log, plans a replay, and reads the checkpoint again for each application's progress; that is most of
//! what opening a table costs. What is not understood here is left to it.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, MapArray, RecordBatch, StringArray, StructArray,
};
use arrow::compute::{filter, is_not_null, or};
use arrow::datatypes::{Int64Type, Schema};
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use bytes::Bytes;
use deltalake_core::kernel::{Add, Metadata, Protocol, Transaction};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowPredicateFn, ParquetRecordBatchReaderBuilder, RowFilter};
use parquet::schema::types::SchemaDescriptor;
use serde::de::DeserializeOwned;

use super::actions::{deletion_vector, from_add, from_metadata, from_protocol};
use super::{FileAdd, Loaded};
use crate::error::{Error, Result};

const ACTIONS: [&str; 4] = ["add", "txn", "metaData", "protocol"];
/// Fields of them that nobody asks for: each costs a look at every row, whatever it holds.
const UNREAD: [&str; 4] =
    ["baseRowId", "defaultRowCommitVersion", "clusteringProvider", "lastUpdated"];
/// A field of each action that every row has which holds one.
const TELLING: [(&str, &str); 5] = [
    ("add", "path"),
    ("txn", "appId"),
    ("metaData", "id"),
    ("protocol", "minReaderVersion"),
    (SIDECAR, "path"),
];
const BATCH_ROWS: usize = 8_192;
/// Names files that hold a part of the checkpoint.
const SIDECAR: &str = "sidecar";

/// What a checkpoint of a version says; `None` when it is of a kind that this doesn't read.
pub(super) fn read_checkpoint(version: i64, bytes: Bytes) -> Result<Option<Loaded>> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
    let columns = builder.parquet_schema().columns();
    let parts = |leaf: usize| columns[leaf].path().parts();
    let counts = |leaf: &usize| match parts(*leaf) {
        [action, field, ..] if action == SIDECAR => field == "path",
        [action, field, ..] => {
            // The same twice: as text, and as columns.
            let is_twice = field.ends_with("_parsed");
            ACTIONS.contains(&action.as_str()) && !is_twice && !UNREAD.contains(&field.as_str())
        }
        _ => false,
    };
    let leaves: Vec<usize> = (0..columns.len()).filter(counts).collect();
    let mask = ProjectionMask::leaves(builder.parquet_schema(), leaves.iter().copied());
    let builder = match rows_with_actions(builder.parquet_schema(), &leaves) {
        Some(filter) => builder.with_row_filter(filter),
        None => builder,
    };
    let (mut adds, mut transactions) = (Vec::new(), Vec::new());
    let (mut metadata, mut protocols) = (Vec::new(), Vec::new());
    for batch in builder.with_projection(mask).with_batch_size(BATCH_ROWS).build()? {
        let batch = batch?;
        let sidecars = batch.column_by_name(SIDECAR);
        if sidecars.is_some_and(|sidecars| sidecars.null_count() < sidecars.len()) {
            return Ok(None);
        }
        adds.extend(files_of(&batch)?);
        transactions.extend(actions_of::<Transaction>(&batch, "txn")?);
        metadata.extend(actions_of::<Metadata>(&batch, "metaData")?);
        protocols.extend(actions_of::<Protocol>(&batch, "protocol")?);
    }
    let ([metadata], [protocol]) = (metadata.as_slice(), protocols.as_slice()) else {
        return Ok(None);
    };
    Ok(Some(Loaded {
        version,
        metadata: from_metadata(metadata)?,
        protocol: from_protocol(protocol)?,
        files: adds,
        transactions: transactions.into_iter().map(|txn| (txn.app_id, txn.version)).collect(),
        has_all_transactions: true,
    }))
}

/// The rows that hold one of the actions that count, told by one leaf of each. Most rows of a busy table's checkpoint are files that
/// were removed within the last week: to look at them in every column takes most of the time.
fn rows_with_actions(schema: &SchemaDescriptor, leaves: &[usize]) -> Option<RowFilter> {
    let parts = |leaf: usize| schema.columns()[leaf].path().parts();
    let tells = |leaf: &usize| match parts(*leaf) {
        [action, field] => TELLING.contains(&(action.as_str(), field.as_str())),
        _ => false,
    };
    let telling: Vec<usize> = leaves.iter().copied().filter(tells).collect();
    let is_told =
        |leaf: &usize| telling.iter().any(|telling| parts(*telling)[0] == parts(*leaf)[0]);
    if !leaves.iter().all(is_told) {
        return None;
    }
    let holds_any = |batch: RecordBatch| {
        let none = BooleanArray::from(vec![false; batch.num_rows()]);
        batch.columns().iter().try_fold(none, |any, action| or(&any, &is_not_null(action)?))
    };
    let mask = ProjectionMask::leaves(schema, telling.iter().copied());
    Some(RowFilter::new(vec![Box::new(ArrowPredicateFn::new(mask, holds_any))]))
}

/// The files that a batch adds.
fn files_of(batch: &RecordBatch) -> Result<Vec<FileAdd>> {
    let files =
        batch.column_by_name("add").and_then(|adds| adds.as_struct_opt()).and_then(plain_files);
    if let Some(files) = files {
        return Ok(files);
    }
    let file = |add: Add| match add.deletion_vector {
        Some(_) => Err(deletion_vector(&add.path)),
        None => Ok(from_add(add)),
    };
    actions_of::<Add>(batch, "add")?.into_iter().map(file).collect()
}

/// The files, straight from columns of the usual types; `None` where there is anything else, or a file that is more than
/// rows and facts about them. Most of what a checkpoint holds is files, and to make each a text first takes longest.
fn plain_files(adds: &StructArray) -> Option<Vec<FileAdd>> {
    let column = |name: &str| adds.column_by_name(name);
    let (paths, stats) =
        (column("path")?.as_string_opt::<i32>()?, column("stats")?.as_string_opt::<i32>()?);
    let sizes = column("size")?.as_primitive_opt::<Int64Type>()?;
    let times = column("modificationTime")?.as_primitive_opt::<Int64Type>()?;
    let changes = column("dataChange")?.as_boolean_opt()?;
    let partitions = Facts::of(column("partitionValues")?)?;
    let tags = column("tags").map(Facts::of);
    let tags = match tags {
        Some(tags) => Some(tags?),
        None => None,
    };
    let vectors = column("deletionVector");
    let mut files = Vec::new();
    for row in (0..adds.len()).filter(|&row| adds.is_valid(row)) {
        let is_whole =
            [paths.is_valid(row), sizes.is_valid(row), times.is_valid(row), changes.is_valid(row)];
        let is_cut = vectors.is_some_and(|vectors| vectors.is_valid(row));
        if is_whole.contains(&false) || is_cut {
            return None;
        }
        let tags = tags.as_ref().map(|tags| tags.row(row)).unwrap_or_default();
        files.push(FileAdd {
            path: decoded(paths.value(row))?,
            size: u64::try_from(sizes.value(row)).unwrap_or_default(),
            partition: partitions.row(row).into_iter().collect(),
            modified_ms: times.value(row),
            data_change: changes.value(row),
            stats: stats.is_valid(row).then(|| stats.value(row).to_owned()),
            tags: tags.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        });
    }
    Some(files)
}

/// A path as it is, of one as it is stored.
fn decoded(path: &str) -> Option<String> {
    if !path.contains('%') {
        return Some(path.to_owned());
    }
    // `deltalake` keeps its decoding to itself, but for whole actions.
    let action = serde_json::json!({
        "path": path, "size": 0, "modificationTime": 0, "dataChange": true, "partitionValues": {},
    });
    serde_json::from_value::<Add>(action).ok().map(|add| add.path)
}

/// A column of maps of texts.
struct Facts<'a> {
    maps: &'a MapArray,
    names: &'a StringArray,
    values: &'a StringArray,
}

impl<'a> Facts<'a> {
    fn of(column: &'a ArrayRef) -> Option<Self> {
        let maps = column.as_map_opt()?;
        let (names, values) = (maps.keys().as_string_opt()?, maps.values().as_string_opt()?);
        Some(Self { maps, names, values })
    }

    fn row(&self, row: usize) -> Vec<(String, Option<String>)> {
        let offsets = self.maps.value_offsets();
        let place = |at: usize| usize::try_from(offsets[at]).unwrap_or_default();
        let value = |at: usize| self.values.is_valid(at).then(|| self.values.value(at).to_owned());
        match self.maps.is_valid(row) {
            true => (place(row)..place(row + 1))
                .map(|at| (self.names.value(at).to_owned(), value(at)))
                .collect(),
            false => Vec::new(),
        }
    }
}

/// The actions of one kind in a batch, where each row is an action of some kind.
fn actions_of<T: DeserializeOwned>(batch: &RecordBatch, name: &str) -> Result<Vec<T>> {
    let unreadable = || Error::corrupt(format!("the checkpoint's {name} can't be read"));
    let Some(column) = batch.column_by_name(name) else { return Ok(Vec::new()) };
    if column.null_count() == column.len() {
        return Ok(Vec::new());
    }
    let present = filter(column, &is_not_null(column)?)?;
    let whole = present.as_struct_opt().ok_or_else(unreadable)?.clone();
    let (fields, columns, _) = whole.into_parts();
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
    // With nulls, so that a partition value that is null stays one.
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    let mut writer = builder.build::<_, LineDelimited>(Vec::new());
    writer.write(&rows)?;
    writer.finish()?;
    let lines = writer.into_inner();
    serde_json::Deserializer::from_slice(&lines)
        .into_iter()
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| unreadable().with_source(error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use arrow::datatypes::{DataType, Field};

    use super::super::super::{
        Action, Attempt, FileAdd, FileRemove, FileStats, Protocol, Table, TableMetadata, TableState,
    };
    use super::*;
    use crate::clock::SystemClock;
    use crate::storage::{Durability, Storage};

    fn add(n: i64) -> FileAdd {
        let tags = match n % 3 {
            0 => BTreeMap::new(),
            _ => BTreeMap::from([("alluvium.commit".to_owned(), n.to_string())]),
        };
        FileAdd {
            path: match n % 3 {
                0 => format!("dt=2024-01-01/part {n}%25 ü.parquet"),
                _ => format!("dt=2024-01-01/part-{n}.parquet"),
            },
            size: 7 * n as u64,
            partition: BTreeMap::from([(
                "dt".to_owned(),
                (n % 4 != 0).then(|| "2024-01-01".to_owned()),
            )]),
            modified_ms: n,
            data_change: true,
            stats: (n % 2 == 0).then(|| format!(r#"{{"numRecords":{n},"minValues":{{"a":{n}}}}}"#)),
            tags,
        }
    }

    fn remove(n: i64) -> FileRemove {
        let FileAdd { path, size, partition, .. } = add(n);
        FileRemove { path, size: Some(size), partition, removed_ms: 5, data_change: true }
    }

    async fn commit(table: &Table, actions: Vec<Action>) {
        let write = |_: &TableState, _| Ok(Attempt::<()>::Write(actions.clone()));
        table.commit("WRITE", None, BTreeMap::new(), write).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_pass_over_a_checkpoint_tells_what_deltalake_does() {
        let storage = Storage::open("memory://", Durability::Os).unwrap();
        let fields =
            vec![Field::new("a", DataType::Int64, true), Field::new("dt", DataType::Utf8, true)];
        let metadata = TableMetadata {
            id: "one".to_owned(),
            schema: Arc::new(Schema::new(fields)),
            partition_columns: vec!["dt".to_owned()],
            properties: BTreeMap::from([("alluvium.x".to_owned(), "1".to_owned())]),
            created_ms: Some(3),
        };
        let protocol = Protocol { reader: 1, writer: 2, features: Vec::new() };
        let clock = Arc::new(SystemClock);
        let table = Table::create(&storage, "t", clock, protocol, metadata, &[]).await.unwrap();
        let table = table.unwrap();
        let now = chrono::Utc::now().timestamp_millis();
        for n in 1..30 {
            let txn = Action::Transaction { app_id: format!("app {}", n % 5), version: n };
            let mut actions = vec![Action::Add(Arc::new(add(n))), txn];
            if n % 7 == 0 {
                let removed = FileRemove { removed_ms: now, ..remove(n - 1) };
                actions.push(Action::Remove(removed));
            }
            commit(&table, actions).await;
        }
        assert!(table.access.load_checkpoint(29).await.unwrap().is_none(), "there is none yet");
        assert!(table.checkpoint().await.unwrap());
        let apps: Vec<String> = (0..5).map(|n| format!("app {n}")).collect();
        let mut expected = table.access.load(Some(29), &apps).await.unwrap();
        let mut found = table.access.load_checkpoint(29).await.unwrap().unwrap();
        assert!(found.has_all_transactions);
        found.has_all_transactions = false;
        for loaded in [&mut expected, &mut found] {
            loaded.files.sort_by(|a, b| a.path.cmp(&b.path));
            for file in &mut loaded.files {
                // `deltalake` writes them anew, with what is missing as empty.
                let stats = FileStats::parse(file.stats.as_deref(), true);
                file.stats = Some(format!("{stats:?}"));
            }
            loaded.transactions.sort();
        }
        assert_eq!(found.files.len(), 25);
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }
}
