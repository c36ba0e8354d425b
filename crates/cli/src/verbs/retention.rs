//! `retention explain`: what is readable, what keeps it, what it costs.

use alluvium::format::format_timestamp;
use alluvium::{
    Error, Horizon, Kept, KeptBy, LeaseCost, Point, Readable, RetentionReport, UnreadableVersions,
};

use super::{Outcome, Session};
use crate::args::{OutputFormat, RetentionVerb};
use crate::failure::{ExitCodes, Failure};
use crate::progress::{bytes, counted, thousands};

pub(super) async fn run(session: &mut Session<'_>, verb: RetentionVerb) -> Outcome {
    let RetentionVerb::Explain { states, json } = verb;
    let format = if json { OutputFormat::Json } else { session.format() };
    if matches!(format, OutputFormat::Csv | OutputFormat::Parquet | OutputFormat::Arrow) {
        return Err(Failure::usage(
            "an explanation has no columns: use --output table, json or jsonl",
        ));
    }
    let store = session.open().await?;
    let names = if states.is_empty() { store.state_names().await? } else { states };
    let mut lines = Vec::with_capacity(names.len());
    for name in names {
        let report = store.raw_state(&name).await?.explain_retention().await?;
        if format == OutputFormat::Table {
            session.console.stdout.write_all(tell(&report).as_bytes())?;
        }
        let line = serde_json::to_string(&report);
        lines.push(line.map_err(|error| Error::internal("a report").with_source(error))?);
    }
    match format {
        OutputFormat::Table => {}
        OutputFormat::Json => {
            writeln!(session.console.stdout, "[{}]", lines.join(",\n "))?;
        }
        _ => {
            for line in &lines {
                writeln!(session.console.stdout, "{line}")?;
            }
        }
    }
    Ok(ExitCodes::OK)
}

/// The earliest points that can be answered.
pub(super) fn tell_horizon(horizon: &Horizon) -> String {
    let mut from = vec![Point::at_commit(horizon.commit).to_string()];
    from.extend(horizon.version.map(|version| Point::at_version(version).to_string()));
    from.extend(horizon.event_time.map(|time| Point::at_time(time).to_string()));
    format!("{} and later", from.join(", "))
}

