//! LEA-*: what a long read holds stays whatever is cleaned up, for as long as the read lives and is renewed; and no longer.

mod deaths;

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::{
    Basis, Clock, ErrorKind, HoldStatus, KeptBy, LeaseCost, MaintainStep, ManualClock, Point,
    RawState, RetentionReport, Store,
};
use alluvium_log::{Archived, KeyFilter};
use arrow::array::RecordBatch;
use futures::{StreamExt, TryStreamExt};

use crate::support::faults::{FaultyStore, maintain_to_death, open};
use crate::support::stores::{
    DAY, Home, Live, SECOND, START, by_version, live_of, n_batch_at, sql_numbers,
};

const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const SPANS: [(&str, &str); 4] = [
    ("commit_retention", "3h"),
    ("file_retention", "1h"),
    ("as_of_window", "1h"),
    ("compact_after", "1h"),
];
const KEYS: [&str; 3] = ["a", "b", "c"];

async fn set(state: &RawState, changes: &[(&str, &str)]) {
    let changes: Vec<_> = changes.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    state.set_maintenance(&changes).await.unwrap();
}

/// Every key changes, so that no file of the snapshot is part of the next one; on a day that is over, so that files of the log are merged.
async fn change(state: &RawState, n: i64, time: i64) {
    let rows = KEYS.map(|key| (key, n, Some(n)));
    state.append(&n_batch_at(&rows, &[time - DAY; 3])).await.unwrap();
}

