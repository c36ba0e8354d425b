//! `stats`: every figure against what was put in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::{DepthStats, MaintainStep, ManualClock, OrderBy, RawState};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::program::{change, fail, lines, succeed};
use crate::support::stores::{
    DAY, Home, SECOND, START, by_time, create, n_batch_at, n_fields, set,
};

/// A row as it was put in: key, version, time, value; its commit is its place.
type Row = (String, i64, i64, Option<i64>);

/// What the rows tell, found without any of the code that is tested.
fn told_by(commits: &[Vec<Row>], order_by: OrderBy) -> DepthStats {
    type Rank = (i64, i64, bool, usize, usize);
    let rank = |row: &Row, commit: usize, at: usize| -> Rank {
        let (first, second) = match order_by {
            OrderBy::EventTime => (row.2, row.1),
            OrderBy::Version => (row.1, row.2),
        };
        (first, second, row.3.is_none(), commit, at)
    };
    let mut winners: BTreeMap<&str, (Rank, bool)> = BTreeMap::new();
    let mut late = 0;
    for (commit, rows) in commits.iter().enumerate() {
        for (at, row) in rows.iter().enumerate() {
            let own = rank(row, commit, at);
            match winners.get(row.0.as_str()) {
                Some((known, _)) if *known > own => late += 1,
                _ => drop(winners.insert(&row.0, (own, row.3.is_none()))),
            }
        }
    }
    let deleted = winners.values().filter(|(_, is_delete)| *is_delete).count() as u64;
    DepthStats {
        keys: winners.len() as u64,
        live_keys: winners.len() as u64 - deleted,
        deleted_keys: deleted,
        late_rows: late,
        conflicting_ties: 0,
    }
}

