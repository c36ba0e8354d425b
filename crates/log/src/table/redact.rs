//! Taking the text of erased keys out of what a table's log says of files that are no longer part of it.
//!
//! Commits, checkpoints and what is derived from them carry bounds of the keys of each file, also of files that left the table
//! long ago. Nothing of the newest state is touched; of the others only bounds go, so that every version has the files that it had
//! and bounds that hold. A commit keeps its number, its id and all that it did: whoever reads it afterwards reads the same commit.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, MapArray, RecordBatch, StringArray, StructArray, new_null_array,
};
use arrow::datatypes::DataType;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use super::Table;
use super::delta::{DAMAGED_SUFFIX, checkpointed_version, version_in};
use super::state::TableState;
use super::vacuum::names_of;
use crate::checksum::{check_text, seal_text};
use crate::error::{Error, ErrorKind, Result};
use crate::read::{decode, decode_all};

/// Files of the log folder that are read at the same time.
const READ_CONCURRENCY: usize = 16;
/// How often a checkpoint is tried to be written.
const CHECKPOINT_ATTEMPTS: u32 = 4;
/// A bound is cut down to so many bytes or a few less, which are then text of the key too.
const CUT_BYTES: usize = 250;
/// Actions that say something of a file.
const ACTIONS: [&str; 2] = ["add", "remove"];

/// What must go.
struct Rules<'a> {
    keys: &'a [String],
    /// Where files lie that hold rows of the keys.
    holders: &'a HashSet<String>,
    state: Arc<TableState>,
    /// What a text has one of in which something may have to go; `None` where that can't be told from the text.
    needles: Option<Vec<String>>,
}

impl Table {
    /// Takes the keys out of the bounds that the log folder tells of files which are not part of the newest state, and all bounds
    /// of `holders` out of it; gives the paths of the files that were written anew or removed.
    pub async fn redact(&self, keys: &[String], holders: &HashSet<String>) -> Result<Vec<String>> {
        let _alone = self.cleaning.lock().await;
        let state = self.refresh().await?;
        let rules = Rules::new(keys, holders, state);
        let folder = Path::from("_delta_log");
        let listed: Vec<ObjectMeta> = self
            .store
            .list(Some(&folder))
            .try_collect()
            .await
            .map_err(|e| self.placed(e.into()))?;
        let names: HashSet<String> =
            listed.iter().map(|meta| meta.location.as_ref().to_owned()).collect();
        let rules = &rules;
        let mut reads = stream::iter(listed)
            .map(|meta| async move { self.redacted(&meta.location, rules).await }.boxed())
            .buffered(READ_CONCURRENCY);
        let mut changed = Vec::new();
        let mut is_first_checkpoint = true;
        while let Some(found) = reads.try_next().await? {
            let Some((path, redaction)) = found else { continue };
            match redaction {
                Redaction::Remove => self.remove_path(&path).await?,
                Redaction::Write(bytes) => {
                    let is_checkpoint = path.as_ref().ends_with(".parquet");
                    if is_checkpoint && std::mem::take(&mut is_first_checkpoint) {
                        // What points to the newest checkpoint tells its size too: let it be one that stays as it is.
                        self.checkpoint_past().await?;
                    }
                    // A checksum that Hadoop keeps beside a file would not fit any more.
                    if let Some(checksum) =
                        checksum_of(&path).filter(|sum| names.contains(sum.as_ref()))
                    {
                        self.remove_path(&checksum).await?;
                        changed.push(checksum.as_ref().to_owned());
                    }
                    self.put_sealed(&path, bytes).await?;
                }
            }
            changed.push(path.as_ref().to_owned());
        }
        drop(reads);
        self.remove_risen(&changed).await?;
        Ok(changed)
    }

    /// The checkpoints that were set aside because they are damaged.
    pub async fn damaged_checkpoints(&self) -> Result<Vec<String>> {
        let listing = self.store.list(Some(&Path::from("_delta_log")));
        let all: Vec<ObjectMeta> =
            listing.try_collect().await.map_err(|e| self.placed(e.into()))?;
        let paths = all.into_iter().map(|meta| meta.location.to_string());
        Ok(paths.filter(|path| path.ends_with(DAMAGED_SUFFIX)).collect())
    }

