//! An archive that is out of reach: what needs it is refused, the job does the rest, and a dry run tells the same as the run.

use std::sync::Arc;

use alluvium::{
    ArchiveUnreachable, ErrorKind, FailedSteps, MaintainReport, MaintainStep, ManualClock,
    RawState, StepOutcome,
};

use super::{archived, days, let_archive};
use crate::cases::program::{finish, program};
use crate::support::faults::{FaultyStore, open_both};
use crate::support::reports::plain;
use crate::support::stores::{DAY, Home, START, by_version, live, n_batch_at, set};

/// The report of a run that fails for its archive, and the steps that failed.
async fn failed(state: &RawState, dry_run: bool) -> (MaintainReport, Vec<MaintainStep>) {
    let error = state.maintain(&MaintainStep::ALL, dry_run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    for told in ["step archive", "cold://far/away/s/archive", "--no-archive"] {
        assert!(error.to_string().contains(told), "{told}: {error}");
    }
    let mut cause = std::error::Error::source(&error);
    while cause.is_some_and(|error| !error.is::<ArchiveUnreachable>()) {
        cause = cause.and_then(|error| error.source());
    }
    assert!(cause.is_some(), "{error}");
    let report = FailedSteps::report_of(&error).unwrap().clone();
    let steps: Vec<MaintainStep> = report.steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, MaintainStep::ALL);
    let failed = report.steps.iter().filter(|step| step.failed.is_some());
    let failed = failed.map(|step| step.step).collect();
    (report, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_need_an_archive_out_of_reach_fail_by_name_in_a_dry_run_as_in_the_run() {
    use MaintainStep::{Archive, Checkpoint, Cleanup, Vacuum};
    let (hot, cold) = (FaultyStore::new(), FaultyStore::new());
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open_both(&[hot.clone(), cold.clone()], &clock).await, "s").await;
    let_archive(&state).await;
    set(&state, &[("archive", "cold://far/away")]).await;
    days(&state, &clock, 0..20).await;
    let before = archived(&state);
    assert!(before.unwrap().files > 0);
    clock.set(START + 24 * DAY);
    state.append(&n_batch_at(&[("new", 500_000, Some(1))], &[START + 23 * DAY])).await.unwrap();

    let (hot, cold) = (hot.reborn(), cold.reborn());
    let store = open_both(&[hot.clone(), cold.clone()], &clock).await;
    let state = store.raw_state("s").await.unwrap();
    cold.die_at(0, false);
    let expected = live(&state, alluvium::Point::LATEST).await;
    let (planned, dry) = failed(&state, true).await;
    let (done, real) = failed(&state, false).await;
    assert_eq!(planned.log_after, done.log_after);
    assert_eq!(plain(&planned.steps), plain(&done.steps));
    assert_eq!(
        (dry, real),
        (vec![Archive, Checkpoint, Cleanup, Vacuum], vec![Archive, Checkpoint, Cleanup, Vacuum])
    );
    // The others are done, and those that look at other tables too as far as they do.
    assert!(
        matches!(&done.steps[0].outcome, StepOutcome::Materialized(done) if done.rows_folded == 1)
    );
    assert!(matches!(done.steps[5].outcome, StepOutcome::NotArchived { stays_hot: true }));
    let StepOutcome::Vacuumed { snapshot: Some(vacuumed), archive: None, .. } =
        &done.steps[9].outcome
    else {
        panic!("{done:?}")
    };
    let StepOutcome::Vacuumed { snapshot: Some(to_vacuum), .. } = &planned.steps[9].outcome else {
        panic!("{planned:?}")
    };
    assert!(vacuumed.files_removed >= to_vacuum.files_removed && to_vacuum.files_removed > 0);
    assert_eq!(archived(&state), before);
    assert_eq!(live(&state, alluvium::Point::LATEST).await, expected);

    // Within reach again, nothing is left of it.
    let store = open_both(&[hot.reborn(), cold.reborn()], &clock).await;
    let state = store.raw_state("s").await.unwrap();
    state.maintain(&MaintainStep::ALL, true).await.unwrap();
    let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert!(report.is_complete() && archived(&state) != before, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_tells_the_step_and_ends_as_a_failed_run_dry_or_not() {
    let (home, cold) = (Home::new(), Home::new());
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_archive(&state).await;
    set(&state, &[("archive", &cold.uri())]).await;
    days(&state, &clock, 0..20).await;
    assert!(archived(&state).unwrap().files > 0);
    let aside = tempfile::tempdir().unwrap();
    std::fs::rename(cold.folder.path(), aside.path().join("cold")).unwrap();
    for dry_run in [true, false] {
        let mut arguments = vec!["maintain", "s", "--output", "table"];
        arguments.extend(dry_run.then_some("--dry-run"));
        let output = finish(program(&home, &arguments), "");
        let (told, error) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
        let (told, error) = (told.unwrap(), error.unwrap());
        assert_eq!(output.status.code(), Some(7), "{error}");
        assert!(error.contains(&cold.uri()) && error.contains("step archive"), "{error}");
        for (step, text) in [
            ("materialize", "0 rows"),
            ("archive", "failed: the archive of s at "),
            ("vacuum", "the archive can't be reached"),
        ] {
            let line = told.lines().find(|line| line.trim_start().starts_with(step)).unwrap();
            assert!(line.contains(text), "{line}");
        }
        arguments.push("--no-archive");
        assert!(finish(program(&home, &arguments), "").status.success());
    }
    std::fs::rename(aside.path().join("cold"), cold.folder.path()).unwrap();
    assert!(finish(program(&home, &["maintain", "s", "--dry-run"]), "").status.success());
}
