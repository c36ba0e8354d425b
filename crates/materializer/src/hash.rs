//! A hash of a set of rows that does not depend on their order: `docs/formats.md` §5.
//!
//! Column by column, so that it costs little beside writing the rows.

use alluvium_log::{DELETE, Error, Result, STATE_VALUE};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};
use twox_hash::XxHash64;

/// The hash of a set of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowsHash(pub u64);

impl RowsHash {
    /// The hash of the rows of two sets that have none in common.
    pub fn and(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// As it is stored: 16 hex digits.
    pub fn to_text(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Reads what [`RowsHash::to_text`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

/// Hashes the rows of a batch in fold shape, whose payload is `state_value`.
pub fn hash_rows(batch: &RecordBatch) -> Result<RowsHash> {
    let mut sums = vec![0_u64; batch.num_rows()];
    let column = |index: usize| {
        batch.columns().get(index).ok_or_else(|| Error::internal("a batch lacks columns to hash"))
    };
    add_column(column(0)?, seed("state_key"), &mut sums)?;
    add_column(column(1)?, seed("version"), &mut sums)?;
    add_column(column(2)?, seed("event_time"), &mut sums)?;
    let operations = column(3)?.as_string::<i32>();
    let deleted = seed("deleted");
    for (sum, operation) in sums.iter_mut().zip(operations.iter()) {
        if operation == Some(DELETE) {
            *sum = sum.wrapping_add(deleted);
        }
    }
    if let Some(value) = batch.column_by_name(STATE_VALUE) {
        add_struct(value, STATE_VALUE, &mut sums)?;
    }
    Ok(RowsHash(sums.into_iter().fold(0, |total, sum| total.wrapping_add(scramble(sum)))))
}

fn seed(name: &str) -> u64 {
    XxHash64::oneshot(0, name.as_bytes())
}

/// The finalizer of SplitMix64: without it sums of sums would cancel.
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn add_struct(array: &ArrayRef, path: &str, sums: &mut [u64]) -> Result<()> {
    let DataType::Struct(fields) = array.data_type() else {
        return Err(Error::internal(format!("{path} is not a struct")));
    };
    // A struct that is there with all fields null differs from one that is not there.
    let present = seed(path);
    for (row, sum) in sums.iter_mut().enumerate() {
        if array.is_valid(row) {
            *sum = sum.wrapping_add(present);
        }
    }
    let parent = array.as_struct();
    for (field, column) in fields.iter().zip(parent.columns()) {
        let path = format!("{path}\u{0}{}", field.name());
        let masked = mask_by_parent(column, array)?;
        match field.data_type() {
            DataType::Struct(_) => add_struct(&masked, &path, sums)?,
            _ => add_column(&masked, seed(&path), sums)?,
        }
    }
    Ok(())
}

/// A child counts only where its parent is there.
fn mask_by_parent(column: &ArrayRef, parent: &ArrayRef) -> Result<ArrayRef> {
    match parent.nulls() {
        None => Ok(column.clone()),
        Some(nulls) => {
            let absent = arrow::array::BooleanArray::new(!nulls.inner(), None);
            Ok(arrow::compute::nullif(column, &absent)?)
        }
    }
}

fn add_column(array: &ArrayRef, seed: u64, sums: &mut [u64]) -> Result<()> {
    macro_rules! add_numbers {
        ($kind:ty, $bytes:expr) => {{
            let values = array.as_primitive::<$kind>();
            for (row, sum) in sums.iter_mut().enumerate() {
                if values.is_valid(row) {
                    let bytes = $bytes(values.value(row));
                    *sum = sum.wrapping_add(XxHash64::oneshot(seed, &bytes));
                }
            }
        }};
    }
    match array.data_type() {
        DataType::Int8 => add_numbers!(Int8Type, |v: i8| i64::from(v).to_le_bytes()),
        DataType::Int16 => add_numbers!(Int16Type, |v: i16| i64::from(v).to_le_bytes()),
        DataType::Int32 => add_numbers!(Int32Type, |v: i32| i64::from(v).to_le_bytes()),
        DataType::Int64 => add_numbers!(Int64Type, i64::to_le_bytes),
        DataType::Date32 => add_numbers!(Date32Type, |v: i32| i64::from(v).to_le_bytes()),
        DataType::Timestamp(_, _) => add_numbers!(TimestampMicrosecondType, i64::to_le_bytes),
        DataType::Float32 => add_numbers!(Float32Type, |v: f32| v.to_bits().to_le_bytes()),
        DataType::Float64 => add_numbers!(Float64Type, |v: f64| v.to_bits().to_le_bytes()),
        DataType::Decimal128(_, _) => add_numbers!(Decimal128Type, i128::to_le_bytes),
        _ => {
            let mut bytes = Vec::new();
            for (row, sum) in sums.iter_mut().enumerate() {
                if array.is_valid(row) {
                    bytes.clear();
                    write_value(array, row, &mut bytes)?;
                    *sum = sum.wrapping_add(XxHash64::oneshot(seed, &bytes));
                }
            }
        }
    }
    Ok(())
}

/// A value that is not a plain number, as bytes: what is inside is led by its length or count.
fn write_value(array: &ArrayRef, row: usize, out: &mut Vec<u8>) -> Result<()> {
    if array.is_null(row) {
        out.push(0);
        return Ok(());
    }
    match array.data_type() {
        DataType::Utf8 => out.extend_from_slice(array.as_string::<i32>().value(row).as_bytes()),
        DataType::Binary => out.extend_from_slice(array.as_binary::<i32>().value(row)),
        DataType::Boolean => out.push(u8::from(array.as_boolean().value(row))),
        DataType::List(_) => write_items(&[array.as_list::<i32>().value(row)], out)?,
        DataType::Map(_, _) => {
            let entries = array.as_map().value(row);
            write_items(entries.columns(), out)?;
        }
        DataType::Struct(fields) => {
            // Only what is there, by name: a field that is added later, and null, changes nothing.
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                if column.is_valid(row) {
                    out.extend_from_slice(&(field.name().len() as u64).to_le_bytes());
                    out.extend_from_slice(field.name().as_bytes());
                    write_items_at(std::slice::from_ref(column), row, out)?;
                }
            }
        }
        other => {
            let slice = array.slice(row, 1);
            let mut sums = [0_u64];
            match other {
                DataType::Null => {}
                _ => add_column(&slice, 0, &mut sums)?,
            }
            out.extend_from_slice(&sums[0].to_le_bytes());
        }
    }
    Ok(())
}

fn write_items(columns: &[ArrayRef], out: &mut Vec<u8>) -> Result<()> {
    let rows = columns.first().map_or(0, |column| column.len());
    out.extend_from_slice(&(rows as u64).to_le_bytes());
    (0..rows).try_for_each(|row| write_items_at(columns, row, out))
}

fn write_items_at(columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) -> Result<()> {
    for column in columns {
        let mut bytes = vec![1];
        write_value(column, row, &mut bytes)?;
        if column.is_null(row) {
            out.extend_from_slice(&u64::MAX.to_le_bytes());
            continue;
        }
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(&bytes);
    }
    Ok(())
}