    /// Writes a checkpoint of the newest version, unless there is one.
    async fn checkpoint_past(&self) -> Result<()> {
        for attempt in 1.. {
            let newest = self.list_log().await?.checkpoints.last().copied();
            if newest >= Some(self.state().version) {
                break;
            }
            match self.checkpoint().await {
                // One that is being written holds a version at which the keys were gone, or is redacted by the next run.
                Ok(_) => break,
                // It begins with reading one, and another erase may just be writing that over.
                Err(error)
                    if attempt < CHECKPOINT_ATTEMPTS && error.kind() == ErrorKind::Corrupt =>
                {
                    tracing::debug!(table = %self.label, %error, "a checkpoint can't be written; trying again");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What has to become of a file of the log folder.
    async fn redacted(&self, path: &Path, rules: &Rules<'_>) -> Result<Option<(Path, Redaction)>> {
        let name = path.filename().unwrap_or_default();
        let is_parquet = name.ends_with(".parquet");
        let is_checksum = name.ends_with(".crc");
        if !is_parquet && !is_checksum && !name.ends_with(".json") {
            return Ok(None);
        }
        let read = match checkpointed_version(name) {
            Some(version) => self.access.read_checked(version).await.map_err(|e| self.placed(e))?,
            None => self.read_if_there(path).await?,
        };
        let Some(bytes) = read else { return Ok(None) };
        let redaction = if is_checksum {
            // It is of use to nobody without the commit, and nobody needs it.
            rules.may_change(&bytes).then_some(Redaction::Remove)
        } else if is_parquet {
            let place = path.clone();
            redact_checkpoint(bytes, rules)
                .map_err(|error| self.placed(error.context(place)))?
                .map(Redaction::Write)
        } else {
            let number = committed_version(name);
            let seed = number.unwrap_or(0).unsigned_abs();
            if number.is_some() && check_text(seed, &bytes) == Some(false) {
                return Err(self.placed(Error::corrupt(format!(
                    "{path} is damaged: its text is not the one that was written, so that no key can be taken out of it; restore it from a copy, or run alluvium repair"
                ))));
            }
            rules.redact_lines(seed, &bytes).map(Redaction::Write)
        };
        Ok(redaction.map(|redaction| (path.clone(), redaction)))
    }

    /// Writes a file over. Of a checkpoint the checksum beside it goes before, and comes after: one without is not checked.
    async fn put_sealed(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let Some(version) = path.filename().and_then(checkpointed_version) else {
            return self.put_over(path, bytes).await;
        };
        self.access.forget_note(version).await.map_err(|e| self.placed(e))?;
        self.put_over(path, bytes.clone()).await?;
        self.access.note_checkpoint(version, &bytes).await.map_err(|e| self.placed(e))
    }

    async fn put_over(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let options = PutOptions { mode: PutMode::Overwrite, ..PutOptions::default() };
        let put = self.store.put_opts(path, bytes.into(), options).await;
        put.map(drop).map_err(|e| self.placed(Error::from(e).context(format!("writing {path}"))))
    }

    async fn remove_path(&self, path: &Path) -> Result<()> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// Removes commits again that a clean-up elsewhere had removed before they were written anew.
    async fn remove_risen(&self, changed: &[String]) -> Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        let listing = self.list_log().await?;
        let Some(newest) = listing.newest() else { return Ok(()) };
        let first = listing.first_of_run(newest);
        for version in listing.commits.iter().copied().filter(|version| *version < first) {
            let path = super::commit_path(version);
            if changed.iter().any(|changed| changed == path.as_ref()) {
                self.remove_path(&path).await?;
            }
        }
        Ok(())
    }
}

enum Redaction {
    Write(Bytes),
    Remove,
}

/// The version of which a file of the log folder is the commit.
fn committed_version(name: &str) -> Option<i64> {
    version_in(name.strip_suffix(".json")?)
}

fn checksum_of(path: &Path) -> Option<Path> {
    let (folder, name) = path.as_ref().rsplit_once('/')?;
    Some(Path::from(format!("{folder}/.{name}.crc")))
}

impl<'a> Rules<'a> {
    fn new(keys: &'a [String], holders: &'a HashSet<String>, state: Arc<TableState>) -> Self {
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '/');
        let mut needles: Option<Vec<String>> = Some(Vec::new());
        for key in keys {
            // Others may write such a text in several ways.
            if key.is_empty() || !key.chars().all(is_plain) {
                needles = None;
            }
            let cut = key.get(..CUT_BYTES).unwrap_or(key).to_owned();
            needles.iter_mut().for_each(|needles| needles.push(cut.clone()));
        }
        for holder in holders {
            let name = holder.rsplit('/').next().unwrap_or(holder).to_owned();
            needles.iter_mut().for_each(|needles| needles.push(name.clone()));
        }
        Self { keys, holders, state, needles }
    }

    fn may_change(&self, bytes: &[u8]) -> bool {
        match (std::str::from_utf8(bytes), &self.needles) {
            (Ok(text), Some(needles)) => needles.iter().any(|needle| text.contains(needle)),
            _ => true,
        }
    }

    /// Whether a text is a key, or a key that was cut down.
    fn is_key(&self, text: &str) -> bool {
        self.keys.iter().any(|key| {
            key == text || (text.len() >= CUT_BYTES && key.as_bytes().starts_with(text.as_bytes()))
        })
    }

    fn has_key(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_key(text),
            Value::Array(values) => values.iter().any(|value| self.has_key(value)),
            Value::Object(fields) => fields.values().any(|value| self.has_key(value)),
            _ => false,
        }
    }

    /// The statistics that may stay of a file's; `None` when all may.
    fn reduced(&self, path: &str, stats: &str) -> Option<String> {
        if self.state.file(path).is_some() {
            return None;
        }
        let Ok(known) = serde_json::from_str::<Value>(stats) else {
            return Some("{}".to_owned());
        };
        let is_holder = names_of(path).any(|name| self.holders.contains(&name));
        // Other engines tell bounds of the value's fields too.
        let tells_values = known["minValues"].get(crate::STATE_VALUE).is_some()
            || known["maxValues"].get(crate::STATE_VALUE).is_some();
        let tells_bounds = !known["minValues"].is_null() || !known["maxValues"].is_null();
        if !(is_holder && tells_bounds || tells_values || self.has_key(&known)) {
            return None;
        }
        Some(match &known["numRecords"] {
            Value::Number(rows) => json!({ "numRecords": rows }).to_string(),
            _ => "{}".to_owned(),
        })
    }

    /// The lines of a commit with what must go gone, and with the sum of what is left; `None` when they are as they may be.
    fn redact_lines(&self, seed: u64, bytes: &Bytes) -> Option<Bytes> {
        if !self.may_change(bytes) {
            return None;
        }
        let mut out = Vec::with_capacity(bytes.len());
        let mut is_changed = false;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match self.redact_line(line) {
                Some(line) => {
                    is_changed = true;
                    out.extend_from_slice(line.as_bytes());
                    out.push(b'\n');
                }
                None => out.extend_from_slice(line),
            }
        }
        is_changed.then(|| {
            seal_text(seed, &mut out);
            out.into()
        })
    }

