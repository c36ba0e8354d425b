//! redb with one durable transaction per epoch.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium_workload::{Event, Outcome, Side, UserStatus, decode, encode};
use redb::{Database, ReadableTable, TableDefinition};

const USERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("users");

/// A database of one table.
pub(crate) struct Redb {
    db: Database,
}

impl Side for Redb {
    fn open(folder: &Path, cache_bytes: Option<u64>) -> Outcome<Self> {
        std::fs::create_dir_all(folder)?;
        let mut builder = Database::builder();
        if let Some(bytes) = cache_bytes {
            builder.set_cache_size(usize::try_from(bytes)?);
        }
        Ok(Self { db: builder.create(folder.join("users.redb"))? })
    }

    fn epoch(&mut self, events: &[Event]) -> Outcome<()> {
        let (mut key, mut bytes) = (String::new(), Vec::new());
        let writing = self.db.begin_write()?;
        {
            let mut users = writing.open_table(USERS)?;
            for &event in events {
                event.key_into(&mut key);
                let before =
                    users.get(key.as_str())?.map(|value| decode(value.value())).transpose()?;
                encode(&UserStatus::after(before, event), &mut bytes);
                users.insert(key.as_str(), bytes.as_slice())?;
            }
        }
        Ok(writing.commit()?)
    }

    fn gets(&self, keys: &[String]) -> Outcome<Vec<Duration>> {
        let users = self.db.begin_read()?.open_table(USERS)?;
        let timed = |key: &String| {
            let started = Instant::now();
            let found = users.get(key.as_str())?.map(|value| decode(value.value())).transpose()?;
            let took = started.elapsed();
            found.map(|_| took).ok_or_else(|| format!("{key} is gone").into())
        };
        keys.iter().map(timed).collect()
    }

    fn logins(&self) -> Outcome<i64> {
        let users = self.db.begin_read()?.open_table(USERS)?;
        let mut logins = 0;
        for entry in users.iter()? {
            logins += decode(entry?.1.value())?.login_count;
        }
        Ok(logins)
    }

    fn close(self) -> Outcome<()> {
        // Dropping it closes it.
        Ok(())
    }
}
