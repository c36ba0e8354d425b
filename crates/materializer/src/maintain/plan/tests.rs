#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use alluvium_log::{
    CommitSpan, FileAdd, FileCommits, FileStats, Stray, TAG_COMMIT, TAG_COMMITS, TAG_SORTED,
};

use super::*;

const DAY: &str = "2024-01-02";
/// When it ends.
const END_MS: i64 = 1_704_240_000_000;
/// The bytes of each file, and what a file of another engine takes while it is open.
const SIZE: u64 = 10;
const OPEN: u64 = SIZE * EXPANSION;

/// A file of another engine with rows of one commit, in a day.
fn file(path: &str, rows: u64, commit: i64, tags: &[(&str, &str)]) -> Arc<DataFile> {
    let none = Stray { path: path.to_owned(), size: SIZE, last_version: None, check: None };
    let mut file = DataFile::stray(&none);
    file.add = Arc::new(FileAdd {
        partition: BTreeMap::from([(DT.to_owned(), Some(DAY.to_owned()))]),
        tags: tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..(*file.add).clone()
    });
    file.commits = FileCommits::All(CommitSpan { low: commit, high: commit });
    file.stats = FileStats { rows: Some(rows), ..FileStats::default() };
    Arc::new(file)
}

/// Runs of one file each, of so many rows.
fn runs(rows: &[u64]) -> Vec<Run> {
    let name = |number: usize| format!("{number:03}");
    let tags = [(TAG_COMMIT, "1")];
    let of = |(number, rows): (usize, &u64)| Run {
        files: vec![file(&name(number), *rows, 1, &tags)],
        rows: *rows,
    };
    rows.iter().enumerate().map(of).collect()
}

fn rules(now_ms: i64) -> Rules {
    Rules { now_ms, compact_after_ms: 5, up_to_commit: 7, input_bytes: u64::MAX }
}

fn planned(files: &[Arc<DataFile>], rules: &Rules) -> Vec<Vec<String>> {
    let of_run = |run: &Run| run.files.iter().map(|file| file.add.path.clone()).collect::<Vec<_>>();
    let plans = plan(files.iter(), rules);
    plans.iter().map(|day| day.runs.iter().flat_map(of_run).collect()).collect()
}

#[test]
fn a_day_ends_with_its_last_millisecond_and_what_is_no_day_never_does() {
    assert_eq!(end_of_day_ms(DAY), Some(END_MS));
    assert_eq!(end_of_day_ms("1970-01-01"), Some(86_400_000));
    assert_eq!(end_of_day_ms("1969-12-31"), Some(0));
    assert_eq!(end_of_day_ms("2024-02-30"), None);
    assert_eq!(is_over(DAY, &rules(END_MS + 4)), Some(false));
    assert_eq!(is_over(DAY, &rules(END_MS + 5)), Some(true));
    assert_eq!(is_over("x", &rules(END_MS + 5)), None);
}

#[test]
fn parts_of_a_run_are_one_run_in_their_order_and_the_smallest_run_comes_first() {
    let part = |path: &str, rows, run: &str| file(path, rows, 1, &[(TAG_RUN, run)]);
    let files = vec![
        part("p0", 10, "b/1"),
        file("single", 12, 1, &[]),
        part("p1", 10, "b/0"),
        part("p2", 3, "a/0"),
        part("p3", 4, "a/1"),
    ];
    let of = |run: &Run| {
        let paths: Vec<String> = run.files.iter().map(|file| file.add.path.clone()).collect();
        (run.rows, paths.join(" "))
    };
    let expected = [(7, "p2 p3"), (12, "single"), (20, "p1 p0")];
    let expected: Vec<(u64, String)> = expected.map(|(rows, of)| (rows, of.to_owned())).into();
    assert_eq!(runs_of(files).iter().map(of).collect::<Vec<_>>(), expected);
}

#[test]
fn of_a_day_that_is_over_a_run_is_merged_with_at_least_a_fourth_of_it() {
    let chosen = |rows: &[u64]| choose(runs(rows), true, u64::MAX).len();
    assert_eq!(chosen(&[]), 0);
    assert_eq!(chosen(&[5]), 0);
    assert_eq!(chosen(&[1, 4]), 2);
    assert_eq!(chosen(&[1, 5]), 0);
    assert_eq!(chosen(&[1, 1, 8]), 3);
    assert_eq!(chosen(&[1, 1, 9]), 2);
    assert_eq!(chosen(&[1, 1, 8, 40, 201]), 4);
}

