//! A store that this process may only read: another user's folder, or a file system that is mounted so. Every verb that reads works,
//! every one that writes says where and what to do, and nothing is half done.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::processes::Mount;
use super::program::{change, finish, lines, program, succeed};
use crate::support::stores::Home;

/// Somebody who owns nothing.
const NOBODY: &str = "65534";

/// What lies below a folder: each file with its bytes, each folder.
fn content(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_str().unwrap().to_owned();
            match path.is_dir() {
                true => {
                    found.insert(name, None);
                    folders.push(path);
                }
                false => drop(found.insert(name, Some(std::fs::read(&path).unwrap()))),
            }
        }
    }
    found
}

/// A store with a snapshot, a tail, a savepoint, and files of days that are over; and what is to be tidied.
fn build(home: &Home) {
    succeed(home, &["create", "s", "--schema", "n BIGINT", "--order-by", "version"], "");
    for n in 1..=12 {
        succeed(home, &["append", "s"], &change(&format!("k{}", n % 5), n, n));
        if n == 6 {
            succeed(home, &["materialize", "s"], "");
            succeed(home, &["savepoint", "create", "s", "kept"], "");
        }
    }
    // A left-over of a dead writer, which a vacuum would take.
    let day = std::fs::read_dir(home.table("s", "log")).unwrap();
    let day = day.map(|entry| entry.unwrap().path());
    let day = day.filter(|path| path.file_name().is_some_and(|name| name != "_delta_log"));
    let orphan = day.min().unwrap().join("dead.parquet");
    std::fs::write(&orphan, "x").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(300 * 86_400);
    std::fs::File::options().write(true).open(&orphan).unwrap().set_modified(old).unwrap();
}

const READING: [&[&str]; 19] = [
    &["states"],
    &["get", "s", "k1"],
    &["get", "s", "k1", "--commit", "3"],
    &["scan", "s"],
    &["scan", "s", "--version", "4"],
    &["history", "s", "k1"],
    &["diff", "s", "commit:1", "latest"],
    &["changes", "s"],
    &["sql", "SELECT count(*) FROM s"],
    &["stats", "s", "--deep"],
    &["verify", "s"],
    &["verify", "s", "--deep"],
    &["doctor"],
    &["set", "s"],
    &["savepoint", "list", "s"],
    &["retention", "explain", "s"],
    &["maintain", "s", "--dry-run"],
    &["restore", "s", "--to", "commit:3", "--dry-run"],
    &["repair", "s", "--dry-run"],
];

const WRITING: [(&[&str], &str); 11] = [
    (&["create", "other", "--schema", "n BIGINT"], ""),
    (&["append", "s"], r#"{"key": "k1", "version": 99, "value": {"n": 99}}"#),
    (
        &["append", "s", "--app-id", "app", "--epoch", "1"],
        r#"{"key": "k1", "version": 99, "value": {"n": 99}}"#,
    ),
    (&["materialize", "s"], ""),
    (&["materialize", "s", "--rebuild"], ""),
    (&["maintain", "s"], ""),
    (&["maintain", "s", "--steps", "vacuum"], ""),
    (&["set", "s", "commit_retention=40d"], ""),
    (&["savepoint", "create", "s", "more"], ""),
    (&["savepoint", "release", "s", "kept"], ""),
    (&["restore", "s", "--to", "commit:3"], ""),
];

/// Runs all verbs, as `reader` makes commands of them, and compares.
fn check(place: &Path, reader: &dyn Fn(&[&str]) -> Command) {
    let run = |verb: &[&str], input: &str| {
        let output = finish(reader(verb), input);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, message)
    };
    let rows = || lines(&String::from_utf8(run(&["scan", "s"], "").0.stdout).unwrap());
    let (before, known) = (content(place), rows());
    assert_eq!(known.len(), 5);
    for verb in READING {
        let (output, message) = run(verb, "");
        assert!(output.status.success(), "{verb:?}: {message}");
        assert!(content(place) == before, "{verb:?} wrote something");
    }
    for (verb, input) in WRITING {
        let (output, message) = run(verb, input);
        assert_eq!(output.status.code(), Some(7), "{verb:?}: {message}");
        let names_the_place = message.contains(place.to_str().unwrap());
        assert!(names_the_place && message.contains("may read there"), "{verb:?}: {message}");
        assert!(content(place) == before, "{verb:?} left something behind");
    }
    assert_eq!(rows(), known);
}

/// Gives everything below a folder, and the folder, other permissions.
fn allow(place: &Path, folders: u32, files: u32) {
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(place, folders);
    for (path, bytes) in content(place) {
        set(Path::new(&path), if bytes.is_some() { files } else { folders });
    }
}

/// The folder can be removed again, whatever becomes of the test.
struct Locked<'a>(&'a Path);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        allow(self.0, 0o755, 0o644);
    }
}

/// The same command under the id of somebody else.
fn as_nobody(command: &Command) -> Command {
    let mut other = Command::new("setpriv");
    other.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    other.arg(command.get_program()).args(command.get_args());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    other
}

#[test]
#[allow(clippy::print_stderr)]
fn a_folder_without_permission_to_write_is_read_and_every_write_is_refused_with_its_place() {
    let home = Home::new();
    build(&home);
    let place = home.folder.path();
    allow(place, 0o555, 0o444);
    let _locked = Locked(place);
    if std::fs::write(place.join("probe"), "").is_err() {
        check(place, &|verb| program(&home, verb));
        return;
    }
    // This process may write whatever the permissions say: somebody else is asked.
    std::fs::remove_file(place.join("probe")).unwrap();
    let works = as_nobody(&program(&home, &["states"])).output();
    if !works.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "left out: this process may write anywhere, and may not run the program as {NOBODY}"
        );
        return;
    }
    check(place, &|verb| as_nobody(&program(&home, verb)));
}

#[test]
#[allow(clippy::print_stderr)]
fn a_file_system_that_is_mounted_to_be_read_is_read_and_every_write_is_refused_with_its_place() {
    let Some(mount) = Mount::new("20m") else {
        eprintln!("left out: this process may not mount");
        return;
    };
    build(&mount.home);
    mount.remount("ro");
    check(mount.home.folder.path(), &|verb| program(&mount.home, verb));
}
