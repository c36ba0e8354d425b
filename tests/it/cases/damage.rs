//! Damage to files at rest: every kind of file of a store is flipped, cut, deleted and zeroed, and each read after it gives the rows of the
//! undamaged store or an error that names the file; `examine` (`verify --deep`) finds it; `repair` brings back what can be made again.

mod archive;
mod harm;
mod snapshot;
mod torn;
mod two;
mod unreadable;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alluvium::{
    Error, ErrorKind, KeyFilter, LayoutSettings, OrderBy, Point, RawState, Result, Store,
    StoreSettings,
};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Fields};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use self::harm::{HARMS, Harm, harm};
use crate::support::stores::{Home, SECOND, START, create, settings, value_batch};

/// Rows of the large append: with its values its file is read in parts, has bloom filters, and more than one block.
const MANY: i64 = 4_000;
/// The last commit of the log.
const NEWEST: i64 = 10;

fn fields() -> Fields {
    Fields::from(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
    ])
}

/// Upserts of keys at versions that follow each other, with values that don't compress away.
fn changes(keys: impl Iterator<Item = i64>, first_version: i64, seed: u64) -> RecordBatch {
    let mut rng = StdRng::seed_from_u64(seed);
    let keys: Vec<String> = keys.map(|key| format!("key-{key:06}")).collect();
    let count = keys.len() as i64;
    let versions: Vec<i64> = (first_version..first_version + count).collect();
    let times: Vec<i64> = versions.iter().map(|version| START + version * SECOND).collect();
    let texts = (0..count)
        .map(|_| (0..12).map(|_| format!("{:016x}", rng.random::<u64>())).collect::<String>());
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
    let value = StructArray::new(fields(), vec![numbers, texts], None);
    value_batch(keys.iter().map(String::as_str), versions, &times, Arc::new(value))
}

/// Runs beside a base, in files of some hundred rows.
fn small_files() -> StoreSettings {
    let layout =
        LayoutSettings { small_state_rows: 0, file_rows: 3_000, ..LayoutSettings::default() };
    StoreSettings { layout, tidy_after_commits: 0, materialize_after_rows: 0, ..settings() }
}

/// A store with files of every kind: commits, checkpoints and hints of both tables, log files small and large, a base and
/// runs, versions of the snapshot that have other files, and a savepoint.
async fn build() -> Home {
    let home = Home::new();
    let store = home.open_with(small_files()).await;
    let state = create(&store, "s", &fields(), OrderBy::Version).await;
    state.append(&changes(0..MANY, 1, 1)).await.unwrap();
    state.append(&changes(0..50, 10_001, 2)).await.unwrap();
    state.create_savepoint("kept", None).await.unwrap();
    for n in 3..=6 {
        state.append(&changes(n * 100..n * 100 + 20, n * 10_000, n as u64)).await.unwrap();
    }
    state.log().table().checkpoint().await.unwrap();
    state.materialize(false).await.unwrap();
    state.append(&changes(1_000..1_030, 70_000, 7)).await.unwrap();
    state.materialize(false).await.unwrap();
    let (table, _) = state.snapshot().state().table().map(|(a, b)| (a.clone(), b.clone())).unwrap();
    table.checkpoint().await.unwrap();
    state.append(&changes(2_000..2_010, 80_000, 8)).await.unwrap();
    state.materialize(false).await.unwrap();
    let last = state.append(&changes(10..15, 90_000, 9)).await.unwrap();
    assert_eq!(last.commit, NEWEST - 1);
    let last = state.append(&changes(20..25, 95_000, 10)).await.unwrap();
    assert_eq!(last.commit, NEWEST);
    store.close().await;
    home
}

/// What a store answers, question by question.
type Answers = Vec<(&'static str, Result<Vec<RecordBatch>>)>;

async fn scan(state: &RawState, point: Point) -> Result<Vec<RecordBatch>> {
    state.scan(point, KeyFilter::All).await?.try_collect().await
}

async fn get(state: &RawState, key: &str) -> Result<Vec<RecordBatch>> {
    Ok(state.get(Point::LATEST, key).await?.found().into_iter().collect())
}

async fn history(state: &RawState, key: &str) -> Result<Vec<RecordBatch>> {
    let basis = state.reader().basis().await?;
    let keys = KeyFilter::keys([key.to_owned()]);
    state.reader().history_rows(&basis, keys, Point::LATEST).await?.try_collect().await
}

async fn ask(state: &RawState) -> Answers {
    vec![
        // Keys first, so that they are looked up in parts of files.
        ("get folded", get(state, "key-000301").await),
        ("get of the base", get(state, "key-003999").await),
        ("get of the tail", get(state, "key-000011").await),
        ("get nothing", get(state, "key-000301x").await),
        ("scan", scan(state, Point::LATEST).await),
        ("as of a commit", scan(state, Point::at_commit(4)).await),
        ("as of the savepoint", scan(state, Point::at_commit(2)).await),
        ("as of a version", scan(state, Point::at_version(60_010)).await),
        ("history", history(state, "key-000011").await),
    ]
}

fn rows(batches: &[RecordBatch]) -> Option<RecordBatch> {
    Some(concat_batches(&batches.first()?.schema(), batches).unwrap())
}

fn files_below(folder: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, below, found),
            false => found.push(path.strip_prefix(below).unwrap().to_owned()),
        }
    }
}

