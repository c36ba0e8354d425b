//! Opening a table in a folder of this machine without listing its log: the checkpoint that the hint names, most often the newest
//! one, and the commits after it, until one is missing.
//!
//! The names of a log take the kernel the longer the more commits are kept, and tell in the end what was clear from the beginning,
//! unless something is wrong: a commit is missing between others, a newer checkpoint is not hinted at. So the newest version that is
//! found is taken as such only where that is plain ([`Table::is_plainly_newest`]); otherwise the log is listed, and nothing of what
//! was read counts before the listing has agreed. What can't be read here is left to whom the listing leads.

use std::sync::atomic::Ordering;

use super::Table;
use super::delta;
use super::listing::Origin;
use super::state::TableState;

/// More commits than this after the beginning are read once it is known that they have to be.
const MOST_COMMITS: i64 = 1_024;

/// A version that is perhaps the newest.
pub(super) struct Ahead {
    /// What it was made from.
    pub(super) origin: Origin,
    /// The version.
    pub(super) state: TableState,
}

impl Table {
    /// Reads what lies in memory of the newest version.
    pub(super) async fn read_ahead(&self) -> Option<Ahead> {
        self.probe.as_ref()?;
        let (origin, mut state) = match self.probe_hint() {
            None => (Origin::First, TableState::empty()),
            Some(hint) => {
                let version = delta::hinted_version(&hint)?;
                let loaded = self.access.load_checkpoint(version).await.ok()??;
                (Origin::Checkpoint(version), self.begun_with(loaded).await.ok()?)
            }
        };
        for version in state.version + 1..=state.version + MOST_COMMITS {
            let Some(bytes) = self.probe_bytes(version) else { break };
            let read =
                delta::decode(version, &bytes).and_then(|commit| state.apply(version, &commit));
            // Whatever is wrong with it is told on the way that has to read it.
            let Ok(next) = read else { break };
            state = next;
        }
        (state.version >= 0).then_some(Ahead { origin, state })
    }

    /// What was read ahead, as the newest version, where that is plain.
    pub(super) fn plainly_newest(&self, ahead: &Ahead) -> Option<TableState> {
        let checkpoint = match ahead.origin {
            Origin::First => 0,
            Origin::Checkpoint(version) => version,
        };
        let note = delta::note_name(checkpoint);
        let is_newest = !ahead.state.has_unknown_commits()
            && self.is_plainly_newest(ahead.state.version, &["_last_checkpoint", &note]);
        if !is_newest {
            return None;
        }
        self.checkpointed.store(checkpoint, Ordering::Relaxed);
        self.is_listed.store(false, Ordering::Relaxed);
        Some(ahead.state.clone())
    }
}
