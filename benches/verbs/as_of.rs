//! The state as it was: scans and gets at a depth of a tenth of the history, against queries over the log.
//!
//! The history is 2M rows over 1M keys; snapshots were made at 80% and at its end, and the point asked for lies at 90%.

use alluvium::{OrderBy, Point, RawState};
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Samples, count_rows, data_files, distinct_keys, key_text,
    open_table, parquet_session, scan_rows, table_session, timed, window_query,
};
use datafusion::prelude::SessionContext;

use crate::Setup;

const BATCH_ROWS: usize = 100_000;
const ORDER: &str = "version DESC, event_time DESC";

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("as_of");
    let place = setup.place("as_of")?;
    let (store, state) = place.new_state("store", OrderBy::Version).await?;
    let mut events = Events::seeded(8);
    for batch in 0..20 {
        state.append(&events.random(BATCH_ROWS, KEYS)?).await?;
        if batch == 15 {
            state.materialize(false).await?;
        }
    }
    state.materialize(false).await?;
    let version = 18 * BATCH_ROWS as i64;
    let time = Events::time_of(version);
    let moment = chrono::DateTime::from_timestamp_micros(time).ok_or("no time")?.to_rfc3339();
    let points = [
        ("version", Point::at_version(version), format!("version <= {version}")),
        ("time", Point::at_time(time), format!("event_time <= TIMESTAMP '{moment}'")),
        ("commit", Point::at_commit(18), format!("version <= {version}")),
    ];
    let plain = parquet_session("log", data_files(&place.log("store"))?).await?;
    let rounds = setup.pick(5, 3);
    let mut latest = Samples::default();
    for _ in 0..rounds {
        let (rows, took) = timed(scan_rows(&state, Point::LATEST)).await;
        rows?;
        latest.push(took);
    }
    figures.duration("alluvium", "scan, latest", &latest);
    for (name, point, condition) in &points {
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let (rows, took) = timed(scan_rows(&state, *point)).await;
            ours.push(took);
            let (expected, took) = timed(count_rows(&plain, &window_query(ORDER, condition))).await;
            theirs.push(took);
            if rows? != expected? {
                return Err(format!("as of {name}: the scan and the query differ").into());
            }
        }
        figures.duration("alluvium", &format!("scan as of a {name}"), &ours);
        figures.duration("datafusion", &format!("window query as of a {name}"), &theirs);
        figures.times("datafusion", &format!("scan as of a {name}"), &theirs, &ours, 1.0);
    }
    gets(
        setup,
        &figures,
        &state,
        &points,
        &table_session("log", &open_table(&place.log("store")).await?).await?,
    )
    .await?;
    store.close().await;
    Ok(())
}

async fn gets(
    setup: &Setup,
    figures: &Figures,
    state: &RawState,
    points: &[(&str, Point, String)],
    peer: &SessionContext,
) -> Outcome<()> {
    let keys: Vec<String> =
        distinct_keys(13, setup.pick(500, 200), KEYS).into_iter().map(key_text).collect();
    for (name, point, condition) in points {
        state.get(*point, &keys[0]).await?;
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        let mut answers = Vec::new();
        for key in &keys {
            let (found, took) = timed(state.get(*point, key)).await;
            ours.push(took);
            answers.push(usize::from(found?.found().is_some()));
        }
        for (key, answer) in keys.iter().zip(answers).take(setup.pick(60, 30)) {
            let query = format!(
                "SELECT * FROM log WHERE state_key = '{key}' AND {condition} ORDER BY {ORDER} LIMIT 1"
            );
            let (found, took) = timed(count_rows(peer, &query)).await;
            theirs.push(took);
            if found? != answer {
                return Err(format!("{key} as of {name}: get and query differ").into());
            }
        }
        figures.latency("alluvium", &format!("get as of a {name}"), &ours);
        figures.latency("datafusion", &format!("query of one key as of a {name}"), &theirs);
        figures.times("datafusion", &format!("get as of a {name}"), &theirs, &ours, 5.0);
    }
    Ok(())
}
