//! Real processes on a real disk: killed at any moment, stopped and woken, without room, without files.
//!
//! `ALLUVIUM_KILLS=2000 cargo test --test it cases::processes` kills as many times; a few dozen times else.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::program::{change, fail, finish, lines, program, start, succeed};
use crate::support::stores::Home;

/// Kills when nothing else is asked for.
const KILLS: usize = 40;
/// A process is killed within so many milliseconds.
const KILLED_WITHIN_MS: u64 = 120;

fn kills() -> usize {
    std::env::var("ALLUVIUM_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS)
}

pub(super) fn seed() -> u64 {
    std::env::var("ALLUVIUM_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random)
}

/// Starts the program and kills it after a while; true if it was done before.
pub(super) fn run_and_kill(home: &Home, arguments: &[&str], input: &str, after_ms: u64) -> bool {
    let mut child = start(program(home, arguments), input);
    std::thread::sleep(Duration::from_millis(after_ms));
    // SIGKILL.
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || output.status.code().is_none(), "{arguments:?}: {message}");
    output.status.success()
}

/// The changes of an epoch: ten keys, some of them of earlier epochs.
fn epoch(number: i64) -> String {
    (0..10).map(|n| change(&format!("k{}", number * 5 + n), number, number * 100 + n)).collect()
}

#[test]
#[allow(clippy::print_stderr)]
fn processes_that_are_killed_at_any_moment_lose_nothing_and_do_nothing_twice() {
    let home = Home::new();
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    succeed(&home, &["create", "s", "--schema", "n BIGINT", "--order-by", "version"], "");
    let (mut number, mut killed, mut done) = (0, 0, 0);
    while killed < kills() {
        let after = rng.random_range(0..KILLED_WITHIN_MS);
        let finished = match rng.random_range(0..6) {
            0 => run_and_kill(&home, &["materialize", "s"], "", after),
            1 => run_and_kill(&home, &["maintain", "s"], "", after),
            _ => {
                number += 1;
                let text = number.to_string();
                let arguments = ["append", "s", "--app-id", "feeder", "--epoch", text.as_str()];
                let finished = run_and_kill(&home, &arguments, &epoch(number), after);
                // Nobody knows whether it got through: it is sent again until it is known.
                succeed(&home, &arguments, &epoch(number));
                finished
            }
        };
        killed += usize::from(!finished);
        done += usize::from(finished);
    }
    eprintln!("seed {seed}: {killed} killed, {done} finished before, {number} epochs");
    let expected: std::collections::BTreeMap<String, i64> = (1..=number)
        .flat_map(|number| (0..10).map(move |n| (format!("k{}", number * 5 + n), number * 100 + n)))
        .collect();
    let found: std::collections::BTreeMap<String, i64> = lines(&succeed(&home, &["scan", "s"], ""))
        .into_iter()
        .map(|row| (row["key"].as_str().unwrap().to_owned(), row["value"]["n"].as_i64().unwrap()))
        .collect();
    assert_eq!(found, expected, "seed {seed}");
    let all = succeed(&home, &["sql", "SELECT count(*) AS n FROM log.s"], "");
    assert_eq!(lines(&all)[0]["n"], json!(number * 10), "seed {seed}: each epoch once");
    succeed(&home, &["verify"], "");
    succeed(&home, &["verify", "--deep"], "");
    succeed(&home, &["maintain", "s"], "");
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), expected.len());
}

fn signal(child: &std::process::Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_process_that_was_stopped_and_wakes_up_late_writes_nothing_that_is_known_by_then() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("k", 1, 0));
    let arguments = ["append", "s", "--app-id", "p", "--epoch", "1"];
    let mut zombie = program(&home, &arguments).spawn().unwrap();
    let mut stdin = zombie.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, change("k", 2, 1).as_bytes()).unwrap();
    signal(&zombie, "-STOP");
    // Its successor sends the same epoch, and goes on.
    for number in 1..=3 {
        let text = number.to_string();
        let arguments = ["append", "s", "--app-id", "p", "--epoch", text.as_str()];
        succeed(&home, &arguments, &change("k", 1 + number, number));
    }
    succeed(&home, &["maintain", "s"], "");
    drop(stdin);
    signal(&zombie, "-CONT");
    let output = zombie.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "already applied is a success: {message}");
    assert_eq!(lines(&succeed(&home, &["history", "s", "k"], "")).len(), 4);
    assert_eq!(lines(&succeed(&home, &["get", "s", "k"], ""))[0]["value"], json!({"n": 3}));
    succeed(&home, &["verify", "--deep"], "");
}

