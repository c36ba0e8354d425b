//! Real changes, hour by hour under a clock of their own, with the job run every night and without it: what lies on the disk, what
//! reading costs, and that every answer about the past is the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use alluvium::{KeyFilter, MaintainStep, ManualClock, Point, RawState, Store, StoreSettings};
use alluvium_benches::{
    AIRCRAFT, Figures, Hour, Outcome, Place, Samples, append_hour, folder_bytes, read_hours, timed,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;

use crate::Setup;

const HOUR_MICROS: i64 = 3_600_000_000;
const DAY_MICROS: i64 = 24 * HOUR_MICROS;
/// Every so many days the state is asked for again when the year is over.
const ASKED_DAYS: i64 = 30;
/// How often each question is timed.
const TIMES: usize = 5;

/// How a side keeps its state small.
struct Side {
    name: &'static str,
    nightly: bool,
    settings: &'static [(&'static str, &'static str)],
    /// Whether everything of the past can be asked in the end.
    keeps_all: bool,
}

const SIDES: [Side; 3] = [
    Side { name: "without the job", nightly: false, settings: &[], keeps_all: true },
    Side { name: "the job every night", nightly: true, settings: &[], keeps_all: true },
    Side {
        name: "the job, the log kept for 60 days",
        nightly: true,
        settings: &[("log_retention", "60d"), ("snapshot_grid", "1d:28d,7d:364d")],
        keeps_all: false,
    },
];

/// A point of the past: its name, the point, and what the state was.
struct Asked {
    time: i64,
    commit: i64,
}

/// What a side answers about one point, by time and by commit; none where that has expired.
type Answer = [Option<(usize, u64)>; 2];

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("year");
    let hours = read_hours(&setup.flights)?;
    let hours = &hours[..setup.pick(hours.len(), hours.len().min(24 * 14))];
    let rows: usize = hours.iter().map(|hour| hour.rows).sum();
    figures.line("departures", "rows", rows as f64, "", 1);
    figures.line("departures", "appends, one an hour", hours.len() as f64, "", 1);
    let mut known: Option<Vec<Answer>> = None;
    for side in &SIDES {
        let place = setup.place("year")?;
        let answers = measure(&figures, &place, side, hours).await?;
        match &known {
            None => known = Some(answers),
            Some(known) => compare(side, known, &answers)?,
        }
    }
    Ok(())
}

/// Both sides must say the same wherever both say something, and one that keeps all says something everywhere.
fn compare(side: &Side, known: &[Answer], answers: &[Answer]) -> Outcome<()> {
    let pairs = || known.iter().flatten().zip(answers.iter().flatten());
    let wrong = pairs().filter(|(known, answer)| answer.is_some() && known != answer).count();
    let missing = pairs().filter(|(_, answer)| answer.is_none()).count();
    if known.len() == answers.len() && wrong == 0 && (missing == 0 || !side.keeps_all) {
        return Ok(());
    }
    Err(format!("{}: {wrong} answers differ, {missing} are missing", side.name).into())
}

async fn measure(
    figures: &Figures,
    place: &Place,
    side: &Side,
    hours: &[Hour],
) -> Outcome<Vec<Answer>> {
    let clock = Arc::new(ManualClock::default());
    let folder = place.path("store");
    let (asked, took) = timed(load(&folder, &clock, side, hours)).await;
    let asked = asked?;
    figures.line(side.name, "appends and nightly runs", took.as_secs_f64(), "s", 1);
    let bytes = |part: &str| folder_bytes(&folder.join(AIRCRAFT).join(part));
    for (part, name) in [("log", "log"), ("snapshot", "snapshot"), ("log/_delta_log", "commits")] {
        figures.line(side.name, name, bytes(part).unwrap_or(0) as f64 / 1e6, "MB", 1);
    }
    figures.line(side.name, "everything", folder_bytes(&folder)? as f64 / 1e6, "MB", 1);
    figures.line(side.name, "files", count_files(&folder)? as f64, "", 1);
    let mut opens = Samples::default();
    for _ in 0..TIMES {
        let opening = async {
            let store = open(&folder, &clock).await?;
            store.raw_state(AIRCRAFT).await?;
            Outcome::Ok(store)
        };
        let (store, took) = timed(opening).await;
        opens.push(took);
        store?.close().await;
    }
    figures.duration(side.name, "opening", &opens);
    let store = open(&folder, &clock).await?;
    let state = store.raw_state(AIRCRAFT).await?;
    let answers = ask(figures, side, &state, &asked).await?;
    if !state.verify().await?.is_sound() {
        return Err(format!("{}: the snapshot isn't the fold of the log", side.name).into());
    }
    store.close().await;
    Ok(answers)
}

