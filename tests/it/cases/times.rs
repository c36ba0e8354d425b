//! TYP-*, times and days: instants are exact, days are those of UTC, and what is no instant is refused.

use std::sync::Arc;

use alluvium::{ErrorKind, Point, parse_time};
use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field};

use crate::support::delta;
use crate::support::stores::{
    Home, assert_sound, by_time, event_time_of, lookup, n_batch, n_batch_at, n_of, refused,
    sql_numbers, sql_texts,
};

fn time(text: &str) -> i64 {
    parse_time(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_01_times_of_all_years_come_back_exactly_and_order_rightly() {
    let home = Home::new();
    let mut store = home.open().await;
    let far =
        alluvium::StateSettings { max_future_ms: i64::MAX, ..alluvium::StateSettings::default() };
    let state = store.create_state("s", &crate::support::stores::n_fields(), far).await.unwrap().0;
    let texts = [
        "0001-01-01T00:00:00Z",
        "1677-09-21T00:12:43Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "2262-04-11T23:47:16.854775Z",
        "9999-12-31T23:59:59.999999Z",
    ];
    for (n, text) in texts.iter().enumerate().rev() {
        state
            .append(&n_batch_at(
                &[("a", 1, Some(n as i64)), (text, 1, Some(n as i64))],
                &[time(text); 2],
            ))
            .await
            .unwrap();
        if n % 2 == 0 {
            state.materialize(false).await.unwrap();
        }
    }
    for round in 0..3 {
        let state = store.raw_state("s").await.unwrap();
        for (n, text) in texts.iter().enumerate() {
            assert_eq!(
                event_time_of(&lookup(&state, text).await.found().unwrap()),
                time(text),
                "{text}"
            );
            assert_eq!(
                n_of(&state, Point::at_time(time(text)), "a").await,
                Some(n as i64),
                "at {text}"
            );
            let before = n.checked_sub(1).map(|n| n as i64);
            assert_eq!(
                n_of(&state, Point::at_time(time(text) - 1), "a").await,
                before,
                "before {text}"
            );
            let day = &text[..10];
            let rows =
                sql_numbers(&store, &format!("SELECT count(*) FROM log.s WHERE dt = '{day}'"))
                    .await;
            assert_eq!(rows, [2], "{day}");
        }
        assert_sound(&state).await;
        if round == 0 {
            delta::optimize(&home.table("s", "log"), 1 << 20).await;
            state.log().table().checkpoint().await.unwrap();
        }
        store = home.open().await;
    }
    for outside in [i64::MIN, time(texts[0]) - 1, time(texts[5]) + 1, i64::MAX] {
        let wrong = n_batch_at(&[("out", 1, Some(1))], &[outside]);
        refused(&state, state.append(&wrong), ErrorKind::InvalidInput, &["out", "event_time"])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_03_an_instant_is_the_same_in_every_zone_and_days_are_those_of_utc() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_time(&store, "s").await;
    // TYP-04 is the second and third of these.
    let cases = [
        ("1850-01-01T00:01:01+01:12", "1849-12-31T22:49:01Z", "1849-12-31"),
        ("2026-01-10T00:00:00+11:00", "2026-01-09T13:00:00Z", "2026-01-09"),
        ("2026-01-01T23:30:00-05:00", "2026-01-02T04:30:00Z", "2026-01-02"),
    ];
    for (n, (zoned, utc, day)) in cases.into_iter().enumerate() {
        assert_eq!(time(zoned), time(utc));
        let key = format!("k{n}");
        state.append(&n_batch_at(&[(&key, 1, Some(n as i64))], &[time(zoned)])).await.unwrap();
        for text in [zoned, utc] {
            let count = sql_numbers(
                &store,
                &format!("SELECT count(*) FROM s WHERE event_time = TIMESTAMPTZ '{text}'"),
            )
            .await;
            assert_eq!(count, [1], "{text}");
        }
        assert!(home.table("s", "log").join(format!("dt={day}")).is_dir(), "{day}");
        assert_eq!(
            sql_texts(&store, &format!("SELECT state_key FROM log.s WHERE dt = '{day}'")).await,
            [key]
        );
    }
    assert!(
        parse_time("1850-01-01T01:01:01+01:12:12").is_err(),
        "an offset with seconds is refused"
    );
    assert!(parse_time("2026-01-10T00:00:00").is_err(), "a time without its offset is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_11_leap_seconds_are_refused() {
    for text in ["2016-12-31T23:59:60Z", "2016-12-31T23:59:60.5Z", "2020-09-08T12:00:60Z"] {
        let error = parse_time(text).unwrap_err();
        assert!(error.to_string().contains("leap second"), "{error}");
    }
    assert!(
        parse_time("2016-12-31T23:59:59.999999Z").unwrap()
            < parse_time("2017-01-01T00:00:00Z").unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn typ_12_there_is_no_row_without_a_day_and_a_given_day_is_refused() {
    let home = Home::new();
    let state = by_time(&home.open().await, "s").await;
    let mut given = n_batch(&[("a", 1, Some(1))]);
    let (mut fields, mut columns): (Vec<_>, _) =
        (given.schema().fields().to_vec(), given.columns().to_vec());
    fields.push(Arc::new(Field::new("dt", DataType::Utf8, true)));
    columns.push(Arc::new(StringArray::from(vec!["__HIVE_DEFAULT_PARTITION__"])));
    given = RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns).unwrap();
    refused(&state, state.append(&given), ErrorKind::InvalidInput, &["\"dt\""]).await;
}
