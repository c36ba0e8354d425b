//! Commits and their actions, ours as Delta's and Delta's as ours.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use bytes::Bytes;
use deltalake_core::kernel::engine::arrow_conversion::{TryIntoArrow, TryIntoKernel};
use deltalake_core::kernel::{
    Action as DeltaAction, Add, CommitInfo as DeltaCommitInfo, Metadata, Protocol as DeltaProtocol,
    Remove, StructType, Transaction,
};
use deltalake_core::logstore::get_actions;
use serde_json::{Value, json};

use super::delta_error;
use crate::checksum::{NO_SUM, SUM_ENTRY, check_text, seal_text};
use crate::error::{Error, ErrorKind, Result};
use crate::table::model::{Action, CommitInfo, FileAdd, FileRemove, Protocol, TableMetadata};

/// Features of other writers that do not change what a file's rows are.
const SUPPORTED_FEATURES: &[&str] = &[
    "appendOnly",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "checkConstraints",
    "generatedColumns",
];

/// Encodes the actions of a commit, one JSON line each, with a sum of the whole text in the first line.
pub(in crate::table) fn encode(version: i64, actions: &[Action]) -> Result<Bytes> {
    let mut out = Vec::with_capacity(512 * actions.len());
    for action in actions {
        let line = to_delta(action)?;
        serde_json::to_writer(&mut out, &line)
            .map_err(|error| Error::internal("a commit could not be encoded").with_source(error))?;
        out.push(b'\n');
    }
    seal_text(version.unsigned_abs(), &mut out);
    Ok(out.into())
}

/// Decodes a commit.
pub(in crate::table) fn decode(version: i64, bytes: &Bytes) -> Result<Vec<Action>> {
    let wanted = u64::try_from(version).map_err(|_| Error::internal("a negative version"))?;
    let torn = |error| {
        delta_error(
            error,
            &format!(
                "commit {version} ({version:020}.json) is torn or not a Delta commit: restore it from a copy, or run alluvium repair"
            ),
        )
    };
    if check_text(wanted, bytes) == Some(false) {
        return Err(Error::corrupt(format!(
            "commit {version} ({version:020}.json) is damaged: its text is not the one that was written; restore it from a copy, or run alluvium repair"
        )));
    }
    let actions = get_actions(wanted, bytes).map_err(torn)?;
    if actions.is_empty() {
        return Err(Error::corrupt(format!(
            "commit {version} ({version:020}.json) is torn: it is empty; restore it from a copy, or run alluvium repair"
        )));
    }
    let mut out = Vec::with_capacity(actions.len());
    for action in actions {
        if let Some(action) = from_delta(action)? {
            out.push(action);
        }
    }
    Ok(out)
}

fn to_delta(action: &Action) -> Result<DeltaAction> {
    Ok(match action {
        Action::Info(info) => {
            let note = if info.note.is_empty() {
                HashMap::new()
            } else {
                let mut note = info.note.clone();
                note.insert(SUM_ENTRY.to_owned(), json!(NO_SUM));
                HashMap::from([("alluvium".to_owned(), json!(note))])
            };
            DeltaAction::CommitInfo(DeltaCommitInfo {
                timestamp: info.timestamp_ms,
                operation: Some(info.operation.clone()),
                operation_parameters: Some(HashMap::new()),
                is_blind_append: info.blind_append,
                engine_info: Some(concat!("alluvium:", env!("CARGO_PKG_VERSION")).to_owned()),
                info: note,
                ..Default::default()
            })
        }
        Action::Protocol(protocol) => DeltaAction::Protocol(to_protocol(protocol)?),
        Action::Metadata(metadata) => DeltaAction::Metadata(to_metadata(metadata)?),
        Action::Transaction { app_id, version } => {
            DeltaAction::Txn(Transaction::new(app_id, *version))
        }
        Action::Add(add) => DeltaAction::Add(to_add(add)?),
        Action::Remove(remove) => DeltaAction::Remove(to_remove(remove)?),
    })
}

fn from_delta(action: DeltaAction) -> Result<Option<Action>> {
    Ok(match action {
        DeltaAction::CommitInfo(info) => {
            let note = match info.info.get("alluvium") {
                Some(Value::Object(map)) => {
                    map.clone().into_iter().filter(|(name, _)| name != SUM_ENTRY).collect()
                }
                _ => BTreeMap::new(),
            };
            Some(Action::Info(CommitInfo {
                timestamp_ms: info.in_commit_timestamp.or(info.timestamp),
                operation: info.operation.unwrap_or_default(),
                blind_append: info.is_blind_append,
                note,
            }))
        }
        DeltaAction::Protocol(protocol) => Some(Action::Protocol(from_protocol(&protocol)?)),
        DeltaAction::Metadata(metadata) => Some(Action::Metadata(from_metadata(&metadata)?)),
        DeltaAction::Txn(txn) => {
            Some(Action::Transaction { app_id: txn.app_id, version: txn.version })
        }
        DeltaAction::Add(add) => {
            if add.deletion_vector.is_some() {
                return Err(deletion_vector(&add.path));
            }
            Some(Action::Add(Arc::new(from_add(add))))
        }
        DeltaAction::Remove(remove) => Some(Action::Remove(FileRemove {
            path: remove.path,
            size: remove.size.and_then(|size| u64::try_from(size).ok()),
            partition: remove.partition_values.unwrap_or_default().into_iter().collect(),
            removed_ms: remove.deletion_timestamp.unwrap_or_default(),
            data_change: remove.data_change,
        })),
        DeltaAction::Cdc(_) | DeltaAction::DomainMetadata(_) => None,
    })
}

