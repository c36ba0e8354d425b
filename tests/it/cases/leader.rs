//! The job as a daemon: one leader among processes, a graceful stop, metrics; and runs that are to end early.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium::{
    ErrorKind, Leadership, Lease, LeftOutReason, MaintainStep, Maintainer, MaintainerOptions,
    ManualClock, Store,
};
use serde_json::Value;

use super::program::{change, fail, lines, program, start, succeed};
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{Home, SECOND, START, by_version, commit_of, n_batch};

const SPAN_MS: i64 = 30_000;

fn lease(store: &Store, holder: &str) -> Lease {
    store.lease("job", holder, SPAN_MS).unwrap()
}

fn follows(holder: &str) -> Leadership {
    Leadership::Following(holder.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_leader_is_taken_over_after_its_span_and_gives_way_when_it_wakes() {
    let (faulty, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let store = open(&faulty, &clock).await;
    let (mut first, mut second) = (lease(&store, "first"), lease(&store, "second"));
    assert_eq!(first.beat().await.unwrap(), Leadership::Leading);
    for beat in 1..20 {
        clock.set(START + beat * 10 * SECOND);
        assert_eq!(second.beat().await.unwrap(), follows("first"), "beat {beat}");
        assert_eq!(first.beat().await.unwrap(), Leadership::Leading, "beat {beat}");
    }
    // From here on the first one sleeps; the second one has seen its last sign of life just now.
    let asleep = START + 200 * SECOND;
    clock.set(asleep);
    assert_eq!(second.beat().await.unwrap(), follows("first"));
    clock.set(asleep + SPAN_MS * 1_000 - 1_000);
    assert_eq!(second.beat().await.unwrap(), follows("first"));
    clock.set(asleep + SPAN_MS * 1_000);
    assert_eq!(second.beat().await.unwrap(), Leadership::Leading);
    assert_eq!(first.beat().await.unwrap(), follows("second"));
    // A clock that goes back only makes it wait longer.
    clock.set(START);
    assert_eq!(first.beat().await.unwrap(), follows("second"));
    clock.set(START + SPAN_MS * 1_000 - 1_000);
    assert_eq!(first.beat().await.unwrap(), follows("second"));
    second.release().await.unwrap();
    assert_eq!(first.beat().await.unwrap(), Leadership::Leading);
    // Whoever has no lead has none to give away.
    second.release().await.unwrap();
    assert_eq!(second.beat().await.unwrap(), follows("first"));
    assert_eq!(store.state_names().await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_ask_at_once_one_leads() {
    for round in 0..20 {
        let (faulty, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
        let store = open(&faulty, &clock).await;
        if round % 2 == 1 {
            let mut dead = lease(&store, "dead");
            dead.beat().await.unwrap();
        }
        let mut leases: Vec<Lease> = (0..8).map(|n| lease(&store, &format!("p{n}"))).collect();
        if round % 2 == 1 {
            for lease in &mut leases {
                assert_eq!(lease.beat().await.unwrap(), follows("dead"));
            }
            clock.set(START + SPAN_MS * 1_000);
        }
        let asking = leases.into_iter().map(|mut lease| {
            tokio::spawn(async move {
                let now = lease.beat().await.unwrap();
                (lease, now)
            })
        });
        let mut leading = Vec::new();
        for (mut lease, now) in
            futures::future::join_all(asking).await.into_iter().map(Result::unwrap)
        {
            // Who was told at first to lead goes on to do so, and nobody else begins to.
            assert_eq!(lease.beat().await.unwrap(), now, "round {round}");
            leading.extend((now == Leadership::Leading).then_some(()));
        }
        assert_eq!(leading.len(), 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_at_any_call_is_followed_by_one_other() {
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
        let faulty = built.reborn();
        let mut first = lease(&open(&faulty, &clock).await, "first");
        faulty.die_at(call, takes_place);
        let mut died = false;
        for step in 0..3 {
            let outcome = match step {
                2 => first.release().await.map(|()| Leadership::Leading),
                _ => first.beat().await,
            };
            died = faulty.is_dead();
            assert!(matches!(outcome, Ok(Leadership::Leading)) || died, "call {call}: {outcome:?}");
            if died {
                break;
            }
        }
        let store = open(&faulty.reborn(), &clock).await;
        let (mut second, mut third) = (lease(&store, "second"), lease(&store, "third"));
        let now = second.beat().await.unwrap();
        if now != Leadership::Leading {
            assert_eq!((now, died), (follows("first"), true), "call {call}");
            clock.set(START + SPAN_MS * 1_000);
            assert_eq!(second.beat().await.unwrap(), Leadership::Leading, "call {call}");
        }
        assert_eq!(third.beat().await.unwrap(), follows("second"), "call {call}");
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_to_stop_ends_with_the_step_at_work_and_says_what_it_left() {
    let (faulty, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let store = open(&faulty, &clock).await;
    for name in ["a", "b"] {
        by_version(&store, name).await.append(&n_batch(&[("k", 1, Some(1))])).await.unwrap();
    }
    let maintainer = Maintainer::new(&store, MaintainerOptions::default());
    let (reached, let_go) = faulty.hold_next_data_file();
    let running = tokio::spawn({
        let maintainer = maintainer.clone();
        async move { maintainer.run().await.unwrap() }
    });
    reached.await.unwrap();
    maintainer.stop_signal().stop();
    let_go.send(()).unwrap();
    let run = running.await.unwrap();
    let report = run.report;
    assert!(report.is_cut_short() && report.failed.is_empty(), "{report:?}");
    assert_eq!(report.left_out, ["b"]);
    let steps: Vec<MaintainStep> = report.states[0].steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, [MaintainStep::Materialize]);
    let left = report.states[0].left_out.iter();
    assert!(left.clone().all(|left| left.reason == LeftOutReason::Stopped), "{report:?}");
    assert!(left.map(|left| left.step).eq(MaintainStep::ALL[1..].iter().copied()), "{report:?}");
    let state = store.raw_state("a").await.unwrap();
    assert_eq!(state.snapshot().state().log_commit(), 1, "the step at work was brought to its end");

    let no_time =
        MaintainerOptions { time_limit: Some(Duration::ZERO), ..MaintainerOptions::default() };
    let run = Maintainer::new(&store, no_time).run().await.unwrap();
    assert_eq!((run.report.left_out, run.report.states.len()), (vec!["a".into(), "b".into()], 0));
    let done = Maintainer::new(&store, MaintainerOptions::default()).run().await.unwrap().report;
    assert!(!done.is_cut_short());
    assert_eq!(done.states.len(), 2);
    assert_eq!(commit_of(&state).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_replaced_under_a_long_job_is_maintained_again_the_next_time() {
    let home = Home::new();
    let put = async |versions: i64| {
        let state = by_version(&home.open().await, "s").await;
        for version in 1..=versions {
            state.append(&n_batch(&[("k", version, Some(version))])).await.unwrap();
        }
    };
    put(5).await;
    let maintainer = Maintainer::new(&home.open().await, MaintainerOptions::default());
    assert_eq!(maintainer.run().await.unwrap().errors.len(), 0);
    std::fs::remove_dir_all(home.folder.path().join("s")).unwrap();
    put(7).await;
    let run = maintainer.run().await.unwrap();
    assert_eq!(run.errors[0].kind(), ErrorKind::IdentityChanged, "{:?}", run.errors);
    let run = maintainer.run().await.unwrap();
    assert_eq!(run.errors.len(), 0, "{:?}", run.errors);
    assert_eq!(run.report.states[0].log_before.version, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_on_other_states_or_steps_are_other_jobs() {
    let store = open(&FaultyStore::new(), &Arc::new(ManualClock::at(START))).await;
    let name = |states: &[&str], steps: &[MaintainStep]| {
        let states = states.iter().map(|state| (*state).to_owned()).collect();
        let options =
            MaintainerOptions { states, steps: steps.to_vec(), ..MaintainerOptions::default() };
        let name = Maintainer::new(&store, options).name();
        store.lease(&name, "x", SPAN_MS).unwrap();
        name
    };
    let (a, b) = (MaintainStep::Compact, MaintainStep::Vacuum);
    assert_eq!(name(&["x", "y"], &[a, b]), name(&["y", "x"], &[b, a]));
    let long: Vec<String> = (0..40).map(|n| format!("a-rather-long-name-{n}")).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let mut names = vec![
        name(&[], &[a]),
        name(&[], &[b]),
        name(&["x"], &[a]),
        name(&["all"], &[a]),
        name(&long, &[a]),
        name(&long[1..], &[a]),
    ];
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 6);
    for (job, span_ms, told) in [("job/x", SPAN_MS, "job/x"), ("job", 10, "10 ms")] {
        let error = store.lease(job, "x", span_ms).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// A daemon, which is not left behind by a test that fails.
struct Daemon {
    child: Child,
    messages: std::io::Lines<BufReader<ChildStderr>>,
}

impl Daemon {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut all = vec!["maintain", "--every", "1h", "--takeover", "1s"];
        all.extend(arguments);
        let mut child = start(program(home, &all), "");
        let messages = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, messages }
    }

    /// The next message that holds a text.
    fn says(&mut self, text: &str) -> String {
        let mut said = Vec::new();
        for line in self.messages.by_ref() {
            let line = line.unwrap();
            if line.contains(text) {
                return line;
            }
            said.push(line);
        }
        panic!("the daemon ended without {text:?}: {said:?}")
    }

    fn name(&self) -> String {
        format!("process {} on", self.child.id())
    }

    /// Asks it to end, and gives its exit code.
    fn terminate(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The answer to a request, head and body.
fn ask(address: &str, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn daemons_take_turns_end_at_sigterm_and_serve_metrics() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("k", 1, 1));
    let report = home.folder.path().join("report.json");
    let options = ["--metrics-listen", "127.0.0.1:0", "--report", report.to_str().unwrap()];
    let mut first = Daemon::start(&home, &options);
    let line = first.says("metrics at http://");
    let address = line.split("http://").nth(1).unwrap().strip_suffix("/metrics").unwrap();
    first.says("this process does the maintenance");
    let begun = Instant::now();
    let text = loop {
        let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        if text.contains("alluvium_maintain_runs_total 1\n") {
            break text;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no run yet: {text}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for line in [
        "# TYPE alluvium_materializations_total counter\nalluvium_materializations_total 1\n",
        "alluvium_maintain_leading 1\n",
        "alluvium_table_files{state=\"s\",table=\"snapshot\"} 1\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(address, "PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    // A taken port is an error before any work: there is no second state to be seen in a report.
    let other = home.folder.path().join("other.json");
    let arguments = [
        "maintain",
        "--every",
        "1h",
        "--metrics-listen",
        address,
        "--report",
        other.to_str().unwrap(),
    ];
    fail(&home, &arguments, "", 2, &[address, "--metrics-listen"]);
    assert!(!other.exists());

    let mut second = Daemon::start(&home, &[]);
    let waits = second.says("waits to take over");
    assert!(waits.contains(&first.name()), "{waits}");
    assert_eq!(first.terminate(), Some(0));
    let told: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!(told["states"][0]["state"], "s");
    assert_eq!(told["states"][0]["steps"].as_array().unwrap().len(), MaintainStep::ALL.len());
    second.says("this process does the maintenance");

    // Killed, it can't give its lead away.
    let name = second.name();
    drop(second);
    let mut third = Daemon::start(&home, &[]);
    let waits = third.says("waits to take over");
    assert!(waits.contains(&name), "{waits}");
    third.says("this process does the maintenance");
    // Another job is not held up by it.
    let mut other = Daemon::start(&home, &["--steps", "compact"]);
    other.says("this process does the maintenance");
    assert_eq!(other.terminate(), Some(0));
    assert_eq!(third.terminate(), Some(0));
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 1);
}

#[test]
fn a_daemon_goes_on_beside_a_state_that_fails_and_one_shot_runs_tell_it() {
    let home = Home::new();
    for (state, version) in [("a", 1), ("torn", 1), ("torn", 2), ("torn", 3), ("z", 1)] {
        succeed(&home, &["append", state], &change("k", version, version));
    }
    std::fs::remove_file(home.commit_file("torn", 2)).unwrap();
    let report = home.folder.path().join("report.json");
    let path = report.to_str().unwrap();
    let mut daemon = Daemon::start(&home, &["--report", path]);
    daemon.says("torn");
    assert_eq!(daemon.terminate(), Some(0));
    let output = super::program::finish(program(&home, &["maintain", "--report", path]), "");
    assert_eq!(output.status.code(), Some(6));
    let told: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!(told["failed"][0]["state"], "torn");
    assert!(told["failed"][0]["error"].as_str().unwrap().contains("00000000000000000002.json"));
    assert_eq!(told["states"].as_array().unwrap().len(), 2);
    succeed(&home, &["maintain", "a", "--max-seconds", "3600"], "");
    fail(&home, &["maintain", "--every", "1h", "--dry-run"], "", 2, &["--dry-run"]);
    for path in ["/nowhere/report.json", "/"] {
        fail(&home, &["maintain", "a", "--report", path], "", 2, &[path, "a folder that is there"]);
    }
    fail(&home, &["maintain", "--max-seconds", "0"], "", 2, &["--max-seconds"]);
    fail(&home, &["maintain", "--metrics-listen", "127.0.0.1:0"], "", 2, &["--every"]);
}
