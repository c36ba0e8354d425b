//! States of typed values: `serde` on the outside, Arrow on the inside.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;

use alluvium_log::{
    DELETE, EVENT_TIME, Error, FOLD_COLUMNS, KeyFilter, OP_TYPE, Receipt, Result, STATE_KEY,
    STATE_VALUE, UPSERT, VERSION,
};
use alluvium_query::{Lookup, Point};
use arrow::array::{
    ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{FieldRef, Fields};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_arrow::schema::{SchemaLike, TracingOptions};
use tokio::sync::Mutex;

use crate::raw::RawState;

/// Keys whose updates wait for each other share one of so many locks.
const UPDATE_LOCKS: usize = 64;

/// The fields of a type, as a new state is created with them. What is no `Option` is required.
pub fn fields_of<V: DeserializeOwned>() -> Result<Fields> {
    let options = TracingOptions::default()
        .map_as_struct(false)
        .strings_as_large_utf8(false)
        .sequence_as_large_list(false);
    let fields = Vec::<FieldRef>::from_type::<V>(options).map_err(|error| {
        Error::invalid(format!(
            "the fields of {} can't be told from the type; create the state with explicit fields first",
            std::any::type_name::<V>()
        ))
        .with_source(error)
    })?;
    Ok(Fields::from(fields))
}

/// One change of a typed state.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<V> {
    key: String,
    value: Option<V>,
    version: Option<i64>,
    event_time_micros: Option<i64>,
}

impl<V> Change<V> {
    /// Sets a key's value.
    pub fn upsert(key: impl Into<String>, value: V) -> Self {
        Self { key: key.into(), value: Some(value), version: None, event_time_micros: None }
    }

    /// Removes a key.
    pub fn delete(key: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, version: None, event_time_micros: None }
    }

    /// With the caller's own version; it only orders. Without one, the writer's clock makes it.
    pub fn version(mut self, version: i64) -> Self {
        self.version = Some(version);
        self
    }

    /// When it happened, in microseconds since 1970 UTC. Without one, it is the time of arrival.
    pub fn at(mut self, event_time_micros: i64) -> Self {
        self.event_time_micros = Some(event_time_micros);
        self
    }
}

/// A live key with its value and what decided that it is the newest.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<V> {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: V,
    /// The version of the change that set it.
    pub version: i64,
    /// When that happened, in microseconds since 1970 UTC.
    pub event_time_micros: i64,
    /// The log commit of that change.
    pub commit: i64,
}

/// A state whose values are of type `V`. Cheap to clone.
#[derive(Debug)]
pub struct State<V> {
    raw: RawState,
    locks: Arc<Vec<Mutex<()>>>,
    hasher: RandomState,
    values: PhantomData<fn() -> V>,
}

impl<V> Clone for State<V> {
    fn clone(&self) -> Self {
        Self {
            raw: self.raw.clone(),
            locks: self.locks.clone(),
            hasher: self.hasher.clone(),
            values: PhantomData,
        }
    }
}

