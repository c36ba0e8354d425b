//! How everything grows with the number of keys: load, rebuild, change, get, open and scan, from 100 thousand keys to 100 million.
//!
//! Each size is a store of its own that is removed before the next one; no list of its keys is ever held.

use std::time::Duration;

use alluvium::{OrderBy, Point, RawState};
use alluvium_benches::{
    Events, Figures, NOTHING, Outcome, Place, Samples, distinct_keys, folder_bytes, key_text,
    need_free, run_child, scan_rows, spread_keys, timed,
};

use crate::Setup;

const SIZES: [u64; 4] = [100_000, 1_000_000, 10_000_000, 100_000_000];
/// Keys of the largest state without `--scale`.
const SMALL_KEYS: u64 = 1_000_000;
/// Appends that a state is loaded by, where they are neither smaller nor larger than these rows.
const APPENDS: u64 = 100;
const APPEND_ROWS: (u64, u64) = (100_000, 1_000_000);
/// Changes of one materialization.
const CHANGES: usize = 1_000;
/// What a key takes on disk at most: log, snapshot, and what a rebuild spills.
const DISK_BYTES_PER_KEY: u64 = 150;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("scale");
    let most = setup.max_keys.min(setup.pick_scale(u64::MAX, setup.pick(SMALL_KEYS, SIZES[0])));
    if most < SIZES[0] {
        return Err(format!("--max-keys {most}: the smallest size has {} keys", SIZES[0]).into());
    }
    for keys in SIZES.into_iter().filter(|&keys| keys <= most) {
        let place = setup.place("scale")?;
        need_free(place.root(), keys * DISK_BYTES_PER_KEY)?;
        let size = Size { setup, figures: &figures, place: &place, keys };
        size.measure().await.map_err(|error| format!("{keys} keys: {error}"))?;
    }
    Ok(())
}

/// A state of one size.
struct Size<'a> {
    setup: &'a Setup,
    figures: &'a Figures,
    place: &'a Place,
    keys: u64,
}

