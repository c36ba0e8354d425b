//! fjall with its journal synced at the end of each epoch.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium_workload::{Event, Outcome, Side, UserStatus, decode, encode};
use fjall::{Config, Keyspace, PartitionCreateOptions, PartitionHandle, PersistMode};

/// A keyspace of one partition.
pub(crate) struct Fjall {
    keyspace: Keyspace,
    users: PartitionHandle,
}

impl Fjall {
    fn get(&self, key: &str) -> Outcome<Option<UserStatus>> {
        self.users.get(key)?.map(|value| decode(&value)).transpose()
    }
}

impl Side for Fjall {
    fn open(folder: &Path, cache_bytes: Option<u64>) -> Outcome<Self> {
        let config = Config::new(folder);
        let config = match cache_bytes {
            Some(bytes) => config.cache_size(bytes),
            None => config,
        };
        let keyspace = config.open()?;
        let users = keyspace.open_partition("users", PartitionCreateOptions::default())?;
        Ok(Self { keyspace, users })
    }

    fn epoch(&mut self, events: &[Event]) -> Outcome<()> {
        let (mut key, mut bytes) = (String::new(), Vec::new());
        for &event in events {
            event.key_into(&mut key);
            encode(&UserStatus::after(self.get(&key)?, event), &mut bytes);
            self.users.insert(&key, &bytes)?;
        }
        Ok(self.keyspace.persist(PersistMode::SyncAll)?)
    }

    fn gets(&self, keys: &[String]) -> Outcome<Vec<Duration>> {
        let timed = |key: &String| {
            let started = Instant::now();
            let found = self.get(key)?;
            let took = started.elapsed();
            found.map(|_| took).ok_or_else(|| format!("{key} is gone").into())
        };
        keys.iter().map(timed).collect()
    }

    fn logins(&self) -> Outcome<i64> {
        let mut logins = 0;
        for entry in self.users.iter() {
            logins += decode(&entry?.1)?.login_count;
        }
        Ok(logins)
    }

    fn close(self) -> Outcome<()> {
        Ok(self.keyspace.persist(PersistMode::SyncAll)?)
    }
}