    fn redact_line(&self, line: &[u8]) -> Option<String> {
        let mut value: Value = serde_json::from_slice(line).ok()?;
        let mut is_changed = false;
        for name in ACTIONS {
            let Some(action) = value.get_mut(name).and_then(Value::as_object_mut) else { continue };
            let path = action.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
            let stats = action.get("stats").and_then(Value::as_str);
            if let Some(reduced) = stats.and_then(|stats| self.reduced(&path, stats)) {
                action.insert("stats".to_owned(), Value::String(reduced));
                is_changed = true;
            }
            let is_current = self.state.file(&path).is_some();
            for tag in action.get_mut("tags").and_then(Value::as_object_mut).into_iter().flatten() {
                if !is_current && self.has_key(tag.1) {
                    *tag.1 = Value::String(String::new());
                    is_changed = true;
                }
            }
        }
        is_changed.then(|| value.to_string())
    }
}

/// A checkpoint with what must go gone; `None` when it is as it may be.
fn redact_checkpoint(bytes: Bytes, rules: &Rules<'_>) -> Result<Option<Bytes>> {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder =
        decode(|| Ok(ParquetRecordBatchReaderBuilder::try_new_with_options(bytes, options)?))?;
    let schema = builder.schema().clone();
    let mut is_changed = false;
    let mut batches = Vec::new();
    for batch in decode_all(decode(|| Ok(builder.build()?))?, Error::from) {
        let batch = batch?;
        let mut columns = batch.columns().to_vec();
        for (column, field) in columns.iter_mut().zip(schema.fields()) {
            if ACTIONS.contains(&field.name().as_str())
                && let Some(actions) = column.as_struct_opt()
                && let Some(redacted) = redact_actions(actions, rules)?
            {
                *column = Arc::new(redacted);
                is_changed = true;
            }
        }
        batches.push(RecordBatch::try_new(schema.clone(), columns)?);
    }
    if !is_changed {
        return Ok(None);
    }
    let level = ZstdLevel::try_new(1)?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
    for batch in &batches {
        writer.write(batch)?;
    }
    Ok(Some(writer.into_inner()?.into()))
}