fn byte_count(size: u64) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::internal("a file beyond 2^63 bytes"))
}

fn to_add(add: &FileAdd) -> Result<Add> {
    Ok(Add {
        path: add.path.clone(),
        partition_values: add.partition.clone().into_iter().collect(),
        size: byte_count(add.size)?,
        modification_time: add.modified_ms,
        data_change: add.data_change,
        stats: add.stats.clone(),
        tags: Some(add.tags.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect()),
        ..Default::default()
    })
}

pub(super) fn from_add(add: Add) -> FileAdd {
    FileAdd {
        path: add.path,
        size: u64::try_from(add.size).unwrap_or_default(),
        partition: add.partition_values.into_iter().collect(),
        modified_ms: add.modification_time,
        data_change: add.data_change,
        stats: add.stats,
        tags: add
            .tags
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect(),
    }
}

fn to_remove(remove: &FileRemove) -> Result<Remove> {
    Ok(Remove {
        path: remove.path.clone(),
        data_change: remove.data_change,
        deletion_timestamp: Some(remove.removed_ms),
        extended_file_metadata: Some(true),
        partition_values: Some(remove.partition.clone().into_iter().collect()),
        size: remove.size.map(byte_count).transpose()?,
        ..Default::default()
    })
}

fn to_protocol(protocol: &Protocol) -> Result<DeltaProtocol> {
    let mut value = json!({
        "minReaderVersion": protocol.reader,
        "minWriterVersion": protocol.writer,
    });
    if protocol.reader >= 3 {
        value["readerFeatures"] = json!(protocol.features);
    }
    if protocol.writer >= 7 {
        value["writerFeatures"] = json!(protocol.features);
    }
    serde_json::from_value(value)
        .map_err(|error| Error::internal("a protocol could not be made").with_source(error))
}

/// Reads a protocol, refusing one that could make us misread or damage the table.
pub(super) fn from_protocol(protocol: &DeltaProtocol) -> Result<Protocol> {
    let value = serde_json::to_value(protocol)
        .map_err(|error| Error::corrupt("the table's protocol").with_source(error))?;
    let number = |name: &str| value[name].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    let mut features: Vec<String> = Vec::new();
    for name in ["readerFeatures", "writerFeatures"] {
        for feature in value[name].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !features.iter().any(|known| known == feature) {
                features.push(feature.to_owned());
            }
        }
    }
    if let Some(unknown) = features.iter().find(|f| !SUPPORTED_FEATURES.contains(&f.as_str())) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the table uses the Delta feature {unknown:?}, which this version does not support: \
                 another engine has turned it on"
            ),
        ));
    }
    Ok(Protocol {
        reader: number("minReaderVersion"),
        writer: number("minWriterVersion"),
        features,
    })
}

fn to_metadata(metadata: &TableMetadata) -> Result<Metadata> {
    let schema = delta_schema(&metadata.schema)?;
    let schema_string = serde_json::to_string(&schema)
        .map_err(|error| Error::internal("a schema could not be encoded").with_source(error))?;
    let value = json!({
        "id": metadata.id,
        "name": null,
        "description": null,
        "format": { "provider": "parquet", "options": {} },
        "schemaString": schema_string,
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.properties,
        "createdTime": metadata.created_ms,
    });
    serde_json::from_value(value)
        .map_err(|error| Error::internal("a table's metadata could not be made").with_source(error))
}

pub(super) fn from_metadata(metadata: &Metadata) -> Result<TableMetadata> {
    let unreadable = || Error::corrupt("the table's schema can't be read");
    let schema = metadata.parse_schema().map_err(|error| unreadable().with_source(error))?;
    let arrow: Schema =
        (&schema).try_into_arrow().map_err(|error| unreadable().with_source(error))?;
    Ok(TableMetadata {
        id: metadata.id().to_owned(),
        schema: Arc::new(arrow),
        partition_columns: metadata.partition_columns().to_vec(),
        properties: metadata.configuration().clone().into_iter().collect(),
        created_ms: metadata.created_time(),
    })
}

/// The Delta schema of Arrow columns; fails for types that Delta does not store.
fn delta_schema(schema: &SchemaRef) -> Result<StructType> {
    schema.as_ref().try_into_kernel().map_err(|error| {
        Error::new(ErrorKind::Unsupported, "the schema has a type that Delta tables can't store")
            .with_source(error)
    })
}

pub(super) fn deletion_vector(path: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{path} has a deletion vector: another engine deleted or updated rows of a table whose rows never change; \
             restore the table to the version before"
        ),
    )
}
