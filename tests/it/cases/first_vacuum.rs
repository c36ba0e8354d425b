//! FVA-*: as long as nothing of a snapshot was vacuumed, answers as of earlier points begin with any of its versions, and the first vacuum
//! may take those at that very moment. Whichever call of a read it comes at, the read begins anew, and tells what it would have told.

use std::sync::Arc;

use alluvium::{
    ErrorKind, LayoutSettings, MaintainStep, ManualClock, Point, RawState, Storage, Store,
    StoreSettings,
};
use alluvium_log::{Expired, VACUUM_APP_ID};

use super::faulty_reads::{Ask, asked, told};
use crate::support::faults::FaultyStore;
use crate::support::stores::{DAY, SECOND, START, by_time, commit_of, n_batch_at, set, settings};

const HOUR: i64 = 3_600 * SECOND;
/// So many that the snapshot has several files, which are read one after the other.
const KEYS: i64 = 30;
const SPANS: [(&str, &str); 3] =
    [("commit_retention", "3h"), ("file_retention", "1h"), ("as_of_window", "1h")];
/// The periodic job but for its vacuum.
const BEFORE: [MaintainStep; 5] = [
    MaintainStep::Materialize,
    MaintainStep::Compact,
    MaintainStep::Expire,
    MaintainStep::Checkpoint,
    MaintainStep::Cleanup,
];

/// A process that keeps nothing of what it reads, and reads a few rows at a time.
async fn opened(objects: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> Store {
    let storage = Storage::from_object_store(objects.clone(), "faulty://");
    let layout = LayoutSettings { small_state_rows: 0, file_rows: 8, ..LayoutSettings::default() };
    let settings = StoreSettings {
        layout,
        batch_rows: 5,
        footer_cache_bytes: 0,
        page_cache_bytes: 0,
        tidy_after_commits: 0,
        ..settings()
    };
    let builder = Store::builder("faulty://").storage(storage).settings(settings);
    builder.clock(clock.clone()).open().await.unwrap()
}

/// All keys change, but for one in five that goes, each time another one: no file of the snapshot is part of the next one.
async fn change(state: &RawState, n: i64, time: i64) {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key:02}")).collect();
    let rows = keys.iter().zip(0..);
    let rows = rows.map(|(key, at)| (key.as_str(), n, ((at + n) % 5 != 0).then_some(n)));
    let rows: Vec<_> = rows.collect();
    state.append(&n_batch_at(&rows, &vec![time; rows.len()])).await.unwrap();
}

/// The oldest version of the snapshot that has all its files, if it was ever vacuumed.
async fn vacuumed_to(state: &RawState) -> Option<i64> {
    let snapshot = state.snapshot().refresh().await.unwrap();
    snapshot.table().unwrap().1.transaction(VACUUM_APP_ID)
}

/// Asks while another process vacuums at each of the calls of the answer, and compares; how often it did.
async fn is_held(
    built: &Arc<FaultyStore>,
    clock: &Arc<ManualClock>,
    ask: &Ask,
    is_refused_after: bool,
) -> u64 {
    let store = opened(&built.forked(), clock).await;
    let right = told(asked(&store, &store.raw_state("s").await.unwrap(), ask).await);
    assert!(right.is_ok(), "{ask:?}: {right:?}");
    for call in 0.. {
        let objects = built.forked();
        let store = opened(&objects, clock).await;
        let state = store.raw_state("s").await.unwrap();
        let other = opened(&objects.reborn(), clock).await.raw_state("s").await.unwrap();
        let (mut reached, let_go) = objects.hold_call(call);
        let mut asking = std::pin::pin!(asked(&store, &state, ask));
        let early = tokio::select! {
            biased;
            found = &mut asking => Some(found),
            _ = &mut reached => None,
        };
        let is_over = early.is_some();
        let found = match early {
            Some(found) => found,
            None => {
                let before = vacuumed_to(&other).await;
                let report = other.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
                assert!(vacuumed_to(&other).await > before, "{report:?}");
                let_go.send(()).unwrap();
                asking.await
            }
        };
        match told(found) {
            Err((ErrorKind::PointUnavailable, _)) if is_refused_after && !is_over => {}
            found => assert_eq!(found, right, "{ask:?} with a vacuum at call {call}"),
        }
        if is_over {
            return call;
        }
        // Asked again it is what a process tells that comes only now.
        let late = opened(&objects.reborn(), clock).await;
        let late = told(asked(&late, &late.raw_state("s").await.unwrap(), ask).await);
        assert_eq!(told(asked(&store, &state, ask).await), late, "{ask:?} again");
        assert!(late == right || is_refused_after, "{ask:?}: {late:?}");
    }
    0
}

