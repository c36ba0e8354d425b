//! What the settings of an archive must agree with, and where it may lie.

use super::{MaintenanceSettings, duration_text};
use crate::error::{Error, Result};

impl MaintenanceSettings {
    pub(super) fn validate_archive(&self) -> Result<()> {
        if let Some(uri) = &self.archive {
            validate_uri(uri)?;
        }
        let Some(hot_ms) = self.hot_days_ms else { return Ok(()) };
        let needed = [
            (
                "as_of_window",
                self.as_of_window_ms,
                "answers as of its points never open the archive",
            ),
            ("compact_after", self.compact_after_ms, "a day would move before it is merged"),
        ];
        if let Some((name, span, why)) = needed.into_iter().find(|(_, span, _)| hot_ms < *span) {
            return Err(Error::invalid(format!(
                "hot_days ({}) is shorter than {name} ({}): {why}",
                duration_text(hot_ms),
                duration_text(span)
            )));
        }
        match self.log_retention_ms.filter(|kept_ms| *kept_ms < hot_ms) {
            Some(kept_ms) => Err(Error::invalid(format!(
                "log_retention ({}) is shorter than hot_days ({}): a day expires from the archive, so it must get there first",
                duration_text(kept_ms),
                duration_text(hot_ms)
            ))),
            None => Ok(()),
        }
    }
}

/// An archive must be the same place for every process, and outlive each.
fn validate_uri(uri: &str) -> Result<()> {
    let why = match uri.split_once("://") {
        Some(("memory", _)) => "what lies in memory ends with the process",
        Some(("file", path)) if !path.starts_with('/') => "a file URL has an absolute path",
        Some(_) => return Ok(()),
        None if std::path::Path::new(uri).is_absolute() => return Ok(()),
        None => "another process may run in another folder: give an absolute path or a URI",
    };
    Err(Error::invalid(format!("archive can't be {uri:?}: {why}")))
}
