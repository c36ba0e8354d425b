//! The states of a session as a catalog of tables, each pinned to one basis for as long as a statement runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Result};
use alluvium_materializer::Savepoint;
use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::Result as DataFusionResult;
use datafusion::logical_expr::TableType;
use futures::future::try_join_all;
use parking_lot::Mutex as SyncMutex;
use tokio::sync::OnceCell;

use super::errors::to_datafusion;
use super::live::LiveTable;
use super::raw::RawTable;
use crate::basis::Basis;
use crate::named::NamedPoint;
use crate::point::Point;
use crate::reader::Reader;

/// The catalog's name.
pub(super) const CATALOG: &str = "alluvium";
/// The schema whose tables are the states.
pub(super) const STATES: &str = "public";
/// The schema whose tables are the logs.
pub(super) const LOGS: &str = "log";
/// The schema whose tables are the snapshots.
pub(super) const SNAPSHOTS: &str = "snapshot";

/// The states that a statement may name. Each is pinned when it is first named, stays so, and is held as long as this.
#[derive(Debug)]
pub(super) struct Pins {
    states: BTreeMap<String, Pin>,
}

#[derive(Debug)]
struct Pin {
    reader: Reader,
    basis: OnceCell<Basis>,
    /// The savepoints, or why they can't be told, once a statement may name one.
    savepoints: OnceCell<Result<Vec<Arc<Savepoint>>>>,
    /// By times that a statement names, the commits that were the newest then, or why they can't be told; none before they are looked for.
    known_at: SyncMutex<BTreeMap<i64, Option<Result<i64>>>>,
}

impl Pins {
    pub(super) fn new(readers: &[Reader]) -> Arc<Self> {
        let pin = |reader: &Reader| Pin {
            reader: reader.clone(),
            basis: OnceCell::new(),
            savepoints: OnceCell::new(),
            known_at: SyncMutex::default(),
        };
        Arc::new(Self {
            states: readers.iter().map(|reader| (reader.name().to_owned(), pin(reader))).collect(),
        })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.states.keys().cloned().collect()
    }

    /// Pins states ahead, all at once; names that are no states are left to whoever uses them.
    pub(super) async fn pin<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Result<()> {
        try_join_all(names.into_iter().map(|name| self.basis(name))).await.map(|_| ())
    }

    /// Reads the savepoints of states ahead.
    pub(super) async fn find_savepoints<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        for pin in names.into_iter().filter_map(|name| self.states.get(name)) {
            pin.savepoints.get_or_init(|| pin.reader.inner.snapshot.savepoints()).await;
        }
    }

    /// Looks for the commits that were the newest at the times that [`Self::point`] was asked for in vain; false if there was none.
    pub(super) async fn find_commits(&self) -> bool {
        let mut has_found = false;
        for pin in self.states.values() {
            let is_wanted = |(time, found): (&i64, &Option<_>)| found.is_none().then_some(*time);
            let wanted: Vec<i64> = pin.known_at.lock().iter().filter_map(is_wanted).collect();
            let Some(basis) = pin.basis.get().filter(|_| !wanted.is_empty()) else { continue };
            for time in wanted {
                let found = pin.reader.commit_known_at(basis.log(), time).await;
                pin.known_at.lock().insert(time, Some(found));
                has_found = true;
            }
        }
        has_found
    }

    /// The point that a written one is of a state of which was read ahead what it may name.
    pub(super) fn point(&self, name: &str, named: &NamedPoint) -> Result<Point> {
        if let Some(point) = named.plain() {
            return Ok(point);
        }
        let pin = self.states.get(name).ok_or_else(|| Error::internal("a state is not pinned"))?;
        let again = |error: &Error| Error::new(error.kind(), error.to_string());
        if let Some(time) = named.known_at {
            return match pin.known_at.lock().entry(time).or_default() {
                Some(Ok(commit)) => Ok(named.point.and(Point::at_commit(*commit))),
                Some(Err(error)) => Err(again(error)),
                None => Err(Error::invalid(
                    "known_at needs a statement of its own: a context can't tell the commit, ask Reader::point for it",
                )),
            };
        }
        match pin.savepoints.get() {
            Some(Ok(savepoints)) => named.among(name, savepoints),
            Some(Err(error)) => Err(again(error)),
            None => Err(Error::internal("a savepoint was not looked for before it was named")),
        }
    }

    /// Tells in the span of the statement which states it has pinned, and at which commits, in the same order.
    pub(super) fn tell(&self) {
        let span = tracing::Span::current();
        if span.is_disabled() {
            return;
        }
        let pinned: Vec<(&str, String)> = self
            .states
            .iter()
            .filter_map(|(name, pin)| Some((name.as_str(), pin.basis.get()?.commit().to_string())))
            .collect();
        let (names, commits): (Vec<_>, Vec<_>) = pinned.into_iter().unzip();
        span.record("state", names.join(", ")).record("basis", commits.join(", "));
    }

    async fn basis(&self, name: &str) -> Result<Option<(Reader, Basis)>> {
        let Some(pin) = self.states.get(name) else { return Ok(None) };
        let basis = pin.basis.get_or_try_init(|| pin.reader.hold()).await?;
        Ok(Some((pin.reader.clone(), basis.clone())))
    }

    /// A state that was pinned ahead.
    pub(super) fn pinned(&self, name: &str) -> Result<(Reader, Basis)> {
        let Some(pin) = self.states.get(name) else {
            let similar = self.states.keys().find(|known| known.eq_ignore_ascii_case(name));
            let hint = match similar {
                Some(known) => format!("names keep their case, write '{known}'"),
                None => format!("there are: {}", self.names().join(", ")),
            };
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no state {name:?} ({hint})"),
            ));
        };
        let basis = pin.basis.get().ok_or_else(|| {
            Error::invalid(format!(
                "the state {name:?} must be given to a table function as a 'text' in quotes"
            ))
        })?;
        Ok((pin.reader.clone(), basis.clone()))
    }
}

/// What the tables of a schema show of the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Face {
    Live,
    Log,
    Snapshot,
}

/// The catalog: `public` for the states, `log` and `snapshot` for their raw tables.
#[derive(Debug)]
pub(super) struct StateCatalog {
    pins: Arc<Pins>,
}

impl StateCatalog {
    pub(super) fn new(pins: Arc<Pins>) -> Self {
        Self { pins }
    }
}

impl CatalogProvider for StateCatalog {
    fn schema_names(&self) -> Vec<String> {
        [STATES, LOGS, SNAPSHOTS].map(str::to_owned).to_vec()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let face = match name {
            STATES => Face::Live,
            LOGS => Face::Log,
            SNAPSHOTS => Face::Snapshot,
            _ => return None,
        };
        Some(Arc::new(StateSchema { pins: self.pins.clone(), face }))
    }
}

#[derive(Debug)]
struct StateSchema {
    pins: Arc<Pins>,
    face: Face,
}

#[async_trait]
impl SchemaProvider for StateSchema {
    fn table_names(&self) -> Vec<String> {
        self.pins.names()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        let Some((reader, basis)) = self.pins.basis(name).await.map_err(to_datafusion)? else {
            return Ok(None);
        };
        Ok(Some(match self.face {
            Face::Live => Arc::new(LiveTable::new(reader, basis, Point::LATEST)),
            Face::Log => Arc::new(RawTable::log(reader, basis)),
            Face::Snapshot => Arc::new(RawTable::snapshot(reader, basis)),
        }))
    }

    async fn table_type(&self, name: &str) -> DataFusionResult<Option<TableType>> {
        Ok(self.table_exist(name).then_some(TableType::Base))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.pins.states.contains_key(name)
    }
}
