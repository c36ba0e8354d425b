//! Typed values as Arrow columns, and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use alluvium_log::{
    DELETE, EVENT_TIME, Error, FOLD_COLUMNS, HybridClock, OP_TYPE, Result, STATE_KEY, STATE_VALUE,
    UPSERT, VERSION,
};
use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, FieldRef, Fields};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_arrow::schema::{SchemaLike, TracingOptions};

use crate::cache::{KeyedRow, Known};
use crate::raw::RawState;
use crate::typed::{Change, Entry};

fn tracing_options() -> TracingOptions {
    TracingOptions::default()
        .map_as_struct(false)
        .strings_as_large_utf8(false)
        .sequence_as_large_list(false)
}

/// The fields of a type, as a new state is created with them. What is no `Option` is required.
pub fn fields_of<V: DeserializeOwned>() -> Result<Fields> {
    let fields = Vec::<FieldRef>::from_type::<V>(tracing_options()).map_err(|error| {
        Error::invalid(format!(
            "the fields of {} can't be told from the type; create the state with explicit fields first",
            std::any::type_name::<V>()
        ))
        .with_source(error)
    })?;
    Ok(Fields::from(fields))
}

/// How values of one type become columns of one state.
///
/// Which fields values have is told from the values themselves, since not every type tells. Where the type tells, and the
/// first values agree with it and with the state, later values aren't asked again.
#[derive(Debug)]
pub(crate) struct Columns {
    raw: RawState,
    of_type: Option<Fields>,
    settled: AtomicBool,
}

impl Columns {
    pub(crate) fn new(raw: RawState, of_type: Option<Fields>) -> Self {
        Self { raw, of_type, settled: AtomicBool::new(false) }
    }

    /// Values as the struct column of an append, in the types that the state stores as far as it knows the fields.
    pub(crate) fn struct_of<V: Serialize>(&self, values: &[&V]) -> Result<ArrayRef> {
        let stored: Vec<FieldRef> = self.raw.definition().stored_fields().iter().cloned().collect();
        let fields = match self.settled.load(Ordering::Acquire) {
            true => stored,
            false => self.with_new_fields(stored, values),
        };
        let columns = serde_arrow::to_arrow(&fields, values).map_err(|error| {
            Error::invalid(format!(
                "a value does not fit the fields of the state {}",
                self.raw.name()
            ))
            .with_source(error)
        })?;
        if fields.is_empty() {
            return Ok(Arc::new(StructArray::new_empty_fields(values.len(), None)));
        }
        Ok(Arc::new(StructArray::try_new(Fields::from(fields), columns, None::<NullBuffer>)?))
    }

    /// Adds the fields that values have and the state doesn't know yet.
    fn with_new_fields<V: Serialize>(
        &self,
        mut fields: Vec<FieldRef>,
        values: &[&V],
    ) -> Vec<FieldRef> {
        let options = tracing_options().allow_null_fields(true);
        let Ok(traced) = Vec::<FieldRef>::from_samples(values, options) else { return fields };
        let of_type = self.of_type.as_ref();
        let settled = of_type.is_some_and(|of| lie_within(of, &fields) && lie_within(&traced, of));
        if settled && !traced.is_empty() {
            self.settled.store(true, Ordering::Release);
        }
        fields = joined(&fields, &traced);
        fields
    }

    pub(crate) fn upserts<V: Serialize>(
        &self,
        keys: &[&str],
        values: &[&V],
    ) -> Result<RecordBatch> {
        Ok(RecordBatch::try_from_iter([
            (STATE_KEY, Arc::new(StringArray::from_iter_values(keys)) as ArrayRef),
            (STATE_VALUE, self.struct_of(values)?),
        ])?)
    }

    /// Changes as the columns of an append.
    pub(crate) fn changes<V: Serialize>(&self, changes: &[Change<V>]) -> Result<RecordBatch> {
        let pairs = changes.iter().map(|change| (change.key.as_str(), change.value.as_ref()));
        let versions: Int64Array = changes.iter().map(|change| change.version).collect();
        let times: TimestampMicrosecondArray =
            changes.iter().map(|change| change.event_time_micros).collect();
        self.batch(pairs, versions, times)
    }

    /// Changes that all happened at one time and have versions in a row.
    pub(crate) fn numbered<'a, V: Serialize + 'a>(
        &self,
        changes: impl ExactSizeIterator<Item = (&'a str, Option<&'a V>)>,
        first_version: i64,
        event_time_micros: i64,
    ) -> Result<RecordBatch> {
        let rows = changes.len();
        let version = |row: usize| {
            let step = i64::try_from(row).unwrap_or(i64::MAX).saturating_mul(HybridClock::STEP);
            first_version.saturating_add(step)
        };
        let versions = Int64Array::from_iter_values((0..rows).map(version));
        let times = TimestampMicrosecondArray::from(vec![event_time_micros; rows]);
        self.batch(changes, versions, times)
    }

    fn batch<'a, V: Serialize + 'a>(
        &self,
        changes: impl ExactSizeIterator<Item = (&'a str, Option<&'a V>)>,
        versions: Int64Array,
        times: TimestampMicrosecondArray,
    ) -> Result<RecordBatch> {
        let mut values: Vec<&V> = Vec::with_capacity(changes.len());
        let mut keys =
            arrow::array::StringBuilder::with_capacity(changes.len(), changes.len() * 16);
        let mut places: Vec<Option<u64>> = Vec::with_capacity(changes.len());
        for (key, value) in changes {
            keys.append_value(key);
            places.push(value.map(|value| {
                values.push(value);
                values.len() as u64 - 1
            }));
        }
        let dense = self.struct_of(&values)?;
        let operation = |place: &Option<u64>| if place.is_some() { UPSERT } else { DELETE };
        let operations = StringArray::from_iter_values(places.iter().map(operation));
        let value = match values.len() == places.len() {
            true => dense,
            false => arrow::compute::take(&dense, &UInt64Array::from(places), None)?,
        };
        Ok(RecordBatch::try_from_iter_with_nullable([
            (STATE_KEY, Arc::new(keys.finish()) as ArrayRef, false),
            (OP_TYPE, Arc::new(operations), false),
            (VERSION, Arc::new(versions), true),
            (EVENT_TIME, Arc::new(times.with_timezone("UTC")), true),
            (STATE_VALUE, value, true),
        ])?)
    }
}

