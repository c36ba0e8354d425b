//! A maker of a fork that sleeps at any call, for less than the hour and ten minutes after which nobody waits for him, while others bring
//! his fork to an end and take its name for something else.

use std::sync::Arc;

use alluvium::{Error, ErrorKind, ForkOutcome, ManualClock, OrderBy, Point, Store};

use super::advance;
use super::faults::{built, store_of};
use crate::support::faults::open;
use crate::support::search::objects_of;
use crate::support::stores::{DAY, START, assert_sound, live, n_batch, n_fields, n_of, ordered_by};

const HOUR: i64 = DAY / 24;

/// What the others do while the maker sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Finished,
    Dropped,
    /// Dropped, and a state is created by its name.
    Created,
    /// Dropped, and made once more at an older commit.
    Remade,
}

const ALL: [Meanwhile; 4] =
    [Meanwhile::Finished, Meanwhile::Dropped, Meanwhile::Created, Meanwhile::Remade];

impl Meanwhile {
    /// Gives what became of it: the name of a fork that was begun by the maker stays taken.
    async fn happens(self, store: &Store, newest: i64) -> Self {
        let made = store.fork("s", "f", Point::at_commit(newest), false).await;
        // The maker may sleep when all is done.
        let is_whole = |error: &Error| error.kind() == ErrorKind::AlreadyExists;
        assert!(made.as_ref().err().is_none_or(is_whole), "{made:?}");
        if self == Self::Finished {
            return self;
        }
        store.drop_fork("f").await.unwrap();
        let is_kept = store.forks().await.unwrap().len() == 1;
        let taken = match self {
            Self::Created => {
                let settings = ordered_by(OrderBy::EventTime);
                let created = store.create_state("f", &n_fields(), settings).await.map(drop);
                if created.is_ok() {
                    let state = store.raw_state("f").await.unwrap();
                    state.append(&n_batch(&[("x", 1, Some(1))])).await.unwrap();
                }
                created
            }
            Self::Remade => {
                store.fork("s", "f", Point::at_commit(newest - 1), false).await.map(drop)
            }
            Self::Finished | Self::Dropped => return self,
        };
        match taken {
            Ok(()) => {
                assert!(!is_kept);
                self
            }
            Err(error) => {
                assert!(is_kept && error.kind() == ErrorKind::AlreadyExists, "{error}");
                Self::Dropped
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maker_that_sleeps_at_any_call_leaves_what_others_have_made_of_its_name() {
    let days = 60 * 24;
    let clock = Arc::new(ManualClock::at(START + days * HOUR));
    let built = built(&clock, false).await;
    for (meanwhile, hours) in ALL.into_iter().flat_map(|what| [(what, 0), (what, 1)]) {
        let (mut late, mut kept) = (0, 0);
        for call in (u64::from(hours == 0)..).step_by(2) {
            let about = format!("{meanwhile:?}, {hours} h, call {call}");
            clock.set(START + days * HOUR);
            let faulty = built.forked();
            let (sleeps, others) = (open(&faulty, &clock).await, faulty.reborn());
            let newest = sleeps.raw_state("s").await.unwrap().log().state().version;
            let others = open(&others, &clock).await;
            let (reached, go_on) = faulty.hold_call(call);
            let mut making =
                tokio::spawn(async move { sleeps.fork("s", "f", Point::LATEST, false).await });
            tokio::select! {
                Ok(()) = reached => {}
                made = &mut making => {
                    assert_eq!(made.unwrap().unwrap().outcome, ForkOutcome::Made, "{about}");
                    break;
                }
            }
            advance(&clock, hours * HOUR);
            let became = meanwhile.happens(&others, newest).await;
            kept += u32::from(became != meanwhile);
            go_on.send(()).unwrap();
            let outcome = making.await.unwrap();
            if let Err(error) = &outcome {
                late += 1;
                let is_told =
                    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists);
                assert!(is_told, "{about}: {error}");
            }
            let fresh = open(&faulty.reborn(), &clock).await;
            if became == Meanwhile::Dropped && outcome.is_err() {
                advance(&clock, 2 * HOUR);
                if !fresh.forks().await.unwrap().is_empty() {
                    fresh.drop_fork("f").await.unwrap();
                }
            }
            let has_fork = fresh.forks().await.unwrap().len() == 1;
            let is_made = outcome.is_ok() && became == Meanwhile::Dropped;
            match became {
                Meanwhile::Dropped if !is_made => {
                    assert!(!has_fork, "{about}: {outcome:?}");
                    let objects = objects_of(store_of(&faulty).as_ref()).await;
                    let left: Vec<&String> = objects
                        .iter()
                        .map(|(name, _)| name)
                        .filter(|n| n.starts_with("f/"))
                        .collect();
                    assert!(left.is_empty(), "{about}: {left:?}");
                    continue;
                }
                Meanwhile::Created => assert!(!has_fork, "{about}: {outcome:?}"),
                _ => assert!(has_fork, "{about}: {outcome:?}"),
            }
            let state = fresh.raw_state("f").await;
            let state = state.unwrap_or_else(|error| panic!("{about}, {outcome:?}: {error}"));
            let keys: Vec<String> =
                live(&state, Point::LATEST).await.into_iter().map(|row| row.0).collect();
            let expected = match became {
                Meanwhile::Created => vec!["x"],
                Meanwhile::Remade => vec!["a", "b"],
                Meanwhile::Finished | Meanwhile::Dropped => vec!["a", "b", "c"],
            };
            assert_eq!(keys, expected, "{about}: {outcome:?}");
            state.append(&n_batch(&[("a", 100, Some(100))])).await.unwrap();
            assert_eq!(n_of(&state, Point::LATEST, "a").await, Some(100), "{about}");
            assert_sound(&state).await;
            assert!(fresh.examine("f").await.unwrap().is_sound(), "{about}");
        }
        let takes_name = matches!(meanwhile, Meanwhile::Created | Meanwhile::Remade);
        assert!((kept > 5) == takes_name, "{meanwhile:?}, {hours} h: {kept} names were kept");
        assert!(late > 5, "{meanwhile:?}, {hours} h: only {late} makers came too late");
    }
}