async fn open(folder: &Path, clock: &Arc<ManualClock>) -> Outcome<Store> {
    // Nothing is done in the background: only the job is compared.
    let settings =
        StoreSettings { materialize_after_rows: 0, tidy_after_commits: 0, ..Default::default() };
    let uri = folder.display().to_string();
    Ok(Store::builder(&uri).settings(settings).clock(clock.clone()).open().await?)
}

/// Appends every hour when it is over, and runs the job after each day, if the side does.
async fn load(
    folder: &Path,
    clock: &Arc<ManualClock>,
    side: &Side,
    hours: &[Hour],
) -> Outcome<Vec<Asked>> {
    let store = open(folder, clock).await?;
    let mut asked = Vec::new();
    let first_day = hours.first().map_or(0, |hour| hour.micros / DAY_MICROS);
    for (index, hour) in hours.iter().enumerate() {
        clock.set(hour.micros + HOUR_MICROS);
        let commit = append_hour(&store, hour).await?;
        let day = hour.micros / DAY_MICROS;
        if hours.get(index + 1).is_some_and(|next| next.micros / DAY_MICROS == day) {
            continue;
        }
        if (day - first_day) % ASKED_DAYS == 0 {
            asked.push(Asked { time: hour.micros, commit });
        }
        if side.nightly {
            clock.set((day + 1) * DAY_MICROS + HOUR_MICROS);
            let state = store.raw_state(AIRCRAFT).await?;
            if day == first_day {
                let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
                let settings: Vec<_> = side.settings.iter().map(owned).collect();
                state.set_maintenance(&settings).await?;
            }
            state.maintain(&MaintainStep::ALL, false).await?;
        }
    }
    store.close().await;
    Ok(asked)
}

/// Asks for the state now, and at each point of the past.
async fn ask(
    figures: &Figures,
    side: &Side,
    state: &RawState,
    asked: &[Asked],
) -> Outcome<Vec<Answer>> {
    let mut scans = Samples::default();
    for _ in 0..TIMES {
        let (read, took) = timed(digest(state, Point::LATEST)).await;
        read?;
        scans.push(took);
    }
    figures.duration(side.name, "latest, all aircraft", &scans);
    let mut answers = vec![[digest(state, Point::LATEST).await?; 2]];
    let (mut past, mut expired) = (Samples::default(), 0);
    for Asked { time, commit } in asked {
        let mut answer = [None; 2];
        let points = [Point::at_time(*time), Point::at_commit(*commit)];
        for (place, point) in answer.iter_mut().zip(points) {
            let (read, took) = timed(digest(state, point)).await;
            *place = read?;
            match place {
                Some(_) => past.push(took),
                None => expired += 1,
            }
        }
        answers.push(answer);
    }
    figures.duration(side.name, "as of a time or commit, all aircraft", &past);
    figures.line(side.name, "points that have expired", f64::from(expired), "", 2 * asked.len());
    Ok(answers)
}

/// How many rows there are at a point, and a hash of keys, times and values; none if it has expired.
async fn digest(state: &RawState, point: Point) -> Outcome<Option<(usize, u64)>> {
    let mut rows = match state.scan(point, KeyFilter::All).await {
        Ok(rows) => rows,
        Err(error) if error.kind() == alluvium::ErrorKind::PointUnavailable => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (mut count, mut hash) = (0, DefaultHasher::new());
    while let Some(batch) = rows.try_next().await? {
        count += batch.num_rows();
        let options = FormatOptions::default();
        for name in ["state_key", "event_time", "state_value"] {
            let column = batch.column_by_name(name).ok_or("a column is missing")?;
            let texts = ArrayFormatter::try_new(column, &options)?;
            for row in 0..batch.num_rows() {
                texts.value(row).to_string().hash(&mut hash);
            }
        }
    }
    Ok(Some((count, hash.finish())))
}

fn count_files(folder: &Path) -> Outcome<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        files += if path.is_dir() { count_files(&path)? } else { 1 };
    }
    Ok(files)
}