fn redact_actions(actions: &StructArray, rules: &Rules<'_>) -> Result<Option<StructArray>> {
    let text = |name: &str| actions.column_by_name(name).and_then(|c| c.as_string_opt::<i32>());
    let Some(paths) = text("path") else { return Ok(None) };
    let path_of = |row: usize| if paths.is_valid(row) { paths.value(row) } else { "" };
    let mut is_changed = false;
    let stats = text("stats").map(|stats| {
        let kept = (0..stats.len()).map(|row| {
            let known = stats.is_valid(row).then(|| stats.value(row))?;
            match rules.reduced(path_of(row), known) {
                Some(reduced) => {
                    is_changed = true;
                    Some(reduced)
                }
                None => Some(known.to_owned()),
            }
        });
        kept.collect::<StringArray>()
    });
    let tags = actions.column_by_name("tags").and_then(|column| column.as_map_opt());
    let tags = tags.and_then(|tags| {
        let is_current = |row: usize| rules.state.file(path_of(row)).is_some();
        redact_tags(tags, rules, &is_current)
    });
    is_changed |= tags.is_some();
    if !is_changed {
        return Ok(None);
    }
    let DataType::Struct(fields) = actions.data_type() else {
        return Err(Error::internal("the actions of a checkpoint are no struct"));
    };
    let columns = fields.iter().zip(actions.columns()).map(|(field, column)| -> ArrayRef {
        match (field.name().as_str(), &stats, &tags) {
            ("stats", Some(stats), _) => Arc::new(stats.clone()),
            ("tags", _, Some(tags)) => Arc::new(tags.clone()),
            // The same again, as columns: whoever reads it goes by the text where they are not there.
            ("stats_parsed", ..) => new_null_array(column.data_type(), column.len()),
            _ => column.clone(),
        }
    });
    Ok(Some(StructArray::try_new(fields.clone(), columns.collect(), actions.nulls().cloned())?))
}

/// Tags with the keys gone; `None` when there are none.
fn redact_tags(
    tags: &MapArray,
    rules: &Rules<'_>,
    is_current: &dyn Fn(usize) -> bool,
) -> Option<MapArray> {
    let values = tags.values().as_string_opt::<i32>()?;
    let mut doomed: HashSet<usize> = HashSet::new();
    for row in (0..tags.len()).filter(|row| tags.is_valid(*row) && !is_current(*row)) {
        let (from, to) =
            (tags.value_offsets()[row] as usize, tags.value_offsets()[row + 1] as usize);
        doomed
            .extend((from..to).filter(|&at| values.is_valid(at) && rules.is_key(values.value(at))));
    }
    if doomed.is_empty() {
        return None;
    }
    let kept = (0..values.len()).map(|at| {
        values.is_valid(at).then(|| if doomed.contains(&at) { "" } else { values.value(at) })
    });
    let kept: ArrayRef = Arc::new(kept.collect::<StringArray>());
    let entries = tags.entries();
    let columns = vec![entries.column(0).clone(), kept];
    let fields = entries.fields().clone();
    let entries = StructArray::try_new(fields, columns, entries.nulls().cloned()).ok()?;
    let DataType::Map(field, is_sorted) = tags.data_type() else { return None };
    let (offsets, nulls) = (tags.offsets().clone(), tags.nulls().cloned());
    MapArray::try_new(field.clone(), offsets, entries, nulls, *is_sorted).ok()
}