fn tell(report: &RetentionReport) -> String {
    let mut lines = vec![format!("{}:", report.state)];
    lines.extend(tell_readable(&report.readable).into_iter().map(|line| format!("  {line}")));
    lines.push("  kept".to_owned());
    lines.extend(report.kept.iter().map(|kept| format!("    {}", tell_kept(kept, report))));
    let shared: u64 = report.kept.iter().map(|kept| kept.shared_bytes).sum();
    if shared > 0 {
        let with: Vec<&str> = report.shared_with.iter().map(String::as_str).collect();
        lines.push(format!(
            "    {} of these are shared with {}: a local disk has them once",
            bytes(shared),
            with.join(", ")
        ));
    }
    for savepoint in &report.savepoints {
        let note = savepoint.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
        lines.push(format!(
            "    savepoint {} as of commit {}, {} of which its release frees {}{note}",
            savepoint.name,
            savepoint.log_commit,
            bytes(savepoint.bytes),
            bytes(savepoint.own_bytes)
        ));
    }
    lines.extend(report.leases.iter().map(|lease| format!("    {}", tell_lease(lease))));
    lines.extend(
        report.unreadable_commits.iter().map(|commit| format!("  {}", tell_unreadable(commit))),
    );
    lines.push("  the next run of maintain".to_owned());
    lines.push(format!(
        "    frees {}: {} and {}",
        bytes(report.next_bytes),
        counted(report.next_files, "data file"),
        counted(report.next_commits, "commit"),
    ));
    let archive = &report.next_archive;
    if let (Some(first), Some(last)) = (archive.days.first(), archive.days.last()) {
        lines.push(format!(
            "    moves {} of {} to the archive, {first} to {last} ({})",
            counted(archive.rows, "row"),
            counted(archive.days.len() as u64, "day"),
            bytes(archive.bytes)
        ));
    }
    let expire = &report.next_expire;
    match (expire.days.first(), expire.days.last()) {
        (Some(first), Some(last)) => {
            lines.push(format!(
                "    drops {} of {} from the log, {first} to {last}; their {} are freed after file_retention",
                counted(expire.rows, "row"),
                counted(expire.days.len() as u64, "day"),
                bytes(expire.bytes)
            ));
        }
        _ => lines.push(format!("    drops no day from the log: {}", expire.reason)),
    }
    let tombstones = &report.next_tombstones;
    lines.push(match tombstones.forgotten {
        0 => format!("    forgets no deleted key: {}", tombstones.reason),
        count => format!(
            "    forgets {} of {}, and refuses changes up to {} from then on",
            counted(count, "deleted key"),
            thousands(tombstones.tombstones),
            tombstones.floor.map_or_else(String::new, format_timestamp)
        ),
    });
    if report.readable == report.readable_after {
        lines.push("    leaves everything readable that is".to_owned());
    } else {
        lines.push("    leaves readable".to_owned());
        let after = tell_readable(&report.readable_after);
        lines.extend(after.into_iter().map(|line| format!("      {line}")));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What a commit that can't be read keeps from being asked, for how long, and what to do.
pub(super) fn tell_unreadable(found: &UnreadableVersions) -> String {
    let commit = &found.commit;
    let versions = match commit.makes_a_hole() {
        true => format!(
            "versions {} to {} of its table can't be read, nor what was known at their times, and what they may have is kept",
            commit.version,
            commit.whole_from - 1
        ),
        false => "what was known at its time can't be told".to_owned(),
    };
    let until = found.goes_ms.map_or_else(
        || "once later commits are as old as commit_retention".to_owned(),
        |goes_ms| format!("after {}", format_timestamp(goes_ms.saturating_mul(1_000))),
    );
    format!(
        "DAMAGED {} can't be read: {versions}. Put it back from a copy; else it is cleaned up {until}",
        commit.file
    )
}

fn tell_lease(lease: &LeaseCost) -> String {
    let versions = |of: &str, versions: &std::collections::BTreeSet<i64>| {
        let shown: Vec<String> = versions.iter().map(i64::to_string).collect();
        (!shown.is_empty()).then(|| format!("{of} {}", shown.join(", ")))
    };
    let held = [
        versions("of the log", &lease.log_versions),
        versions("of the snapshot", &lease.snapshot_versions),
        versions("of the archive", &lease.archive_versions),
    ];
    let time = |time_ms: i64| format_timestamp(time_ms.saturating_mul(1_000));
    format!(
        "reads of {} since {}: a lease until {} on versions {}",
        lease.holder,
        time(lease.since_ms),
        time(lease.until_ms),
        held.into_iter().flatten().collect::<Vec<_>>().join(", ")
    )
}

fn tell_readable(readable: &Readable) -> Vec<String> {
    let states = match &readable.horizon {
        None => "as of every commit, version and event time".to_owned(),
        Some(horizon) => format!("as of {}", tell_horizon(horizon)),
    };
    let changes = match readable.changes_after {
        0 => "all".to_owned(),
        after => format!("of the commits after {after}"),
    };
    let snapshot = readable
        .snapshot_version
        .map_or_else(String::new, |version| format!(", of the snapshot from {version} on"));
    let known = readable.known_since_ms.map_or_else(
        || "at no time: no commit tells when it was made".to_owned(),
        |since| format!("at {} and later", format_timestamp(since.saturating_mul(1_000))),
    );
    vec![
        format!("states     {states}; the newest commit is {}", readable.newest_commit),
        format!("known      {known}"),
        format!("changes    {changes}"),
        format!("versions   of the log from {} on{snapshot}", readable.log_version),
    ]
}

fn tell_kept(kept: &Kept, report: &RetentionReport) -> String {
    let setting = |name: &str| report.settings.get(name).cloned().unwrap_or_default();
    let why = match kept.by {
        KeptBy::Log => format!("the log, log_retention = {}", setting("log_retention")),
        KeptBy::LogPastRetention => "the log, of days past log_retention".to_owned(),
        KeptBy::LogFileRetention => {
            format!("files that left the log, file_retention = {}", setting("file_retention"))
        }
        KeptBy::Archive => format!(
            "the archive at {}, hot_days = {}",
            report.next_archive.place,
            setting("hot_days")
        ),
        KeptBy::Snapshot => "the snapshot".to_owned(),
        KeptBy::SnapshotWindow => format!(
            "earlier snapshots, as_of_window = {}, file_retention = {}",
            setting("as_of_window"),
            setting("file_retention")
        ),
        KeptBy::Savepoints => "earlier snapshots that only savepoints keep".to_owned(),
        KeptBy::Leases => "earlier versions that only leases of readers keep".to_owned(),
        KeptBy::UnreadableCommit => {
            "files that a commit which can't be read may have named".to_owned()
        }
        KeptBy::OrphanGrace => {
            format!("files that may still be committed, orphan_grace = {}", setting("orphan_grace"))
        }
        KeptBy::Nothing => "nothing keeps these".to_owned(),
    };
    format!("{} in {}: {why}", bytes(kept.bytes), counted(kept.files, "file"))
}
