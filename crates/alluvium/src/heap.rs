//! How many bytes a value holds beside itself, about: what budgets of caches and epochs count.
//!
//! The value is walked as serde would write it; texts and bytes count with their length, elements of lists and maps with
//! a fixed size. A struct's plain fields are part of `size_of`.

use serde::ser::{self, Serialize};

/// Bytes of an element of a list or map.
const ELEMENT_BYTES: usize = 24;
/// What a value counts that can't be walked.
const UNKNOWN_BYTES: usize = 1_024;

/// The bytes that a value takes, its own size included.
pub(crate) fn bytes_of<V: Serialize>(value: &V) -> usize {
    let mut walk = Walk { bytes: 0 };
    let beside = value.serialize(&mut walk).map_or(UNKNOWN_BYTES, |()| walk.bytes);
    size_of::<V>() + beside
}

struct Walk {
    bytes: usize,
}

/// A value that refuses to be walked.
#[derive(Debug)]
struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the value can't be walked")
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! plain {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(#[inline] fn $method(self, _: $type) -> Result<(), Refused> { Ok(()) })*
    };
}

impl ser::Serializer for &mut Walk {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    plain!(
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_u128: u128, serialize_f32: f32, serialize_f64: f64, serialize_char: char,
        serialize_unit_struct: &'static str,
    );

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Refused> {
        self.bytes += text.len();
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Refused> {
        self.bytes += bytes.len();
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Refused> {
        Ok(())
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Refused> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
    ) -> Result<(), Refused> {
        Ok(())
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Refused> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Refused> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Refused> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Refused> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Refused> {
        Ok(self)
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Refused> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Refused> {
        Ok(self)
    }
}

impl ser::SerializeSeq for &mut Walk {
    type Ok = ();
    type Error = Refused;

    fn serialize_element<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        self.bytes += ELEMENT_BYTES;
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Refused> {
        Ok(())
    }
}

impl ser::SerializeMap for &mut Walk {
    type Ok = ();
    type Error = Refused;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Result<(), Refused> {
        self.bytes += ELEMENT_BYTES;
        key.serialize(&mut **self)
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        self.bytes += ELEMENT_BYTES;
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Refused> {
        Ok(())
    }
}

macro_rules! fields {
    ($($trait:ident::$method:ident($($name:ty)?)),* $(,)?) => {
        $(impl ser::$trait for &mut Walk {
            type Ok = ();
            type Error = Refused;

            #[inline]
            fn $method<T: ?Sized + Serialize>(&mut self, $(_: $name,)? value: &T) -> Result<(), Refused> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Refused> {
                Ok(())
            }
        })*
    };
}

fields!(
    SerializeTuple::serialize_element(),
    SerializeTupleStruct::serialize_field(),
    SerializeTupleVariant::serialize_field(),
    SerializeStruct::serialize_field(&'static str),
    SerializeStructVariant::serialize_field(&'static str),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize)]
    struct Value {
        number: i64,
        text: String,
        list: Option<Vec<String>>,
    }

    #[test]
    fn texts_count_with_their_length_and_elements_with_theirs() {
        let value = Value { number: 1, text: "abc".into(), list: None };
        assert_eq!(bytes_of(&value), size_of::<Value>() + 3);
        let value = Value { list: Some(vec!["de".into(), "f".into()]), ..value };
        assert_eq!(bytes_of(&value), size_of::<Value>() + 6 + 2 * ELEMENT_BYTES);
    }
}