impl Size<'_> {
    async fn measure(&self) -> Outcome<()> {
        let (store, state) = self.place.new_state("store", OrderBy::Version).await?;
        let mut events = Events::seeded(50);
        self.load(&state, &mut events).await?;
        self.rebuild()?;
        self.figures.progress("small changes");
        self.change(&state, &mut events).await?;
        self.figures.progress("gets");
        self.gets(&state).await?;
        self.open()?;
        self.figures.progress("scans");
        self.scans(&state).await?;
        store.close().await;
        for (name, folder) in
            [("log", self.place.log("store")), ("snapshot", self.place.snapshot("store"))]
        {
            let bytes = folder_bytes(&folder)? as f64;
            self.point(&format!("disk, {name}"), bytes / self.keys as f64, "bytes/key");
            self.point(&format!("disk, {name}, all of it"), bytes / 1e6, "MB");
        }
        Ok(())
    }

    fn point(&self, metric: &str, value: f64, unit: &str) {
        self.figures.point("alluvium", metric, (self.keys as f64, "keys"), value, unit);
    }

    /// Every key once, each append spread over all of them; the making of rows is not counted.
    async fn load(&self, state: &RawState, events: &mut Events) -> Outcome<()> {
        let rows = (self.keys / APPENDS).clamp(APPEND_ROWS.0, APPEND_ROWS.1);
        let mut took = Duration::ZERO;
        for first in (0..self.keys).step_by(rows as usize) {
            let until = self.keys.min(first + rows);
            let batch = events.of_keys(&spread_keys(first..until, self.keys))?;
            let (done, append) = timed(state.append(&batch)).await;
            done?;
            took += append;
            if until * 10 / self.keys > first * 10 / self.keys {
                let rate = until as f64 / took.as_secs_f64() / 1e6;
                let loaded = until as f64 / 1e6;
                self.figures.progress(&format!("{loaded} M rows loaded, {rate:.2} M rows/s"));
            }
        }
        self.point("bulk load", self.keys as f64 / took.as_secs_f64() / 1e6, "M rows/s");
        let bytes = folder_bytes(&self.place.log("store"))? as f64;
        self.point("bulk load, stored", bytes / self.keys as f64, "bytes/row");
        Ok(())
    }

    /// The snapshot made from the whole log, in a process of its own.
    fn rebuild(&self) -> Outcome<()> {
        self.figures.progress("rebuild");
        let folder = self.place.path("store");
        let empty = run_child(NOTHING, &folder)?;
        let ran = run_child("fold:rebuild", &folder)?;
        if ran.count != self.keys {
            return Err(format!("the rebuild wrote {} rows", ran.count).into());
        }
        self.point("rebuild", self.keys as f64 / ran.seconds / 1e6, "M rows/s");
        self.point("rebuild, time", ran.seconds, "s");
        self.point("rebuild, peak RSS", ran.rss_bytes as f64 / 1e6, "MB");
        self.point("empty process, peak RSS", empty.rss_bytes as f64 / 1e6, "MB");
        Ok(())
    }

    async fn change(&self, state: &RawState, events: &mut Events) -> Outcome<()> {
        let (mut folds, mut written) = (Samples::default(), 0);
        for round in 0..9 {
            let changed = distinct_keys(500 + round, CHANGES, self.keys);
            state.append(&events.of_keys(&changed)?).await?;
            let (report, took) = timed(state.materialize(false)).await;
            written += report?.bytes_written;
            folds.push(took);
        }
        self.point("materialize 1k changes", folds.median() * 1e3, "ms");
        let each = written as f64 / folds.len() as f64 / 1e3;
        self.point("materialize 1k changes, written", each, "kB");
        Ok(())
    }

    async fn gets(&self, state: &RawState) -> Outcome<()> {
        let count = self.setup.pick(2_000, 500);
        let numbers = distinct_keys(510, count + 200, self.keys);
        let present: Vec<String> = numbers.into_iter().map(key_text).collect();
        let absent: Vec<String> = present.iter().map(|key| format!("{key}-none")).collect();
        for (keys, is_present, name) in [(&present, true, "present"), (&absent, false, "absent")] {
            let mut samples = Samples::default();
            for (index, key) in keys.iter().enumerate() {
                let (found, took) = timed(state.get(Point::LATEST, key)).await;
                if found?.found().is_some() != is_present {
                    return Err(format!("{key} should be {name}").into());
                }
                // The first ones read footers and filters.
                if index >= 200 {
                    samples.push(took);
                }
            }
            self.point(&format!("get, {name}, p50"), samples.median() * 1e3, "ms");
            self.point(&format!("get, {name}, p99"), samples.percentile(0.99) * 1e3, "ms");
        }
        Ok(())
    }

    fn open(&self) -> Outcome<()> {
        let (mut opened, mut rss_bytes) = (Samples::default(), 0);
        for key in distinct_keys(520, 5, self.keys) {
            let ran = run_child(&format!("open:{}", key_text(key)), &self.place.path("store"))?;
            opened.push(ran.took());
            rss_bytes = rss_bytes.max(ran.rss_bytes);
        }
        self.point("open and first get", opened.median() * 1e3, "ms");
        self.point("open and first get, peak RSS", rss_bytes as f64 / 1e6, "MB");
        Ok(())
    }

    async fn scans(&self, state: &RawState) -> Outcome<()> {
        let mut scans = Samples::default();
        for _ in 0..3 {
            let (rows, took) = timed(scan_rows(state, Point::LATEST)).await;
            if rows? as u64 != self.keys {
                return Err("a scan lost rows".into());
            }
            scans.push(took);
        }
        self.point("latest scan", self.keys as f64 / scans.median() / 1e6, "M rows/s");
        Ok(())
    }
}
