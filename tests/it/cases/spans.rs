//! Spans: each verb of the library opens one that says of which state it is, on which commit it stood, and what commit came of it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process::Command;
use std::sync::{Arc, Mutex};

use alluvium::{MaintainStep, ManualClock, Point, RawState, RestoreOptions, Store, StoreSettings};
use alluvium_log::KeyFilter;
use futures::TryStreamExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::support::stores::{DAY, Home, START, by_version, n_batch_at, settings, sql};

/// Set in the process that runs one of these tests alone.
const ALONE: &str = "ALLUVIUM_TEST_ALONE";

/// A span's fields as they are when it ends.
#[derive(Debug, Clone, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// Notes the spans that end.
#[derive(Debug, Clone, Default)]
struct Collector {
    ended: Arc<Mutex<Vec<(&'static str, Fields)>>>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let is_ours = span.metadata().target().starts_with("alluvium");
        let fields = span.extensions().get::<Fields>().cloned();
        if let Some(fields) = fields.filter(|_| is_ours) {
            self.ended.lock().unwrap().push((span.metadata().name(), fields));
        }
    }
}

impl Collector {
    /// The fields of the one span of this name that has ended since the last look. A thread that has worked for a verb may let go of
    /// its span a moment after the verb's end.
    async fn take(&self, name: &str) -> BTreeMap<&'static str, String> {
        let has_ended = || self.ended.lock().unwrap().iter().any(|(other, _)| *other == name);
        for _ in 0..1_000 {
            if has_ended() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let ended = std::mem::take(&mut *self.ended.lock().unwrap());
        let found: Vec<_> = ended.iter().filter(|(other, _)| *other == name).collect();
        assert_eq!(found.len(), 1, "spans {name} among {ended:?}");
        found[0].1.0.clone()
    }

    /// The same, with these fields.
    async fn has(&self, name: &str, wanted: &[(&str, &str)]) {
        let fields = self.take(name).await;
        for (field, value) in wanted {
            let found = fields.get(field).map(String::as_str);
            assert_eq!(found, Some(*value), "{field} of {name}: {fields:?}");
        }
    }
}

async fn append(state: &RawState, n: i64) {
    let rows = [("a", n, Some(n)), ("b", n, Some(-n))];
    state.append(&n_batch_at(&rows, &[START + n, START + n])).await.unwrap();
}

/// A store with a state of two commits.
async fn built(home: &Home) -> (Store, RawState, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START + DAY));
    // Nothing in the background, so that each span is of the verb that was called.
    let settings = StoreSettings { tidy_after_commits: 0, ..settings() };
    let builder = Store::builder(&home.uri()).settings(settings).clock(clock.clone());
    let store = builder.open().await.unwrap();
    let state = by_version(&store, "s").await;
    append(&state, 1).await;
    append(&state, 2).await;
    (store, state, clock)
}

