//! Rebuild, incremental materialization and compaction of a state of long keys with a small budget of memory: the peak of a
//! process that does only that, and its time against the same work with a large budget.
//!
//! Each measurement works on a copy of the same store, so that all of them do the same.

use std::path::Path;

use alluvium::{OrderBy, RawState, Store};
use alluvium_benches::{
    Events, Figures, NOTHING, Outcome, Place, Ran, STATE, as_child, folder_bytes, link_folder,
    long_key_text, need_free, run_child, spread_keys,
};

use crate::Setup;

const BATCH_ROWS: u64 = 100_000;
/// The budgets that are compared, in MiB.
const SMALL_MIB: usize = 256;
const LARGE_MIB: usize = 8_192;
/// What a process may take with the small budget.
const WANTED_BYTES: f64 = 400e6;
/// What a row takes on disk at most: log, snapshot, and one measurement's copy with what it writes and spills.
const DISK_BYTES_PER_ROW: u64 = 800;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("memory");
    let place = setup.place("memory")?;
    let keys: u64 = setup.pick_scale(20_000_000, 500_000);
    need_free(place.root(), keys * DISK_BYTES_PER_ROW)?;
    let (store, state) = place.new_state("loaded", OrderBy::Version).await?;
    let mut events = Events::seeded(41);
    append(&figures, &state, &mut events, 0..keys, keys).await?;
    let log = folder_bytes(&place.log("loaded"))?;
    figures.line("alluvium", "log of it", log as f64 / 1e6, "MB", 1);
    let empty = run_child(NOTHING, place.root())?;
    figures.line("floor", "peak RSS of an empty process", empty.rss_bytes as f64 / 1e6, "MB", 1);
    let bench = Bench { figures: &figures, place: &place, keys };
    bench.both("rebuild", "loaded")?;
    state.materialize(false).await?;
    bench.both("compact", "loaded")?;
    // So many changes that they are merged into the base.
    append(&figures, &state, &mut events, 0..keys / 4, keys).await?;
    bench.both("materialize", "loaded")?;
    store.close().await;
    Ok(())
}

async fn append(
    figures: &Figures,
    state: &RawState,
    events: &mut Events,
    places: std::ops::Range<u64>,
    keys: u64,
) -> Outcome<()> {
    for first in places.clone().step_by(BATCH_ROWS as usize) {
        let numbers = spread_keys(first..places.end.min(first + BATCH_ROWS), keys);
        state.append(&events.of_named_keys(&numbers, long_key_text)?).await?;
        if first > 0 && first.is_multiple_of((keys / 5).max(BATCH_ROWS)) {
            figures.progress(&format!("{first} of {} rows appended", places.end));
        }
    }
    Ok(())
}

struct Bench<'a> {
    figures: &'a Figures,
    place: &'a Place,
    keys: u64,
}

impl Bench<'_> {
    /// One work with the small budget and with the large one.
    fn both(&self, work: &str, store: &str) -> Outcome<()> {
        let (large, small) = (self.one(work, store, LARGE_MIB)?, self.one(work, store, SMALL_MIB)?);
        if small.count != large.count {
            return Err(format!(
                "{work}: {} rows with the small budget, {} with the large one",
                small.count, large.count
            )
            .into());
        }
        let name = format!("{work}, {}M keys of 100 bytes", self.keys as f64 / 1e6);
        let figures = self.figures;
        let rss = small.rss_bytes as f64;
        figures.line("alluvium", &format!("{name}, rows"), small.count as f64, "rows", 1);
        figures.line("alluvium", &format!("{name}, peak RSS with 256 MiB"), rss / 1e6, "MB", 1);
        let large_rss = large.rss_bytes as f64 / 1e6;
        figures.line("alluvium", &format!("{name}, peak RSS with 8 GiB"), large_rss, "MB", 1);
        figures.line("alluvium", &format!("{name}, time with 256 MiB"), small.seconds, "s", 1);
        figures.line("alluvium", &format!("{name}, time with 8 GiB"), large.seconds, "s", 1);
        figures.ratio("400 MB", &format!("{name}, peak RSS with 256 MiB"), WANTED_BYTES / rss, 1.0);
        let time = large.seconds / small.seconds;
        figures.ratio("8 GiB", &format!("{name}, time with 256 MiB"), time, 0.5);
        Ok(())
    }

    fn one(&self, work: &str, store: &str, mib: usize) -> Outcome<Ran> {
        let copy = self.place.path("copy");
        link_folder(&self.place.path(store), &copy)?;
        self.figures.progress(&format!("{work} with {mib} MiB"));
        let ran = run_child(&format!("memory:{work}:{mib}"), &copy)?;
        std::fs::remove_dir_all(copy)?;
        Ok(ran)
    }
}

/// One work with a budget, in a process of its own; it counts the rows that it wrote, or left in the log.
pub(crate) async fn child(work: &str, folder: &Path) -> Outcome<()> {
    let (work, mib) = work.split_once(':').ok_or("the work names no budget")?;
    let budget = mib.parse::<usize>()? << 20;
    let done = async {
        let uri = folder.display().to_string();
        let store = Store::builder(&uri).memory_budget_bytes(budget).open().await?;
        let state = store.raw_state(STATE).await?;
        let rows = match work {
            "rebuild" => state.materialize(true).await?.rows_written,
            "materialize" => state.materialize(false).await?.rows_written,
            "compact" => {
                state.compact(false).await?;
                state.log().state().files_after(0).filter_map(|file| file.stats.rows).sum()
            }
            other => return Err(format!("no work {other:?}").into()),
        };
        store.close().await;
        Ok(rows)
    };
    as_child(done).await
}
