//! What a process leaves that is killed while it writes: files under names that nobody sees, until the vacuum takes them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use alluvium::{
    Clock, MaintainStep, Maintainer, MaintainerOptions, ManualClock, StepOutcome, SystemClock,
};

use crate::cases::program::{change, program, succeed};
use crate::support::stores::{DAY, Home};

/// The files below a folder whose names are not given yet.
fn staged(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(staged(&path));
        } else if path.to_str().unwrap().contains('#') {
            found.push(path);
        }
    }
    found
}

/// Runs the program with a limit of one block for each file: the system kills it in the middle of the first one that is larger.
fn killed_while_writing(home: &Home, arguments: &[&str]) {
    let whole = program(home, arguments);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -c 0; ulimit -f 1; exec \"$0\" \"$@\""]).arg(whole.get_program());
    limited.args(whole.get_args()).env("ALLUVIUM_STORE", home.uri());
    let status = limited.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.signal().is_some(), "{arguments:?} was not killed: {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_killed_process_was_writing_go_after_their_grace() {
    let home = Home::new();
    for n in 0..3 {
        succeed(&home, &["append", "s"], &change(&format!("u{n}"), n, n));
    }
    succeed(&home, &["materialize", "s"], "");
    killed_while_writing(
        &home,
        &["savepoint", "create", "s", "kept", "--note", &"n".repeat(2_000)],
    );
    let left = staged(home.folder.path());
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].parent().unwrap().ends_with("s/savepoints"), "{left:?}");
    // One of the store itself.
    let lease = home.folder.path().join("_alluvium/leases/job/3.json#17");
    std::fs::create_dir_all(lease.parent().unwrap()).unwrap();
    std::fs::write(&lease, "half").unwrap();

    let clock = Arc::new(ManualClock::at(SystemClock.now_micros()));
    let store = home.open_at(&clock).await;
    let vacuum = async |dry_run| {
        let state = store.raw_state("s").await.unwrap();
        let report = state.maintain(&[MaintainStep::Vacuum], dry_run).await.unwrap();
        match report.steps.into_iter().map(|step| step.outcome).next() {
            Some(StepOutcome::Vacuumed { staged, .. }) => staged,
            other => panic!("{other:?}"),
        }
    };
    clock.set(SystemClock.now_micros() + 6 * DAY);
    let young = vacuum(false).await;
    assert_eq!((young.files_removed, young.files_kept), (0, 1), "its writer may be at work");
    clock.set(SystemClock.now_micros() + 8 * DAY);
    let bytes = std::fs::metadata(&left[0]).unwrap().len();
    let dry = vacuum(true).await;
    assert_eq!((dry.files_removed, dry.bytes_removed), (1, bytes));
    assert!(left[0].exists());
    assert_eq!(vacuum(false).await, dry);
    assert!(!left[0].exists() && lease.exists());
    assert_eq!(vacuum(false).await.files_removed, 0, "a second run finds nothing");
    // The job over all states looks beside them too.
    let maintainer = Maintainer::new(&store, MaintainerOptions::default());
    let run = maintainer.run().await.unwrap();
    assert_eq!(run.report.staged_removed, ["_alluvium/leases/job/3.json#17"]);
    assert!(!lease.exists());
    succeed(&home, &["savepoint", "create", "s", "kept"], "");
    succeed(&home, &["verify", "--deep"], "");
}
