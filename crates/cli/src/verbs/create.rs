//! `create`: a state with its fields given, or inferred from a file.

use std::path::Path;

use alluvium::format::{ChangeReader, ReadOptions, format_fields, parse_fields};
use alluvium::{StateDefinition, StateSettings};
use arrow::datatypes::Fields;

use super::{Outcome, Session, reports};
use crate::args::CreateArgs;
use crate::failure::{ExitCodes, Failure};

pub(super) async fn run(session: &mut Session<'_>, args: CreateArgs) -> Outcome {
    let (fields, untyped) = match (&args.schema, &args.like) {
        (Some(schema), _) => (parse_fields(schema)?, Vec::new()),
        (None, Some(file)) => fields_like(file, &args)?,
        (None, None) => (Fields::empty(), Vec::new()),
    };
    let mut settings = StateSettings { order_by: args.order_by, ..StateSettings::default() };
    if let Some(max_future_ms) = args.max_future_ms {
        settings.max_future_ms = max_future_ms;
    }
    let store = session.open_for_writing().await?;
    let (state, created) = store.create_state(&args.state, &fields, settings).await?;
    store.close().await;
    let definition = state.definition();
    if session.is_table() {
        let what = if created { "created" } else { "exists already with the same definition" };
        let text = describe(&args.state, what, &definition);
        session.console.stdout.write_all(text.as_bytes())?;
    } else {
        let report = serde_json::json!({
            "state": args.state,
            "created": created,
            "order_by": definition.order_by.to_string(),
            "fields": format_fields(&definition.fields),
        });
        reports::write(session, &[report.to_string()])?;
    }
    if !untyped.is_empty() {
        session.say(&format!(
            "left out, because the file has only nulls for them: {}; they are added when a value comes",
            untyped.join(", ")
        ));
    }
    Ok(ExitCodes::OK)
}

/// The fields of the first rows of a file, and the names of those without a type.
fn fields_like(file: &Path, args: &CreateArgs) -> Result<(Fields, Vec<String>), Failure> {
    let files = [file.to_owned()];
    let options = ReadOptions {
        format: args.mapping.format.map(Into::into),
        mapping: args.mapping.mapping(&files),
        ..ReadOptions::default()
    };
    let mut reader = ChangeReader::open(file, options)?;
    match reader.next_chunk()? {
        Some(chunk) => Ok((chunk.fields().clone(), chunk.left_out)),
        None => Err(Failure::usage(format!(
            "{} has no rows to infer fields from: give --schema",
            file.display()
        ))),
    }
}

/// A state in words, its fields one per line as they can be given to `--schema`.
pub(super) fn describe(state: &str, what: &str, definition: &StateDefinition) -> String {
    let mut text = format!("{state}: {what}, ordered by {}\n", definition.order_by);
    if definition.fields.is_empty() {
        text.push_str("  no fields yet: they come with the first values\n");
    }
    let last = definition.fields.len().saturating_sub(1);
    for (at, field) in definition.fields.iter().enumerate() {
        let comma = if at < last { "," } else { "" };
        let line = format_fields(&Fields::from(vec![field.clone()]));
        text.push_str(&format!("  {line}{comma}\n"));
    }
    text
}
