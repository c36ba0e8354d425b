//! The one place of this crate that names `deltalake` types: encoding and decoding commits, loading a table whose
//! log has checkpoints, and writing checkpoints.

mod read;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{Schema, SchemaRef};
use bytes::Bytes;
use deltalake_core::DeltaTable;
use deltalake_core::kernel::engine::arrow_conversion::{TryIntoArrow, TryIntoKernel};
use deltalake_core::kernel::{
    Action as DeltaAction, Add, CommitInfo as DeltaCommitInfo, EagerSnapshot, Metadata,
    Protocol as DeltaProtocol, Remove, StructType, Transaction,
};
use deltalake_core::logstore::{LogStoreRef, StorageConfig, default_logstore, get_actions};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::{Value, json};

use super::model::{Action, CommitInfo, FileAdd, FileRemove, Protocol, TableMetadata};
use crate::checksum::{NO_SUM, SUM_ENTRY, check_text, checkpoint_note, is_noted, seal_text};
use crate::error::{Error, ErrorKind, Result};

/// Features of other writers that do not change what a file's rows are.
const SUPPORTED_FEATURES: &[&str] = &[
    "appendOnly",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "checkConstraints",
    "generatedColumns",
];

/// The runtime of `deltalake`'s own machinery, which blocks inside async functions and needs several threads.
static RUNTIME: LazyLock<std::io::Result<tokio::runtime::Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("alluvium-delta")
        .enable_all()
        .build()
});

async fn on_delta_runtime<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: std::future::Future<Output = Result<T>> + Send + 'static,
{
    let runtime = RUNTIME.as_ref().map_err(|error| {
        Error::internal(format!("the runtime for Delta checkpoints could not start: {error}"))
    })?;
    runtime
        .spawn(work)
        .await
        .map_err(|error| Error::internal("a Delta task was aborted").with_source(error))?
}

fn delta_error(error: deltalake_core::DeltaTableError, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what.to_owned()).with_source(error)
}

/// A table's files, schema and protocol, as a checkpoint and the commits after it say.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) version: i64,
    pub(super) metadata: TableMetadata,
    pub(super) protocol: Protocol,
    pub(super) files: Vec<FileAdd>,
    pub(super) transactions: Vec<(String, i64)>,
    /// Whether these are all that there are.
    pub(super) has_all_transactions: bool,
}

/// A table as `deltalake` sees it.
#[derive(Debug, Clone)]
pub(super) struct DeltaAccess {
    root: Arc<dyn ObjectStore>,
    table: Path,
}

impl DeltaAccess {
    pub(super) fn new(root: Arc<dyn ObjectStore>, table: Path) -> Self {
        Self { root, table }
    }

    fn log_store(&self) -> Result<LogStoreRef> {
        // The scheme is our own, so that paths are taken as they are and never as places of the local disk.
        let url = url::Url::parse(&format!("alluvium:///{}/", self.table))
            .map_err(|error| Error::internal("a table's URL").with_source(error))?;
        let prefixed: Arc<dyn ObjectStore> =
            Arc::new(PrefixStore::new(self.root.clone(), self.table.clone()));
        Ok(default_logstore(prefixed, self.root.clone(), &url, &StorageConfig::default()))
    }

    fn log_file(&self, name: &str) -> Path {
        Path::from(format!("{}/_delta_log/{name}", self.table))
    }

