//! The end of a column under construction: its values as an Arrow array.

use std::sync::Arc;

use alluvium_log::{Error, Result};
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, ListArray, MapArray, PrimitiveArray,
    StringArray, StructArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Fields, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};

use super::{Bytes, ColumnBuilder, Kind, unsupported};

impl ColumnBuilder {
    /// The array of all rows.
    ///
    /// # Errors
    /// Only for a fault of our own.
    pub fn finish(self) -> Result<ArrayRef> {
        let Self { data_type, mut nulls, kind } = self;
        let len = nulls.len();
        let nulls = nulls.finish();
        Ok(match kind {
            Kind::Boolean(mut values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Kind::Integer { values, .. } => return integers(values, nulls, &data_type),
            Kind::Float(values) => primitive::<Float32Type>(values, nulls)?,
            Kind::Double(values) => primitive::<Float64Type>(values, nulls)?,
            Kind::Date(values) => primitive::<Date32Type>(values, nulls)?,
            Kind::Timestamp { values, .. } => Arc::new(
                PrimitiveArray::<TimestampMicrosecondType>::try_new(values.into(), nulls)?
                    .with_data_type(data_type),
            ),
            Kind::Decimal { values, precision, scale } => Arc::new(
                Decimal128Array::try_new(values.into(), nulls)?
                    .with_precision_and_scale(precision, scale)?,
            ),
            Kind::Text(Bytes { offsets, data }) => Arc::new(StringArray::try_new(
                offset_buffer(offsets),
                Buffer::from_vec(data),
                nulls,
            )?),
            Kind::Binary(Bytes { offsets, data }) => Arc::new(BinaryArray::try_new(
                offset_buffer(offsets),
                Buffer::from_vec(data),
                nulls,
            )?),
            Kind::Struct(object) => Arc::new(StructArray::try_new_with_length(
                struct_fields(&data_type)?,
                object.finish()?,
                nulls,
                len,
            )?),
            Kind::List { offsets, items } => {
                let DataType::List(element) = data_type else {
                    return Err(unsupported(&data_type));
                };
                Arc::new(ListArray::try_new(
                    element,
                    offset_buffer(offsets),
                    items.finish()?,
                    nulls,
                )?)
            }
            Kind::Map { offsets, keys, values } => {
                let DataType::Map(entry, sorted) = data_type else {
                    return Err(unsupported(&data_type));
                };
                let fields = struct_fields(entry.data_type())?;
                let entries =
                    StructArray::try_new(fields, vec![keys.finish()?, values.finish()?], None)?;
                Arc::new(MapArray::try_new(entry, offset_buffer(offsets), entries, nulls, sorted)?)
            }
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls)?))
}

/// Integers are kept as 64 bits while their range is checked, and narrowed here.
fn integers(values: Vec<i64>, nulls: Option<NullBuffer>, data_type: &DataType) -> Result<ArrayRef> {
    fn narrow<T: ArrowPrimitiveType>(
        values: Vec<i64>,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef>
    where
        T::Native: TryFrom<i64>,
    {
        let narrowed: Result<Vec<T::Native>, _> =
            values.into_iter().map(T::Native::try_from).collect();
        let narrowed =
            narrowed.map_err(|_| Error::internal("an integer escaped its range check"))?;
        primitive::<T>(narrowed, nulls)
    }
    match data_type {
        DataType::Int8 => narrow::<Int8Type>(values, nulls),
        DataType::Int16 => narrow::<Int16Type>(values, nulls),
        DataType::Int32 => narrow::<Int32Type>(values, nulls),
        _ => primitive::<Int64Type>(values, nulls),
    }
}

fn offset_buffer(offsets: Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(offsets.into())
}

fn struct_fields(data_type: &DataType) -> Result<Fields> {
    match data_type {
        DataType::Struct(fields) => Ok(fields.clone()),
        other => Err(unsupported(other)),
    }
}
