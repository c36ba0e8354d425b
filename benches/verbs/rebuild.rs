//! A rebuild of a large snapshot against the window query over the same files: each side in processes of its own, in turns.

use alluvium::OrderBy;
use alluvium_benches::{
    Events, Figures, NOTHING, Outcome, Ran, Samples, folder_bytes, need_free, run_child,
};

use crate::Setup;

const BATCH_ROWS: usize = 100_000;
/// What a row takes on disk at most, in the log and in three snapshots: a rebuild leaves the files of the one before.
const DISK_BYTES_PER_ROW: u64 = 150;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("rebuild");
    let place = setup.place("rebuild")?;
    let rows = setup.pick_scale(20_000_000, 1_000_000);
    let keys = (rows / 2) as u64;
    need_free(place.root(), rows as u64 * DISK_BYTES_PER_ROW)?;
    let (store, state) = place.new_state("store", OrderBy::EventTime).await?;
    let mut events = Events::seeded(40);
    for _ in 0..rows / BATCH_ROWS {
        state.append(&events.random(BATCH_ROWS, keys)?).await?;
    }
    store.close().await;
    let folder = place.path("store");
    let log = folder_bytes(&place.log("store"))?;
    figures.line("alluvium", "log of it", log as f64 / 1e6, "MB", 1);
    let empty = run_child(NOTHING, &folder)?;
    let (mut ours, mut theirs) = (Side::default(), Side::default());
    for _ in 0..3 {
        let rebuilt = run_child("fold:rebuild", &folder)?;
        let queried = run_child("fold:window", &folder)?;
        if rebuilt.count != queried.count {
            return Err(format!(
                "the rebuild wrote {} rows, the query found {}",
                rebuilt.count, queried.count
            )
            .into());
        }
        ours.push(rebuilt);
        theirs.push(queried);
    }
    let name = format!("{}M rows over {}M keys", rows as f64 / 1e6, keys as f64 / 1e6);
    ours.print(&figures, "alluvium", &format!("rebuild, snapshot written, {name}"), rows, empty);
    theirs.print(&figures, "datafusion", &format!("window query, {name}"), rows, empty);
    let metric = format!("rebuild, {name}");
    figures.times("datafusion", &metric, &theirs.took, &ours.took, 3.0);
    let memory = theirs.over(empty) / ours.over(empty);
    figures.ratio("datafusion", &format!("peak RSS over the empty process, {metric}"), memory, 1.0);
    Ok(())
}

/// What the processes of one side took.
#[derive(Default)]
struct Side {
    took: Samples,
    rss_bytes: u64,
}

impl Side {
    fn push(&mut self, ran: Ran) {
        self.took.push(ran.took());
        self.rss_bytes = self.rss_bytes.max(ran.rss_bytes);
    }

    /// The most memory beyond what the program itself takes, in MiB.
    fn over(&self, empty: Ran) -> f64 {
        self.rss_bytes.saturating_sub(empty.rss_bytes) as f64 / f64::from(1 << 20)
    }

    fn print(&self, figures: &Figures, side: &str, name: &str, rows: usize, empty: Ran) {
        figures.line(side, name, self.took.median(), "s", self.took.len());
        figures.rate(side, name, rows, &self.took);
        let metric = format!("peak RSS over the empty process, {name}");
        figures.line(side, &metric, self.over(empty), "MiB", self.took.len());
    }
}
