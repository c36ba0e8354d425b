//! OBJ-*: stores on object stores, over HTTP: what the service must keep, and what network and service do to requests.
//!
//! The server is a small one of the tests, in this process, with faults at any request. `tests/s3/ci.sh` runs the model and other
//! cases on one that was made by others.

use std::io::Write;
use std::process::Command;

use alluvium::{
    Durability, Error, ErrorKind, Leadership, MaintainStep, Point, RawState, RemoteSettings,
    Storage, StorageOptions, Store,
};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::program::{change, finish};
use crate::support::s3::{BUCKET, Fault, S3Server};
use crate::support::stores::{
    assert_sound, by_version, live, n_batch, n_fields, ordered_by, settings,
};

async fn open(server: &S3Server) -> Store {
    let builder = Store::builder("s3://").settings(settings()).storage(server.storage("dir"));
    builder.open().await.unwrap()
}

async fn reopened(server: &S3Server) -> RawState {
    open(server).await.raw_state("s").await.unwrap()
}

fn puts(requests: &[String]) -> usize {
    requests.iter().filter(|request| request.starts_with("PUT")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_01_a_state_lives_in_a_folder_of_a_bucket_through_every_verb() {
    let server = S3Server::start();
    let store = open(&server).await;
    let state = by_version(&store, "s").await;
    for n in 1..=5 {
        state.append(&n_batch(&[("a", n, Some(n)), ("b", n, None)])).await.unwrap();
    }
    state.create_savepoint("kept", None).await.unwrap();
    let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert!(report.steps.len() > 3, "{report:?}");
    state.append(&n_batch(&[("c", 9, Some(9))])).await.unwrap();
    let other = reopened(&server).await;
    let rows = live(&other, Point::LATEST).await;
    assert_eq!(rows, [("a".to_owned(), 5, Some(5)), ("c".to_owned(), 9, Some(9))]);
    assert_eq!(live(&other, Point::at_commit(2)).await, [("a".to_owned(), 2, Some(2))]);
    assert_sound(&other).await;
    assert_eq!(store.state_names().await.unwrap(), ["s"]);
    assert_eq!(other.savepoints().await.unwrap().len(), 1);
    let names = server.names();
    assert!(names.iter().all(|name| name.starts_with("dir/")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_02_a_store_that_ignores_put_if_absent_is_refused_before_anything_is_written() {
    let server = S3Server::start();
    server.ignore_conditions();
    let store = open(&server).await;
    let created =
        store.create_state("s", &n_fields(), ordered_by(alluvium::OrderBy::Version)).await;
    let error = created.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for part in ["put-if-absent", "If-None-Match", "s3://bucket/dir"] {
        assert!(error.to_string().contains(part), "no {part:?} in {error}");
    }
    let mut lease = store.lease("job", "me", 30_000).unwrap();
    assert_eq!(lease.beat().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(server.names(), [""; 0], "nothing stays, not even what it was tried with");
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_03_put_if_absent_is_tried_once_in_a_process_and_never_to_read() {
    let server = S3Server::start();
    by_version(&open(&server).await, "s").await;
    let tried = |requests: &[String]| {
        let on_probe =
            |request: &&String| request.starts_with("PUT") && request.contains("_alluvium/probe");
        requests.iter().filter(on_probe).count()
    };
    let first = server.take_requests();
    assert_eq!(tried(&first), 2, "{first:?}");
    let again = open(&server).await;
    by_version(&again, "t").await.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    let requests = server.take_requests();
    assert_eq!(tried(&requests), 0, "{requests:?}");
    live(&again.raw_state("s").await.unwrap(), Point::LATEST).await;
    assert_eq!(puts(&server.take_requests()), 0, "a reader writes nothing");

    // A store that its owner has made is tried by itself.
    let own = server.storage("own").object_store().clone();
    let storage = Storage::from_remote_store(own, "own");
    let builder = Store::builder("own").settings(settings()).storage(storage);
    by_version(&builder.open().await.unwrap(), "s").await;
    assert_eq!(tried(&server.take_requests()), 2);
}

/// What the store comes to when requests of these kinds meet faults: it must be as without.
async fn survives(faults: &[(&'static str, &'static str, Fault)]) {
    let server = S3Server::start();
    let state = by_version(&open(&server).await, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    for (method, part, fault) in faults {
        server.fail_next(method, part, *fault);
    }
    let receipt = state.append(&n_batch(&[("a", 2, Some(2)), ("b", 2, Some(2))])).await;
    assert_eq!(receipt.unwrap().commit, 2, "{faults:?}");
    let mut epoch = state.epoch("app", 1).unwrap();
    epoch.stage(&n_batch(&[("b", 3, Some(3))])).await.unwrap();
    epoch.commit().await.unwrap();
    state.materialize(false).await.unwrap();
    state.create_savepoint("kept", None).await.unwrap();
    assert_eq!(server.faults_left(), 0, "{faults:?}");
    let other = reopened(&server).await;
    let rows = [("a".to_owned(), 2, Some(2)), ("b".to_owned(), 3, Some(3))];
    assert_eq!(live(&other, Point::LATEST).await, rows, "{faults:?}");
    let stats = other.stats_in_depth().await.unwrap();
    assert_eq!(stats.log_rows, 4, "{faults:?}");
    assert_sound(&other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_04_a_request_that_fails_at_the_server_or_on_its_way_is_sent_again_and_nothing_is_written_twice()
 {
    use Fault::{ClosedAfter, FailedAfter, Stalled, Throttled, Undecided};
    const COMMIT: &str = "s/log/_delta_log/";
    const DATA: &str = ".parquet";
    for fault in [Throttled, FailedAfter, ClosedAfter, Stalled, Undecided] {
        survives(&[("PUT", COMMIT, fault)]).await;
        survives(&[("PUT", DATA, fault)]).await;
    }
    survives(&[("PUT", "snapshot/", FailedAfter), ("PUT", "s/savepoints", FailedAfter)]).await;
    survives(&[("PUT", "s/savepoints", Throttled), ("PUT", "snapshot/_delta_log", ClosedAfter)])
        .await;
    survives(&[("GET", "_delta_log", Throttled), ("GET", "list-type", FailedAfter)]).await;
    survives(&[("PUT", COMMIT, Throttled), ("PUT", COMMIT, FailedAfter), ("PUT", COMMIT, Stalled)])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_05_writers_that_race_through_faults_lose_nothing_and_write_nothing_twice() {
    let server = S3Server::start();
    by_version(&open(&server).await, "s").await;
    let mut rng = StdRng::seed_from_u64(5);
    let kinds = [Fault::Throttled, Fault::FailedAfter, Fault::ClosedAfter, Fault::Undecided];
    for _ in 0..12 {
        let part = ["_delta_log", ".parquet"][rng.random_range(0..2)];
        server.fail_next("PUT", part, kinds[rng.random_range(0..kinds.len())]);
    }
    let writers = (0..4_i64).map(|writer| {
        let server = &server;
        async move {
            let state = reopened(server).await;
            for n in 1..=6 {
                let key = format!("{writer}-{n}");
                state.append(&n_batch(&[(&key, writer * 100 + n, Some(n))])).await.unwrap();
            }
        }
    });
    futures::future::join_all(writers).await;
    let state = reopened(&server).await;
    assert_eq!(live(&state, Point::LATEST).await.len(), 24);
    assert_eq!(state.stats_in_depth().await.unwrap().log_rows, 24);
    assert_eq!(server.faults_left(), 0);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_06_a_store_that_does_not_answer_is_given_up_with_its_name_and_written_to_later() {
    let server = S3Server::start();
    let state = by_version(&open(&server).await, "s").await;
    for _ in 0..100 {
        server.fail_next("PUT", ".parquet", Fault::Throttled);
    }
    let error = state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert!(error.kind().is_retryable());
    assert!(error.to_string().contains("SlowDown"), "{error}");
    let sent = 100 - server.faults_left();
    assert!((5..=20).contains(&sent), "four tries with four retries each at most, not {sent}");
    while server.faults_left() > 0 {
        server.take_requests();
        if let Ok(receipt) = state.append(&n_batch(&[("a", 1, Some(1))])).await {
            assert_eq!(receipt.commit, 1);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_07_a_lead_is_taken_once_although_its_reply_is_lost() {
    let server = S3Server::start();
    let (one, two) = (open(&server).await, open(&server).await);
    let mut first = one.lease("job", "one", 30_000).unwrap();
    let mut second = two.lease("job", "two", 30_000).unwrap();
    server.fail_next("PUT", "leases", Fault::FailedAfter);
    assert_eq!(first.beat().await.unwrap(), Leadership::Leading);
    assert_eq!(second.beat().await.unwrap(), Leadership::Following("one".to_owned()));
    server.fail_next("PUT", "leases", Fault::ClosedAfter);
    first.release().await.unwrap();
    assert_eq!(second.beat().await.unwrap(), Leadership::Leading);
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_08_a_large_file_goes_in_parts_and_is_whole_or_not_there() {
    let server = S3Server::start();
    // A part may take its time on a busy machine.
    let settings = RemoteSettings { request_timeout_ms: 60_000, ..server.settings() };
    let options = StorageOptions::new(settings)
        .with("AWS_ACCESS_KEY_ID", "an-id-of-a-key")
        .with("AWS_SECRET_ACCESS_KEY", "a-secret-of-a-key");
    let storage = Storage::open_with("s3://bucket/dir", Durability::Os, &options).unwrap();
    let store = storage.object_store().clone();
    let large: Vec<u8> = (0..12_000_000_u32).map(|n| (n >> 3) as u8).collect();
    let create = |name: &str| {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let (path, payload) = (Path::from(name), large.clone().into());
        let store = store.clone();
        async move { store.put_opts(&path, payload, options).await }
    };
    server.fail_next("PUT", "partNumber=2", Fault::Throttled);
    create("a.parquet").await.unwrap();
    let requests = server.take_requests();
    let parts = requests.iter().filter(|request| request.contains("partNumber")).count();
    assert_eq!(parts, 4, "three, one of them twice: {requests:?}");
    let read = store.get(&Path::from("a.parquet")).await.unwrap().bytes().await.unwrap();
    assert!(read == large);
    for _ in 0..20 {
        server.fail_next("PUT", "partNumber=3", Fault::Throttled);
    }
    assert!(create("b.parquet").await.is_err());
    assert_eq!(server.names(), ["dir/a.parquet"]);
    assert!(server.take_requests().iter().any(|request| request.starts_with("DELETE")));
}

const SECRET: &str = "hush-Secret/4711";
const TOKEN: &str = "hush-Token/0815";

/// All that an error says.
fn told(error: &Error) -> String {
    format!("{error} {error:?} {error:#?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_09_credentials_are_told_nowhere_whatever_the_server_repeats() {
    let server = S3Server::start();
    let options = server.options().with("AWS_SECRET_ACCESS_KEY", SECRET);
    let options = options.with("AWS_SESSION_TOKEN", TOKEN);
    let storage = Storage::open_with("s3://bucket/dir", Durability::Os, &options).unwrap();
    let mut all = format!("{options:?} {storage:?} {}", storage.object_store());
    let store = Store::builder("s3://bucket/dir").storage(storage).open().await.unwrap();
    let state = by_version(&store, "s").await;
    all.push_str(&format!("{store:?} {state:?} {:?}", store.settings()));
    for (method, part) in [("PUT", ".parquet"), ("PUT", "_delta_log"), ("GET", "list-type")] {
        for _ in 0..30 {
            server.fail_next(method, part, Fault::Repeated);
        }
    }
    let error = state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap_err();
    assert!(error.to_string().contains("***"), "the server repeats the token: {error}");
    all.push_str(&told(&error));
    let fields = n_fields();
    let created = store.create_state("t", &fields, ordered_by(alluvium::OrderBy::Version));
    all.push_str(&told(&created.await.unwrap_err()));
    all.push_str(&told(&store.state_names().await.unwrap_err()));
    for text in [SECRET, TOKEN, "hush"] {
        assert!(!all.contains(text), "{text} in {all}");
        assert!(!server.holds(text), "{text} lies in the store");
    }
}

/// The program on the store, everything traced.
fn program(server: &S3Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-under-test"));
    command
        .args(arguments)
        .env("ALLUVIUM_STORE", format!("s3://{BUCKET}/dir"))
        .env("ALLUVIUM_REMOTE_ENDPOINT", server.endpoint())
        .env("ALLUVIUM_REMOTE_MAX_RETRIES", "1")
        .env("AWS_ACCESS_KEY_ID", "hush-id")
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_SESSION_TOKEN", TOKEN)
        .env("RUST_LOG", "trace")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    command
}

#[test]
fn obj_10_the_program_works_on_a_bucket_and_tells_no_credentials_at_any_level() {
    let server = S3Server::start();
    let refused = finish(program(&server, &["states"]), "");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("ALLUVIUM_REMOTE_ALLOW_HTTP=true"), "{text}");
    let mut all = text;
    let mut run = |arguments: &[&str], input: &str, code: i32| {
        let mut command = program(&server, arguments);
        let output = finish_with(command.env("ALLUVIUM_REMOTE_ALLOW_HTTP", "true"), input);
        let (out, err) = (text_of(output.stdout), text_of(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
        all.push_str(&out);
        all.push_str(&err);
        out
    };
    run(&["append", "s", "--order-by", "version", "-vvv"], &change("a", 1, 7), 0);
    run(&["maintain", "-vvv"], "", 0);
    let found = run(&["get", "s", "a", "-vvv", "--output", "jsonl"], "", 0);
    assert!(found.contains("\"n\":7"), "{found}");
    run(&["config", "-vvv"], "", 0);
    for _ in 0..20 {
        server.fail_next("GET", "s/log", Fault::Repeated);
    }
    run(&["get", "s", "a", "-vvv"], "", 7);
    assert!(all.contains("a request to the object store"), "it was traced");
    for text in [SECRET, TOKEN, "hush"] {
        let lines = all.lines().filter(|line| line.contains(text));
        assert_eq!(lines.collect::<Vec<_>>(), [""; 0], "{text}");
        assert!(!server.holds(text), "{text} lies in the store");
    }
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn finish_with(command: &mut Command, input: &str) -> std::process::Output {
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn obj_11_what_is_asked_of_the_store_is_as_little_as_it_is_on_a_disk() {
    let server = S3Server::start();
    let state = by_version(&open(&server).await, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    server.take_requests();
    state.append(&n_batch(&[("a", 2, Some(2))])).await.unwrap();
    let requests = server.take_requests();
    assert_eq!((requests.len(), puts(&requests)), (2, 2), "a file and a commit: {requests:?}");
    state.get(Point::LATEST, "a").await.unwrap();
    server.take_requests();
    state.get(Point::LATEST, "a").await.unwrap();
    let requests = server.take_requests();
    assert_eq!(requests.len(), 1, "for the next commit of the log: {requests:?}");
    assert!(requests[0].starts_with("GET"), "{requests:?}");
}
