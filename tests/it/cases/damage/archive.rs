//! Damage to an archive: every file of it, in every way.

use std::sync::Arc;

use alluvium::ManualClock;
use alluvium_log::Archived;
use futures::stream;

use super::*;
use crate::support::stores::{DAY, by_time, commit_of, set, tended};

const DAYS: i64 = 9;

/// A state of whose days some lie in the archive, which has a checkpoint.
async fn built() -> (Home, Arc<ManualClock>) {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
    let store = home.open_at(&clock).await;
    let state = by_time(&store, "s").await;
    let spans = [
        ("commit_retention", "4d"),
        ("file_retention", "1d"),
        ("as_of_window", "1d"),
        ("hot_days", "2d"),
    ];
    set(&state, &spans).await;
    tended(&state, &clock, 0..DAYS - 2).await;
    let settings = state.log().maintenance_settings().unwrap();
    let archive = state.log().open_archive(&settings).await.unwrap().unwrap();
    archive.checkpoint().await.unwrap();
    tended(&state, &clock, DAYS - 2..DAYS).await;
    let archived = Archived::of(&state.log().state()).unwrap();
    assert!(archived.rows > 6, "{archived:?}");
    store.close().await;
    (home, clock)
}

async fn opened(folder: &Path, clock: &Arc<ManualClock>) -> Result<(Store, RawState)> {
    let builder = Store::builder(folder.to_str().unwrap()).settings(settings());
    let store = builder.clock(clock.clone()).open().await?;
    let state = store.raw_state("s").await?;
    Ok((store, state))
}

async fn changes_after(state: &RawState, commit: i64) -> Result<Vec<RecordBatch>> {
    let basis = state.reader().basis().await?;
    state.reader().changes_rows(&basis, commit).await?.try_collect().await
}

async fn asked(state: &RawState, newest: i64) -> Answers {
    vec![
        ("latest", scan(state, Point::LATEST).await),
        ("get", get(state, "daily").await),
        ("as of a recent commit", scan(state, Point::at_commit(newest - 1)).await),
        ("recent changes", changes_after(state, newest - 3).await),
        ("as of an early commit", scan(state, Point::at_commit(3)).await),
        ("as of a time", scan(state, Point::at_time(START + DAY)).await),
        ("history", history(state, "daily").await),
        ("all changes", changes_after(state, 0).await),
    ]
}

/// How many of the questions need no archived row.
const RECENT: usize = 4;