    /// A file of the log folder; `None` when it isn't there.
    async fn read_log_file(&self, name: &str) -> Result<Option<Bytes>> {
        match self.root.get(&self.log_file(name)).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The checkpoint of a version, checked by what is noted beside it; `None` where it is not one file.
    async fn read_checked(&self, version: i64) -> Result<Option<Bytes>> {
        let names = (checkpoint_name(version), note_name(version));
        let (bytes, note) =
            futures::try_join!(self.read_log_file(&names.0), self.read_log_file(&names.1))?;
        let (Some(bytes), Some(note)) = (&bytes, note) else { return Ok(bytes) };
        match is_noted(version, &note, bytes) {
            Some(true) => {}
            Some(false) => return Err(damaged_checkpoint(version)),
            None => {
                tracing::warn!(table = %self.table, version, "the checksum of a checkpoint is damaged, so it is not checked");
            }
        }
        Ok(Some(bytes.clone()))
    }

    /// Loads the version of a checkpoint by a single pass over its file; `None` where that is of another kind or can't be read so.
    ///
    /// # Errors
    /// The file is not the one that was written.
    pub(super) async fn load_checkpoint(&self, version: i64) -> Result<Option<Loaded>> {
        let Some(bytes) = self.read_checked(version).await? else { return Ok(None) };
        let reading = tokio::task::spawn_blocking(move || read::read_checkpoint(version, bytes));
        match reading.await {
            Ok(Ok(loaded)) => Ok(loaded),
            Ok(Err(error)) => {
                // `deltalake` tells what is wrong with it, if anything is.
                tracing::debug!(table = %self.table, version, %error, "a checkpoint can't be read in one pass");
                Ok(None)
            }
            Err(error) => Err(damaged_checkpoint(version).with_source(error)),
        }
    }

    /// Puts a checkpoint that is damaged out of the way of whoever reads the log, under a name that nobody looks for, with the hint
    /// that may point to it; gives its new name.
    pub(super) async fn set_checkpoint_aside(&self, version: i64) -> Result<Path> {
        let from = self.log_file(&checkpoint_name(version));
        let to = self.log_file(&format!("{}.damaged", checkpoint_name(version)));
        self.root.copy(&from, &to).await?;
        // The hint first: one that points to nothing is worse than none.
        for path in [self.log_file(POINTER), self.log_file(&note_name(version)), from] {
            match self.root.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(to)
    }

    /// Whether the checkpoint of a version is the one that was written, as far as can be told.
    async fn is_checkpoint_whole(&self, version: i64) -> Result<bool> {
        match self.read_checked(version).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Loads the newest version, or the one given, with the progress of some applications.
    pub(super) async fn load(&self, version: Option<i64>, app_ids: &[String]) -> Result<Loaded> {
        let (access, app_ids) = (self.clone(), app_ids.to_vec());
        on_delta_runtime(async move { access.load_here(version, app_ids).await }).await
    }

    async fn load_here(&self, version: Option<i64>, app_ids: Vec<String>) -> Result<Loaded> {
        let snapshot = self.snapshot(version).await?;
        let log_store = self.log_store()?;
        let views: Vec<_> = snapshot
            .file_views(log_store.as_ref(), None)
            .try_collect()
            .await
            .map_err(|error| delta_error(error, "the table's files could not be listed"))?;
        // The replacement that the deprecation names is private to `deltalake`.
        #[allow(deprecated)]
        let files = views
            .into_iter()
            .map(|view| {
                if view.deletion_vector_descriptor().is_some() {
                    return Err(deletion_vector(&view.path()));
                }
                Ok(from_add(view.add_action()))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut transactions = Vec::new();
        for app_id in app_ids {
            let last = snapshot.transaction_version(log_store.as_ref(), &app_id).await.map_err(
                |error| delta_error(error, "an application's progress could not be read"),
            )?;
            transactions.extend(last.map(|last| (app_id, last)));
        }
        Ok(Loaded {
            transactions,
            has_all_transactions: false,
            version: version_of(snapshot.version())?,
            metadata: from_metadata(snapshot.metadata())?,
            protocol: from_protocol(snapshot.protocol())?,
            files,
        })
    }

    async fn snapshot(&self, version: Option<i64>) -> Result<EagerSnapshot> {
        let log_store = self.log_store()?;
        let wanted = version
            .map(|v| u64::try_from(v).map_err(|_| Error::invalid(format!("no commit {v}"))))
            .transpose()?;
        EagerSnapshot::try_new(log_store.as_ref(), wanted)
            .await
            .map_err(|error| delta_error(error, "the Delta log could not be read"))
    }

    /// The last number of an application at a version.
    pub(super) async fn transaction(&self, version: i64, app_id: String) -> Result<Option<i64>> {
        let access = self.clone();
        on_delta_runtime(async move {
            let snapshot = access.snapshot(Some(version)).await?;
            let log_store = access.log_store()?;
            snapshot
                .transaction_version(log_store.as_ref(), app_id)
                .await
                .map_err(|error| delta_error(error, "an application's progress could not be read"))
        })
        .await
    }

    /// Writes a checkpoint of a version, and its checksum beside it; `before` is the one that there is.
    pub(super) async fn checkpoint(&self, before: i64, version: i64) -> Result<()> {
        if !self.is_checkpoint_whole(before).await? {
            // The new one would be made of what is wrong in it.
            let aside = self.set_checkpoint_aside(before).await?;
            tracing::warn!(table = %self.table, %aside, "a damaged checkpoint is set aside and made anew");
        }
        self.write_checkpoint(version).await?;
        let name = checkpoint_name(version);
        let Some(bytes) = self.read_log_file(&name).await? else { return Ok(()) };
        let note = checkpoint_note(version, &bytes);
        self.root.put(&self.log_file(&note_name(version)), note.into()).await?;
        Ok(())
    }

    async fn write_checkpoint(&self, version: i64) -> Result<()> {
        match self.write_checkpoint_after_hint(version).await {
            Err(error) if self.has_stale_hint().await? => {
                tracing::warn!(table = %self.table, %error, "the hint of the newest checkpoint names none that is there; it is removed");
                match self.root.delete(&self.log_file(POINTER)).await {
                    Err(object_store::Error::NotFound { .. }) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                self.write_checkpoint_after_hint(version).await
            }
            written => written,
        }
    }

    /// Whether there is a hint, and it can't be read or names a checkpoint of one file that is gone.
    async fn has_stale_hint(&self) -> Result<bool> {
        let Some(hint) = self.read_log_file(POINTER).await? else { return Ok(false) };
        let hint: Option<Value> = serde_json::from_slice(&hint).ok();
        let Some(version) = hint.as_ref().and_then(|hint| hint.get("version")?.as_i64()) else {
            return Ok(true);
        };
        let has_parts = hint.is_some_and(|hint| hint.get("parts").is_some_and(|of| !of.is_null()));
        match self.root.head(&self.log_file(&checkpoint_name(version))).await {
            Ok(_) => Ok(false),
            Err(object_store::Error::NotFound { .. }) => Ok(!has_parts),
            Err(error) => Err(error.into()),
        }
    }

    /// deltalake begins with the hint, and fails where that leads to nothing.
    async fn write_checkpoint_after_hint(&self, version: i64) -> Result<()> {
        let access = self.clone();
        on_delta_runtime(async move {
            let mut table = DeltaTable::new(access.log_store()?);
            let wanted =
                u64::try_from(version).map_err(|_| Error::internal("a negative version"))?;
            let failed = |error| delta_error(error, "a checkpoint could not be written");
            table.load_version(wanted).await.map_err(failed)?;
            deltalake_core::checkpoints::create_checkpoint(&table, None).await.map_err(failed)
        })
        .await
    }
}

/// The hint where to begin reading.
pub(super) const POINTER: &str = "_last_checkpoint";

fn checkpoint_name(version: i64) -> String {
    format!("{version:020}.checkpoint.parquet")
}

/// The file that tells the checksum of a checkpoint.
fn note_name(version: i64) -> String {
    format!("{version:020}.alluvium.json")
}

fn damaged_checkpoint(version: i64) -> Error {
    Error::corrupt(format!(
        "the checkpoint {} is damaged: it is not the one that was written; restore it from a copy, or run alluvium repair",
        checkpoint_name(version)
    ))
}

fn version_of(version: u64) -> Result<i64> {
    i64::try_from(version).map_err(|_| Error::corrupt("a Delta version beyond 2^63"))
}

fn deletion_vector(path: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{path} has a deletion vector: another engine deleted or updated rows of a table whose rows never change; \
             restore the table to the version before"
        ),
    )
}

/// Encodes the actions of a commit, one JSON line each, with a sum of the whole text in the first line.
pub(super) fn encode(version: i64, actions: &[Action]) -> Result<Bytes> {
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
pub(super) fn decode(version: i64, bytes: &Bytes) -> Result<Vec<Action>> {
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

fn from_add(add: Add) -> FileAdd {
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
fn from_protocol(protocol: &DeltaProtocol) -> Result<Protocol> {
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

fn from_metadata(metadata: &Metadata) -> Result<TableMetadata> {
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