async fn put(state: &RawState, rows: &[Row]) {
    let times: Vec<i64> = rows.iter().map(|row| row.2).collect();
    let rows: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1, row.3)).collect();
    state.append(&n_batch_at(&rows, &times)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_late_rows_are_those_of_a_plain_count_also_after_maintenance() {
    for seed in 0..12 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
        let order_by = if seed % 2 == 0 { OrderBy::EventTime } else { OrderBy::Version };
        let state = create(&home.open_at(&clock).await, "s", &n_fields(), order_by).await;
        let (mut commits, mut used) = (Vec::new(), BTreeSet::new());
        for commit in 0..20 {
            clock.set(START + commit * DAY);
            let mut rows: BTreeMap<String, Row> = BTreeMap::new();
            for _ in 0..rng.random_range(1..6) {
                let key = format!("k{}", rng.random_range(0..10));
                let (version, back) = (rng.random_range(0..40), rng.random_range(0..50));
                let time = START + commit * DAY - back * DAY / 10;
                // No two rows of a key are equal in both: those are another test.
                if used.insert((key.clone(), version, time)) {
                    let n = rng.random_bool(0.7).then(|| rng.random_range(0..9));
                    rows.insert(key.clone(), (key, version, time, n));
                }
            }
            if rows.is_empty() {
                continue;
            }
            let rows: Vec<Row> = rows.into_values().collect();
            put(&state, &rows).await;
            commits.push(rows);
        }
        let expected = told_by(&commits, order_by);
        assert_eq!(state.stats().await.unwrap().depth, None);
        for step in 0..3 {
            let depth = state.stats_in_depth().await.unwrap().depth;
            assert_eq!(depth, Some(expected), "seed {seed}, step {step}");
            match step {
                0 => drop(state.materialize(false).await.unwrap()),
                _ => drop(state.compact(false).await.unwrap()),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_files_days_tail_and_ties_are_exact() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let empty = state.stats().await.unwrap();
    assert_eq!((empty.log_rows, empty.tail_age_ms, empty.newest_event_ms), (0, None, None));
    assert_eq!((empty.days.len(), empty.rows_per_day, empty.snapshot_written_ms), (0, 0, None));
    for day in 0..10 {
        clock.set(START + day * DAY);
        for part in 0..3 {
            let time = START + day * DAY + part * SECOND;
            put(&state, &[(format!("k{part}"), day, time, Some(day))]).await;
        }
    }
    let stats = state.stats().await.unwrap();
    assert_eq!((stats.log_rows, stats.log_files, stats.log_days), (30, 30, 10));
    assert_eq!(stats.tail_age_ms, Some(9 * 86_400_000));
    assert_eq!((stats.tail_rows, stats.rows_per_day), (30, 3));
    let of_day = &stats.days[9];
    assert_eq!((of_day.day.as_str(), of_day.rows, of_day.files), ("2024-01-24", 3, 3));
    let last_week: u64 = stats.days[3..].iter().map(|day| day.bytes).sum();
    assert_eq!(stats.bytes_per_day, last_week / 7);
    assert_eq!(stats.days.iter().map(|day| day.bytes).sum::<u64>(), stats.log_bytes);
    let newest = (START + 9 * DAY + 2 * SECOND) / 1_000;
    assert_eq!(stats.newest_event_ms, Some(newest));
    // The last day and the one before it are not over for long enough.
    let dry = state.compact(true).await.unwrap();
    assert_eq!(
        (stats.files_to_merge, stats.days_to_merge),
        (dry.files_removed, dry.days.len() as u64)
    );
    assert_eq!((stats.files_to_merge, stats.bytes_to_merge), (24, dry.bytes_before));

    clock.set(START + 10 * DAY);
    state.materialize(false).await.unwrap();
    state.compact(false).await.unwrap();
    let time = START + 9 * DAY + 2 * SECOND;
    put(&state, &[("k2".to_owned(), 9, time, Some(1_000))]).await;
    put(&state, &[("gone".to_owned(), 1, time, None)]).await;
    clock.set(START + 10 * DAY + 5 * SECOND);
    let stats = state.stats_in_depth().await.unwrap();
    assert_eq!((stats.files_to_merge, stats.tail_rows, stats.tail_age_ms), (0, 2, Some(5_000)));
    assert_eq!(stats.snapshot_written_ms, Some((START + 10 * DAY) / 1_000));
    assert_eq!((stats.snapshot_live_keys, stats.snapshot_tombstones), (Some(3), 0));
    let depth = stats.depth.unwrap();
    assert_eq!((depth.keys, depth.live_keys, depth.deleted_keys), (4, 3, 1));
    assert_eq!((depth.late_rows, depth.conflicting_ties), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_counted_in_depth_when_their_rows_have_expired() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let spans = [
        ("commit_retention", "8d"),
        ("file_retention", "2d"),
        ("as_of_window", "2d"),
        ("log_retention", "3d"),
    ];
    set(&state, &spans).await;
    for day in 0..12 {
        clock.set(START + day * DAY + DAY / 2);
        let own = format!("d{day:02}");
        let gone = (day > 5).then(|| format!("d{:02}", day - 6));
        let mut rows = vec![(own.as_str(), day, Some(day)), ("all", day, Some(day))];
        rows.extend(gone.iter().map(|key| (key.as_str(), day, None)));
        state.append(&n_batch_at(&rows, &vec![START + day * DAY; rows.len()])).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        if day == 10 {
            // Older than what has expired, and than what there is.
            let late =
                n_batch_at(&[("all", 1, Some(0)), ("d10", 1, Some(0))], &[START + 9 * DAY; 2]);
            state.append(&late).await.unwrap();
        }
    }
    let stats = state.stats_in_depth().await.unwrap();
    assert!(stats.log_rows < 20, "{stats:?}");
    let depth = stats.depth.unwrap();
    assert_eq!((depth.keys, depth.live_keys, depth.deleted_keys), (13, 7, 6));
    assert_eq!((depth.late_rows, depth.conflicting_ties), (2, 0), "{depth:?}");
}

#[test]
fn the_program_tells_them_at_a_glance_and_as_json() {
    let home = Home::new();
    for n in 1..=3 {
        succeed(&home, &["append", "s"], &change("k", n, n));
    }
    let table = succeed(&home, &["stats", "s", "--output", "table", "--deep"], "");
    for text in [
        "ordered by event_time, commit 3",
        "██████████ 3 commits, 3 of 3 rows",
        "to merge",
        "1 key, 1 live",
    ] {
        assert!(table.contains(text), "no {text:?} in {table}");
    }
    let json = succeed(&home, &["stats", "--json"], "");
    let all: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&all[0]["state"], &all[0]["tail_rows"]), (&"s".into(), &3.into()));
    assert_eq!(all[0]["days"][0]["day"], "2024-01-15");
    let deep = lines(&succeed(&home, &["stats", "s", "--deep"], ""));
    assert_eq!((&deep[0]["depth"]["keys"], &deep[0]["depth"]["late_rows"]), (&1.into(), &0.into()));
    fail(&home, &["stats", "--json", "--output", "csv"], "", 2, &["--json"]);
}
