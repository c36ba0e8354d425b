//! What lies in a table's log folder.

use futures::StreamExt;
use object_store::ObjectStore;
use object_store::path::Path;

use super::Table;
use crate::error::Result;

impl Table {
    pub(super) async fn list_log(&self) -> Result<LogListing> {
        let mut listing = LogListing::default();
        let folder = Path::from("_delta_log");
        let mut entries = self.store.list(Some(&folder));
        while let Some(entry) = entries.next().await {
            let location = entry.map_err(|e| self.placed(e.into()))?.location;
            // Only files straight in the log folder count.
            if location.parts().count() == 2 {
                listing.note(location.filename().unwrap_or_default());
            }
        }
        listing.commits.sort_unstable();
        Ok(listing)
    }
}

/// The names in a table's log folder, as far as they are commits and checkpoints.
#[derive(Debug, Default)]
pub(super) struct LogListing {
    pub(super) commits: Vec<i64>,
    pub(super) checkpoint: Option<i64>,
}

impl LogListing {
    fn note(&mut self, name: &str) {
        let Some((digits, rest)) = name.split_at_checked(20) else { return };
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return;
        }
        let Ok(version) = digits.parse::<i64>() else { return };
        if rest == ".json" {
            self.commits.push(version);
        } else if rest.starts_with(".checkpoint") {
            self.checkpoint = self.checkpoint.max(Some(version));
        }
    }

    pub(super) fn newest(&self) -> Option<i64> {
        self.commits.last().copied().max(self.checkpoint)
    }

    pub(super) fn reaches_back_to_the_first(&self) -> bool {
        self.commits.first() == Some(&0)
    }

    /// The first commit that is missing among those needed: after the checkpoint, or all.
    pub(super) fn gap(&self) -> Option<i64> {
        let first = self.checkpoint.map_or(0, |version| version + 1);
        let needed = self.commits.iter().filter(|&&version| version >= first);
        needed
            .zip(first..)
            .find(|(version, expected)| *version != expected)
            .map(|(_, expected)| expected)
    }
}
