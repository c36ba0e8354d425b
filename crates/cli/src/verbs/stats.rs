//! `stats`: what lies in a state, how it grows, and what maintenance is due; at a glance where a glance is quicker.

use std::collections::BTreeMap;

use alluvium::format::format_timestamp;
use alluvium::{DayStats, Error, StateStats};
use chrono::{Days, NaiveDate};

use super::upkeep::Wanted;
use super::{Outcome, Session, reports};
use crate::args::StatsArgs;
use crate::progress::{bytes, counted, thousands};

/// Days that a sparkline shows at most.
const SHOWN_DAYS: u64 = 14;
/// Cells of a bar.
const BAR_CELLS: u64 = 10;

pub(super) async fn run(session: &mut Session<'_>, args: StatsArgs) -> Outcome {
    let store = session.open().await?;
    let mut lines = Vec::new();
    let mut wanted = Wanted::new(&store, args.state).await?;
    for name in wanted.names.clone() {
        let outcome = async {
            let state = store.raw_state(&name).await?;
            if args.deep { state.stats_in_depth().await } else { state.stats().await }
        };
        let outcome = outcome.await;
        let Some(figures) = wanted.done(session, outcome)? else { continue };
        if session.is_table() {
            let now_ms = chrono::Utc::now().timestamp_millis();
            session.console.stdout.write_all(tell(&figures, now_ms).as_bytes())?;
        } else {
            let text = serde_json::to_string(&figures);
            lines.push(text.map_err(|error| Error::internal("a report").with_source(error))?);
        }
    }
    reports::write(session, &lines)?;
    Ok(wanted.code)
}

fn tell(figures: &StateStats, now_ms: i64) -> String {
    let mut lines = vec![("log", log(figures))];
    if figures.rows_per_day > 0 || figures.days.len() > 1 {
        lines.push(("growth", growth(figures)));
    }
    lines.push(("snapshot", snapshot(figures, now_ms)));
    lines.push(("tail", tail(figures)));
    lines.push((
        "to merge",
        match figures.files_to_merge {
            0 => "nothing".to_owned(),
            files => format!(
                "{} of {} ({})",
                counted(files, "file"),
                counted(figures.days_to_merge, "day"),
                bytes(figures.bytes_to_merge)
            ),
        },
    ));
    if let Some(archive) = &figures.archive {
        let number = |count: i64| u64::try_from(count).unwrap_or(0);
        let cold = format!(
            "{} in {} ({}), of commits up to {}",
            counted(number(archive.rows), "row"),
            counted(number(archive.files), "file"),
            bytes(number(archive.bytes)),
            archive.commit
        );
        lines.push(("archive", cold));
    }
    if let Some(depth) = &figures.depth {
        let keys = format!(
            "{} {}, {} live and {} deleted",
            bar(depth.live_keys, depth.keys),
            counted(depth.keys, "key"),
            thousands(depth.live_keys),
            thousands(depth.deleted_keys)
        );
        lines.push(("keys", keys));
        let late = format!(
            "{}, {}",
            counted(depth.late_rows, "late row"),
            counted(depth.conflicting_ties, "conflicting tie")
        );
        lines.push(("order", late));
    }
    if let Some(newest) = figures.newest_event_ms.filter(|newest| *newest > now_ms) {
        let ahead = format!(
            "the newest change is dated {} ahead, {}: no change of its key that happens before then wins over it",
            age(newest - now_ms),
            format_timestamp(newest.saturating_mul(1_000))
        );
        lines.push(("ahead", ahead));
    }
    let mut text = format!(
        "{}  (ordered by {}, commit {})\n",
        figures.state, figures.order_by, figures.commit
    );
    for (name, line) in lines {
        text.push_str(&format!("  {name:<9} {line}\n"));
    }
    text
}

fn log(figures: &StateStats) -> String {
    let days = match (&figures.first_day, &figures.last_day) {
        (Some(first), Some(last)) => {
            format!(", {} from {first} to {last}", counted(figures.log_days, "day"))
        }
        _ => String::new(),
    };
    format!(
        "{}, {}, {}{}{days}",
        counted(figures.log_rows, "row"),
        counted(figures.log_files, "file"),
        bytes(figures.log_bytes),
        shared(figures.log_shared_bytes)
    )
}

/// What of some bytes forks have too.
fn shared(of: u64) -> String {
    if of == 0 { String::new() } else { format!(" ({} of them shared by forks)", bytes(of)) }
}

fn growth(figures: &StateStats) -> String {
    format!(
        "{} {} and {} a day in the last week",
        sparkline(&figures.days),
        counted(figures.rows_per_day, "row"),
        bytes(figures.bytes_per_day)
    )
}