#[test]
fn while_a_day_is_written_many_runs_are_merged_and_only_ever_double() {
    let chosen = |many: usize, last: u64| {
        let mut rows = vec![1; many];
        rows.push(last);
        choose(runs(&rows), false, u64::MAX).len()
    };
    assert_eq!(chosen(OPEN_RUNS - 2, 1), 0);
    assert_eq!(chosen(OPEN_RUNS - 1, 1), OPEN_RUNS);
    assert_eq!(chosen(OPEN_RUNS, OPEN_RUNS as u64), OPEN_RUNS + 1);
    assert_eq!(chosen(OPEN_RUNS, OPEN_RUNS as u64 + 1), OPEN_RUNS);
}

#[test]
fn no_more_runs_are_merged_than_may_be_open_but_two_at_least() {
    let chosen = |input_bytes| choose(runs(&[1, 1, 1, 1]), true, input_bytes).len();
    assert_eq!(chosen(0), 2);
    assert_eq!(chosen(2 * OPEN), 2);
    assert_eq!(chosen(3 * OPEN - 1), 2);
    assert_eq!(chosen(3 * OPEN), 3);
    assert_eq!(chosen(4 * OPEN), 4);
    // What is too large by its rows is no second one, whatever room there is.
    assert_eq!(choose(runs(&[1, 5, 5]), true, 0).len(), 0);
}

#[test]
fn a_run_takes_what_its_largest_file_takes_while_it_is_open() {
    let run = |files: Vec<Arc<DataFile>>| Run { files, rows: 1 }.input_bytes();
    let large = |path: &str, size: u64, tags: &[(&str, &str)]| {
        let mut file = (*file(path, 1_000_000, 1, tags)).clone();
        file.add = Arc::new(FileAdd { size, ..(*file.add).clone() });
        Arc::new(file)
    };
    assert_eq!(run(vec![large("a", 100, &[]), large("b", 300, &[])]), 300 * EXPANSION);
    assert_eq!(run(vec![large("a", 1 << 40, &[])]), OPEN_INPUT_BYTES);
    let sorted = large("a", 1 << 24, &[(TAG_SORTED, "true")]);
    assert_eq!(run(vec![sorted.clone()]), open_bytes(&sorted, Some(PAGE_ROWS)));
    assert!(run(vec![sorted]) < OPEN_INPUT_BYTES);
    assert_eq!(run(Vec::new()), 0);
}

#[test]
fn a_file_that_does_not_tell_its_commits_is_rewritten_alone_once_its_day_is_over() {
    let silent = [file("a", 1, 1, &[])];
    assert_eq!(planned(&silent, &rules(END_MS + 5)), [["a"]]);
    assert!(planned(&silent, &rules(END_MS + 4)).is_empty());
    let telling = [file("a", 1, 1, &[(TAG_COMMITS, "1-1")])];
    assert!(planned(&telling, &rules(END_MS + 5)).is_empty());
}

#[test]
fn only_files_of_days_with_known_rows_and_folded_commits_are_merged() {
    let over = rules(END_MS + 5);
    let mut unknown = (*file("unknown", 1, 1, &[])).clone();
    unknown.stats.rows = None;
    let mut vague = (*file("vague", 1, 1, &[])).clone();
    vague.commits = FileCommits::All(CommitSpan { low: 1, high: 2 });
    let of_day = |path: &str, day: Option<&str>| {
        let mut file = (*file(path, 1, 1, &[])).clone();
        let partition = BTreeMap::from([(DT.to_owned(), day.map(str::to_owned))]);
        file.add = Arc::new(FileAdd { partition, ..(*file.add).clone() });
        Arc::new(file)
    };
    let files = [
        file("b", 1, 7, &[]),
        file("late", 1, 8, &[]),
        Arc::new(unknown),
        Arc::new(vague),
        of_day("no day", None),
        of_day("other", Some("other")),
        of_day("earlier", Some("2024-01-01")),
        file("a", 1, 6, &[]),
    ];
    assert_eq!(planned(&files, &over), [vec!["earlier"], vec!["a", "b"]]);
}
