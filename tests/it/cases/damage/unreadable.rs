//! Commits that can't be read while checkpoints stand for them. What depends on one is refused by its name, or kept; everything else goes
//! on: the vacuum, the clean-up that takes it away some day, `retention explain`, and every promised point. Put back from a copy, nothing is
//! missing that any version which it makes may need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::{
    Clock, Error, ErrorKind, KeyFilter, MaintainStep, ManualClock, NamedPoint, Point, RawState,
};
use alluvium_log::{Table, VACUUM_APP_ID};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::cases::program::succeed;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, Live, START, assert_sound, by_time, by_version, commit_of, live_of, n_batch,
    n_batch_at, set,
};

const DAYS: i64 = 12;

/// How a commit comes to be unreadable.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    Half,
    Empty,
    Zeroed,
    Garbage,
}

const HARMS: [Harm; 4] = [Harm::Half, Harm::Empty, Harm::Zeroed, Harm::Garbage];

impl Harm {
    async fn happens(self, objects: &FaultyStore, path: &Path) -> Bytes {
        let whole = objects.get(path).await.unwrap().bytes().await.unwrap();
        let damaged = match self {
            Self::Half => whole.slice(..whole.len() / 2),
            Self::Empty => Bytes::new(),
            Self::Zeroed => vec![0; whole.len()].into(),
            Self::Garbage => Bytes::from_static(b"\xff{no commit}\n"),
        };
        objects.put(path, damaged.into()).await.unwrap();
        whole
    }
}

/// A state whose tables have versions, merges, checkpoints and files that left them on each day, and nothing was cleaned up yet.
async fn built(expires: bool) -> (Arc<FaultyStore>, Arc<ManualClock>) {
    let (objects, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&objects, &clock).await, "s").await;
    let spans = [("commit_retention", "6d"), ("file_retention", "2d"), ("as_of_window", "2d")];
    set(&state, &spans).await;
    if expires {
        set(&state, &[("log_retention", "3d")]).await;
    }
    for day in 0..DAYS {
        for part in 0..2 {
            let (time, n) = (START + day * DAY + part * DAY / 3, day * 2 + part);
            clock.set(time);
            let own = format!("k{n:03}");
            let rows = [("daily", n, Some(n)), (own.as_str(), n, Some(n))];
            state.append(&n_batch_at(&rows, &[time, time])).await.unwrap();
            state.materialize(false).await.unwrap();
        }
        if matches!(day, 4 | 8 | 10) {
            state.maintain(&[MaintainStep::Compact, MaintainStep::Expire], false).await.unwrap();
        }
        if matches!(day, 3 | 6 | 9 | 11) {
            state.log().table().checkpoint().await.unwrap();
            snapshot_table(&state).checkpoint().await.unwrap();
        }
    }
    clock.set(START + DAYS * DAY);
    (objects, clock)
}

fn snapshot_table(state: &RawState) -> Arc<Table> {
    state.snapshot().state().table().unwrap().0.clone()
}

