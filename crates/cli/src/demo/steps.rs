//! What the demo shows.

use super::folder::DemoFolder;
use super::quoted;

/// One command of the demo.
pub(super) struct Step {
    /// What it shows.
    pub(super) why: &'static str,
    /// Its arguments; those in braces are the demo's own files.
    args: &'static [&'static str],
    /// Lines of its output that are shown at most.
    pub(super) lines: usize,
}

impl Step {
    /// The command, the program's name first.
    pub(super) fn args(&self, folder: &DemoFolder) -> Vec<String> {
        let given = self.args.iter().map(|arg| match *arg {
            "{sample}" => folder.sample(),
            "{rejects}" => folder.rejects(),
            other => other.to_owned(),
        });
        std::iter::once("alluvium".to_owned()).chain(given).collect()
    }
}

pub(super) static STEPS: &[Step] = &[
    Step {
        why: "Append 51,955 departures: the last one of each aircraft is its state. Rows without a tail number have no key.",
        args: &[
            "append",
            "aircraft",
            "{sample}",
            "--key",
            "tailnum",
            "--event-time",
            "time_hour",
            "--null",
            "NA",
            "--rejects",
            "{rejects}",
            "--batch-rows",
            "10000",
        ],
        lines: 4,
    },
    Step {
        why: "Fold the log into the snapshot: one row per aircraft.",
        args: &["materialize", "aircraft"],
        lines: 4,
    },
    Step {
        why: "Prove that the snapshot is the fold of the log.",
        args: &["verify", "aircraft"],
        lines: 4,
    },
    Step { why: "What lies in the store.", args: &["stats", "aircraft"], lines: 10 },
    Step { why: "One aircraft as it is now.", args: &["get", "aircraft", "N730MQ"], lines: 30 },
    Step {
        why: "The same aircraft as it was in January.",
        args: &[
            "sql",
            "SELECT event_time, carrier, flight, origin, dest, dep_delay FROM as_of('aircraft', time => '2013-01-15T12:00:00Z') WHERE state_key = 'N730MQ'",
        ],
        lines: 10,
    },
    Step {
        why: "How it got there: its last changes.",
        args: &["history", "aircraft", "N730MQ", "--last", "5"],
        lines: 12,
    },
    Step {
        why: "Late changes, committed when a later departure was known already: kept, but they never became the state.",
        args: &[
            "sql",
            "SELECT state_key, event_time, commit, state_value['flight'] AS flight FROM history('aircraft') WHERE is_late LIMIT 3",
        ],
        lines: 6,
    },
    Step {
        why: "The whole fleet as of a day.",
        args: &["scan", "aircraft", "--time", "2013-01-15T12:00:00Z", "--limit", "5"],
        lines: 12,
    },
    Step {
        why: "What changed from one day to the next.",
        args: &["diff", "aircraft", "time:2013-01-15T12:00:00Z", "time:2013-01-16T12:00:00Z"],
        lines: 8,
    },
    Step {
        why: "Any question by SQL, now and then side by side: aircraft seen of each carrier.",
        args: &[
            "sql",
            "SELECT now.carrier, aircraft, aircraft_mid_january FROM (SELECT carrier, count(*) AS aircraft FROM aircraft GROUP BY carrier) AS now LEFT JOIN (SELECT carrier, count(*) AS aircraft_mid_january FROM as_of('aircraft', time => '2013-01-15T12:00:00Z') GROUP BY carrier) AS past ON now.carrier = past.carrier ORDER BY aircraft DESC LIMIT 5",
        ],
        lines: 12,
    },
];

pub(super) fn intro(folder: &DemoFolder) -> String {
    format!(
        "Departures from New York's airports in January and February 2013, as the US Bureau of Transportation Statistics\n\
         has them. The state of an aircraft is its latest departure; the log keeps all of them.\n\n\
         $ export ALLUVIUM_STORE={}\n",
        quoted(&folder.store())
    )
}

pub(super) fn outro(folder: &DemoFolder, took: &str) -> String {
    format!(
        "\nDone in {took}. The store is in {store}, the rows without a key in {rejects}. To go on:\n\n\
         \x20 export ALLUVIUM_STORE={quoted}\n\
         \x20 alluvium scan aircraft --prefix N7 --limit 10\n\
         \x20 alluvium changes aircraft --from-commit 5 | head -3\n\
         \x20 alluvium sql \"SELECT origin, avg(dep_delay) FROM aircraft GROUP BY origin\"\n",
        store = folder.store(),
        rejects = folder.rejects(),
        quoted = quoted(&folder.store()),
    )
}
