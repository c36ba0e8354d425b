//! Errors on their way through DataFusion: ours come out as they went in, its own say what to do.

use alluvium_log::{Error, ErrorKind};
use arrow::error::ArrowError;
use datafusion::common::{Column, DataFusionError, SchemaError};

/// Our error as DataFusion carries it.
pub(super) fn to_datafusion(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The error of a query as one of ours: what a state's reader reported as it was, anything else with DataFusion's words.
pub fn sql_error(error: DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => match inner.downcast::<Error>() {
            Ok(own) => *own,
            Err(inner) => match inner.downcast::<DataFusionError>() {
                Ok(inner) => sql_error(*inner),
                Err(other) => {
                    Error::new(ErrorKind::Internal, "the query failed").with_source(other)
                }
            },
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            sql_error(*inner)
        }
        DataFusionError::ArrowError(inner, note) => match *inner {
            ArrowError::ExternalError(inner) => match inner.downcast::<Error>() {
                Ok(own) => *own,
                Err(inner) => match inner.downcast::<DataFusionError>() {
                    Ok(inner) => sql_error(*inner),
                    Err(other) => {
                        Error::new(ErrorKind::Internal, "the query failed").with_source(other)
                    }
                },
            },
            inner => told(&DataFusionError::ArrowError(Box::new(inner), note)),
        },
        DataFusionError::Collection(errors) => match errors.into_iter().next() {
            Some(first) => sql_error(first),
            None => Error::internal("the query failed without a reason"),
        },
        // A shared error can't be taken apart, so kind and words are copied.
        DataFusionError::Shared(inner) => shared(&inner),
        other => told(&other),
    }
}

/// The error of a statement that could not be planned over these states: a name in the wrong case is told.
pub(super) fn planning_error(error: DataFusionError, states: &[String]) -> Error {
    let error = sql_error(error);
    let asked = error.message().strip_prefix("table '").and_then(|rest| rest.split('\'').next());
    let plain = asked.map(|name| name.rsplit('.').next().unwrap_or(name));
    let same = plain
        .and_then(|name| states.iter().find(|known| known.eq_ignore_ascii_case(name)))
        .filter(|known| plain != Some(known.as_str()));
    match same {
        Some(known) => {
            let hint = format!("names keep their case, write {}", written(known));
            Error::new(error.kind(), format!("{hint}: {}", error.message()))
        }
        None => error,
    }
}

fn shared(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => match inner.downcast_ref::<Error>() {
            Some(own) => Error::new(own.kind(), own.to_string()),
            None => told(error),
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => shared(inner),
        DataFusionError::Shared(inner) => shared(inner),
        other => told(other),
    }
}

fn told(error: &DataFusionError) -> Error {
    if let DataFusionError::SchemaError(inner, _) = error
        && let SchemaError::FieldNotFound { field, valid_fields } = inner.as_ref()
    {
        return Error::invalid(unknown_column(field, valid_fields));
    }
    if let DataFusionError::ResourcesExhausted(details) = error {
        return out_of_memory(details);
    }
    if let DataFusionError::SQL(inner, _) = error {
        let why = inner.to_string();
        let why = why.trim_start_matches("sql parser error: ");
        return Error::invalid(format!("the query is not SQL that can be read: {why}"));
    }
    let message = error.strip_backtrace();
    // The logical plan's words for an unknown table name it with its catalog.
    if matches!(error, DataFusionError::Plan(_)) && message.contains("table 'alluvium.") {
        return Error::new(
            ErrorKind::NotFound,
            format!(
                "{}: states are tables by their exact name, \"quoted\" where it has a dash; log.<state> and snapshot.<state> are the raw tables; SHOW TABLES lists them",
                message
                    .replace("Error during planning: ", "")
                    .replace("alluvium.public.", "")
                    .replace("alluvium.", "")
            ),
        );
    }
    Error::new(kind_of(error), message)
}

/// What to do where memory, or the disk for what is spilled, does not suffice. DataFusion's own words tell of its
/// operators, which helps nobody who asks.
fn out_of_memory(details: &str) -> Error {
    tracing::debug!(details, "a query ran out of memory or of disk to spill to");
    let what = if details.contains("disk") {
        "the query spills more to the disk than is allowed: ask for less at once (fewer columns or keys, a narrower WHERE)"
    } else {
        "the query needs more memory than it may use: allow more (memory_budget_bytes of the store's settings, --memory of \
         the program), or ask for less at once (fewer columns or keys, a narrower WHERE)"
    };
    Error::new(ErrorKind::OutOfMemory, what)
}

fn kind_of(error: &DataFusionError) -> ErrorKind {
    match error {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_)
        | DataFusionError::Execution(_) => ErrorKind::InvalidInput,
        DataFusionError::NotImplemented(_) => ErrorKind::Unsupported,
        DataFusionError::ObjectStore(_) | DataFusionError::IoError(_) => ErrorKind::Storage,
        DataFusionError::ArrowError(inner, _) => match inner.as_ref() {
            ArrowError::CastError(_)
            | ArrowError::ParseError(_)
            | ArrowError::DivideByZero
            | ArrowError::ArithmeticOverflow(_)
            | ArrowError::InvalidArgumentError(_)
            | ArrowError::ComputeError(_) => ErrorKind::InvalidInput,
            ArrowError::NotYetImplemented(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Internal,
        },
        _ => ErrorKind::Internal,
    }
}

/// What to write instead of a column that there is not.
fn unknown_column(field: &Column, valid: &[Column]) -> String {
    let same = valid.iter().find(|known| known.name.eq_ignore_ascii_case(&field.name));
    let hint = match same {
        Some(known) => format!("; names keep their case, write {}", written(&known.name)),
        None => match valid
            .iter()
            .map(|known| known.name.as_str())
            .find(|known| spelled_apart(known, &field.name))
        {
            Some(known) => {
                format!("; a name with other characters is quoted, write {}", written(known))
            }
            None => format!("; a text is written in single quotes, '{}'", field.name),
        },
    };
    let mut names: Vec<String> = valid.iter().map(|known| written(&known.name)).collect();
    names.dedup();
    let listed = if names.is_empty() {
        String::new()
    } else {
        format!(" (there are: {})", names.join(", "))
    };
    format!("there is no column {}{hint}{listed}", field.flat_name())
}

/// Whether a name that needs quotes begins like the one that was understood without them.
fn spelled_apart(known: &str, asked: &str) -> bool {
    written(known).starts_with('"') && known.len() > asked.len() && known.starts_with(asked)
}

/// A name as it is written in SQL.
fn written(name: &str) -> String {
    let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_')
        && name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}
