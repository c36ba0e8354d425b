//! The scan of the newest state, all columns, with and without a tail, against a plain scan of the snapshot's files.

use std::time::Duration;

use alluvium::{OrderBy, Point, RawState, Store};
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Samples, count_rows, data_files, distinct_keys,
    parquet_session, processor_time, scan_rows, timed,
};
use futures::TryStreamExt;

use crate::Setup;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("scan");
    let place = setup.place("scan")?;
    let mut events = Events::seeded(5);
    let all = events.every_key(KEYS, 100_000)?;
    let (store, state) = place.loaded_state("store", OrderBy::Version, &all).await?;
    let plain = parquet_session("snapshot", data_files(&place.snapshot("store"))?).await?;
    let rounds = setup.pick(15, 7);
    let mut none = Rounds::default();
    none.measure(&store, &state, &plain, rounds).await?;
    none.print(&figures, "no tail", 1.0);
    let tail = distinct_keys(7, (KEYS / 100) as usize, KEYS);
    state.append(&events.of_keys(&tail)?).await?;
    let (first, took) = timed(scan_rows(&state, Point::LATEST)).await;
    if first? != KEYS as usize {
        return Err("a scan lost rows".into());
    }
    figures.line("alluvium", "first scan after a tail of 1%", took.as_secs_f64() * 1e3, "ms", 1);
    let mut with_tail = Rounds::default();
    with_tail.measure(&store, &state, &plain, rounds).await?;
    with_tail.print(&figures, "tail of 1%", 1.0 / 1.2);
    state.materialize(false).await?;
    let mut with_run = Rounds::default();
    with_run.measure(&store, &state, &plain, rounds).await?;
    with_run.print(&figures, "run of 1% in the snapshot", 1.0 / 1.2);
    store.close().await;
    Ok(())
}

#[derive(Default)]
struct Rounds {
    ours: Samples,
    sql: Samples,
    plain: Samples,
    /// Processor time of all rounds: ours, by SQL, the plain scan.
    taken: [Duration; 3],
}

impl Rounds {
    async fn measure(
        &mut self,
        store: &Store,
        state: &RawState,
        plain: &datafusion::prelude::SessionContext,
        rounds: usize,
    ) -> Outcome<()> {
        let now = || processor_time().unwrap_or_default();
        for _ in 0..rounds {
            let started = now();
            let (rows, took) = timed(scan_rows(state, Point::LATEST)).await;
            self.ours.push(took);
            let scanned = now();
            let (sql_rows, took) = timed(scan_by_sql(store)).await;
            self.sql.push(took);
            let queried = now();
            let (plain_rows, took) = timed(count_rows(plain, "SELECT * FROM snapshot")).await;
            self.plain.push(took);
            let [ours, sql, plain] = &mut self.taken;
            *ours += scanned.saturating_sub(started);
            *sql += queried.saturating_sub(scanned);
            *plain += now().saturating_sub(queried);
            let counts = (rows?, sql_rows?, plain_rows?);
            if counts.0 != counts.1 || counts.0 != counts.2 {
                return Err(format!("the scans differ: {counts:?}").into());
            }
        }
        Ok(())
    }

    fn print(&self, figures: &Figures, name: &str, wanted: f64) {
        figures.duration("alluvium", &format!("scan, {name}"), &self.ours);
        figures.duration("alluvium", &format!("SQL, {name}"), &self.sql);
        figures.duration("datafusion", &format!("snapshot files alone, {name}"), &self.plain);
        figures.times("datafusion", &format!("scan, {name}"), &self.plain, &self.ours, wanted);
        figures.times("datafusion", &format!("SQL, {name}"), &self.plain, &self.sql, wanted);
        let [ours, sql, plain] = self.taken.map(|taken| taken.as_secs_f64());
        if plain > 0.0 {
            let metric = format!("processor time, scan, {name}");
            figures.ratio("datafusion", &metric, plain / ours, wanted);
            let metric = format!("processor time, SQL, {name}");
            figures.ratio("datafusion", &metric, plain / sql, wanted);
        }
    }
}

async fn scan_by_sql(store: &Store) -> Outcome<usize> {
    let mut rows = store.sql(&format!("SELECT * FROM {}", alluvium_benches::STATE)).await?;
    let mut count = 0;
    while let Some(batch) = rows.try_next().await? {
        count += batch.num_rows();
    }
    Ok(count)
}