/// Changes and a run of the job each hour.
async fn hours(state: &RawState, clock: &ManualClock, hours: std::ops::Range<i64>) {
    for hour in hours {
        clock.set(START + hour * HOUR);
        change(state, hour, START + hour * HOUR).await;
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
}

/// The same, and the reads of another handle are renewed each quarter of an hour.
async fn hours_beside(
    state: &RawState,
    reads: &RawState,
    clock: &ManualClock,
    range: std::ops::Range<i64>,
) {
    for hour in range {
        for quarter in 1..4 {
            clock.set(START + (hour - 1) * HOUR + quarter * 15 * MINUTE);
            reads.log().keep_leases().await.unwrap();
        }
        hours(state, clock, hour..hour + 1).await;
        reads.log().keep_leases().await.unwrap();
    }
}

async fn rows_at(state: &RawState, basis: &Basis, point: Point) -> alluvium::Result<Vec<Live>> {
    let payload = alluvium_materializer::whole_value(basis.definition());
    let mut streams = state.reader().scan(basis, point, KeyFilter::All, payload, 1).await?;
    let rows: Vec<RecordBatch> = streams.pop().unwrap().try_collect().await?;
    Ok(rows.iter().flat_map(live_of).collect())
}

/// All that a basis tells of the past, as text.
async fn told(state: &RawState, basis: &Basis) -> alluvium::Result<String> {
    let mut told = format!("{:?}", rows_at(state, basis, Point::LATEST).await?);
    let middle = Point::at_commit(basis.commit() / 2);
    told.push_str(&format!("{:?}", rows_at(state, basis, middle).await?));
    let reader = state.reader();
    let history = reader.history_rows(basis, KeyFilter::All, Point::LATEST).await?;
    let changes = reader.changes_rows(basis, 0).await?;
    let differences = reader.diff_rows(basis, middle, Point::LATEST, KeyFilter::All).await?;
    for rows in [history, changes, differences] {
        told.push_str(&format!("{:?}", rows.try_collect::<Vec<_>>().await?));
    }
    Ok(told)
}

/// The leases that lie in the store, as names of files.
async fn files_of_leases(objects: &Arc<FaultyStore>) -> BTreeSet<String> {
    use object_store::{ObjectStore, path::Path};
    let listing = objects.list(Some(&Path::from("s/leases")));
    listing.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap()
}

async fn leases(state: &RawState) -> Vec<LeaseCost> {
    state.explain_retention().await.unwrap().leases
}

fn bytes_by(report: &RetentionReport, by: KeptBy) -> u64 {
    report.kept.iter().filter(|kept| kept.by == by).map(|kept| kept.bytes).sum()
}

async fn built(clock: &Arc<ManualClock>) -> Arc<FaultyStore> {
    let built = FaultyStore::new();
    let state = by_version(&open(&built, clock).await, "s").await;
    set(&state, &SPANS).await;
    hours(&state, clock, 0..5).await;
    built
}

async fn handle(store: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> (Store, RawState) {
    let store = open(store, clock).await;
    let state = store.raw_state("s").await.unwrap();
    (store, state)
}

/// Lets a lease that was given back go, without waiting for the task that does it.
async fn settle(objects: &Arc<FaultyStore>, state: &RawState) {
    state.log().close().await;
    assert_eq!(files_of_leases(objects).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_01_a_held_basis_outlives_file_retention_many_times_over_and_frees_all_in_the_end() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let ((_, holder), (_, other)) =
        (handle(&objects, &clock).await, handle(&objects.reborn(), &clock).await);
    let (_, unheld) = handle(&objects.reborn(), &clock).await;
    let loose = unheld.reader().basis().await.unwrap();
    clock.set(START + 4 * HOUR + MINUTE);
    change(&other, 5, START + 4 * HOUR).await;
    other.maintain(&MaintainStep::ALL, false).await.unwrap();
    let held = holder.reader().hold().await.unwrap();
    let (log, snapshot) = (held.log().clone(), held.snapshot().clone());
    assert_eq!(held.hold().unwrap().status(), HoldStatus::Young);
    let expected = told(&holder, &held).await.unwrap();
    hours_beside(&other, &holder, &clock, 5..8).await;
    set(&other, &[("log_retention", "1d")]).await;
    hours_beside(&other, &holder, &clock, 8..40).await;

    assert!(other.log().state().transaction("alluvium/expire").is_some(), "days have expired");
    assert!(matches!(held.hold().unwrap().status(), HoldStatus::Leased { .. }));
    assert_eq!(told(&holder, &held).await.unwrap(), expected);
    let error = told(&unheld, &loose).await.expect_err("what nobody holds is gone");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    let report = other.explain_retention().await.unwrap();
    let [lease] = report.leases.as_slice() else { panic!("{report:?}") };
    assert_eq!(lease.log_versions, BTreeSet::from([held.commit()]));
    assert_eq!(lease.snapshot_versions, BTreeSet::from([held.snapshot_version()]));
    assert!(lease.holder.contains(&std::process::id().to_string()), "{lease:?}");
    assert!(bytes_by(&report, KeptBy::Leases) > 0, "{report:?}");
    assert!(files_of_leases(&objects).await.len() <= 2);

    drop(held);
    settle(&objects, &holder).await;
    let newest = other.snapshot().refresh().await.unwrap();
    other.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
    let report = other.explain_retention().await.unwrap();
    assert_eq!((bytes_by(&report, KeptBy::Leases), report.leases.len()), (0, 0), "{report:?}");
    let (table, files) = (newest.table().unwrap().0, snapshot.table().unwrap().1);
    assert!(table.missing_file(files).await.unwrap().is_some(), "what was held is gone");
    assert!(other.log().table().missing_file(&log).await.unwrap().is_some());
    assert!(other.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_02_short_reads_write_nothing_and_long_ones_hold_what_they_read_until_they_end() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (store, state) = handle(&objects, &clock).await;
    objects.counts.take();
    let basis = state.reader().hold().await.unwrap();
    told(&state, &basis).await.unwrap();
    sql_numbers(&store, "SELECT n FROM s").await;
    clock.set(START + 4 * HOUR + 9 * MINUTE);
    state.log().keep_leases().await.unwrap();
    drop(basis);
    let [_, _, _, puts, _] = objects.counts.take();
    assert_eq!(puts, 0, "reads of nine minutes wrote something");

    let reader = state.reader();
    let newest = reader.basis().await.unwrap();
    let earlier = Point::at_commit(newest.snapshot().log_commit() - 1);
    let sources = reader.scan_sources(&newest, earlier, &KeyFilter::All).await.unwrap();
    assert!((0..newest.snapshot_version()).contains(&sources.snapshot_version), "{sources:?}");
    let payload = |basis: &Basis| alluvium_materializer::whole_value(basis.definition());
    for read in ["scan", "as of", "history", "changes", "diff", "sql", "sql as of", "context"] {
        let begun = START + 4 * HOUR + 10 * MINUTE;
        clock.set(begun);
        let basis = reader.basis().await.unwrap();
        let scan = |point| reader.scan(&basis, point, KeyFilter::All, payload(&basis), 1);
        let query = format!("SELECT * FROM as_of('s', 'commit:{}')", earlier.commit.unwrap());
        let held: Box<dyn std::any::Any> = match read {
            "scan" => Box::new(scan(Point::LATEST).await.unwrap()),
            "as of" => Box::new(scan(earlier).await.unwrap()),
            "history" => {
                let rows = reader.history_rows(&basis, KeyFilter::All, Point::LATEST);
                Box::new(rows.await.unwrap())
            }
            "changes" => Box::new(reader.changes_rows(&basis, 0).await.unwrap()),
            "diff" => {
                let rows = reader.diff_rows(&basis, earlier, Point::LATEST, KeyFilter::All);
                Box::new(rows.await.unwrap())
            }
            "sql" => Box::new(store.sql("SELECT * FROM s").await.unwrap()),
            "sql as of" => Box::new(store.sql(&query).await.unwrap()),
            _ => Box::new(store.sql_session().await.unwrap().context().await.unwrap()),
        };
        clock.set(begun + 11 * MINUTE);
        state.log().keep_leases().await.unwrap();
        let found = leases(&state).await;
        let [lease] = found.as_slice() else { panic!("{read}: {found:?}") };
        assert_eq!(lease.log_versions, BTreeSet::from([basis.commit()]), "{read}");
        let mut snapshots = BTreeSet::new();
        if !["history", "changes", "as of"].contains(&read) {
            snapshots.insert(basis.snapshot_version());
        }
        if ["as of", "diff"].contains(&read) {
            snapshots.insert(sources.snapshot_version);
        }
        assert_eq!(lease.snapshot_versions, snapshots, "{read}");
        drop(held);
        settle(&objects, &state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_07_a_lease_counts_until_its_end_and_the_margin_by_the_clock_of_whoever_looks() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, reads) = handle(&objects, &clock).await;
    let basis = reads.reader().hold().await.unwrap();
    let HoldStatus::Leased { until_ms } = basis.hold().unwrap().secure().await else { panic!() };
    assert_eq!(until_ms, (START + 5 * HOUR) / 1_000);
    let (behind, ahead) = (until_ms * 1_000 - 20 * MINUTE, until_ms * 1_000 + 10 * MINUTE);
    for now in [behind, ahead] {
        let (_, other) = handle(&objects.reborn(), &Arc::new(ManualClock::at(now))).await;
        assert_eq!(leases(&other).await.len(), 1);
        other.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
        assert_eq!(files_of_leases(&objects).await.len(), 1);
    }
    // Asleep for longer: the lease is over for others, and its holder knows.
    clock.set(ahead + MINUTE);
    let (_, other) = handle(&objects.reborn(), &clock).await;
    assert!(leases(&other).await.is_empty());
    other.maintain(&[MaintainStep::Vacuum], true).await.unwrap();
    assert_eq!(files_of_leases(&objects).await.len(), 1, "a dry run removes nothing");
    other.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
    assert!(files_of_leases(&objects).await.is_empty());
    let unrenewed = basis.hold().unwrap().status();
    assert!(matches!(&unrenewed, HoldStatus::Unheld { reason } if reason.contains("renewed")));
    reads.log().keep_leases().await.unwrap();
    let HoldStatus::Unheld { reason } = basis.hold().unwrap().status() else { panic!() };
    assert!(reason.contains("asleep"), "{reason}");
    // It goes on naming the version all the same, and another read of it that begins now is held.
    assert_eq!(leases(&other).await.len(), 1);
    let again = reads.reader().hold().await.unwrap();
    let status = again.hold().unwrap().secure().await;
    assert!(matches!(status, HoldStatus::Leased { .. }), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_08_on_a_store_that_takes_no_writes_reads_go_on_and_say_that_they_hold_nothing() {
    use std::sync::atomic::Ordering::SeqCst;
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, state) = handle(&objects, &clock).await;
    objects.read_only.store(true, SeqCst);
    let basis = state.reader().hold().await.unwrap();
    let expected = told(&state, &basis).await.unwrap();
    clock.set(START + 4 * HOUR + 15 * MINUTE);
    state.log().keep_leases().await.unwrap_err();
    let HoldStatus::Unheld { reason } = basis.hold().unwrap().status() else { panic!() };
    assert!(reason.contains("s/leases"), "{reason}");
    assert_eq!(told(&state, &basis).await.unwrap(), expected);
    // It can be written to again, in time.
    objects.read_only.store(false, SeqCst);
    let status = basis.hold().unwrap().secure().await;
    assert!(matches!(status, HoldStatus::Leased { .. }), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_09_a_read_that_begins_with_a_savepoint_holds_it_beyond_its_release() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, reads) = handle(&objects, &clock).await;
    let (_, other) = handle(&objects.reborn(), &clock).await;
    let saved = other.create_savepoint("p", None).await.unwrap();
    set(&other, &[("log_retention", "1d")]).await;
    hours(&other, &clock, 5..40).await;
    let point = Point::at_commit(saved.log_commit);
    let basis = reads.reader().basis().await.unwrap();
    let expected = rows_at(&reads, &basis, point).await.unwrap();
    let payload = alluvium_materializer::whole_value(basis.definition());
    let rows = reads.reader().scan(&basis, point, KeyFilter::All, payload, 1).await.unwrap();
    other.release_savepoint("p").await.unwrap();
    clock.set(START + 39 * HOUR + 15 * MINUTE);
    reads.log().keep_leases().await.unwrap();
    hours_beside(&other, &reads, &clock, 40..44).await;
    let [lease] = leases(&other).await.try_into().unwrap();
    assert!(lease.snapshot_versions.contains(&saved.snapshot_version), "{lease:?}");
    let read: Vec<RecordBatch> = futures::stream::iter(rows).flatten().try_collect().await.unwrap();
    assert_eq!(read.iter().flat_map(live_of).collect::<Vec<_>>(), expected);
    let path = saved.paths().next().unwrap().0.to_owned();
    let is_there = |state: &RawState| {
        let state = state.clone();
        let path = path.clone();
        async move {
            let snapshot = state.snapshot().state();
            let (table, now) = snapshot.table().unwrap();
            let files = table.files_on_store(now).await.unwrap();
            files.iter().any(|(_, lies_as, _)| *lies_as == path)
        }
    };
    assert!(is_there(&other).await);
    settle(&objects, &reads).await;
    hours(&other, &clock, 44..46).await;
    assert!(!is_there(&other).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_10_what_a_basis_has_in_the_archive_is_held_too() {
    let clock = Arc::new(ManualClock::at(START));
    let home = Home::new();
    let state = by_version(&home.open_at(&clock).await, "s").await;
    set(&state, &SPANS).await;
    set(&state, &[("hot_days", "1h"), ("log_retention", "10d")]).await;
    hours(&state, &clock, 0..29).await;
    let loose = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let unheld = loose.reader().basis().await.unwrap();
    hours(&state, &clock, 29..30).await;
    let archived = Archived::of(&state.log().state()).unwrap();
    let reads = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let basis = reads.reader().hold().await.unwrap();
    // Read by another handle, so that the holder has yet to open the archive.
    let same = state.reader().basis().await.unwrap();
    let expected = told(&state, &same).await.unwrap();
    set(&state, &[("log_retention", "1d")]).await;
    hours_beside(&state, &reads, &clock, 30..60).await;
    assert!(Archived::of(&state.log().state()).unwrap().version > archived.version + 2);
    let [lease] = leases(&state).await.try_into().unwrap();
    assert_eq!(lease.archive_versions, BTreeSet::from([archived.version]));
    assert_eq!(told(&reads, &basis).await.unwrap(), expected);
    told(&loose, &unheld).await.expect_err("what nobody holds is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_11_a_lease_that_can_not_be_read_stops_whoever_removes_files() {
    use object_store::{ObjectStoreExt, path::Path};
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, state) = handle(&objects, &clock).await;
    let basis = state.reader().hold().await.unwrap();
    basis.hold().unwrap().secure().await;
    let path = Path::from(files_of_leases(&objects).await.first().unwrap().as_str());
    let whole = objects.get(&path).await.unwrap().bytes().await.unwrap();
    let text = String::from_utf8(whole.to_vec()).unwrap();
    for (broken, kind) in [
        (text.replace("\"number\": 1", "\"number\": 2"), ErrorKind::Corrupt),
        ("{".to_owned(), ErrorKind::Corrupt),
    ] {
        assert_ne!(broken, text);
        objects.put(&path, broken.into()).await.unwrap();
        for step in [MaintainStep::Cleanup, MaintainStep::Vacuum] {
            let error = state.maintain(&[step], false).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(path.as_ref()), "{error}");
        }
    }
    objects.put(&path, whole.into()).await.unwrap();
    // Files of other names are nobody's.
    objects.put(&Path::from("s/leases/README.json"), "hello".into()).await.unwrap();
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_12_many_reads_share_one_lease_that_names_what_is_still_read() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, reads) = handle(&objects, &clock).await;
    let (_, other) = handle(&objects.reborn(), &clock).await;
    let mut held = Vec::new();
    for n in 0..4 {
        let now = START + 4 * HOUR + n * 15 * MINUTE;
        clock.set(now);
        held.push(reads.reader().hold().await.unwrap());
        held.push(reads.reader().hold().await.unwrap());
        reads.log().keep_leases().await.unwrap();
        change(&other, 60 + n, now).await;
    }
    clock.set(START + 5 * HOUR);
    reads.log().keep_leases().await.unwrap();
    let versions = |held: &[Basis]| held.iter().map(Basis::commit).collect::<BTreeSet<_>>();
    let [lease] = leases(&other).await.try_into().unwrap();
    assert_eq!(lease.log_versions, versions(&held));
    assert_eq!(lease.since_ms, (START + 4 * HOUR) / 1_000);
    held.drain(..3);
    clock.set(START + 5 * HOUR + 25 * MINUTE);
    reads.log().keep_leases().await.unwrap();
    let [lease] = leases(&other).await.try_into().unwrap();
    assert_eq!(lease.log_versions, versions(&held));
    drop(held);
    settle(&objects, &reads).await;
}

#[test]
fn lea_13_the_retention_is_explained_with_the_leases_by_the_program() {
    use super::program::{change, lines, succeed};
    let home = Home::new();
    succeed(&home, &["append", "users"], &change("u1", 1, 1));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let basis = runtime.block_on(async {
        let state = home.open().await.raw_state("users").await.unwrap();
        let basis = state.reader().hold().await.unwrap();
        assert!(matches!(basis.hold().unwrap().secure().await, HoldStatus::Leased { .. }));
        basis
    });
    let told = succeed(&home, &["retention", "explain", "users", "--output", "table"], "");
    let process = format!("reads of process {}", std::process::id());
    let of_log = format!("of the log {}", basis.commit());
    assert!(told.contains(&process) && told.contains(&of_log), "{told}");
    let json = succeed(&home, &["retention", "explain", "users", "--output", "jsonl"], "");
    let lease = &lines(&json)[0]["leases"][0];
    assert_eq!(lease["log_versions"], serde_json::json!([basis.commit()]));
    let told = succeed(&home, &["maintain", "users"], "");
    assert!(!told.contains("error"), "{told}");
    assert_eq!(home.folder.path().join("users/leases").read_dir().unwrap().count(), 1);
}

/// `DAY` is longer than any span here, so that days expire within the tests.
const _: () = assert!(DAY == 24 * HOUR);

/// A basis that is held from before the first vacuum knows of none. What it asks of earlier points begins with no version that one has
/// taken since.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_from_before_the_first_vacuum_answers_as_of_earlier_points() {
    let clock = Arc::new(ManualClock::at(START));
    let home = Home::new();
    let state = by_version(&home.open_at(&clock).await, "s").await;
    set(&state, &SPANS).await;
    for hour in 1..4 {
        clock.set(START + hour * HOUR);
        change(&state, hour, START + hour * HOUR).await;
        state.materialize(false).await.unwrap();
    }
    let basis = state.reader().hold().await.unwrap();
    let early = Point::at_commit(basis.commit() - 1);
    let ask = async || {
        let found = state.reader().multi_get(&basis, early, &KEYS).await;
        format!("{found:?}")
    };
    let before = ask().await;
    assert!(before.starts_with("Ok"), "{before}");
    hours_beside(&state, &state, &clock, 5..12).await;
    let first = state.snapshot().state();
    assert!(first.table().unwrap().1.transaction(alluvium_log::VACUUM_APP_ID).is_some());
    assert_eq!(ask().await, before);
}

/// A process that was asleep says so at once, and not only when its task has come to take the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_whose_lease_has_not_come_in_time_is_young_no_more() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, holder) = handle(&objects, &clock).await;
    let held = holder.reader().hold().await.unwrap();
    let begun = clock.now_micros();
    clock.set(begun + 20 * MINUTE);
    assert_eq!(held.hold().unwrap().status(), HoldStatus::Young);
    clock.set(begun + 21 * MINUTE);
    let status = held.hold().unwrap().status();
    assert!(matches!(status, HoldStatus::Unheld { .. }), "{status:?}");
    holder.log().keep_leases().await.unwrap();
    let status = held.hold().unwrap().status();
    assert!(matches!(status, HoldStatus::Unheld { .. }), "{status:?}");
}