/// Whether fields are among others by their names, at every depth.
fn lie_within(fields: &[FieldRef], others: &[FieldRef]) -> bool {
    fields.iter().all(|field| {
        others.iter().find(|other| other.name() == field.name()).is_some_and(|other| {
            match (field.data_type(), other.data_type()) {
                (DataType::Struct(inner), DataType::Struct(of)) => lie_within(inner, of),
                (inner, of) => match item_of(inner).zip(item_of(of)) {
                    // What an item is called is no name that anybody gave.
                    Some((inner, of)) => {
                        let of = Arc::new(of.as_ref().clone().with_name(inner.name()));
                        lie_within(std::slice::from_ref(inner), &[of])
                    }
                    None => true,
                },
            }
        })
    })
}

/// What a list has, or a map to its keys.
fn item_of(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item) => Some(item),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => pair.get(1),
            _ => None,
        },
        _ => None,
    }
}

/// The fields that are stored, and those that values have beside them, at every depth: what is left out of either would be lost in
/// silence.
fn joined(stored: &[FieldRef], traced: &[FieldRef]) -> Vec<FieldRef> {
    let known =
        stored.iter().map(|field| match traced.iter().find(|other| other.name() == field.name()) {
            Some(other) => joined_field(field, other),
            None => field.clone(),
        });
    let is_new = |field: &&FieldRef| {
        !field.data_type().is_null() && stored.iter().all(|other| other.name() != field.name())
    };
    let new = traced.iter().filter(is_new);
    known.chain(new.map(|field| Arc::new(field.as_ref().clone().with_nullable(true)))).collect()
}

fn joined_field(stored: &FieldRef, traced: &FieldRef) -> FieldRef {
    let data_type = match (stored.data_type(), traced.data_type()) {
        (DataType::Struct(known), DataType::Struct(found)) => {
            DataType::Struct(joined(known, found).into())
        }
        (DataType::List(known), DataType::List(found)) => {
            DataType::List(joined_field(known, found))
        }
        (DataType::Map(known, is_sorted), DataType::Map(found, _)) => {
            match (known.data_type(), found.data_type()) {
                // Keys and values, by their places.
                (DataType::Struct(known_pair), DataType::Struct(found_pair)) => {
                    let pair = known_pair.iter().zip(found_pair);
                    let pair: Fields =
                        pair.map(|(known, found)| joined_field(known, found)).collect();
                    let entries = known.as_ref().clone().with_data_type(DataType::Struct(pair));
                    DataType::Map(Arc::new(entries), *is_sorted)
                }
                _ => stored.data_type().clone(),
            }
        }
        (known, _) => known.clone(),
    };
    Arc::new(stored.as_ref().clone().with_data_type(data_type))
}

pub(crate) fn deletes(keys: &[&str]) -> Result<RecordBatch> {
    let operations = StringArray::from_iter_values(keys.iter().map(|_| DELETE));
    Ok(RecordBatch::try_from_iter([
        (STATE_KEY, Arc::new(StringArray::from_iter_values(keys)) as ArrayRef),
        (OP_TYPE, Arc::new(operations)),
    ])?)
}

pub(crate) fn values_of<V: DeserializeOwned>(batch: &RecordBatch) -> Result<Vec<V>> {
    let value = batch
        .columns()
        .get(FOLD_COLUMNS)
        .ok_or_else(|| Error::internal("a row lacks its value"))?
        .as_struct();
    let fields: Vec<FieldRef> = value.fields().iter().cloned().collect();
    serde_arrow::from_arrow(&fields, value.columns()).map_err(|error| {
        Error::invalid(format!(
            "a stored value can't be read as {}: its fields are {}",
            std::any::type_name::<V>(),
            fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
        ))
        .with_source(error)
    })
}

/// The live rows of a batch in fold shape as typed entries.
pub(crate) fn entries<V: DeserializeOwned>(batch: &RecordBatch) -> Result<Vec<Entry<V>>> {
    let keys = batch.column(0).as_string::<i32>();
    values_of(batch)?
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

/// The rows of a batch in fold shape, deletes as keys without a value.
pub(crate) fn keyed_rows<V: DeserializeOwned>(batch: &RecordBatch) -> Result<Vec<KeyedRow<V>>> {
    let live: BooleanArray = batch
        .column(3)
        .as_string::<i32>()
        .iter()
        .map(|operation| Some(operation != Some(DELETE)))
        .collect();
    let mut values = match live.true_count() == batch.num_rows() {
        true => values_of::<V>(batch)?,
        false => values_of::<V>(&filter_record_batch(batch, &live)?)?,
    }
    .into_iter();
    let keys = batch.column(0).as_string::<i32>();
    (0..batch.num_rows())
        .map(|row| {
            let value = if live.value(row) { values.next() } else { None };
            if live.value(row) && value.is_none() {
                return Err(Error::internal("a row lacks its value"));
            }
            let rank = alluvium_materializer::rank(batch, row)?;
            Ok(KeyedRow { key: keys.value(row).to_owned(), known: Known { value, rank } })
        })
        .collect()
}