fn all_files(home: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_below(home, home, &mut files);
    files.sort();
    files
}

/// The same store in another folder, whose files may be replaced, not written over.
fn copy_of(home: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in all_files(home) {
        let target = copy.path().join(&file);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::hard_link(home.join(&file), target).unwrap();
    }
    copy
}

async fn open(folder: &Path) -> Result<(Store, RawState)> {
    let uri = folder.to_str().unwrap();
    let store = Store::builder(uri).settings(small_files()).open().await?;
    let state = store.raw_state("s").await?;
    Ok((store, state))
}

/// What is known of the undamaged store.
struct Truth {
    home: Home,
    answers: Vec<(&'static str, Option<RecordBatch>)>,
    /// The latest state after one more append.
    grown: Option<RecordBatch>,
    /// The latest state as it was one commit before, if the newest commit is gone and nothing tells of it.
    before: Vec<(&'static str, Option<RecordBatch>)>,
}

fn more() -> RecordBatch {
    changes(3_000..3_003, 99_000, 11)
}

impl Truth {
    async fn new() -> Self {
        let home = build().await;
        let known = |answers: Answers| {
            answers.into_iter().map(|(name, batches)| (name, rows(&batches.unwrap()))).collect()
        };
        let copy = copy_of(home.folder.path());
        let (_, state) = open(copy.path()).await.unwrap();
        let answers = known(ask(&state).await);
        state.append(&more()).await.unwrap();
        let grown = rows(&scan(&state, Point::LATEST).await.unwrap());
        let copy = copy_of(home.folder.path());
        std::fs::remove_file(copy.path().join(commit_name(NEWEST))).unwrap();
        let (_, state) = open(copy.path()).await.unwrap();
        let before = known(ask(&state).await);
        Self { home, answers, grown, before }
    }
}

fn commit_name(commit: i64) -> String {
    format!("s/log/_delta_log/{commit:020}.json")
}

/// What a file is called in messages.
fn name_of(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

/// An error about a damaged file says which one, and that it is damaged.
fn check_error(file: &Path, error: &Error, what: &str) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {text}");
    let version = name_of(file).split('.').next().unwrap();
    assert!(text.contains(version), "{what}: no {version} in {text}");
}

/// What became of the cases.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Tally {
    cases: usize,
    right: usize,
    refused: usize,
    healed: usize,
    unrepaired: usize,
}

async fn check(truth: &Truth, file: &Path, how: Harm) -> Tally {
    let what = format!("{} {how:?}", file.display());
    let copy = copy_of(truth.home.folder.path());
    harm(&copy.path().join(file), how);
    // Whether it is there says nothing where nothing else tells of it.
    let is_last = file == Path::new(&commit_name(NEWEST));
    let may_be_unknown = how == Harm::Delete && is_last;
    let expected = if may_be_unknown { &truth.before } else { &truth.answers };
    let mut tally = Tally { cases: 1, ..Tally::default() };
    match open(copy.path()).await {
        Err(error) => {
            check_error(file, &error, &what);
            tally.refused += 1;
        }
        Ok((store, state)) => {
            for ((name, found), (_, known)) in ask(&state).await.into_iter().zip(expected) {
                match found {
                    Ok(found) => assert!(rows(&found) == *known, "{what}: {name}: WRONG ROWS"),
                    Err(error) => {
                        check_error(file, &error, &format!("{what}: {name}"));
                        tally.refused += 1;
                    }
                }
            }
            go_on(truth, file, &state, &what, may_be_unknown, &mut tally).await;
            store.close().await;
        }
    }
    tally.right += usize::from(tally.refused == 0);
    mend(truth, file, how, &what, &mut tally).await;
    tally
}

/// Appends and materializes on the damaged store.
async fn go_on(
    truth: &Truth,
    file: &Path,
    state: &RawState,
    what: &str,
    may_be_unknown: bool,
    tally: &mut Tally,
) {
    if may_be_unknown {
        return;
    }
    match state.append(&more()).await {
        Ok(_) => {
            for step in ["appended", "materialized"] {
                if step == "materialized" {
                    match state.materialize(false).await {
                        Ok(_) => {}
                        Err(error) => check_error(file, &error, &format!("{what}: materialize")),
                    }
                }
                match scan(state, Point::LATEST).await {
                    Ok(found) => {
                        let (found, known) = (rows(&found), &truth.grown);
                        assert!(found == *known, "{what}: {step}: WRONG ROWS");
                    }
                    Err(error) => check_error(file, &error, &format!("{what}: {step}")),
                }
            }
            // A second one finds what the first one made anew.
            tally.healed +=
                usize::from(tally.refused > 0 && scan(state, Point::LATEST).await.is_ok());
        }
        Err(error) => check_error(file, &error, &format!("{what}: append")),
    }
}

/// Whether damage can't be told from another state that a store may well be in.
fn is_unseen(file: &Path, how: Harm) -> bool {
    let name = name_of(file);
    let is_deleted = how == Harm::Delete;
    // A hint says what the listing says; a record or a note that is gone leaves no trace.
    let is_optional =
        name == "_last_checkpoint" || name.ends_with(".alluvium.json") || name == "kept.json";
    // A flip in what a hint says beside the version, which nobody asks for.
    let is_idle = name == "_last_checkpoint"
        && matches!(how, Harm::Flip(_) | Harm::FlipEnd(_) | Harm::CutLast);
    let is_cut_newline = name == "_last_checkpoint" && how == Harm::CutLast;
    let is_newest =
        is_deleted && (file == Path::new(&commit_name(NEWEST)) || is_newest_snapshot(file));
    // The versions that a checkpoint stands for may have been cleaned up.
    let is_superseded = is_deleted && is_before_checkpoint(file);
    let is_checkpoint = is_deleted && name.ends_with(".checkpoint.parquet");
    is_deleted && is_optional
        || is_idle
        || is_cut_newline
        || is_newest
        || is_superseded
        || is_checkpoint
}

/// The last commit of the snapshot's table.
fn is_newest_snapshot(file: &Path) -> bool {
    file == Path::new("s/snapshot/_delta_log/00000000000000000004.json")
}

fn is_before_checkpoint(file: &Path) -> bool {
    let version = |folder: &str| {
        let name = file.to_str()?.strip_prefix(folder)?.strip_suffix(".json")?;
        name.parse::<i64>().ok()
    };
    version("s/log/_delta_log/").is_some_and(|version| version <= 6)
        || version("s/snapshot/_delta_log/").is_some_and(|version| version <= 3)
}

/// Examines and repairs a store that is damaged so: everything is found, and what is repaired answers as before.
async fn mend(truth: &Truth, file: &Path, how: Harm, what: &str, tally: &mut Tally) {
    let copy = copy_of(truth.home.folder.path());
    harm(&copy.path().join(file), how);
    let uri = copy.path().to_str().unwrap();
    let store = Store::builder(uri).settings(small_files()).open().await.unwrap();
    let found = store.examine("s").await.unwrap();
    let names: Vec<&str> = found.damaged.iter().map(|damage| damage.file.as_str()).collect();
    if !is_unseen(file, how) {
        assert!(names.contains(&file.to_str().unwrap()), "{what}: not found: {found:?}");
    }
    let before = all_files(copy.path());
    let planned = store.repair("s", true).await.unwrap();
    assert_eq!(all_files(copy.path()), before, "{what}: a dry run changes nothing");
    let done = store.repair("s", false).await.unwrap();
    assert_eq!(done.steps.len(), planned.steps.len(), "{what}");
    assert_eq!(done.steps.len() + done.unrepaired.len() > 0, !found.is_sound(), "{what}: {done:?}");
    // What a savepoint keeps is told; all answers come from elsewhere.
    let is_savepoint = |file: &str| file.contains("/savepoints/");
    tally.unrepaired += usize::from(!done.unrepaired.is_empty());
    if !done.unrepaired.iter().all(|left| is_savepoint(&left.file)) {
        return;
    }
    let again = store.examine("s").await.unwrap();
    let is_well = again.damaged.iter().all(|damage| is_savepoint(&damage.file));
    assert!(is_well && again.failure.is_none(), "{what}: {done:?}: {again:?}");
    let (_, state) = open(copy.path()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    // The last commit, where it is damaged or gone, is all that may be missing.
    let is_last = file == Path::new(&commit_name(NEWEST));
    let expected = if is_last { &truth.before } else { &truth.answers };
    for ((name, found), (_, known)) in ask(&state).await.into_iter().zip(expected) {
        let found = found.unwrap_or_else(|error| panic!("{what}: {name}: {error}\n{done:?}"));
        assert!(rows(&found) == *known, "{what}: {name} after the repair: WRONG ROWS");
    }
    assert!(state.verify().await.unwrap().is_sound(), "{what}");
}

/// All cases of files that fulfil a condition; a breakdown is told with its case.
async fn check_all(choose: fn(&str) -> bool) -> Tally {
    let truth = Arc::new(Truth::new().await);
    let files = all_files(truth.home.folder.path());
    let chosen: Vec<PathBuf> =
        files.into_iter().filter(|file| choose(file.to_str().unwrap())).collect();
    assert!(!chosen.is_empty());
    let cases = chosen.into_iter().flat_map(|file| HARMS.map(|how| (file.clone(), how)));
    let tallies: Vec<Tally> = stream::iter(cases)
        .map(|(file, how)| {
            let truth = truth.clone();
            let case = format!("{} {how:?}", file.display());
            async move {
                let checked = AssertUnwindSafe(check(&truth, &file, how)).catch_unwind().await;
                checked.unwrap_or_else(|_| panic!("{case}: broke down"))
            }
        })
        .buffer_unordered(3)
        .collect()
        .await;
    let tally = tallies.into_iter().fold(Tally::default(), |all, one| Tally {
        cases: all.cases + one.cases,
        right: all.right + one.right,
        refused: all.refused + one.refused,
        healed: all.healed + one.healed,
        unrepaired: all.unrepaired + one.unrepaired,
    });
    tell(&tally);
    tally
}

#[allow(clippy::print_stderr)]
fn tell(tally: &Tally) {
    eprintln!("{}: {tally:?}", std::thread::current().name().unwrap_or_default());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_commits_are_refused_or_not_needed_and_a_last_one_is_set_aside() {
    let tally = check_all(|file| {
        file.contains("_delta_log") && !file.contains("checkpoint") && !file.contains("alluvium")
    })
    .await;
    assert!(tally.right > 0 && tally.refused > 0 && tally.unrepaired > 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_checkpoints_hints_and_their_checksums_change_no_answer_and_are_made_anew() {
    let tally =
        check_all(|file| file.contains("checkpoint") || file.contains("alluvium.json")).await;
    assert_eq!((tally.right, tally.unrepaired), (tally.cases, 0), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_of_the_log_are_refused_wherever_they_are_hit() {
    let tally = check_all(|file| file.starts_with("s/log/dt=")).await;
    assert!(tally.refused > 0, "{tally:?}");
    assert_eq!(tally.unrepaired, tally.cases, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_of_a_snapshot_are_refused_and_it_is_made_anew() {
    let tally = check_all(|file| file.starts_with("s/snapshot/tier=")).await;
    assert!(tally.refused > 0 && tally.healed > 0, "{tally:?}");
    // Those that the savepoint keeps, and no others.
    assert!(tally.unrepaired > 0 && tally.unrepaired < tally.cases, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_records_of_savepoints_are_told() {
    let tally = check_all(|file| file.contains("savepoints")).await;
    assert!(tally.unrepaired > 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_single_bit_of_small_files_counts() {
    let home = Home::new();
    let state = create(&home.open().await, "s", &fields(), OrderBy::Version).await;
    state.append(&changes(0..3, 1, 1)).await.unwrap();
    state.materialize(false).await.unwrap();
    let known = rows(&scan(&state, Point::LATEST).await.unwrap());
    assert_eq!(known.as_ref().unwrap().num_rows(), 3);
    let files = all_files(home.folder.path());
    let wanted = |file: &&PathBuf| {
        let text = file.to_str().unwrap();
        text.ends_with(".parquet") || text.ends_with("00000000000000000001.json")
    };
    for file in files.iter().filter(wanted) {
        let path = home.folder.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        let step = (bytes.len() / 150).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(&path, flipped).unwrap();
            let outcome = async {
                let (_, state) = open(home.folder.path()).await?;
                scan(&state, Point::LATEST).await
            };
            match outcome.await {
                Ok(found) => assert!(rows(&found) == known, "{} at {at}", file.display()),
                Err(error) => check_error(file, &error, &format!("{} at {at}", file.display())),
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
}
