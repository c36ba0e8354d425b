//! A step that fails leaves its report: the steps before it with their figures, the step itself with its error, and those not begun.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{
    Error, ErrorKind, FailedSteps, LeftOutReason, MaintainReport, MaintainStep, ManualClock,
    RawState, StepOutcome, StepReport,
};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::{Value, json};

use crate::cases::program::{finish, program};
use crate::support::faults::{FaultyStore, open};
use crate::support::reports::plain;
use crate::support::stores::{DAY, Home, START, by_time, by_version, n_batch, n_batch_at, set};

/// Settings under which every step has something to do within days.
const SPANS: [(&str, &str); 7] = [
    ("commit_retention", "8d"),
    ("file_retention", "2d"),
    ("as_of_window", "2d"),
    ("hot_days", "3d"),
    ("log_retention", "5d"),
    ("tombstone_retention", "4d"),
    ("snapshot_grid", "1d:20d"),
];

/// Three changes a day, the deletion of a key of the day before among them.
async fn day_of(state: &RawState, clock: &ManualClock, day: i64) {
    for part in 0..3 {
        let time = START + day * DAY + part * DAY / 4;
        clock.set(time);
        let own = format!("d{:04}", day * 3 + part);
        let gone = format!("d{:04}", day * 3 + part - 3);
        let n = day * 3 + part;
        let rows = [("daily", n, Some(n)), (own.as_str(), n, Some(n)), (gone.as_str(), n, None)];
        state.append(&n_batch_at(&rows, &[time; 3])).await.unwrap();
    }
}

/// A state that was maintained for a while and then only folded, so that every step of a run has something to do.
pub(super) async fn busy() -> (Arc<FaultyStore>, Arc<ManualClock>) {
    let (objects, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&objects, &clock).await, "s").await;
    set(&state, &SPANS).await;
    for day in 0..15 {
        day_of(&state, &clock, day).await;
        match day {
            0..11 => drop(state.maintain(&MaintainStep::ALL, false).await.unwrap()),
            14 => {}
            _ => drop(state.materialize(false).await.unwrap()),
        }
    }
    clock.set(START + 17 * DAY);
    (objects, clock)
}

