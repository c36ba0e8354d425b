//! Which plots there are, and of which figures.

use crate::axis::Scale::{self, Linear, Log};
use crate::chart::{Chart, Series};
use crate::records::Record;

/// A plot: one file.
#[derive(Debug)]
pub(crate) struct Plot {
    /// The file's name, without its ending.
    pub(crate) name: &'static str,
    /// The verb whose figures it shows.
    pub(crate) bench: &'static str,
    title: &'static str,
    x: (&'static str, Scale),
    y: (&'static str, Scale),
    lines: &'static [Line],
}

/// Side, metric, and how the line is called.
type Line = (&'static str, &'static str, &'static str);

const KEYS: (&str, Scale) = ("keys of the state", Log);
const MINUTES: (&str, Scale) = ("minutes", Linear);

/// All of them.
pub(crate) const PLOTS: &[Plot] = &[
    Plot {
        name: "commit-latency",
        bench: "commit",
        title: "Durable append of one row, by commits of the table",
        x: ("commits", Linear),
        y: ("latency, p50 (ms)", Log),
        lines: &[
            ("alluvium", "append of 1 row, p50", "Alluvium"),
            ("floor", "append of 1 row, p50", "floor: two files, synced"),
            ("delta-rs", "append of 1 row, p50", "delta-rs (not durable)"),
        ],
    },
    Plot {
        name: "opening",
        bench: "commit",
        title: "Opening, by one-row commits without maintenance",
        x: ("commits", Log),
        y: ("time (ms)", Log),
        lines: &[("alluvium", "open", "Alluvium"), ("delta-rs", "open", "delta-rs")],
    },
    Plot {
        name: "materialize",
        bench: "scale",
        title: "Materializing 1,000 changes, by size of the state",
        x: KEYS,
        y: ("time (ms)", Log),
        lines: &[("alluvium", "materialize 1k changes", "Alluvium")],
    },
    Plot {
        name: "materialize-written",
        bench: "scale",
        title: "Written by materializing 1,000 changes, by size of the state",
        x: KEYS,
        y: ("written (kB)", Log),
        lines: &[("alluvium", "materialize 1k changes, written", "Alluvium")],
    },
    Plot {
        name: "get-by-keys",
        bench: "scale",
        title: "Get from files, by size of the state",
        x: KEYS,
        y: ("latency (ms)", Log),
        lines: &[
            ("alluvium", "get, present, p50", "present, p50"),
            ("alluvium", "get, present, p99", "present, p99"),
            ("alluvium", "get, absent, p50", "absent, p50"),
        ],
    },
    Plot {
        name: "get-by-depth",
        bench: "depth",
        title: "Get as of a version, by how far it lies back",
        x: ("depth (% of the history)", Linear),
        y: ("latency, p50 (ms)", Log),
        lines: &[
            ("alluvium", "get, present, p50, snapshots every tenth", "a snapshot after each tenth"),
            ("alluvium", "get, present, p50, log alone", "from the log alone"),
        ],
    },
    Plot {
        name: "scan-by-depth",
        bench: "depth",
        title: "Scan as of a version, by how far it lies back",
        x: ("depth (% of the history)", Linear),
        y: ("time (ms)", Log),
        lines: &[
            ("alluvium", "scan, snapshots every tenth", "a snapshot after each tenth"),
            ("alluvium", "scan, log alone", "from the log alone"),
        ],
    },
    Plot {
        name: "growth-rates",
        bench: "scale",
        title: "Bulk load, rebuild and scan, by size of the state",
        x: KEYS,
        y: ("rate (M rows/s)", Log),
        lines: &[
            ("alluvium", "latest scan", "latest scan"),
            ("alluvium", "rebuild", "rebuild"),
            ("alluvium", "bulk load", "bulk load"),
        ],
    },
    Plot {
        name: "growth-open",
        bench: "scale",
        title: "Opening and the first get, by size of the state",
        x: KEYS,
        y: ("time (ms)", Log),
        lines: &[("alluvium", "open and first get", "Alluvium")],
    },
    Plot {
        name: "growth-memory",
        bench: "scale",
        title: "Peak memory of a process, by size of the state",
        x: KEYS,
        y: ("peak RSS (MB)", Log),
        lines: &[
            ("alluvium", "rebuild, peak RSS", "rebuild"),
            ("alluvium", "open and first get, peak RSS", "open and first get"),
            ("alluvium", "empty process, peak RSS", "empty process"),
        ],
    },
    Plot {
        name: "growth-disk",
        bench: "scale",
        title: "Disk, by size of the state",
        x: KEYS,
        y: ("bytes per key", Linear),
        lines: &[("alluvium", "disk, log", "log"), ("alluvium", "disk, snapshot", "snapshot")],
    },
    Plot {
        name: "soak-memory",
        bench: "soak",
        title: "Mixed work without an end: memory and disk",
        x: MINUTES,
        y: ("MB", Linear),
        lines: &[("alluvium", "memory", "memory"), ("alluvium", "bytes on the disk", "disk")],
    },
    Plot {
        name: "soak-handles",
        bench: "soak",
        title: "Mixed work without an end: files and threads",
        x: MINUTES,
        y: ("number", Log),
        lines: &[
            ("alluvium", "files on the disk", "files on the disk"),
            ("alluvium", "open files", "open files"),
            ("alluvium", "threads", "threads"),
        ],
    },
    Plot {
        name: "soak-latency",
        bench: "soak",
        title: "Mixed work without an end: latencies",
        x: MINUTES,
        y: ("latency, p50 (ms)", Log),
        lines: &[
            ("alluvium", "put, p50", "durable put"),
            ("alluvium", "get from files, p50", "get from files"),
        ],
    },
];

impl Plot {
    /// The chart of the figures that there are; `None` where there are none.
    pub(crate) fn chart(&self, records: &[Record]) -> Option<Chart> {
        let series: Vec<Series> = self
            .lines
            .iter()
            .map(|&(side, metric, label)| {
                let mut points: Vec<(f64, Option<f64>)> = records
                    .iter()
                    .filter(|of| of.bench == self.bench && of.side == side && of.metric == metric)
                    .filter_map(|of| Some((of.at?, of.value)))
                    .collect();
                points.sort_by(|(x, _), (other, _)| x.total_cmp(other));
                Series { label: label.to_owned(), points }
            })
            .filter(|series| series.points.iter().any(|(_, value)| value.is_some()))
            .collect();
        (!series.is_empty()).then(|| Chart {
            title: self.title.to_owned(),
            x: (self.x.0.to_owned(), self.x.1),
            y: (self.y.0.to_owned(), self.y.1),
            series,
        })
    }
}
