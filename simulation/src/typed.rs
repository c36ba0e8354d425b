//! What processes do with values of a type: reads through caches, appends that go through them, and streams of epochs.

use alluvium::{Change as TypedChange, Result, State, Store};
use serde::{Deserialize, Serialize};

use crate::actors::STATE;
use crate::rows::{Change, Value};

/// A value as an application has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Typed {
    n: i64,
    text: Option<String>,
    object: Option<Object>,
    grown: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Object {
    a: Option<i64>,
    b: Option<String>,
}

impl From<Value> for Typed {
    fn from(value: Value) -> Self {
        let Value { n, text, object, grown } = value;
        Self { n, text, object: object.map(|(a, b)| Object { a, b }), grown }
    }
}

impl From<Typed> for Value {
    fn from(typed: Typed) -> Self {
        let Typed { n, text, object, grown } = typed;
        Self { n, text, object: object.map(|Object { a, b }| (a, b)), grown }
    }
}

/// How a cache is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Key by key.
    Each,
    /// All keys at once.
    Together,
    /// The same, once all of the state was taken into the cache.
    Warmed,
}

/// An epoch of a stream, with its rows, the same whoever sends it; the last one is the mark of its attempt.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Its number.
    pub number: i64,
    /// Which attempt it is.
    pub attempt: usize,
    /// Its rows: of each key one.
    pub rows: Vec<Change>,
}

/// What an epoch of a stream saw of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// The epoch.
    pub number: i64,
    /// How many of its own rows it had put by then.
    pub puts: usize,
    /// The key.
    pub key: String,
    /// What it saw.
    pub value: Option<Value>,
}

/// What came of a stream.
#[derive(Debug)]
pub struct Streamed {
    /// The greatest epoch that it says is durable.
    pub durable: Option<i64>,
    /// What its epochs saw.
    pub sights: Vec<Sight>,
    /// Whether it came to its end.
    pub outcome: Result<()>,
}

/// Asks a process's cache.
pub async fn cached(home: &Store, keys: &[String], asked: Asked) -> Result<Vec<Option<Value>>> {
    let state: State<Typed> = home.state(STATE).await?;
    let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut found = Vec::with_capacity(keys.len());
    match asked {
        Asked::Each => {
            for key in wanted {
                found.push(state.get(key).await?);
            }
        }
        Asked::Together => found = state.multi_get(&wanted).await?,
        Asked::Warmed => {
            state.warm().await?;
            found = state.multi_get(&wanted).await?;
        }
    }
    Ok(found.into_iter().map(|value| value.map(Value::from)).collect())
}

/// Appends through the cache.
pub async fn append(home: &Store, rows: &[Change]) -> Result<alluvium::Receipt> {
    let state: State<Typed> = home.state(STATE).await?;
    let changes: Vec<TypedChange<Typed>> = rows
        .iter()
        .map(|row| {
            let change = match &row.value {
                Some(value) => TypedChange::upsert(row.key.clone(), value.clone().into()),
                None => TypedChange::delete(row.key.clone()),
            };
            change.version(row.version).at(row.event_time)
        })
        .collect();
    state.append(&changes).await
}

/// Sends epochs as one stream, each of which looks at the keys that it changes before and after it does.
pub async fn stream(home: &Store, app: &str, epochs: &[Sent]) -> Streamed {
    let mut stream = home.epochs(app);
    let mut sights = Vec::new();
    let outcome = send(home, &mut stream, epochs, &mut sights).await;
    Streamed { durable: stream.durable(), sights, outcome }
}

async fn send(
    home: &Store,
    stream: &mut alluvium::EpochStream,
    epochs: &[Sent],
    sights: &mut Vec<Sight>,
) -> Result<()> {
    let state: State<Typed> = home.state(STATE).await?;
    for Sent { number, rows, .. } in epochs {
        let mut epoch = stream.begin(*number).await?;
        for (at, row) in rows.iter().enumerate() {
            for puts in [at, at + 1] {
                if puts > at {
                    match &row.value {
                        Some(value) => epoch.put(&state, &row.key, value.clone().into()).await?,
                        None => epoch.delete(&state, &row.key).await?,
                    }
                }
                let value = epoch.get(&state, &row.key).await?.map(Value::from);
                sights.push(Sight { number: *number, puts, key: row.key.clone(), value });
            }
        }
        stream.submit(epoch).await?;
    }
    stream.flush().await.map(drop)
}