/// The program within limits of a shell.
fn limited(home: &Home, limit: &str, arguments: &str, input: &str) -> Output {
    let mut command = Command::new("bash");
    let script = format!("{limit}; exec \"$0\" {arguments}");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_alluvium-under-test")]);
    command.env("ALLUVIUM_STORE", home.uri());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command, input)
}

#[test]
fn a_few_dozen_open_files_are_enough() {
    let home = Home::new();
    let mut input = String::new();
    for day in 0..120 {
        let time = chrono::DateTime::from_timestamp(1_700_000_000 - day * 86_400, 0).unwrap();
        let line = json!({"key": format!("k{day}"), "value": {"n": day}, "version": 1, "event_time": time.to_rfc3339()});
        input.push_str(&format!("{line}\n"));
    }
    for arguments in
        ["append s", "scan s", "materialize s", "verify s", "verify --deep s", "maintain s"]
    {
        let output = limited(&home, "ulimit -n 64", arguments, &input);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {message}");
    }
}

/// A write that found no room is told, or the process ended; what was acknowledged before is there, and it goes on with room.
fn goes_on_with_room(home: &Home, acknowledged: i64) {
    let rows = lines(&succeed(home, &["scan", "s"], ""));
    assert!(rows.len() as i64 >= acknowledged, "{} of {acknowledged}", rows.len());
    succeed(home, &["append", "s"], &change("later", 1_000_000, 1));
    succeed(home, &["maintain", "s"], "");
    succeed(home, &["verify"], "");
    succeed(home, &["verify", "--deep"], "");
    assert_eq!(lines(&succeed(home, &["get", "s", "later"], "")).len(), 1);
}

#[test]
fn files_that_may_not_grow_fail_a_write_and_nothing_else() {
    let home = Home::new();
    for n in 1..=3 {
        succeed(&home, &["append", "s"], &change(&format!("k{n}"), n, n));
    }
    let many: String = (0..5_000).map(|n| change(&format!("many-{n}"), n, n * 7_919)).collect();
    // Blocks of 1 KiB; the signal that comes with it is ignored, so that the write fails.
    for limit in ["trap '' XFSZ; ulimit -f 4", "ulimit -f 4"] {
        let output = limited(&home, limit, "append s", &many);
        assert!(!output.status.success(), "{limit}");
        if let Some(code) = output.status.code() {
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(code, 7, "{limit}: {message}");
            assert!(message.contains(".parquet"), "{message}");
        }
        assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 3, "{limit}");
    }
    goes_on_with_room(&home, 3);
}

/// A small file system of memory, if this process may mount one.
pub(super) struct Mount {
    pub(super) home: Home,
}

impl Mount {
    pub(super) fn new(size: &str) -> Option<Self> {
        let home = Home::new();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs", &home.uri()]).stderr(Stdio::null());
        mount.status().ok().filter(|status| status.success()).map(|_| Self { home })
    }

    fn resize(&self, size: &str) {
        self.remount(&format!("size={size}"));
    }

    /// Changes what it was mounted with.
    pub(super) fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let status = Command::new("mount").args(["-o", &options, &self.home.uri()]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        Command::new("umount").arg(self.home.uri()).status().ok();
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn a_full_disk_fails_writes_and_nothing_else() {
    let Some(mount) = Mount::new("300k") else {
        eprintln!("left out: this process may not mount");
        return;
    };
    let home = &mount.home;
    let (mut acknowledged, mut refused) = (0, 0);
    for n in 1..=400 {
        let output = finish(program(home, &["append", "s"]), &change(&format!("k{n}"), n, n));
        match output.status.code() {
            Some(0) => acknowledged += 1,
            code => {
                let message = String::from_utf8_lossy(&output.stderr);
                assert_eq!(code, Some(7), "{message}");
                refused += 1;
            }
        }
        if refused == 3 {
            break;
        }
    }
    assert!(acknowledged > 10 && refused == 3, "{acknowledged} {refused}");
    let rows: Vec<Value> = lines(&succeed(home, &["scan", "s"], ""));
    assert_eq!(rows.len() as i64, acknowledged);
    fail(home, &["materialize", "s"], "", 7, &["s/snapshot"]);
    assert_eq!(lines(&succeed(home, &["scan", "s"], "")).len() as i64, acknowledged);
    mount.resize("64m");
    goes_on_with_room(home, acknowledged);
}
