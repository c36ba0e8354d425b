//! One row of a batch as a value of a type, without setting up readers of columns for it.
//!
//! Fields that are numbers, texts or booleans are handed to serde as they lie there. Whatever else a type or a column asks for is
//! refused here, and read by serde_arrow, which has the last word on what fits and what does not.

use alluvium_log::{DELETE, Error, FOLD_COLUMNS, Result};
use arrow::array::{Array, AsArray, RecordBatch, StructArray};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::cache::Known;
use crate::columns::values_of;

/// A row of a batch in fold shape as it is known; a DELETE has no value.
pub(crate) fn known_at<V: DeserializeOwned>(batch: &RecordBatch, row: usize) -> Result<Known<V>> {
    let rank = alluvium_materializer::rank(batch, row)?;
    let value = if rank.is_delete { None } else { Some(value_at(batch, row)?) };
    Ok(Known { value, rank })
}

fn value_at<V: DeserializeOwned>(batch: &RecordBatch, row: usize) -> Result<V> {
    let value = batch.columns().get(FOLD_COLUMNS).and_then(|column| column.as_struct_opt());
    let value = value.ok_or_else(|| Error::internal("a row lacks its value"))?;
    if let Ok(read) = V::deserialize(Row { value, row }) {
        return Ok(read);
    }
    let mut read = values_of(&batch.slice(row, 1))?;
    read.pop().ok_or_else(|| Error::internal(format!("a row that is no {DELETE} lacks its value")))
}

/// Something that is left to serde_arrow.
#[derive(Debug)]
struct Unlike;

impl std::fmt::Display for Unlike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a plain field")
    }
}

impl std::error::Error for Unlike {}

impl de::Error for Unlike {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}

/// The fields of the value in one row.
struct Row<'a> {
    value: &'a StructArray,
    row: usize,
}

impl<'de> Deserializer<'de> for Row<'_> {
    type Error = Unlike;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        visitor.visit_map(Fields { row: self, next: 0 })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unlike> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Unlike> {
        Err(Unlike)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Unlike> {
        Err(Unlike)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Unlike> {
        Err(Unlike)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Unlike> {
        Err(Unlike)
    }

    fn deserialize_option<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Unlike> {
        Err(Unlike)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct map struct
        identifier ignored_any
    }
}

struct Fields<'a> {
    row: Row<'a>,
    next: usize,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Unlike;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Unlike> {
        match self.row.value.fields().get(self.next) {
            None => Ok(None),
            Some(field) => seed.deserialize(StrDeserializer::new(field.name())).map(Some),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Unlike> {
        let column = self.row.value.columns().get(self.next).ok_or(Unlike)?;
        self.next += 1;
        seed.deserialize(Cell { column: column.as_ref(), row: self.row.row })
    }
}

/// A field in one row.
struct Cell<'a> {
    column: &'a dyn Array,
    row: usize,
}

impl Cell<'_> {
    fn integer(&self) -> Result<i64, Unlike> {
        let row = self.row;
        match self.column.data_type() {
            _ if self.column.is_null(row) => Err(Unlike),
            DataType::Int8 => Ok(self.column.as_primitive::<Int8Type>().value(row).into()),
            DataType::Int16 => Ok(self.column.as_primitive::<Int16Type>().value(row).into()),
            DataType::Int32 => Ok(self.column.as_primitive::<Int32Type>().value(row).into()),
            DataType::Int64 => Ok(self.column.as_primitive::<Int64Type>().value(row)),
            _ => Err(Unlike),
        }
    }
}

macro_rules! integers {
    ($($method:ident: $visit:ident),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
            visitor.$visit(self.integer()?.try_into().map_err(|_| Unlike)?)
        })*
    };
}

macro_rules! refused {
    ($($method:ident($($kind:ty),*)),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $kind,)* _: V) -> Result<V::Value, Unlike> {
            Err(Unlike)
        })*
    };
}

impl<'de> Deserializer<'de> for Cell<'_> {
    type Error = Unlike;

    integers!(
        deserialize_i8: visit_i8, deserialize_i16: visit_i16, deserialize_i32: visit_i32,
        deserialize_u8: visit_u8, deserialize_u16: visit_u16, deserialize_u32: visit_u32, deserialize_u64: visit_u64,
    );

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        visitor.visit_i64(self.integer()?)
    }

    refused!(
        deserialize_i128(),
        deserialize_u128(),
        deserialize_char(),
        deserialize_bytes(),
        deserialize_byte_buf(),
        deserialize_unit(),
        deserialize_unit_struct(&'static str),
        deserialize_seq(),
        deserialize_tuple(usize),
        deserialize_tuple_struct(&'static str, usize),
        deserialize_map(),
        deserialize_identifier(),
        deserialize_struct(&'static str, &'static [&'static str]),
        deserialize_enum(&'static str, &'static [&'static str]),
    );

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        if self.column.is_null(self.row) {
            return visitor.visit_none();
        }
        match self.column.data_type() {
            DataType::Int8 => self.deserialize_i8(visitor),
            DataType::Int16 => self.deserialize_i16(visitor),
            DataType::Int32 => self.deserialize_i32(visitor),
            DataType::Int64 => self.deserialize_i64(visitor),
            DataType::Float32 => self.deserialize_f32(visitor),
            DataType::Float64 => self.deserialize_f64(visitor),
            DataType::Boolean => self.deserialize_bool(visitor),
            DataType::Utf8 => self.deserialize_str(visitor),
            _ => Err(Unlike),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        let column = self.column.as_primitive_opt::<Float32Type>();
        let column = column.filter(|column| column.is_valid(self.row)).ok_or(Unlike)?;
        visitor.visit_f32(column.value(self.row))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        let column = self.column.as_primitive_opt::<Float64Type>();
        let column = column.filter(|column| column.is_valid(self.row)).ok_or(Unlike)?;
        visitor.visit_f64(column.value(self.row))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        let column = self.column.as_boolean_opt().filter(|column| column.is_valid(self.row));
        visitor.visit_bool(column.ok_or(Unlike)?.value(self.row))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        let column = self.column.as_string_opt::<i32>();
        let column = column.filter(|column| column.is_valid(self.row)).ok_or(Unlike)?;
        visitor.visit_str(column.value(self.row))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        match self.column.is_null(self.row) {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unlike> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unlike> {
        visitor.visit_unit()
    }
}

#[cfg(test)]
mod tests;