impl<V> State<V>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    pub(crate) fn new(raw: RawState) -> Result<Self> {
        // A type that can't be traced may still fit; one that can is compared with what is stored.
        if let Ok(fields) = fields_of::<V>() {
            raw.definition()
                .grown_by(&fields)
                .map_err(|error| error.context(format!("state {}", raw.name())))?;
        }
        let locks = Arc::new((0..UPDATE_LOCKS).map(|_| Mutex::new(())).collect());
        Ok(Self { raw, locks, hasher: RandomState::new(), values: PhantomData })
    }

    /// The same state on Arrow batches.
    pub fn raw(&self) -> &RawState {
        &self.raw
    }

    /// Sets a key's value; resolves when it is durable.
    pub async fn put(&self, key: &str, value: &V) -> Result<Receipt> {
        let batch = upserts(&self.raw, &[key], &[value])?;
        self.raw.append(&batch).await
    }

    /// Removes a key; resolves when that is durable. Removing a key that isn't there is no error.
    pub async fn delete(&self, key: &str) -> Result<Receipt> {
        self.raw.append(&deletes(&[key])?).await
    }

    /// Appends changes with their own versions and times, as one commit.
    pub async fn append(&self, changes: &[Change<V>]) -> Result<Receipt> {
        let batch = self.batch(changes)?;
        self.raw.append(&batch).await
    }

    /// Changes a key's value by what it is now: `None` in means that there is none, `None` out removes it.
    ///
    /// Updates of one key by clones of this handle wait for each other. Between handles or processes nothing is locked:
    /// there the later change wins.
    pub async fn update(
        &self,
        key: &str,
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<Receipt> {
        let lock = usize::try_from(self.hasher.hash_one(key) % UPDATE_LOCKS as u64).unwrap_or(0);
        let _alone = self.locks[lock].lock().await;
        match change(self.get(key).await?) {
            Some(value) => self.put(key, &value).await,
            None => self.delete(key).await,
        }
    }

    /// The newest value of a key.
    pub async fn get(&self, key: &str) -> Result<Option<V>> {
        self.as_of(Point::LATEST).get(key).await
    }

    /// All live keys that begin with a text, in order.
    pub async fn scan(&self, prefix: &str) -> Result<BoxStream<'static, Result<Entry<V>>>> {
        self.as_of(Point::LATEST).scan(prefix).await
    }

    /// The state as of a point.
    pub fn as_of(&self, point: Point) -> StateAt<V> {
        StateAt { raw: self.raw.clone(), point, values: PhantomData }
    }

    /// Changes as the columns of an append.
    pub(crate) fn batch(&self, changes: &[Change<V>]) -> Result<RecordBatch> {
        let values: Vec<&V> = changes.iter().filter_map(|change| change.value.as_ref()).collect();
        let dense = struct_of(&self.raw, &values)?;
        let places = changes.iter().scan(0_u64, |next, change| {
            Some(change.value.as_ref().map(|_| {
                *next += 1;
                *next - 1
            }))
        });
        let places: arrow::array::UInt64Array = places.collect();
        let value = arrow::compute::take(&dense, &places, None)?;
        let operation = |change: &Change<V>| if change.value.is_some() { UPSERT } else { DELETE };
        let keys = StringArray::from_iter_values(changes.iter().map(|change| change.key.as_str()));
        let operations = StringArray::from_iter_values(changes.iter().map(operation));
        let versions: Int64Array = changes.iter().map(|change| change.version).collect();
        let times: TimestampMicrosecondArray =
            changes.iter().map(|change| change.event_time_micros).collect();
        Ok(RecordBatch::try_from_iter_with_nullable([
            (STATE_KEY, Arc::new(keys) as ArrayRef, false),
            (OP_TYPE, Arc::new(operations), false),
            (VERSION, Arc::new(versions), true),
            (EVENT_TIME, Arc::new(times.with_timezone("UTC")), true),
            (STATE_VALUE, value, true),
        ])?)
    }
}

/// A typed state at a point of its past.
#[derive(Debug)]
pub struct StateAt<V> {
    raw: RawState,
    point: Point,
    values: PhantomData<fn() -> V>,
}

impl<V: DeserializeOwned + Send + 'static> StateAt<V> {
    /// A key's value at the point.
    pub async fn get(&self, key: &str) -> Result<Option<V>> {
        match self.raw.get(self.point, key).await? {
            Lookup::Found(row) => {
                let mut entries = entries::<V>(&row)?;
                Ok(entries.pop().map(|entry| entry.value))
            }
            _ => Ok(None),
        }
    }

    /// The keys live at the point that begin with a text, in order.
    pub async fn scan(&self, prefix: &str) -> Result<BoxStream<'static, Result<Entry<V>>>> {
        let rows = self.raw.scan(self.point, KeyFilter::prefix(prefix)).await?;
        let entries = rows.map(|batch| {
            let entries = entries::<V>(&batch?)?;
            Ok::<_, Error>(futures::stream::iter(entries.into_iter().map(Ok)))
        });
        Ok(entries.try_flatten().boxed())
    }
}