pub(super) async fn opened(objects: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> RawState {
    open(objects, clock).await.raw_state("s").await.unwrap()
}

/// What a run that failed at a step has to tell, whatever it failed with.
fn check(error: &Error, about: &str) -> Option<MaintainReport> {
    let Some(report) = FailedSteps::report_of(error) else {
        assert!(!error.to_string().contains(", step "), "{about}: without a report: {error}");
        return None;
    };
    let position = report.steps.iter().position(|step| step.failed.is_some());
    let Some(position) = position else {
        let afterwards = report.afterwards_unknown.as_ref().unwrap();
        assert_eq!(afterwards.kind, error.kind(), "{about}");
        assert_eq!(report.steps.len(), MaintainStep::ALL.len(), "{about}");
        return Some(report.clone());
    };
    let step = &report.steps[position];
    let failed = step.failed.as_ref().unwrap();
    assert_eq!((failed.kind, failed.remedy), (error.kind(), error.kind().remedy()), "{about}");
    assert!(error.to_string().contains(&failed.message), "{about}: {error}: {failed:?}");
    assert!(error.to_string().contains(&format!("step {}", step.step)), "{about}: {error}");
    assert!(error.to_string().contains(step.step.name()), "{about}: {error}");
    let done: Vec<MaintainStep> = report.steps.iter().map(|step| step.step).collect();
    let unfinished = report.steps.iter().position(StepReport::is_unfinished);
    // Where only the archive can't be reached, the rest is done without.
    let end = unfinished.map_or(MaintainStep::ALL.len(), |position| position + 1);
    assert_eq!(done, MaintainStep::ALL[..end], "{about}");
    let left = report.left_out.iter();
    assert!(left.clone().all(|left| left.reason == LeftOutReason::EarlierStepFailed));
    let left: Vec<MaintainStep> = left.map(|left| left.step).collect();
    assert_eq!(left, MaintainStep::ALL[end..], "{about}");
    assert!(!report.is_complete(), "{about}");
    Some(report.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_call_of_any_step_leaves_the_figures_of_the_steps_before_it() {
    let (built, clock) = busy().await;
    let whole = opened(&built.forked(), &clock).await;
    let whole = whole.maintain(&MaintainStep::ALL, false).await.unwrap();
    let whole_steps = plain(&whole)["steps"].as_array().unwrap().clone();
    check_that_all_is_done(&whole);
    let mut failed: BTreeMap<MaintainStep, u32> = BTreeMap::new();
    let (mut before, mut afterwards) = (0, 0);
    for (is_survived, step) in [(true, 3), (false, 13)] {
        for call in (0..).step_by(step) {
            let about = format!("call {call}, survived {is_survived}");
            let objects = built.forked();
            let state = opened(&objects, &clock).await;
            match is_survived {
                true => objects.fail_at(call),
                false => objects.die_at(call, call % 2 == 0),
            }
            let outcome = state.maintain(&MaintainStep::ALL, false).await;
            if !(objects.has_failed() || objects.is_dead()) {
                outcome.unwrap();
                break;
            }
            // What is only tried fails unseen.
            let Err(error) = outcome else { continue };
            let Some(report) = check(&error, &about) else {
                before += 1;
                continue;
            };
            assert_eq!(report.log_before, whole.log_before, "{about}");
            let position = report.steps.iter().position(StepReport::is_unfinished);
            let Some(position) = position else {
                afterwards += u32::from(report.afterwards_unknown.is_some());
                continue;
            };
            *failed.entry(report.steps[position].step).or_default() += 1;
            if is_survived {
                let told = plain(&report)["steps"].as_array().unwrap()[..position].to_vec();
                assert_eq!(told, whole_steps[..position], "{about}");
                assert_eq!(report.afterwards_unknown, None, "{about}");
            }
        }
    }
    for step in MaintainStep::ALL {
        assert!(failed.contains_key(&step), "no fault met {step}: {failed:?}");
    }
    assert!(before > 0 && afterwards > 0, "{before}, {afterwards}");
}

/// That a run had something to do at each step.
pub(super) fn check_that_all_is_done(report: &MaintainReport) {
    for step in &report.steps {
        let is_done = match &step.outcome {
            StepOutcome::Materialized(done) => done.rows_folded > 0,
            StepOutcome::Checked(done) => done.files > 0,
            StepOutcome::Grid(done) => done.added > 0,
            StepOutcome::Forgot(done) => done.forgotten > 0,
            StepOutcome::Compacted(done) => done.commits > 0,
            StepOutcome::Archived(done) => done.files > 0,
            StepOutcome::Expired(done) => done.rows > 0,
            StepOutcome::Checkpointed { log_version, snapshot_version, .. } => {
                log_version.is_some() && snapshot_version.is_some()
            }
            StepOutcome::CleanedUp { log, .. } => log.commits_removed > 0,
            StepOutcome::Vacuumed { log, .. } => log.files_removed > 0,
            StepOutcome::NotArchived { .. } | StepOutcome::Unfinished => false,
        };
        assert!(is_done, "nothing to do: {step:?}");
    }
}

pub(super) async fn listed(objects: &Arc<FaultyStore>, folder: &str) -> Vec<Path> {
    let listed: Vec<_> = objects.list(Some(&Path::from(folder))).try_collect().await.unwrap();
    listed.into_iter().map(|meta| meta.location).collect()
}

async fn spoil(objects: &Arc<FaultyStore>, path: &Path) {
    let bytes = objects.get(path).await.unwrap().bytes().await.unwrap();
    objects.put(path, bytes.slice(..bytes.len() / 2).into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_stops_the_job_at_the_first_step_that_needs_it_and_no_earlier() {
    let (built, clock) = busy().await;
    let state = opened(&built.forked(), &clock).await;
    let folded = state.snapshot().state().log_commit();
    let log = state.log().state();
    let path = |path: &str| Path::from(format!("s/log/{path}"));
    let tail = log.files_after(folded).next().unwrap().clone();
    let settled = log.files().find(|file| {
        file.commits.span().high <= folded
            && file.add.partition["dt"].as_deref() == Some("2024-01-26")
    });
    let grid = listed(&built, "s/savepoints/grid").await;
    let archived = listed(&built, "s/archive/_delta_log").await;
    let archived: Vec<_> = archived.iter().filter(|path| path.as_ref().ends_with("json")).collect();
    let lease = Path::from("s/leases/somebody-1.json");
    let cases = [
        (path(&tail.add.path), MaintainStep::Materialize),
        (grid[0].clone(), MaintainStep::Grid),
        (path(&settled.unwrap().add.path), MaintainStep::Compact),
        (archived.last().copied().unwrap().clone(), MaintainStep::Archive),
        (lease.clone(), MaintainStep::Cleanup),
    ];
    for (damaged, step) in cases {
        let about = format!("{damaged}");
        let objects = built.forked();
        match damaged == lease {
            true => drop(objects.put(&damaged, "{".into()).await.unwrap()),
            false => spoil(&objects, &damaged).await,
        }
        let state = opened(&objects, &clock).await;
        let error = state.maintain(&MaintainStep::ALL, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{about}: {error}");
        let report = check(&error, &about).unwrap();
        let failed = report.steps.iter().find(|step| step.failed.is_some()).unwrap();
        assert_eq!(failed.step, step, "{about}: {error}");
        let name = damaged.filename().unwrap().split('.').next().unwrap();
        assert!(failed.failed.as_ref().unwrap().message.contains(name), "{about}: {failed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_writes_the_report_of_a_state_that_failed_beside_those_of_the_others() {
    let home = Home::new();
    let store = home.open().await;
    for name in ["a", "b", "c"] {
        let state = by_version(&store, name).await;
        state.append(&n_batch(&[("k", 1, Some(1))])).await.unwrap();
    }
    std::fs::create_dir_all(home.folder.path().join("b/leases")).unwrap();
    std::fs::write(home.folder.path().join("b/leases/broken-1.json"), "{").unwrap();
    let file = home.folder.path().join("report.json");
    let report = file.to_str().unwrap();
    let output = finish(program(&home, &["maintain", "--output", "table", "--report", report]), "");
    let (told, error) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (told, error) = (told.unwrap(), error.unwrap());
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("broken-1.json") && error.contains("step cleanup"), "{error}");
    let line = |step: &str| {
        let of_b = told.lines().skip_while(|line| !line.starts_with("b:"));
        of_b.map(str::trim_start).find(|line| line.starts_with(step)).unwrap().to_owned()
    };
    assert!(line("materialize").contains("1 row folded"), "{told}");
    assert!(line("cleanup").contains("failed: ") && line("cleanup").contains("broken-1.json"));
    assert!(line("vacuum").contains("not begun: a step before it failed"), "{told}");
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let states = written["states"].as_array().unwrap();
    let names: Vec<&str> = states.iter().map(|state| state["state"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for (state, steps) in states.iter().zip([10, 9, 10]) {
        assert_eq!(state["steps"].as_array().unwrap().len(), steps, "{state}");
        assert_eq!(state["steps"][0]["outcome"]["rows_folded"], json!(1), "{state}");
    }
    let failed = &states[1]["steps"][8];
    assert_eq!((&failed["step"], &failed["outcome"]), (&json!("cleanup"), &Value::Null));
    assert_eq!(failed["failed"]["kind"], json!("corrupt"), "{failed}");
    assert!(failed["failed"]["message"].as_str().unwrap().contains("broken-1.json"), "{failed}");
    assert!(failed["failed"]["remedy"].as_str().unwrap().contains("repair"), "{failed}");
    let left = json!([{"step": "vacuum", "reason": "earlier_step_failed"}]);
    assert_eq!(states[1]["left_out"], left);
    assert_eq!(written["failed"][0]["state"], json!("b"));
    assert_eq!(written["failed"][0]["kind"], json!("corrupt"));
}
