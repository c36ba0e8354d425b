//! `FOLDER EVENTS KEYS EPOCH_EVENTS`: the state loop on SlateDB on local files; what was measured goes to standard output as JSON.
//!
//! Its files are synced, and its log is flushed at the end of each epoch, so that an epoch is as durable as one of the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_workload::{
    Event, Measured, Outcome, Side, UserStatus, Workload, decode, encode, measure,
};
use slatedb::config::Settings;
use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
use slatedb::object_store::ObjectStore;
use slatedb::object_store::local::LocalFileSystem;
use slatedb::{Db, Error};
use tokio::runtime::Runtime;

struct SlateDb {
    runtime: Runtime,
    db: Db,
}

impl Side for SlateDb {
    fn open(folder: &Path, cache_bytes: Option<u64>) -> Outcome<Self> {
        std::fs::create_dir_all(folder)?;
        let files = LocalFileSystem::new_with_prefix(folder)?.with_fsync(true);
        let files: Arc<dyn ObjectStore> = Arc::new(files);
        let runtime = Runtime::new()?;
        let db = runtime.block_on(async {
            let mut builder = Db::builder("users", files).with_settings(Settings::default());
            if let Some(max_capacity) = cache_bytes {
                let options = FoyerCacheOptions { max_capacity, ..FoyerCacheOptions::default() };
                builder = builder.with_db_cache(Arc::new(FoyerCache::new_with_opts(options)), 0);
            }
            builder.build().await
        })?;
        Ok(Self { runtime, db })
    }

    fn epoch(&mut self, events: &[Event]) -> Outcome<()> {
        self.runtime.block_on(async {
            let (mut key, mut bytes) = (String::new(), Vec::new());
            for &event in events {
                event.key_into(&mut key);
                let before = self.db.get(&key).await?.map(|value| decode(&value)).transpose()?;
                encode(&UserStatus::after(before, event), &mut bytes);
                self.db.put(&key, &bytes).await?;
            }
            Ok(self.db.flush().await?)
        })
    }

    fn gets(&self, keys: &[String]) -> Outcome<Vec<Duration>> {
        self.runtime.block_on(async {
            let mut took = Vec::with_capacity(keys.len());
            for key in keys {
                let started = Instant::now();
                let found = self.db.get(key).await?.map(|value| decode(&value)).transpose()?;
                took.push(started.elapsed());
                if found.is_none() {
                    return Err(format!("{key} is gone").into());
                }
            }
            Ok(took)
        })
    }

    fn logins(&self) -> Outcome<i64> {
        self.runtime.block_on(async {
            let mut rows = self.db.scan::<std::ops::RangeFull>(..).await?;
            let mut logins = 0;
            while let Some(row) = rows.next().await? {
                logins += decode(&row.value)?.login_count;
            }
            Ok(logins)
        })
    }

    fn close(self) -> Outcome<()> {
        let closed: Result<(), Error> = self.runtime.block_on(self.db.close());
        Ok(closed?)
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, events, keys, epoch_events] = arguments.as_slice() else {
        return Err("usage: FOLDER EVENTS KEYS EPOCH_EVENTS".into());
    };
    let work = Workload {
        events: events.parse()?,
        keys: keys.parse()?,
        epoch_events: epoch_events.parse()?,
    };
    let measured: Measured = measure::<SlateDb>(&PathBuf::from(folder), work)?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}
