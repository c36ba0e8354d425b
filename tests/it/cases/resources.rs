//! PERF-*: what one fold, scan or statement takes of files, memory and processors.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use alluvium::{
    ErrorKind, LayoutSettings, ManualClock, MaterializeReport, OrderBy, Point, RawState,
    SnapshotChange, Storage, Store, StoreSettings,
};
use alluvium_log::KeyFilter;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields};
use futures::TryStreamExt;
use serde_json::{Value, json};

use super::processes::Mount;
use super::program::{finish, lines, program, succeed};
use crate::support::faults::{DataCounts, FaultyStore, open};
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, by_time, by_version, create, live, n_batch, n_batch_at,
    row_count, settings, sql_numbers, value_batch,
};

async fn open_with(objects: &Arc<FaultyStore>, settings: StoreSettings) -> Store {
    let storage = Storage::from_object_store(objects.clone(), "counting://");
    Store::builder("counting://").settings(settings).storage(storage).open().await.unwrap()
}

/// Twenty base files of 5,000 keys each.
fn twenty_files() -> StoreSettings {
    let layout =
        LayoutSettings { small_state_rows: 0, file_rows: 5_000, ..LayoutSettings::default() };
    StoreSettings { layout, ..settings() }
}

async fn fold(
    objects: &Arc<FaultyStore>,
    state: &RawState,
    rows: &[(String, i64)],
) -> (MaterializeReport, DataCounts) {
    let rows: Vec<_> = rows.iter().map(|(key, n)| (key.as_str(), *n, Some(*n))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    objects.counts.take_data();
    let report = state.materialize(false).await.unwrap();
    (report, objects.counts.take_data())
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_03_what_a_fold_reads_and_writes_follows_what_changed_and_not_the_state() {
    const KEYS: i64 = 100_000;
    let objects = FaultyStore::new();
    let store = open_with(&objects, twenty_files()).await;
    let state = by_version(&store, "s").await;
    let key = |n: i64| format!("k{n:06}");
    let all: Vec<_> = (0..KEYS).map(|n| (key(n), 1)).collect();
    let (built, whole) = fold(&objects, &state, &all).await;
    assert_eq!((built.rows_written, built.files_added), (KEYS as u64, 20));
    let snapshot_files = |counts: &DataCounts| {
        counts.files_read.iter().filter(|path| path.starts_with("s/snapshot/")).count()
    };
    let clustered: Vec<_> = (40_000..41_000).map(|n| (key(n), 3)).collect();
    let scattered: Vec<_> = (0..1_000).map(|n| (key(n * 97 + 13), 4)).collect();
    let cases = [
        (vec![(key(77_777), 2)], 1, 0.01),
        (vec![("new".to_owned(), 2)], 1, 0.01),
        (clustered, 2, 0.05),
        (scattered, 1, 0.05),
    ];
    for (rows, most_files, share) in cases {
        let (report, counts) = fold(&objects, &state, &rows).await;
        let about = format!("{} rows: {report:?}, {counts:?}", rows.len());
        assert_eq!(report.rows_folded, rows.len() as u64, "{about}");
        assert!(report.files_added <= most_files && report.files_removed <= most_files, "{about}");
        assert!(counts.bytes_written as f64 <= share * whole.bytes_written as f64, "{about}");
        assert!(snapshot_files(&counts) <= 2, "{about}");
        assert_eq!(report.change, SnapshotChange::Run, "{about}");
    }
    // One key at a time, more often than the state has files: they are not written once more for each.
    let mut written = 0;
    for n in 0..30 {
        let (_, counts) = fold(&objects, &state, &[(key(n * 3_001), 10)]).await;
        written += counts.bytes_written;
    }
    assert!(written < whole.bytes_written / 4, "{written} of {}", whole.bytes_written);
    assert_eq!(live(&state, Point::LATEST).await.len(), KEYS as usize + 1);
    assert_sound(&state).await;
}

/// Two commits for each of 200 days, with a file each; the first day is 2024-01-15.
async fn two_hundred_days(objects: &Arc<FaultyStore>) -> RawState {
    let clock = Arc::new(ManualClock::at(START + 300 * DAY));
    let state = by_time(&open(objects, &clock).await, "s").await;
    for commit in 0..2 {
        let keys: Vec<String> = (0..200).map(|day| format!("d{day:03}")).collect();
        let rows: Vec<_> =
            keys.iter().zip(0..).map(|(key, day)| (key.as_str(), day, Some(day))).collect();
        let times: Vec<i64> = (0..200).map(|day| START + day * DAY + commit * SECOND).collect();
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
    }
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_04_only_files_of_the_days_asked_for_are_read_whatever_the_form() {
    let objects = FaultyStore::new();
    two_hundred_days(&objects).await;
    // 2024-01-20 is the sixth day.
    let forms = [
        ("dt = DATE '2024-01-20'", 1),
        ("dt = '2024-01-20'", 1),
        ("dt IN ('2024-01-20', '2024-02-20', '2024-03-20')", 3),
        ("dt BETWEEN '2024-01-20' AND '2024-01-22'", 3),
        ("dt BETWEEN DATE '2024-01-20' AND DATE '2024-01-22'", 3),
        ("dt = '2024-01-20' AND state_value['n'] >= 0", 1),
        ("event_time >= '2024-01-20T00:00:00Z' AND event_time < '2024-01-22T00:00:00Z'", 2),
    ];
    for (form, days) in forms {
        // A reader that has nothing in memory.
        let counted = objects.reborn();
        let clock = Arc::new(ManualClock::at(START + 300 * DAY));
        let store = open(&counted, &clock).await;
        let query = format!("SELECT state_value['n'] FROM log.s WHERE {form} ORDER BY 1");
        store.raw_state("s").await.unwrap();
        counted.counts.take_data();
        let rows = sql_numbers(&store, &query).await;
        let counts = counted.counts.take_data();
        assert_eq!(rows.len(), days * 2, "{form}");
        assert!(rows.contains(&5), "{form}: {rows:?}");
        assert!(counts.files_read.len() <= days * 2, "{form}: {counts:?}");
        assert!(
            counts.files_read.iter().all(|path| path.contains("/dt=2024-0")),
            "{form}: {counts:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_04_a_point_in_time_and_a_fold_of_some_days_leave_the_other_days_alone() {
    let objects = FaultyStore::new();
    let state = two_hundred_days(&objects).await;
    let clock = Arc::new(ManualClock::at(START + 300 * DAY));
    let reopened = async || {
        let counted = objects.reborn();
        let state = open(&counted, &clock).await.raw_state("s").await.unwrap();
        counted.counts.take_data();
        (counted, state)
    };
    let (counted, reader) = reopened().await;
    let at = Point::at_time(START + 2 * DAY + DAY / 2);
    assert_eq!(live(&reader, at).await.len(), 3);
    let counts = counted.counts.take_data();
    assert!(counts.files_read.len() <= 6, "{counts:?}");
    state.materialize(false).await.unwrap();
    for days in [1, 3] {
        let keys: Vec<String> = (0..days).map(|day| format!("d{:03}", 50 + day)).collect();
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), 7, Some(7))).collect();
        let times: Vec<i64> =
            (0..days).map(|day| START + (50 + day) * DAY + (7 + days) * SECOND).collect();
        let commit = state.append(&n_batch_at(&rows, &times)).await.unwrap().commit;
        let (counted, folder) = reopened().await;
        let report = folder.materialize(false).await.unwrap();
        assert_eq!((report.to_commit, report.rows_folded), (commit, days as u64));
        let counts = counted.counts.take_data();
        let of_log =
            counts.files_read.iter().filter(|path| path.starts_with("s/log/")).count() as i64;
        assert!(of_log <= days, "{days} days: {counts:?}");
    }
    assert_sound(&state).await;
}

/// Upserts of keys with a text of so many bytes each, unlike any other.
fn texts(keys: std::ops::Range<usize>, version: i64, bytes: usize) -> RecordBatch {
    let names: Vec<String> =
        keys.clone().map(|n| format!("k{:06}", n * 7_919 % 1_000_000)).collect();
    let value = |n: usize| {
        let seed = (n as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version as u64;
        let line = format!("{seed:016x}");
        line.repeat(bytes / line.len())
    };
    let values: ArrayRef = Arc::new(StringArray::from_iter_values(keys.map(value)));
    let value = StructArray::try_from(vec![("text", values)]).unwrap();
    let count = names.len();
    let times = vec![START + version * SECOND; count];
    value_batch(names.iter().map(String::as_str), vec![version; count], &times, Arc::new(value))
}

fn text_fields() -> Fields {
    Fields::from(vec![Field::new("text", DataType::Utf8, true)])
}

/// A snapshot of 24 MB, and as much again in the tail.
async fn wide_state(home: &Home) {
    let state = create(&home.open().await, "s", &text_fields(), OrderBy::Version).await;
    for part in 0..4 {
        state.append(&texts(part * 6_000..(part + 1) * 6_000, 1, 1_024)).await.unwrap();
    }
    state.materialize(false).await.unwrap();
    for part in 0..4 {
        let first = part * 5_000 + 3_000;
        state.append(&texts(first..first + 6_000, 2 + part as i64, 1_024)).await.unwrap();
    }
}

fn in_little_memory(spill: &std::path::Path, partitions: usize) -> StoreSettings {
    StoreSettings {
        memory_budget_bytes: 1 << 20,
        tail_bytes: 0,
        partitions,
        materialize_after_rows: 0,
        spill_dir: Some(spill.to_owned()),
        ..settings()
    }
}

#[test]
fn perf_08_a_fold_of_much_more_than_its_memory_ends_on_any_number_of_threads() {
    for threads in [1, 2, 8] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (home, spill) = (Home::new(), tempfile::tempdir().unwrap());
            wide_state(&home).await;
            let small = in_little_memory(spill.path(), threads);
            let state = home.open_with(small).await.raw_state("s").await.unwrap();
            for rebuild in [false, true] {
                let folding = state.materialize(rebuild);
                let report = tokio::time::timeout(Duration::from_secs(120), folding).await;
                let report = report.expect("it hangs").unwrap();
                assert_eq!(report.to_commit, 8);
                let left = std::fs::read_dir(spill.path()).unwrap().count();
                assert_eq!(left, 0, "what was spilled is removed");
            }
            let sound = tokio::time::timeout(Duration::from_secs(120), state.verify()).await;
            let report = sound.expect("it hangs").unwrap();
            assert!(report.is_sound() && report.keys == 24_000, "{report:?}");
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stderr)]
async fn perf_08_a_fold_that_can_not_spill_fails_by_name_and_changes_nothing() {
    let home = Home::new();
    wide_state(&home).await;
    // CMP-06: a place for what is spilled that is too small.
    let mount = Mount::new("2m");
    if mount.is_none() {
        eprintln!("left out in part: this process may not mount");
    }
    let nowhere = home.folder.path().join("no-folder/at/all");
    std::fs::write(home.folder.path().join("no-folder"), "a file").unwrap();
    let places = mount.iter().map(|mount| mount.home.folder.path().to_owned()).chain([nowhere]);
    for place in places {
        let small = in_little_memory(&place, 2);
        let state = home.open_with(small).await.raw_state("s").await.unwrap();
        let before = state.snapshot().refresh().await.unwrap().log_commit();
        for rebuild in [false, true] {
            let folding = state.materialize(rebuild);
            let outcome = tokio::time::timeout(Duration::from_secs(120), folding).await;
            let error = outcome.expect("it hangs").unwrap_err();
            assert_ne!(error.kind(), ErrorKind::Corrupt, "{error}");
            let text = error.to_string();
            assert!(text.contains(place.to_str().unwrap()), "{text}");
            assert_eq!(state.snapshot().refresh().await.unwrap().log_commit(), before);
        }
        if place.is_dir() {
            assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0, "what was spilled is gone");
        }
    }
    let state = home.open().await.raw_state("s").await.unwrap();
    state.materialize(false).await.unwrap();
    assert_sound(&state).await;
}

/// Bytes of the values of one batch at most, whatever the budget; it is well below what offsets of 32 bits tell apart.
const BATCH_BYTES: usize = 64 << 20;

/// The bytes of a state's texts, and the most of them in a batch of its scan.
async fn scanned(state: &RawState) -> (usize, usize) {
    let mut rows = state.scan(Point::LATEST, KeyFilter::All).await.unwrap();
    let (mut bytes, mut most) = (0, 0);
    while let Some(batch) = rows.try_next().await.unwrap() {
        let value = batch.column_by_name("state_value").unwrap().as_struct();
        let texts = value.column_by_name("text").unwrap().as_string::<i32>();
        let of_batch: usize = (0..texts.len()).map(|row| texts.value(row).len()).sum();
        bytes += of_batch;
        most = most.max(of_batch);
    }
    (bytes, most)
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_10_wide_rows_are_split_by_bytes_wherever_they_are_put_together() {
    const ROWS: usize = 300;
    const ROW_BYTES: usize = 256 << 10;
    let home = Home::new();
    let small = StoreSettings {
        memory_budget_bytes: 8 << 20,
        epoch_bytes: 4 << 20,
        tail_bytes: 0,
        materialize_after_rows: 0,
        ..settings()
    };
    let store = home.open_with(small).await;
    let state = create(&store, "s", &text_fields(), OrderBy::Version).await;
    for part in 0..6 {
        let rows = ROWS / 6;
        state.append(&texts(part * rows..(part + 1) * rows, 1, ROW_BYTES)).await.unwrap();
    }
    let whole = ROWS * ROW_BYTES;
    // From the log, from the snapshot, and from both.
    for step in ["tail", "folded", "rebuilt", "changed"] {
        match step {
            "folded" => drop(state.materialize(false).await.unwrap()),
            "rebuilt" => drop(state.materialize(true).await.unwrap()),
            "changed" => drop(state.append(&texts(0..40, 2, ROW_BYTES)).await.unwrap()),
            _ => {}
        }
        let (bytes, most) = scanned(&state).await;
        assert_eq!(bytes, whole, "{step}");
        assert!(most <= BATCH_BYTES, "{step}: {most} bytes in one batch");
    }
    assert!(state.verify().await.unwrap().is_sound());
    let report = state.compact(false).await.unwrap();
    assert!(report.files_added > 1, "{report:?}");
    assert_eq!(row_count(&state).await, ROWS + 40);
    assert_eq!(scanned(&state).await.0, whole);
    assert_sound(&state).await;
}

#[test]
fn perf_10_lines_of_a_file_are_appended_in_batches_of_so_many_bytes() {
    let home = Home::new();
    let file = home.folder.path().join("wide.jsonl");
    let line = |n: usize| {
        let value = json!({"text": format!("{n:08}").repeat(1 << 17)});
        let line = json!({"key": format!("k{n:02}"), "value": value, "version": n, "event_time": "2024-01-15T10:30:00Z"});
        format!("{line}\n")
    };
    // 80 MiB: a batch takes 32 of them, and those that wait for each other share a commit up to 64.
    let mut lines_of_file = std::fs::File::create(&file).unwrap();
    for n in 0..80 {
        lines_of_file.write_all(line(n).as_bytes()).unwrap();
    }
    succeed(&home, &["append", "s", file.to_str().unwrap()], "");
    let query = "SELECT max(n) AS most, sum(n) AS rows FROM (SELECT \"commit\", count(*) AS n FROM log.s GROUP BY 1)";
    let told = lines(&succeed(&home, &["sql", query], ""));
    assert_eq!(told[0]["rows"], json!(80));
    let most = told[0]["most"].as_i64().unwrap();
    assert!((16..=65).contains(&most), "{most} rows of 1 MiB in one commit");
    succeed(&home, &["materialize", "s", "--memory", "8MiB"], "");
    succeed(&home, &["verify", "s", "--memory", "8MiB"], "");
    let query = "SELECT count(*) AS n, sum(length(text)) AS bytes FROM s";
    assert_eq!(lines(&succeed(&home, &["sql", query], ""))[0], json!({"n": 80, "bytes": 80 << 20}));
}

/// A run of the program, on one processor or on all.
fn run(home: &Home, one: bool, arguments: &[&str], input: &str) -> String {
    if !one {
        return succeed(home, arguments, input);
    }
    let all = program(home, arguments);
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(all.get_program()).args(all.get_args());
    for (name, value) in all.get_envs() {
        command.env(name, value.unwrap());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command, input);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A table of departures by carriers and one of these, through every verb; what the reading ones tell.
fn all_verbs(one: bool) -> Vec<(String, Vec<Value>)> {
    let home = Home::new();
    let mut told = Vec::new();
    // One commit each: batches of one run that wait for each other share one, as it comes.
    let mut inputs = vec![String::new(); 10];
    for n in 0..3_000_i64 {
        let (key, day) = (format!("k{:04}", n * 7 % 1_000), 1 + n % 20);
        let mut line =
            json!({"key": key, "version": n, "event_time": format!("2024-01-{day:02}T10:30:00Z")});
        match n % 13 {
            5 => line["op"] = json!("DELETE"),
            _ => line["value"] = json!({"n": n, "carrier": format!("c{}", n % 5)}),
        }
        inputs[n as usize / 300].push_str(&format!("{line}\n"));
    }
    let carriers: String = (0..5)
        .map(|n| format!("{}\n", json!({"key": format!("c{n}"), "value": {"name": format!("carrier {n}")}, "version": 1, "event_time": "2024-01-01T00:00:00Z"})))
        .collect();
    let write = |arguments: &[&str], input: &str| drop(run(&home, one, arguments, input));
    let mut read = |arguments: &[&str]| {
        let mut rows = lines(&run(&home, one, arguments, ""));
        // Each process that writes has a name of its own.
        rows.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("writer")));
        told.push((arguments.join(" "), rows));
    };
    write(&["create", "s", "--schema", "n BIGINT, carrier STRING", "--order-by", "version"], "");
    inputs.iter().for_each(|input| write(&["append", "s"], input));
    write(&["append", "carriers"], &carriers);
    let ask = |read: &mut dyn FnMut(&[&str])| {
        read(&["get", "s", "k0007", "k0014"]);
        read(&["scan", "s"]);
        read(&["scan", "s", "--commit", "6"]);
        read(&["scan", "s", "--time", "2024-01-12T00:00:00Z"]);
        read(&["history", "s", "k0021"]);
        read(&["diff", "s", "commit:4", "latest"]);
        read(&["changes", "s", "--from-commit", "7"]);
        let join = "SELECT c.name, count(*) AS rows, sum(s.n) AS n, max(s.state_key) AS last FROM s JOIN carriers c ON s.carrier = c.state_key GROUP BY c.name ORDER BY c.name";
        read(&["sql", join]);
        let window = "SELECT state_key, n, row_number() OVER (PARTITION BY carrier ORDER BY n DESC) AS place FROM s ORDER BY carrier, place LIMIT 50";
        read(&["sql", window]);
        read(&[
            "sql",
            "SELECT a.state_key, a.n, b.n AS before FROM s a LEFT JOIN as_of('s', version => 1500) b ON a.state_key = b.state_key ORDER BY 1",
        ]);
    };
    ask(&mut read);
    write(&["materialize", "s"], "");
    ask(&mut read);
    write(&["set", "s", "compact_after=1h"], "");
    write(&["savepoint", "create", "s", "before"], "");
    write(&["append", "s"], &change_of("k0007", 5_000));
    write(&["maintain"], "");
    ask(&mut read);
    write(&["fork", "s", "other", "--savepoint", "before"], "");
    write(&["restore", "s", "--to", "savepoint:before"], "");
    write(&["erase", "s", "k0028"], "");
    write(&["materialize", "--rebuild"], "");
    // Versions and times of a restore are those of its moment.
    for state in ["s", "other"] {
        read(&["sql", &format!("SELECT state_key, n, carrier FROM {state} ORDER BY 1")]);
    }
    for arguments in
        [&["verify"][..], &["verify", "--deep"], &["doctor"], &["stats"], &["retention", "explain"]]
    {
        run(&home, one, arguments, "");
    }
    told
}

fn change_of(key: &str, version: i64) -> String {
    let line = json!({"key": key, "value": {"n": version, "carrier": "c1"}, "version": version, "event_time": "2024-01-21T10:30:00Z"});
    format!("{line}\n")
}

#[test]
fn perf_09_every_verb_says_the_same_on_one_processor_as_on_all() {
    let (one, all) = (all_verbs(true), all_verbs(false));
    assert_eq!(one.len(), all.len());
    for ((verb, on_one), (_, on_all)) in one.iter().zip(&all) {
        assert!(!on_one.is_empty(), "{verb} tells nothing");
        let differs = on_one.iter().zip(on_all).find(|(one, all)| one != all);
        assert_eq!(differs, None, "{verb}");
        assert_eq!(on_one.len(), on_all.len(), "{verb}");
    }
}
