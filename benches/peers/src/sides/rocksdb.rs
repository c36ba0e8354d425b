//! RocksDB with its write-ahead log synced at the end of each epoch.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium_workload::{Event, Outcome, Side, UserStatus, decode, encode};
use rocksdb::{BlockBasedOptions, Cache, DB, IteratorMode, Options};

/// A database with the usual memory tables; its block cache is bounded where asked for.
pub(crate) struct RocksDb {
    db: DB,
}

impl RocksDb {
    fn get(&self, key: &str) -> Outcome<Option<UserStatus>> {
        self.db.get_pinned(key)?.map(|value| decode(&value)).transpose()
    }
}

impl Side for RocksDb {
    fn open(folder: &Path, cache_bytes: Option<u64>) -> Outcome<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.increase_parallelism(2);
        options.set_compression_type(rocksdb::DBCompressionType::Lz4);
        if let Some(bytes) = cache_bytes {
            let mut blocks = BlockBasedOptions::default();
            blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(bytes)?)?);
            // Without one, each get of a key would look into every level.
            blocks.set_bloom_filter(10.0, false);
            options.set_block_based_table_factory(&blocks);
        }
        std::fs::create_dir_all(folder)?;
        Ok(Self { db: DB::open(&options, folder)? })
    }

    fn epoch(&mut self, events: &[Event]) -> Outcome<()> {
        let (mut key, mut bytes) = (String::new(), Vec::new());
        for &event in events {
            event.key_into(&mut key);
            encode(&UserStatus::after(self.get(&key)?, event), &mut bytes);
            self.db.put(&key, &bytes)?;
        }
        Ok(self.db.flush_wal(true)?)
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
        for entry in self.db.iterator(IteratorMode::Start) {
            logins += decode(&entry?.1)?.login_count;
        }
        Ok(logins)
    }

    fn close(self) -> Outcome<()> {
        // Dropping it closes it.
        Ok(())
    }
}
