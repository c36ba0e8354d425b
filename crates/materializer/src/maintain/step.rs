//! The steps of the periodic job: their names and their order.

use std::fmt;
use std::str::FromStr;

use alluvium_log::{Error, Result};
use serde::{Deserialize, Serialize};

/// A step of maintenance. They are carried out in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaintainStep {
    /// Fold the log into the snapshot.
    Materialize,
    /// Look whether the snapshot's files are as they were written, and make it anew if not.
    Check,
    /// Keep the snapshots that the grid asks for, and let go of those that it asks for no more.
    Grid,
    /// Refuse changes that are older than deleted keys are remembered, and forget those keys.
    Tombstones,
    /// Merge the log's files by days, and the snapshot's small ones.
    Compact,
    /// Move the days of the log that are over for long to its archive.
    Archive,
    /// Drop the days of the log that are past their retention, where snapshots hold what their rows came to.
    Expire,
    /// Write checkpoints of both tables.
    Checkpoint,
    /// Remove the commits that no kept version needs.
    Cleanup,
    /// Remove the data files that no kept version has.
    Vacuum,
}

impl MaintainStep {
    /// All steps, in order.
    pub const ALL: [Self; 10] = [
        Self::Materialize,
        Self::Check,
        Self::Grid,
        Self::Tombstones,
        Self::Compact,
        Self::Archive,
        Self::Expire,
        Self::Checkpoint,
        Self::Cleanup,
        Self::Vacuum,
    ];

    /// The step's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Materialize => "materialize",
            Self::Check => "check",
            Self::Grid => "grid",
            Self::Tombstones => "tombstones",
            Self::Compact => "compact",
            Self::Archive => "archive",
            Self::Expire => "expire",
            Self::Checkpoint => "checkpoint",
            Self::Cleanup => "cleanup",
            Self::Vacuum => "vacuum",
        }
    }
}

impl fmt::Display for MaintainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MaintainStep {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|step| step.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid(format!("{text:?} is no step of maintenance: the steps are {names}"))
        })
    }
}

impl MaintainStep {
    pub(super) fn looks_at_archive(self) -> bool {
        matches!(
            self,
            Self::Archive | Self::Expire | Self::Checkpoint | Self::Cleanup | Self::Vacuum
        )
    }
}
