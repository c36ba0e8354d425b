//! Typed states against a plain map: reads through row caches too small for the state, by several handles, with epochs and
//! streams of epochs that spill, while others write, materialize and open anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{Epoch, ManualClock, State, Store, StoreSettings};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::support::stores::{Home, SECOND, START, assert_sound, settings};

const NAME: &str = "counts";
const HANDLES: usize = 3;
const CASES: u64 = 3;
const STEPS: u64 = 40;

/// A value with something on the heap, so that rows differ in size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Count {
    n: i64,
    text: Option<String>,
}

type Model = BTreeMap<String, Count>;

struct World {
    home: Home,
    clock: Arc<ManualClock>,
    stores: Vec<Store>,
    states: Vec<State<Count>>,
    model: Model,
    rng: StdRng,
    seconds: i64,
    epoch: i64,
}

fn some_settings(rng: &mut StdRng) -> StoreSettings {
    StoreSettings {
        row_cache_bytes: *[0, 2_000, 20_000, 1 << 20].choose(rng).unwrap(),
        epoch_bytes: *[1, 400, 1 << 20].choose(rng).unwrap(),
        materialize_after_rows: *[0, 20].choose(rng).unwrap(),
        tidy_after_commits: *[0, 3, 12].choose(rng).unwrap(),
        tail_bytes: *[0, 3_000, 1 << 20].choose(rng).unwrap(),
        page_cache_bytes: *[0, 30_000, 1 << 20].choose(rng).unwrap(),
        page_spill_bytes: *[0, 200_000, 1 << 20].choose(rng).unwrap(),
        ..settings()
    }
}

impl World {
    async fn new(seed: u64) -> Self {
        let mut world = Self {
            home: Home::new(),
            clock: Arc::new(ManualClock::at(START)),
            stores: Vec::new(),
            states: Vec::new(),
            model: Model::new(),
            rng: StdRng::seed_from_u64(seed),
            seconds: 0,
            epoch: 0,
        };
        for _ in 0..HANDLES {
            let (store, state) = world.open().await;
            world.stores.push(store);
            world.states.push(state);
        }
        world
    }

    async fn open(&mut self) -> (Store, State<Count>) {
        let store = Store::builder(&self.home.uri())
            .settings(some_settings(&mut self.rng))
            .clock(self.clock.clone())
            .open()
            .await
            .unwrap();
        let state = store.state::<Count>(NAME).await.unwrap();
        (store, state)
    }

    /// Each write happens after the one before, whoever makes it.
    fn tick(&mut self) {
        self.seconds += 1;
        self.clock.set(START + self.seconds * SECOND);
    }

    fn handle(&mut self) -> usize {
        self.rng.random_range(0..HANDLES)
    }

    fn key(&mut self) -> String {
        format!("k{:02}", self.rng.random_range(0..40))
    }

    fn count(&mut self) -> Count {
        let text = self.rng.random_bool(0.5).then(|| "t".repeat(self.rng.random_range(0..90)));
        Count { n: self.rng.random_range(0..1_000), text }
    }

    async fn write(&mut self, key: String) {
        self.tick();
        let handle = self.handle();
        let state = self.states[handle].clone();
        if self.rng.random_bool(0.2) {
            state.delete(&key).await.unwrap();
            self.model.remove(&key);
            return;
        }
        let count = self.count();
        if self.rng.random_bool(0.3) {
            let before = self.model.get(&key).cloned();
            let change = |seen: Option<Count>| {
                assert_eq!(seen, before);
                Some(count.clone())
            };
            state.update(&key, change).await.unwrap();
        } else {
            state.put(&key, &count).await.unwrap();
        }
        self.model.insert(key, count);
    }

    /// Any handle, asked in any way, knows what any other one wrote.
    async fn check(&mut self) {
        for handle in 0..HANDLES {
            let keys: Vec<String> = (0..5).map(|_| self.key()).collect();
            let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
            let expected: Vec<Option<Count>> =
                wanted.iter().map(|&key| self.model.get(key).cloned()).collect();
            let state = &self.states[handle];
            assert_eq!(state.get(wanted[0]).await.unwrap(), expected[0], "{}", wanted[0]);
            assert_eq!(state.get(wanted[1]).await.unwrap(), expected[1], "{}", wanted[1]);
            assert_eq!(state.multi_get(&wanted).await.unwrap(), expected, "{wanted:?}");
            let stats = state.row_cache_stats();
            assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
        }
    }