/// Runs a test of this file again in a process of its own: whether anybody listens to a span is remembered for the whole process, and
/// tests beside it that listen to nothing may be asked.
fn passes_alone(name: &str) {
    let name = format!("cases::spans::{name}");
    let program = std::env::current_exe().unwrap();
    let ran = Command::new(program).args(["--exact", &name]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// On one thread, whose subscriber sees everything that the verbs open themselves.
#[tokio::test]
async fn each_verb_opens_a_span_with_its_state_basis_and_commit() {
    if std::env::var_os(ALONE).is_none() {
        return passes_alone("each_verb_opens_a_span_with_its_state_basis_and_commit");
    }
    let spans = Collector::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let home = Home::new();
    let (store, state, clock) = built(&home).await;
    let reader = state.reader();
    let _subscribed = tracing::subscriber::set_default(subscriber);

    append(&state, 3).await;
    spans.has("append", &[("state", "s"), ("basis", "2"), ("commit", "3"), ("rows", "2")]).await;
    let mut epoch = state.epoch("app", 7).unwrap();
    epoch.stage(&n_batch_at(&[("c", 1, Some(1))], &[START])).await.unwrap();
    epoch.commit().await.unwrap();
    let wanted = [("state", "s"), ("app", "app"), ("epoch", "7"), ("basis", "3"), ("commit", "4")];
    spans.has("epoch", &wanted).await;

    let basis = reader.basis().await.unwrap();
    reader.multi_get(&basis, Point::LATEST, &["a"]).await.unwrap();
    spans.has("get", &[("state", "s"), ("basis", "4"), ("as_of", "latest"), ("keys", "1")]).await;
    reader.multi_get(&basis, Point::at_commit(2), &["a"]).await.unwrap();
    spans.has("get", &[("basis", "4"), ("as_of", "commit:2")]).await;
    drop(state.scan(Point::at_commit(3), KeyFilter::All).await.unwrap());
    spans.has("scan", &[("state", "s"), ("basis", "4"), ("as_of", "commit:3")]).await;
    drop(reader.history_rows(&basis, KeyFilter::All, Point::LATEST).await.unwrap());
    spans.has("history", &[("state", "s"), ("basis", "4"), ("as_of", "latest")]).await;
    drop(reader.changes_rows(&basis, 1).await.unwrap());
    spans.has("changes", &[("state", "s"), ("basis", "4"), ("after", "1")]).await;
    let (from, to) = (Point::at_commit(1), Point::LATEST);
    drop(reader.diff_rows(&basis, from, to, KeyFilter::All).await.unwrap());
    spans
        .has("diff", &[("state", "s"), ("basis", "4"), ("from", "commit:1"), ("to", "latest")])
        .await;
    sql(&store, "SELECT count(*) FROM s").await.unwrap();
    spans.has("sql", &[("state", "s"), ("basis", "4")]).await;

    state.materialize(false).await.unwrap();
    spans.has("materialize", &[("state", "s"), ("basis", "0"), ("commit", "4")]).await;
    state.verify().await.unwrap();
    spans.has("verify", &[("state", "s"), ("basis", "4"), ("commit", "4")]).await;
    state.create_savepoint("one", None).await.unwrap();
    spans.has("create_savepoint", &[("state", "s"), ("name", "one"), ("commit", "4")]).await;
    state.release_savepoint("one").await.unwrap();
    spans.has("release_savepoint", &[("state", "s"), ("name", "one"), ("commit", "4")]).await;
    let options = RestoreOptions { to: Point::at_commit(1), ..RestoreOptions::default() };
    state.restore(&options).await.unwrap();
    spans
        .has("restore", &[("state", "s"), ("basis", "4"), ("commit", "5"), ("to", "commit:1")])
        .await;
    state.erase(&["c".to_owned()], false).await.unwrap();
    let erased = spans.take("erase").await;
    let commit = state.log().state().version.to_string();
    assert_eq!((erased["state"].as_str(), erased["basis"].as_str()), ("s", "5"), "{erased:?}");
    assert_eq!(erased["commit"], commit);
    clock.set(START + 9 * DAY);
    for step in MaintainStep::ALL {
        let before = state.log().state().version.to_string();
        state.maintain(&[step], false).await.unwrap();
        let commit = state.log().state().version.to_string();
        let (step, before, commit) = (step.name(), before.as_str(), commit.as_str());
        let wanted = [("state", "s"), ("step", step), ("basis", before), ("commit", commit)];
        spans.has("step", &wanted).await;
    }
    state.maintain(&MaintainStep::ALL, true).await.unwrap();
    let commit = state.log().state().version.to_string();
    spans
        .has("maintain", &[("state", "s"), ("dry_run", "true"), ("commit", commit.as_str())])
        .await;
}

/// A get that is answered from memory opens none: it would take longer than the get.
#[tokio::test]
async fn a_get_from_memory_opens_no_span_and_reads_open_none_above_debug() {
    if std::env::var_os(ALONE).is_none() {
        return passes_alone("a_get_from_memory_opens_no_span_and_reads_open_none_above_debug");
    }
    let spans = Collector::default();
    let home = Home::new();
    let (_store, state, _) = built(&home).await;
    state.materialize(false).await.unwrap();
    append(&state, 3).await;
    state.get(Point::LATEST, "a").await.unwrap();
    let all = tracing_subscriber::registry().with(spans.clone());
    let guard = tracing::subscriber::set_default(all);
    let found = state.get(Point::LATEST, "a").await.unwrap();
    assert!(found.found().is_some());
    drop(guard);
    let ended = std::mem::take(&mut *spans.ended.lock().unwrap());
    assert!(ended.is_empty(), "{ended:?}");

    let level = tracing_subscriber::filter::LevelFilter::from_level(Level::INFO);
    let quiet = tracing_subscriber::registry().with(spans.clone().with_filter(level));
    let _guard = tracing::subscriber::set_default(quiet);
    state.get(Point::at_commit(1), "a").await.unwrap();
    let rows = state.scan(Point::LATEST, KeyFilter::All).await.unwrap();
    let _rows: Vec<_> = rows.try_collect().await.unwrap();
    append(&state, 4).await;
    let ended = std::mem::take(&mut *spans.ended.lock().unwrap());
    assert!(ended.is_empty(), "{ended:?}");
}
