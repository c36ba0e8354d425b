//! Our side of the state loop of a stream: get a key's value, change it, put it back; an epoch every so many events.
//!
//! Every side works through the same seeded events with the same change, and is asked for the same sum at the end.

use alluvium::{State, Store};
use alluvium_workload::{UserStatus, Workload};
use futures::TryStreamExt;

use crate::Outcome;

/// How our side goes through the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// The next epoch is filled while the one before is made durable.
    Stream,
    /// The same, and the keys of an epoch are read at once before it is filled.
    Prefetch,
    /// Each epoch is durable before the next one begins.
    OneByOne,
}

/// Our side; all is durable when it returns.
pub async fn alluvium_loop(
    store: &Store,
    users: &State<UserStatus>,
    work: Workload,
    how: Loop,
) -> Outcome<()> {
    let mut stream = store.epochs("bench");
    let mut key = String::new();
    for (number, events) in (1_i64..).zip(work.epochs()) {
        let mut epoch = match how {
            Loop::OneByOne => store.epoch("bench", number),
            _ => stream.begin(number).await?,
        };
        if how == Loop::Prefetch {
            let keys: Vec<String> =
                events.iter().map(|event| crate::key_text(event.user)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            epoch.prefetch(users, &keys).await?;
        }
        for event in events {
            event.key_into(&mut key);
            let before = epoch.get(users, &key).await?;
            epoch.put(users, &key, UserStatus::after(before, event)).await?;
        }
        match how {
            Loop::OneByOne => drop(epoch.commit().await?),
            _ => stream.submit(epoch).await?,
        }
    }
    stream.flush().await?;
    Ok(())
}

/// How often users were seen, by the state: as often as there were events.
pub async fn logins(users: &State<UserStatus>) -> Outcome<i64> {
    let mut rows = users.scan("").await?;
    let mut sum = 0;
    while let Some(entry) = rows.try_next().await? {
        sum += entry.value.login_count;
    }
    Ok(sum)
}