fn snapshot(figures: &StateStats, now_ms: i64) -> String {
    if figures.snapshot_version < 0 {
        return "none yet".to_owned();
    }
    let live = figures
        .snapshot_live_keys
        .map_or_else(|| counted(figures.snapshot_rows, "row"), |live| counted(live, "live key"));
    let written = figures.snapshot_written_ms.map_or_else(String::new, |written| {
        format!(", written {} ago", age((now_ms - written).max(0)))
    });
    let going = match figures.tombstones_to_forget {
        0 => String::new(),
        count => format!(" ({} to be forgotten)", thousands(count)),
    };
    format!(
        "{live}, {}{going}, {} and {}, {}{}, as of commit {}{written}",
        counted(figures.snapshot_tombstones, "tombstone"),
        counted(figures.base_files, "base file"),
        counted(figures.run_files, "run file"),
        bytes(figures.snapshot_bytes),
        shared(figures.snapshot_shared_bytes),
        figures.snapshot_commit
    )
}

fn tail(figures: &StateStats) -> String {
    let commits = u64::try_from(figures.tail_commits).unwrap_or(0);
    if figures.tail_rows == 0 {
        return format!("{}, no rows", counted(commits, "commit"));
    }
    let oldest = figures
        .tail_age_ms
        .map_or_else(String::new, |ms| format!(", the oldest written {} ago", age(ms)));
    format!(
        "{} {}, {} of {}{oldest}",
        bar(figures.tail_rows, figures.log_rows),
        counted(commits, "commit"),
        thousands(figures.tail_rows),
        counted(figures.log_rows, "row"),
    )
}

/// A part of a whole as a bar; what is there shows, however small.
fn bar(part: u64, whole: u64) -> String {
    let filled = match (part, whole) {
        (0, _) | (_, 0) => 0,
        (part, whole) => (part.saturating_mul(BAR_CELLS) / whole).clamp(1, BAR_CELLS),
    };
    let cell = |at| if at < filled { '█' } else { '░' };
    (0..BAR_CELLS).map(cell).collect()
}

/// The rows of the last days, one character a day; a day without rows is a dot.
fn sparkline(days: &[DayStats]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let date = |text: &str| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok();
    let rows: BTreeMap<NaiveDate, u64> =
        days.iter().filter_map(|day| Some((date(&day.day)?, day.rows))).collect();
    let Some((&last, _)) = rows.last_key_value() else { return String::new() };
    let first = last.checked_sub_days(Days::new(SHOWN_DAYS - 1)).unwrap_or(last);
    let shown: Vec<u64> = first
        .iter_days()
        .take_while(|day| *day <= last)
        .skip_while(|day| !rows.contains_key(day))
        .map(|day| rows.get(&day).copied().unwrap_or(0))
        .collect();
    let most = shown.iter().copied().max().unwrap_or(0).max(1);
    let level = |count: u64| match count {
        0 => '·',
        count => {
            let level = usize::try_from(count.saturating_mul(7) / most).unwrap_or(7);
            LEVELS[level.min(7)]
        }
    };
    shown.into_iter().map(level).collect()
}

/// A span in its largest unit.
fn age(ms: i64) -> String {
    const UNITS: [(i64, &str); 4] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match UNITS.iter().find(|(size, _)| ms >= *size) {
        Some((size, name)) => format!("{} {name}", ms / size),
        None => "less than 1 s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(day: &str, rows: u64) -> DayStats {
        DayStats { day: day.to_owned(), rows, files: 1, bytes: 1 }
    }

    #[test]
    fn bars_and_sparklines_show_what_is_there() {
        assert_eq!([bar(0, 5), bar(1, 1_000)], ["░░░░░░░░░░", "█░░░░░░░░░"]);
        assert_eq!([bar(5, 10), bar(7, 7), bar(0, 0)], ["█████░░░░░", "██████████", "░░░░░░░░░░"]);
        let days = [day("2024-02-28", 1), day("2024-03-01", 80), day("2024-03-02", 40)];
        assert_eq!(sparkline(&days), "▁·█▄");
        assert_eq!(sparkline(&[]), "");
        let far = [day("2020-01-01", 9), day("2024-03-02", 40)];
        assert_eq!(sparkline(&far), "█");
    }

    #[test]
    fn ages_are_told_in_their_largest_unit() {
        let told = [999, 1_000, 119_999, 3_600_000, 200_000_000].map(age);
        assert_eq!(told, ["less than 1 s", "1 s", "1 min", "1 h", "2 d"]);
    }
}