    /// Fills an epoch; `seen` is what it must see, and becomes what it leaves. Others write keys meanwhile that the
    /// epoch reads and does not write.
    async fn fill(&mut self, epoch: &mut Epoch, state: &State<Count>, seen: &mut Model) {
        for step in 0..self.rng.random_range(1..25) {
            let key = self.key();
            match self.rng.random_range(0..10) {
                0..4 => {
                    let count = self.count();
                    epoch.put(state, &key, count.clone()).await.unwrap();
                    seen.insert(key, count);
                }
                4 => {
                    epoch.delete(state, &key).await.unwrap();
                    seen.remove(&key);
                }
                5 => {
                    let other = self.key();
                    epoch.prefetch(state, &[&key, &other, &key]).await.unwrap();
                }
                6 if step > 0 => self.write_beside(epoch, state, seen).await,
                _ => {
                    let found = epoch.get(state, &key).await.unwrap();
                    assert_eq!(found.as_ref(), seen.get(&key), "{key} in {epoch:?}");
                }
            }
        }
    }

    /// What is written after the epoch's first read is not seen by the epoch.
    async fn write_beside(&mut self, epoch: &mut Epoch, state: &State<Count>, seen: &Model) {
        let key = format!("beside{}", self.rng.random_range(0..6));
        let found = epoch.get(state, &key).await.unwrap();
        assert_eq!(found.as_ref(), seen.get(&key), "{key} in {epoch:?}");
        self.write(key.clone()).await;
        let found = epoch.get(state, &key).await.unwrap();
        assert_eq!(found.as_ref(), seen.get(&key), "{key} was written beside {epoch:?}");
    }

    /// What an epoch changed, on top of what others wrote beside it.
    fn take_over(&mut self, seen: Model) {
        self.model.retain(|key, _| key.starts_with("beside"));
        self.model.extend(seen.into_iter().filter(|(key, _)| !key.starts_with("beside")));
    }

    async fn one_epoch(&mut self) {
        let handle = self.handle();
        let (store, state) = (self.stores[handle].clone(), self.states[handle].clone());
        self.epoch += 1;
        let mut epoch = store.epoch(&format!("app/{}", self.epoch), 1);
        let mut seen = self.model.clone();
        self.tick();
        // The first read pins what the epoch sees.
        epoch.get(&state, "none").await.unwrap();
        self.fill(&mut epoch, &state, &mut seen).await;
        self.tick();
        epoch.commit().await.unwrap();
        self.take_over(seen);
    }

    async fn stream(&mut self) {
        let handle = self.handle();
        let (store, state) = (self.stores[handle].clone(), self.states[handle].clone());
        let app = format!("stream/{}", self.epoch);
        let mut stream = store.epochs(&app);
        for number in 0..self.rng.random_range(1..6) {
            self.tick();
            let mut epoch = stream.begin(number).await.unwrap();
            let mut seen = self.model.clone();
            epoch.get(&state, "none").await.unwrap();
            self.fill(&mut epoch, &state, &mut seen).await;
            stream.submit(epoch).await.unwrap();
            self.take_over(seen);
            if self.rng.random_bool(0.3) {
                let key = format!("beside{}", self.rng.random_range(0..6));
                self.write(key).await;
            }
        }
        stream.flush().await.unwrap();
        self.epoch += 1;
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..20) {
            0..9 => {
                let key = self.key();
                self.write(key).await;
            }
            9..12 => self.one_epoch().await,
            12..15 => self.stream().await,
            15..17 => {
                let handle = self.handle();
                self.states[handle].raw().materialize(false).await.unwrap();
            }
            18 => {
                let handle = self.handle();
                let warm = self.states[handle].warm().await.unwrap();
                let stats = self.states[handle].row_cache_stats();
                assert!(!warm || stats.rows >= self.model.len() as u64, "{stats:?}");
            }
            17 => {
                let handle = self.handle();
                (self.stores[handle], self.states[handle]) = self.open().await;
            }
            _ => {}
        }
    }
}

/// Tells how to replay a sequence that failed.
struct Replay(u64);

impl Drop for Replay {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with ALLUVIUM_SEED={}", self.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_states_agree_with_a_map_whatever_their_caches_hold() {
    let cases = super::from_environment("ALLUVIUM_CASES").unwrap_or(CASES);
    let steps = super::from_environment("ALLUVIUM_STEPS").unwrap_or(STEPS);
    let seeds = match super::from_environment("ALLUVIUM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 7_000..7_000 + cases,
    };
    for seed in seeds {
        let _replay = Replay(seed);
        let mut world = World::new(seed).await;
        for _ in 0..steps {
            world.step().await;
            world.check().await;
        }
        for store in &world.stores {
            store.close().await;
        }
        assert_sound(world.states[0].raw()).await;
    }
}