fn is_unseen_of(file: &Path, how: Harm, checkpoint: &str) -> bool {
    let name = name_of(file);
    let is_hint = name == "_last_checkpoint";
    let is_idle = is_hint && matches!(how, Harm::Flip(_) | Harm::FlipEnd(_) | Harm::CutLast);
    let is_before = name.ends_with(".json") && name <= checkpoint;
    let is_derived =
        is_hint || name.ends_with(".alluvium.json") || name.ends_with(".checkpoint.parquet");
    is_idle || how == Harm::Delete && (is_derived || is_before)
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_of_an_archive_give_the_right_rows_or_are_named_and_recent_reads_stay_right()
{
    let (home, clock) = built().await;
    let copy = copy_of(home.folder.path());
    let (store, state) = opened(copy.path(), &clock).await.unwrap();
    let newest = commit_of(&state).await;
    let known: Vec<Option<RecordBatch>> =
        asked(&state, newest).await.into_iter().map(|(_, found)| rows(&found.unwrap())).collect();
    let sound = store.examine("s").await.unwrap();
    let archived = Archived::of(&state.log().state()).unwrap();
    assert!(sound.is_sound(), "{sound:?}");
    assert_eq!(sound.archived_rows as i64, archived.rows, "each row is counted");
    let folder = Path::new("s/archive");
    let files: Vec<PathBuf> =
        all_files(home.folder.path()).into_iter().filter(|file| file.starts_with(folder)).collect();
    let checkpoint = files.iter().find(|file| name_of(file).ends_with(".checkpoint.parquet"));
    let checkpoint = name_of(checkpoint.unwrap()).replace(".checkpoint.parquet", ".json");
    let (known, checkpoint, newest) = (&known, &checkpoint, newest);
    let (home, clock) = (&home, &clock);
    let cases = files.iter().flat_map(|file| HARMS.map(|how| (file, how)));
    let mut outcomes = stream::iter(cases)
        .map(|(file, how)| async move {
            let what = format!("{} {how:?}", file.display());
            let copy = copy_of(home.folder.path());
            harm(&copy.path().join(file), how);
            let (store, state) = opened(copy.path(), clock).await.unwrap();
            let mut refused = 0;
            for (index, (name, found)) in asked(&state, newest).await.into_iter().enumerate() {
                match found {
                    Ok(found) => {
                        assert!(rows(&found) == known[index], "{what}: {name}: WRONG ROWS")
                    }
                    Err(error) => {
                        assert!(index >= RECENT, "{what}: {name} needs no archive: {error}");
                        check_error(file, &error, &format!("{what}: {name}"));
                        refused += 1;
                    }
                }
            }
            let report = store.examine("s").await.unwrap();
            let is_seen = !report.is_sound();
            assert!(
                is_seen || refused == 0 && is_unseen_of(file, how, checkpoint),
                "{what}: unseen"
            );
            let about = report.damaged.iter().all(|damage| damage.file.contains("s/archive"));
            assert!(about, "{what}: {report:?}");
            let repair = store.repair("s", false).await.unwrap();
            let told = repair.steps.len() + repair.unrepaired.len();
            assert!(told >= report.damaged.len(), "{what}: {repair:?}");
            let (_, state) = opened(copy.path(), clock).await.unwrap();
            for (index, (name, found)) in asked(&state, newest).await.into_iter().enumerate() {
                match found {
                    Ok(found) => {
                        assert!(rows(&found) == known[index], "{what}: {name}: WRONG ROWS")
                    }
                    Err(error) => assert!(refused > 0, "{what}: {name} after a repair: {error}"),
                }
            }
            (is_seen, refused > 0, repair.unrepaired.len())
        })
        .buffer_unordered(4);
    let (mut all, mut seen, mut refused, mut left) = (0, 0, 0, 0);
    while let Some((is_seen, is_refused, unrepaired)) = outcomes.next().await {
        all += 1;
        seen += usize::from(is_seen);
        refused += usize::from(is_refused);
        left += usize::from(unrepaired > 0);
    }
    assert_eq!(all, files.len() * HARMS.len());
    told(&format!(
        "{all} cases: {seen} seen, {refused} refuse questions, {left} can't be repaired"
    ));
    assert!(refused > 40 && seen > refused, "{all} {seen} {refused} {left}");
}

/// A file that went with its entry leaves no trace in the archive's own table: the log's record of what was moved tells.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_lacks_what_the_log_says_or_is_gone_is_told() {
    let (home, clock) = built().await;
    let copy = copy_of(home.folder.path());
    std::fs::remove_dir_all(copy.path().join("s/archive")).unwrap();
    let (store, _) = opened(copy.path(), &clock).await.unwrap();
    let report = store.examine("s").await.unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    assert!(report.damaged[0].is_needed && report.damaged[0].file == "s/archive", "{report:?}");

    let (store, state) = opened(home.folder.path(), &clock).await.unwrap();
    let archived = Archived::of(&state.log().state()).unwrap();
    let said = Archived { rows: archived.rows + 1, ..archived };
    let decide = |_: &alluvium_log::TableState, _| {
        Ok::<_, Error>(alluvium_log::Attempt::<()>::Write(said.actions().collect()))
    };
    state.log().table().commit("TEST", Some(false), [].into(), decide).await.unwrap();
    let report = store.examine("s").await.unwrap();
    let problem = &report.damaged.first().unwrap().problem;
    assert!(problem.contains("the log says"), "{problem}");
    let repair = store.repair("s", true).await.unwrap();
    assert!(repair.unrepaired[0].consequence.contains("nowhere else"), "{repair:?}");
}

#[allow(clippy::print_stderr)]
fn told(tally: &str) {
    eprintln!("{tally}");
}
