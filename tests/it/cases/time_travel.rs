//! TT-*: bounds are inclusive and exact to the microsecond; a point beyond what exists is refused, not guessed.

use std::str::FromStr;

use alluvium::{ErrorKind, Point, parse_time};

use crate::support::stores::{
    Home, START, by_time, by_version, n_batch, n_batch_at, n_of, refused, sql_numbers,
};

#[tokio::test(flavor = "multi_thread")]
async fn tt_03_event_times_a_microsecond_apart_are_told_apart() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_time(&store, "s").await;
    let times = [100, 101, 500, 501, 900].map(|offset| START + offset);
    for (n, time) in times.into_iter().enumerate() {
        state.append(&n_batch_at(&[("a", 1, Some(n as i64))], &[time])).await.unwrap();
    }
    for materialized in [false, true] {
        if materialized {
            state.materialize(false).await.unwrap();
        }
        let expected = [
            (99, None),
            (100, Some(0)),
            (101, Some(1)),
            (499, Some(1)),
            (500, Some(2)),
            (501, Some(3)),
            (899, Some(3)),
            (900, Some(4)),
            (999_999, Some(4)),
        ];
        for (offset, n) in expected {
            let point = Point::at_time(START + offset);
            assert_eq!(n_of(&state, point, "a").await, n, "{point}");
            let text = chrono::DateTime::from_timestamp_micros(START + offset).unwrap();
            let text = text.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
            let rows =
                sql_numbers(&store, &format!("SELECT n FROM as_of('s', time => '{text}')")).await;
            assert_eq!(rows, Vec::from_iter(n), "SQL as of {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_06_a_commit_that_does_not_exist_is_refused_with_the_range_that_does() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    for version in 1..=3 {
        state.append(&n_batch(&[("a", version, Some(version))])).await.unwrap();
    }
    refused(
        &state,
        state.get(Point::at_commit(4), "a"),
        ErrorKind::PointUnavailable,
        &["commit 4", "0 to 3"],
    )
    .await;
    refused(
        &state,
        state.get(Point::at_commit(-1), "a"),
        ErrorKind::InvalidInput,
        &["commit -1", "0 to 3"],
    )
    .await;
    let basis = state.reader().basis().await.unwrap();
    let reader = state.reader();
    for point in [Point::at_commit(4), Point::at_commit(4).and(Point::at_version(1))] {
        let keys = alluvium_log::KeyFilter::All;
        let kind = |error: alluvium::Error| error.kind();
        let scan = reader.scan(&basis, point, keys.clone(), Vec::new(), 1).await.map(|_| ());
        assert_eq!(scan.map_err(kind), Err(ErrorKind::PointUnavailable));
        let history = reader.history_rows(&basis, keys.clone(), point).await.map(|_| ());
        assert_eq!(history.map_err(kind), Err(ErrorKind::PointUnavailable));
        let diff = reader.diff_rows(&basis, Point::at_commit(1), point, keys).await.map(|_| ());
        assert_eq!(diff.map_err(kind), Err(ErrorKind::PointUnavailable));
    }
    // Versions and times beyond the last row are answered: they bound rows, and there are no more.
    assert_eq!(n_of(&state, Point::at_version(i64::MAX), "a").await, Some(3));
    assert_eq!(n_of(&state, Point::at_time(i64::MAX), "a").await, Some(3));
    assert_eq!(n_of(&state, Point::at_time(i64::MIN), "a").await, None);
    for wrong in ["2026-02-30T00:00:00Z", "yesterday", "2026-01-01T00:00:00", "2026-01-01"] {
        assert_eq!(
            parse_time(wrong).map_err(|error| error.kind()),
            Err(ErrorKind::InvalidInput),
            "{wrong}"
        );
        assert!(Point::from_str(&format!("time:{wrong}")).is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_07_commit_times_increase_though_the_clock_steps_back() {
    let home = Home::new();
    let clock = std::sync::Arc::new(alluvium::ManualClock::at(START + 10_000_000));
    let store = alluvium::Store::builder(&home.uri()).clock(clock.clone()).open().await.unwrap();
    let state = by_version(&store, "s").await;
    let mut times = vec![state.log().state().timestamp_ms];
    let mut versions = Vec::new();
    for second in [10, 5, 5, 11] {
        clock.set(START + second * 1_000_000);
        let receipt = state.append(&n_batch_at(&[("a", second, Some(1))], &[START])).await.unwrap();
        times.push(state.log().state().timestamp_ms);
        let typed = state.log().definition();
        assert_eq!(typed.fields.len(), 1);
        versions.push(receipt.commit);
    }
    assert_eq!(versions, [1, 2, 3, 4]);
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}
