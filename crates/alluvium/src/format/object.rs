//! The fields of a STRUCT column, row by row, and what it met that it has no field for.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use alluvium_log::Result;
use arrow::array::ArrayRef;
use arrow::datatypes::Fields;

use super::build::ColumnBuilder;
use super::fault::Fault;
use super::json::Json;

/// The columns of an object's fields.
///
/// A field that it does not know is noted, not refused: when the value tells a type, in
/// [`ObjectBuilder::has_unseen`], so that the schema can grow and the rows be built again; when it can't
/// (null, `[]`), by name in [`ObjectBuilder::left_out`].
pub(crate) struct ObjectBuilder {
    names: Vec<String>,
    places: HashMap<String, usize>,
    columns: Vec<ColumnBuilder>,
    rows: usize,
    has_unseen: bool,
    left_out: BTreeSet<String>,
}

impl ObjectBuilder {
    pub(crate) fn new(fields: &Fields) -> Result<Self> {
        let names: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
        let places = names.iter().cloned().enumerate().map(|(at, name)| (name, at)).collect();
        let columns: Result<_> =
            fields.iter().map(|field| ColumnBuilder::new(field.data_type())).collect();
        let columns = columns?;
        Ok(Self { names, places, columns, rows: 0, has_unseen: false, left_out: BTreeSet::new() })
    }

    pub(crate) fn push(&mut self, entries: &[(Cow<'_, str>, Json<'_>)]) -> Result<(), Fault> {
        for (at, (name, value)) in entries.iter().enumerate() {
            self.push_field(at, name, value)?;
        }
        self.close_row();
        Ok(())
    }

    /// Adds one field of the row at hand. `guess` is its likely place: rows of one file mostly have one order.
    pub(crate) fn push_field(
        &mut self,
        guess: usize,
        name: &str,
        value: &Json<'_>,
    ) -> Result<(), Fault> {
        let place = match self.names.get(guess) {
            Some(guessed) if guessed == name => Some(guess),
            _ => self.places.get(name).copied(),
        };
        match place.and_then(|place| self.columns.get_mut(place)) {
            Some(column) => column.push_json(value).map_err(|fault| fault.in_field(name)),
            None if tells_type(value) => {
                self.has_unseen = true;
                Ok(())
            }
            None => {
                if !self.left_out.contains(name) {
                    self.left_out.insert(name.to_owned());
                }
                Ok(())
            }
        }
    }

    /// Adds the cell of the field at `place`; none is null.
    pub(crate) fn push_cell(&mut self, place: usize, cell: Option<&str>) -> Result<(), Fault> {
        let Some(column) = self.columns.get_mut(place) else { return Ok(()) };
        match cell {
            Some(text) => column
                .push_cell(text)
                .map_err(|fault| fault.in_field(self.names.get(place).map_or("", String::as_str))),
            None => {
                column.push_null();
                Ok(())
            }
        }
    }

    /// Ends a row: the fields that were not given are null.
    pub(crate) fn close_row(&mut self) {
        self.rows += 1;
        for column in &mut self.columns {
            if column.len() < self.rows {
                column.push_null();
            }
        }
    }

    pub(crate) fn push_null(&mut self) {
        self.close_row();
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.rows = self.rows.min(len);
        for column in &mut self.columns {
            column.truncate(len);
        }
    }

    pub(crate) fn has_unseen(&self) -> bool {
        self.has_unseen
    }

    pub(crate) fn left_out(&self) -> &BTreeSet<String> {
        &self.left_out
    }

    pub(crate) fn visit_objects(&self, path: &str, visit: &mut dyn FnMut(&str, &ObjectBuilder)) {
        for (name, column) in self.names.iter().zip(&self.columns) {
            if column.data_type().is_nested() {
                let name = super::fault::quote_name(name);
                let dot = if path.is_empty() { "" } else { "." };
                column.visit_objects(&format!("{path}{dot}{name}"), visit);
            }
        }
    }

    pub(crate) fn finish(self) -> Result<Vec<ArrayRef>> {
        self.columns.into_iter().map(ColumnBuilder::finish).collect()
    }
}

/// Whether a type can be inferred from the value: not from null, nor from what is empty all the way down.
pub(crate) fn tells_type(value: &Json<'_>) -> bool {
    match value {
        Json::Null => false,
        Json::Array(items) => items.iter().any(tells_type),
        Json::Object(entries) => entries.iter().any(|(_, value)| tells_type(value)),
        Json::Bool(_) | Json::Number(_) | Json::String(_) => true,
    }
}
