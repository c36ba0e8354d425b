//! `config`: the settings of this process, and where they come from.

use alluvium::{Error, NamedSetting};

use super::{Outcome, Session, reports};
use crate::failure::{ExitCodes, Failure};

pub(super) fn run(session: &mut Session<'_>) -> Outcome {
    let settings: Vec<NamedSetting> = session.process().named().cloned().collect();
    if session.is_table() {
        for setting in settings.iter().filter(|setting| !setting.value.is_null()) {
            let source = serde_json::to_value(setting.source).map_err(failed)?;
            let source = source.as_str().unwrap_or_default();
            writeln!(session.console.stdout, "{} = {}  # {source}", setting.name, setting.value)?;
        }
        return Ok(ExitCodes::OK);
    }
    let lines = settings.iter().map(|setting| {
        // The values are of several kinds, and a column has one.
        let value = match &setting.value {
            serde_json::Value::String(text) => serde_json::Value::from(text.as_str()),
            serde_json::Value::Null => serde_json::Value::Null,
            other => serde_json::Value::from(other.to_string()),
        };
        let line = serde_json::json!({
            "name": setting.name, "value": value, "source": setting.source,
        });
        line.to_string()
    });
    let lines: Vec<String> = lines.collect();
    reports::write(session, &lines)?;
    Ok(ExitCodes::OK)
}

fn failed(error: serde_json::Error) -> Failure {
    Error::internal("a setting").with_source(error).into()
}