#[tokio::test(flavor = "multi_thread")]
async fn fva_01_a_read_as_of_an_earlier_point_that_meets_the_first_vacuum_is_right() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&opened(&built, &clock).await, "s").await;
    set(&state, &SPANS).await;
    for hour in 1..5 {
        clock.set(START + hour * HOUR);
        change(&state, hour, START + hour * HOUR).await;
        state.materialize(false).await.unwrap();
    }
    assert_eq!(vacuumed_to(&state).await, None);
    clock.set(START + DAY);
    let first = commit_of(&state).await - 3;
    let (early, later) = (Point::at_commit(first + 1), Point::at_commit(first + 2));
    let asks = [
        Ask::Get(early, "k07"),
        Ask::Scan(early),
        Ask::Parts(early),
        Ask::Scan(Point::at_version(2)),
        Ask::Scan(Point::at_time(START + 2 * HOUR)),
        Ask::Diff(early, later),
        Ask::Diff(Point::LATEST, early),
        Ask::Sql(format!("SELECT sum(n), min(state_key) FROM as_of('s', '{early}')")),
        Ask::Sql(format!("SELECT count(*) FROM as_of('s', '{early}')")),
    ];
    for ask in asks {
        let calls = is_held(&built, &clock, &ask, false).await;
        assert!(calls > 1, "{ask:?}: {calls}");
    }
}

/// Where days have expired, only a snapshot answers. What is promised goes on being answered, all else is refused and never half told.
#[tokio::test(flavor = "multi_thread")]
async fn fva_02_once_days_have_expired_the_first_vacuum_ends_no_promise_and_no_fold() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&opened(&built, &clock).await, "s").await;
    let spans = [
        ("commit_retention", "2d"),
        ("file_retention", "1h"),
        ("as_of_window", "1d"),
        ("log_retention", "3d"),
    ];
    set(&state, &spans).await;
    for day in 0..6 {
        clock.set(START + day * DAY + DAY / 2);
        change(&state, day, START + day * DAY).await;
        state.maintain(&BEFORE, false).await.unwrap();
    }
    let expired = Expired::commit_of(&state.log().state());
    assert!(expired > 1 && vacuumed_to(&state).await.is_none(), "{expired}");
    let newest = commit_of(&state).await;
    clock.set(START + 5 * DAY + DAY / 2 + HOUR);
    let point = Point::at_commit(newest - 1);
    for (ask, is_refused_after) in [
        (Ask::Scan(point), false),
        (Ask::Get(point, "k07"), false),
        (Ask::Verify, false),
        (Ask::Rebuild, false),
        (Ask::Scan(Point::at_commit(expired)), true),
        (Ask::Get(Point::at_commit(expired), "k07"), true),
    ] {
        let calls = is_held(&built, &clock, &ask, is_refused_after).await;
        assert!(calls > 1, "{ask:?}: {calls}");
    }
}

/// Once one has run, an answer begins with nothing that the next one may take: whoever has an answer keeps it, also where only
/// snapshots have it.
#[tokio::test(flavor = "multi_thread")]
async fn fva_03_no_answer_that_was_begun_after_the_first_vacuum_is_lost_to_the_next() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&opened(&built, &clock).await, "s").await;
    let spans = [
        ("commit_retention", "8d"),
        ("file_retention", "1h"),
        ("as_of_window", "1d"),
        ("log_retention", "3d"),
    ];
    set(&state, &spans).await;
    let mut commits = Vec::new();
    for day in 0..10 {
        clock.set(START + day * DAY + DAY / 2);
        change(&state, day, START + day * DAY).await;
        commits.push(commit_of(&state).await);
        state.maintain(&BEFORE, false).await.unwrap();
        if day == 5 {
            state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
        }
    }
    assert!(vacuumed_to(&state).await.is_some());
    clock.set(START + 9 * DAY + DAY / 2 + HOUR);
    let (mut answered, mut refused) = (0, 0);
    for commit in commits {
        let ask = Ask::Scan(Point::at_commit(commit));
        let store = opened(&built.forked(), &clock).await;
        match told(asked(&store, &store.raw_state("s").await.unwrap(), &ask).await) {
            Ok(_) => {
                answered += 1;
                is_held(&built, &clock, &ask, false).await;
            }
            Err((ErrorKind::PointUnavailable, _)) => refused += 1,
            Err(error) => panic!("{ask:?}: {error:?}"),
        }
    }
    assert!(answered > 1 && refused > 1, "{answered} answers and {refused} refusals");
}