fn tables(state: &RawState) -> [(&'static str, Arc<Table>); 2] {
    [("log", state.log().table().clone()), ("snapshot", snapshot_table(state))]
}

fn commit(table: &str, version: i64) -> Path {
    Path::from(format!("s/{table}/_delta_log/{version:020}.json"))
}

async fn opened(objects: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> RawState {
    let state = open(&objects.reborn(), clock).await.raw_state("s").await.unwrap();
    state.snapshot().refresh().await.unwrap();
    state
}

async fn is_there(objects: &FaultyStore, path: &Path) -> bool {
    objects.head(path).await.is_ok()
}

async fn ask(state: &RawState, point: Point) -> Result<Vec<Live>, Error> {
    let rows: Vec<_> = state.scan(point, KeyFilter::All).await?.try_collect().await.unwrap();
    Ok(rows.iter().flat_map(live_of).collect())
}

type Answers = Vec<(Point, Result<Vec<Live>, Error>)>;

/// The answers as of each commit, and each day.
async fn ask_all(state: &RawState, newest: i64) -> Answers {
    let commits = (0..=newest).map(Point::at_commit);
    let times = (0..DAYS).map(|day| Point::at_time(START + day * DAY + DAY / 2));
    let mut answers = Vec::new();
    for point in commits.chain(times).chain([Point::LATEST]) {
        answers.push((point, ask(state, point).await));
    }
    answers
}

/// The versions of both tables that can be read by their numbers, with their files, all of which are there.
async fn whole_versions(state: &RawState) -> BTreeMap<(&'static str, i64), BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for (name, table) in tables(state) {
        let newest = table.refresh().await.unwrap();
        let whole_from = newest.transaction(VACUUM_APP_ID).unwrap_or(0);
        let oldest = table.oldest_version().await.unwrap().max(whole_from);
        for version in oldest..=newest.version {
            let state = table.state_at(version).await.unwrap();
            assert_eq!(table.missing_file(&state).await.unwrap(), None, "{name} {version}");
            let files = state.files().map(|file| file.add.path.clone()).collect();
            found.insert((name, version), files);
        }
    }
    found
}

/// The undamaged store before and after a run of the job.
struct Control {
    objects: Arc<FaultyStore>,
    clock: Arc<ManualClock>,
    newest: i64,
    /// The newest versions before the run.
    versions: BTreeMap<&'static str, i64>,
    /// The times of the log's commits, in milliseconds.
    times: Vec<i64>,
    after: Answers,
    whole: BTreeMap<(&'static str, i64), BTreeSet<String>>,
}

impl Control {
    async fn new(expires: bool) -> Self {
        let (objects, clock) = built(expires).await;
        let state = opened(&objects.forked(), &clock).await;
        let newest = commit_of(&state).await;
        let versions = tables(&state).map(|(name, table)| (name, table.state().version)).into();
        let mut times = Vec::new();
        for version in 0..=newest {
            times.push(state.log().table().made_ms(version).await.unwrap().unwrap());
        }
        let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert!(report.unreadable_commits.is_empty(), "{report:?}");
        let after = ask_all(&state, newest).await;
        let whole = whole_versions(&state).await;
        Self { objects, clock, newest, versions, times, after, whole }
    }

    /// Damages commits, lets the job run, and looks at what comes of it; whether the job cleaned all of them away.
    async fn check(&self, damaged: &[(&'static str, i64)], harm: Harm) -> bool {
        let about = format!("{damaged:?} {harm:?}");
        let objects = self.objects.forked();
        let mut copies = Vec::new();
        for (table, version) in damaged {
            let path = commit(table, *version);
            copies.push((path.clone(), harm.happens(&objects, &path).await));
        }
        let state = opened(&objects, &self.clock).await;
        let told = state.explain_retention().await.unwrap_or_else(|e| panic!("{about}: {e}"));
        let told: Vec<String> =
            told.unreadable_commits.iter().map(|found| found.commit.file.clone()).collect();
        let wanted: Vec<String> = copies.iter().map(|(path, _)| path.to_string()).collect();
        assert_eq!(told, wanted, "{about}");
        self.check_known_at(&state, damaged, &about).await;
        let dry = state.maintain(&MaintainStep::ALL, true).await;
        dry.unwrap_or_else(|error| panic!("{about}: {error}"));
        let report = state.maintain(&MaintainStep::ALL, false).await;
        let report = report.unwrap_or_else(|error| panic!("{about}: {error}"));
        let mut left = Vec::new();
        for (path, copy) in &copies {
            if is_there(&objects, path).await {
                left.push((path, copy));
            }
        }
        let told: Vec<&str> =
            report.unreadable_commits.iter().map(|found| found.commit.file.as_str()).collect();
        assert!(left.iter().all(|(path, _)| told.contains(&path.as_ref())), "{about}: {told:?}");
        let state = opened(&objects, &self.clock).await;
        self.check_answers(&state, &wanted, &about).await;
        assert!(state.verify().await.unwrap().is_sound(), "{about}");

        // Put back from a copy, all is there that the undamaged store has.
        for (path, copy) in &left {
            objects.put(path, (*copy).clone().into()).await.unwrap();
        }
        let healed = opened(&objects, &self.clock).await;
        let whole = whole_versions(&healed).await;
        let lost = self.whole.iter().find(|(version, files)| {
            let is_of_before = version.1 <= self.versions[version.0];
            is_of_before && whole.get(*version) != Some(files)
        });
        assert!(lost.is_none(), "{about}: {lost:?}");
        self.check_answers(&healed, &[], &about).await;
        left.is_empty()
    }

    /// Every point is answered as by the undamaged store, or refused by the name of a damaged file.
    async fn check_answers(&self, state: &RawState, damaged: &[String], about: &str) {
        let found = ask_all(state, self.newest).await;
        for ((point, found), (_, expected)) in found.into_iter().zip(&self.after) {
            let about = format!("{about}: {point:?}");
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, *expected, "{about}"),
                // More is kept than without the damage.
                (Ok(_), Err(_)) => {}
                (Err(error), Ok(_)) => {
                    let names = |file: &String| error.to_string().contains(file.as_str());
                    assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{about}: {error}");
                    assert!(damaged.iter().any(names), "{about}: {error}");
                }
                (Err(error), Err(expected)) => {
                    assert_eq!(error.kind(), expected.kind(), "{about}: {error}");
                }
            }
        }
    }

    /// What was known at a time is the same, unless it depends on when a damaged commit was made.
    async fn check_known_at(&self, state: &RawState, damaged: &[(&str, i64)], about: &str) {
        let torn = |commit: i64| damaged.contains(&("log", commit));
        let now_ms = self.clock.now_ms();
        let around = |time: &i64| [*time - 1, *time, *time + 1, *time + 3_600_000];
        for time in self.times.iter().flat_map(around).filter(|time| *time <= now_ms) {
            let expected = self.times.iter().rposition(|made| *made <= time);
            let Some(expected) = expected.map(|commit| commit as i64) else { continue };
            let point = NamedPoint::known_at(time * 1_000);
            match state.reader().point(&point).await {
                Ok(point) => assert_eq!(point.commit, Some(expected), "{about}: at {time}"),
                Err(error) => {
                    assert!(torn(expected) || torn(expected + 1), "{about}: at {time}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{about}: {error}");
                    let is_named = |(_, commit): &(&str, i64)| {
                        error.to_string().contains(&format!("{commit:020}.json"))
                    };
                    assert!(damaged.iter().any(is_named), "{about}: {error}");
                }
            }
            assert!(!torn(expected) || state.reader().point(&point).await.is_err(), "{about}");
        }
    }
}

async fn check_each(expires: bool) {
    let control = Control::new(expires).await;
    let (mut cleaned, mut kept) = (0, 0);
    for (table, newest) in &control.versions {
        // The newest checkpoints are of the newest versions.
        for version in 0..=*newest {
            let harm = HARMS[version as usize % HARMS.len()];
            match control.check(&[(table, version)], harm).await {
                true => cleaned += 1,
                false => kept += 1,
            }
        }
    }
    assert!(cleaned > 4 && kept > 10, "{cleaned} {kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cant_be_read_stops_nothing_that_does_not_need_it() {
    check_each(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cant_be_read_stops_nothing_where_days_have_expired() {
    check_each(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_commits_that_cant_be_read_free_nothing_that_they_may_have_named() {
    for expires in [false, true] {
        let control = Control::new(expires).await;
        for (table, newest) in &control.versions {
            for version in (0..newest - 4).step_by(4) {
                let apart = [1, 2, 5][(version / 4) as usize % 3];
                let pair = [(*table, version), (*table, (version + apart).min(newest - 3))];
                let harm = HARMS[(version + apart) as usize % HARMS.len()];
                control.check(&pair, harm).await;
            }
        }
        let both = [("log", control.versions["log"] - 9), ("snapshot", 12)];
        control.check(&both, Harm::Zeroed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cant_be_read_is_cleaned_up_when_its_versions_are_old_enough() {
    for of_log in [true, false] {
        let (objects, clock) = built(false).await;
        let state = opened(&objects, &clock).await;
        let (table, newest) = match of_log {
            true => ("log", state.log().state().version),
            false => ("snapshot", state.snapshot().state().version()),
        };
        let path = commit(table, newest - 8);
        Harm::Zeroed.happens(&objects, &path).await;
        let about = path.to_string();
        let state = opened(&objects, &clock).await;
        let told = state.explain_retention().await.unwrap().unreadable_commits;
        assert_eq!(told.len(), 1, "{about}: {told:?}");
        let goes_ms = told[0].goes_ms.unwrap();
        let mut now = clock.now_ms();
        while is_there(&objects, &path).await {
            assert!(now <= goes_ms + 3 * DAY / 1_000, "{about} stays");
            now += DAY / 1_000;
            clock.set(now * 1_000);
            let (n, time) = (now / 1_000, now * 1_000);
            state.append(&n_batch_at(&[("daily", n, Some(n))], &[time])).await.unwrap();
            state.materialize(false).await.unwrap();
            state.log().table().checkpoint().await.unwrap();
            snapshot_table(&state).checkpoint().await.unwrap();
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        assert!(now > goes_ms, "{about} was needed until {goes_ms}, and is gone at {now}");
        let told = state.explain_retention().await.unwrap().unreadable_commits;
        assert!(told.is_empty(), "{about}: {told:?}");
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_idled_goes_on_past_a_commit_that_a_checkpoint_stands_for() {
    for harm in HARMS {
        let (objects, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
        let writer = by_version(&open(&objects, &clock).await, "s").await;
        let mut idle = Vec::new();
        for n in 1..=6 {
            writer.append(&n_batch(&[("a", n, Some(n))])).await.unwrap();
            idle.push(opened(&objects, &clock).await);
        }
        writer.log().table().checkpoint().await.unwrap();
        writer.append(&n_batch(&[("a", 7, Some(7))])).await.unwrap();
        harm.happens(&objects, &commit("log", 4)).await;
        for (seen, idle) in idle.into_iter().enumerate() {
            let newest = commit_of(&idle).await;
            assert_eq!(newest, 7 + seen as i64, "{harm:?}");
            let n = newest + 1;
            idle.append(&n_batch(&[("a", n, Some(n))])).await.unwrap();
            let found = ask(&idle, Point::LATEST).await.unwrap();
            assert_eq!(found, [("a".to_owned(), n, Some(n))], "{harm:?}");
        }
        // What no checkpoint stands for is needed by all.
        harm.happens(&objects, &commit("log", 8)).await;
        let error = writer.log().refresh().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("00000000000000000008.json"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_which_commit_what_it_costs_and_until_when() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    for n in 1..=12 {
        state.append(&n_batch(&[("a", n, Some(n))])).await.unwrap();
    }
    state.log().table().checkpoint().await.unwrap();
    std::fs::write(home.commit_file("s", 7), "").unwrap();
    for verb in [&["maintain", "s"][..], &["retention", "explain", "s"]] {
        let told = succeed(&home, &[verb, &["--output", "table"]].concat(), "");
        let line = told.lines().find(|line| line.contains("DAMAGED")).unwrap();
        for part in
            ["s/log/_delta_log/00000000000000000007.json", "versions 7 to 11", "a copy", "after 20"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    assert_eq!(
        live_of(&state.get(Point::LATEST, "a").await.unwrap().found().unwrap())[0].2,
        Some(12)
    );
}