/// Values as the struct column of an append, in the types that the state stores as far as it knows the fields.
fn struct_of<V: Serialize>(raw: &RawState, values: &[&V]) -> Result<ArrayRef> {
    let stored = raw.definition().stored_fields();
    let fields: Vec<FieldRef> = stored.iter().cloned().collect();
    let fields = with_new_fields(fields, values)?;
    let failed = |error: serde_arrow::Error| {
        Error::invalid(format!("a value does not fit the fields of the state {}", raw.name()))
            .with_source(error)
    };
    let columns = serde_arrow::to_arrow(&fields, values).map_err(failed)?;
    if fields.is_empty() {
        return Ok(Arc::new(StructArray::new_empty_fields(values.len(), None)));
    }
    Ok(Arc::new(StructArray::try_new(Fields::from(fields), columns, None::<NullBuffer>)?))
}

/// Adds the fields that values have and the state doesn't know yet.
fn with_new_fields<V: Serialize>(
    mut fields: Vec<FieldRef>,
    values: &[&V],
) -> Result<Vec<FieldRef>> {
    let options = TracingOptions::default()
        .allow_null_fields(true)
        .map_as_struct(false)
        .strings_as_large_utf8(false)
        .sequence_as_large_list(false);
    let Ok(traced) = Vec::<FieldRef>::from_samples(values, options) else { return Ok(fields) };
    for field in traced {
        let known = fields.iter().any(|known| known.name() == field.name());
        if !known && !field.data_type().is_null() {
            fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
        }
    }
    Ok(fields)
}

fn upserts<V: Serialize>(raw: &RawState, keys: &[&str], values: &[&V]) -> Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter([
        (STATE_KEY, Arc::new(StringArray::from_iter_values(keys)) as ArrayRef),
        (STATE_VALUE, struct_of(raw, values)?),
    ])?)
}

fn deletes(keys: &[&str]) -> Result<RecordBatch> {
    let operations = StringArray::from_iter_values(keys.iter().map(|_| DELETE));
    Ok(RecordBatch::try_from_iter([
        (STATE_KEY, Arc::new(StringArray::from_iter_values(keys)) as ArrayRef),
        (OP_TYPE, Arc::new(operations)),
    ])?)
}

/// The rows of a batch in fold shape as typed entries.
pub(crate) fn entries<V: DeserializeOwned>(batch: &RecordBatch) -> Result<Vec<Entry<V>>> {
    let value = batch
        .columns()
        .get(FOLD_COLUMNS)
        .ok_or_else(|| Error::internal("a row lacks its value"))?
        .as_struct();
    let fields: Vec<FieldRef> = value.fields().iter().cloned().collect();
    let values: Vec<V> = serde_arrow::from_arrow(&fields, value.columns()).map_err(|error| {
        Error::invalid(format!(
            "a stored value can't be read as {}: its fields are {}",
            std::any::type_name::<V>(),
            fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
        ))
        .with_source(error)
    })?;
    let keys = batch.column(0).as_string::<i32>();
    values
        .into_iter()
        .enumerate()
        .map(|(row, value)| {
            let rank = alluvium_materializer::rank(batch, row)?;
            Ok(Entry {
                key: keys.value(row).to_owned(),
                value,
                version: rank.version,
                event_time_micros: rank.event_time,
                commit: rank.commit,
            })
        })
        .collect()
}

/// Pending changes of one typed state: the last one of each key.
pub(crate) struct Pending<V> {
    pub(crate) state: State<V>,
    pub(crate) changes: HashMap<String, Option<V>>,
}

impl<V> Pending<V>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    pub(crate) fn take_batch(&mut self) -> Result<RecordBatch> {
        let mut changes: Vec<Change<V>> = std::mem::take(&mut self.changes)
            .into_iter()
            .map(|(key, value)| Change { key, value, version: None, event_time_micros: None })
            .collect();
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        self.state.batch(&changes)
    }
}
