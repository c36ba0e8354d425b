//! Fields that rows bring along: what a commit must add to the table's schema, and what it must not.

use arrow::datatypes::DataType;

use super::LogInner;
use crate::definition::StateDefinition;
use crate::error::{Error, ErrorKind, Result};
use crate::table::{Action, TableState};

impl LogInner {
    /// The metadata action that a commit needs when its rows have fields that the table lacks.
    pub(super) fn growth(
        state: &TableState,
        definition: &StateDefinition,
    ) -> Result<Option<Action>> {
        let stored = StateDefinition::from_metadata(&state.metadata)?;
        let grown = stored.grown_by(&definition.fields)?;
        // Also when the field is there already: this writer may not have known of it when its rows were made.
        check_same_types(&grown, definition)?;
        if grown.fields == stored.fields {
            return Ok(None);
        }
        if grown.protocol() != stored.protocol() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a field of type TIMESTAMP_NTZ can't be added to a state that has none: it would need another \
                 table protocol; declare such fields when the state is created, or use TIMESTAMP",
            ));
        }
        let mut metadata = (*state.metadata).clone();
        grown.write_to(&mut metadata)?;
        Ok(Some(Action::Metadata(metadata)))
    }
}

/// Two writers may add a field of one name at the same time: the second one's rows must fit the first one's type.
fn check_same_types(grown: &StateDefinition, written: &StateDefinition) -> Result<()> {
    for field in &written.fields {
        let stored = grown.fields.iter().find(|known| known.name() == field.name());
        if let Some(stored) = stored
            && !stored.data_type().equals_datatype(field.data_type())
            && !contains_type(stored.data_type(), field.data_type())
        {
            return Err(Error::invalid(format!(
                "state_value.{} was added by another writer as {}, and these rows have {}: convert the field",
                field.name(),
                stored.data_type(),
                field.data_type()
            )));
        }
    }
    Ok(())
}

/// Whether rows of a nested type fit a type that has the same fields and more.
fn contains_type(stored: &DataType, written: &DataType) -> bool {
    use DataType::{List, Map, Struct};
    match (stored, written) {
        (Struct(stored), Struct(written)) => written.iter().all(|field| {
            stored.iter().any(|known| {
                known.name() == field.name() && contains_type(known.data_type(), field.data_type())
            })
        }),
        (List(stored), List(written)) | (Map(stored, _), Map(written, _)) => {
            contains_type(stored.data_type(), written.data_type())
        }
        (stored, written) => stored.equals_datatype(written),
    }
}
