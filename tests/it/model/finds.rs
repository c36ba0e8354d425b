//! Finds of the random sequences, each as a small test of its own.

use alluvium::{EpochOutcome, Point};

use crate::support::delta;
use crate::support::stores::{Home, START, assert_sound, by_version, live, n_batch_at, n_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_inside_of_files_that_another_engine_merged_is_answered_however_often_it_merged_them()
 {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let folder = home.table("s", "log");
    let mut last = 0;
    for round in 0..4_i64 {
        for _ in 0..3 {
            last = state.log().refresh().await.unwrap().version + 1;
            // All of one day, and of one key, so that only the commit tells the rows apart.
            state.append(&n_batch_at(&[("a", last, Some(last))], &[START])).await.unwrap();
            if round == 1 {
                state.materialize(false).await.unwrap();
            }
        }
        assert!(delta::optimize(&folder, 1 << 30).await);
        if round % 2 == 0 {
            // A checkpoint has no room for what the commits of the merged rows were.
            state.log().refresh().await.unwrap();
            assert!(state.log().table().checkpoint().await.unwrap());
        }
        let reopened = home.open().await.raw_state("s").await.unwrap();
        for handle in [&state, &reopened] {
            let mut newest = None;
            for commit in 0..=last {
                let n = n_of(handle, Point::at_commit(commit), "a").await;
                let expected = if n == Some(commit) { Some(commit) } else { newest };
                assert_eq!(n, expected, "round {round}: as of commit {commit}");
                newest = n;
            }
            assert_eq!(newest, Some(last));
        }
    }
    assert_eq!(state.stats().await.unwrap().log_files, 1);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_commits_of_another_engine_that_it_merged_are_refused_where_they_cannot_be_told_apart()
{
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let folder = home.table("s", "log");
    for n in 1..=2 {
        delta::append(&folder, &n_batch_at(&[("a", n, Some(n))], &[START])).await;
    }
    assert!(delta::optimize(&folder, 1 << 30).await);
    let error = state.get(Point::at_commit(1), "a").await.unwrap_err();
    assert_eq!(error.kind(), alluvium::ErrorKind::PointUnavailable, "{error}");
    assert_eq!(n_of(&state, Point::at_commit(2), "a").await, Some(2));
    assert_eq!(n_of(&state, Point::at_version(1), "a").await, Some(1));
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_has_not_looked_since_is_told_the_last_epoch_that_is_in_the_log() {
    let home = Home::new();
    let first = by_version(&home.open().await, "s").await;
    let second = home.open().await.raw_state("s").await.unwrap();
    for (state, number) in [(&first, 1), (&second, 5)] {
        let mut epoch = state.epoch("p", number).unwrap();
        epoch.stage(&n_batch_at(&[("a", number, Some(number))], &[START])).await.unwrap();
        assert!(matches!(epoch.commit().await.unwrap(), EpochOutcome::Committed(_)));
    }
    let again = first.epoch("p", 1).unwrap().commit().await.unwrap();
    assert_eq!(again, EpochOutcome::AlreadyApplied { last: 5 });
    assert_eq!(live(&first, Point::LATEST).await, [("a".into(), 5, Some(5))]);
}
