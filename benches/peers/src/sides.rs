//! The other sides of the state loop: each store's own way to be durable once per epoch.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium_benches::{Outcome, UserStatus, Workload};

/// A value as bytes: two numbers and the text.
pub(crate) fn encode(user: &UserStatus, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(user.login_count.to_le_bytes());
    bytes.extend(user.score.to_le_bytes());
    bytes.extend(user.source.as_bytes());
}

/// What [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Outcome<UserStatus> {
    let (count, rest) = bytes.split_first_chunk().ok_or("a short value")?;
    let (score, source) = rest.split_first_chunk().ok_or("a short value")?;
    Ok(UserStatus {
        login_count: i64::from_le_bytes(*count),
        score: f64::from_le_bytes(*score),
        source: std::str::from_utf8(source)?.to_owned(),
    })
}

/// How long the loop took, how often users were seen, and the middle one of many gets, in seconds.
pub(crate) struct Figures {
    pub(crate) took: Duration,
    pub(crate) logins: i64,
    pub(crate) get: f64,
}

/// The middle duration of gets of keys all over the state.
fn median_get(
    work: Workload,
    mut get: impl FnMut(&str) -> Outcome<Option<UserStatus>>,
) -> Outcome<f64> {
    let mut key = String::new();
    let mut seconds = Vec::new();
    for event in work.epochs().take(10).flatten() {
        event.key_into(&mut key);
        let started = Instant::now();
        let found = get(&key)?;
        seconds.push(started.elapsed().as_secs_f64());
        if found.is_none() {
            return Err(format!("{key} is gone").into());
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// RocksDB with its write-ahead log synced at the end of each epoch.
#[cfg(feature = "rocksdb")]
pub(crate) fn rocksdb(folder: &Path, work: Workload) -> Outcome<Figures> {
    use rocksdb::{DB, IteratorMode, Options};
    let mut options = Options::default();
    options.create_if_missing(true);
    options.increase_parallelism(2);
    options.set_compression_type(rocksdb::DBCompressionType::Lz4);
    let db = DB::open(&options, folder)?;
    let (mut key, mut bytes) = (String::new(), Vec::new());
    let started = Instant::now();
    for events in work.epochs() {
        for event in events {
            event.key_into(&mut key);
            let before = db.get_pinned(&key)?.map(|value| decode(&value)).transpose()?;
            encode(&UserStatus::after(before, event), &mut bytes);
            db.put(&key, &bytes)?;
        }
        db.flush_wal(true)?;
    }
    let took = started.elapsed();
    let mut logins = 0;
    for entry in db.iterator(IteratorMode::Start) {
        logins += decode(&entry?.1)?.login_count;
    }
    let get =
        median_get(work, |key| db.get_pinned(key)?.map(|value| decode(&value)).transpose())?;
    Ok(Figures { took, logins, get })
}

/// fjall with its journal synced at the end of each epoch.
#[cfg(feature = "fjall")]
pub(crate) fn fjall(folder: &Path, work: Workload) -> Outcome<Figures> {
    use fjall::{Config, PartitionCreateOptions, PersistMode};
    let keyspace = Config::new(folder).open()?;
    let users = keyspace.open_partition("users", PartitionCreateOptions::default())?;
    let (mut key, mut bytes) = (String::new(), Vec::new());
    let started = Instant::now();
    for events in work.epochs() {
        for event in events {
            event.key_into(&mut key);
            let before = users.get(&key)?.map(|value| decode(&value)).transpose()?;
            encode(&UserStatus::after(before, event), &mut bytes);
            users.insert(&key, &bytes)?;
        }
        keyspace.persist(PersistMode::SyncAll)?;
    }
    let took = started.elapsed();
    let mut logins = 0;
    for entry in users.iter() {
        logins += decode(&entry?.1)?.login_count;
    }
    let get = median_get(work, |key| users.get(key)?.map(|value| decode(&value)).transpose())?;
    Ok(Figures { took, logins, get })
}

/// redb with one durable transaction per epoch.
#[cfg(feature = "redb")]
pub(crate) fn redb(folder: &Path, work: Workload) -> Outcome<Figures> {
    use redb::{Database, ReadableTable, TableDefinition};
    const USERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("users");
    std::fs::create_dir_all(folder)?;
    let db = Database::create(folder.join("users.redb"))?;
    let (mut key, mut bytes) = (String::new(), Vec::new());
    let started = Instant::now();
    for events in work.epochs() {
        let writing = db.begin_write()?;
        {
            let mut users = writing.open_table(USERS)?;
            for event in events {
                event.key_into(&mut key);
                let before =
                    users.get(key.as_str())?.map(|value| decode(value.value())).transpose()?;
                encode(&UserStatus::after(before, event), &mut bytes);
                users.insert(key.as_str(), bytes.as_slice())?;
            }
        }
        writing.commit()?;
    }
    let took = started.elapsed();
    let users = db.begin_read()?.open_table(USERS)?;
    let mut logins = 0;
    for entry in users.iter()? {
        logins += decode(entry?.1.value())?.login_count;
    }
    let get = median_get(work, |key| {
        users.get(key)?.map(|value| decode(value.value())).transpose()
    })?;
    Ok(Figures { took, logins, get })
}
