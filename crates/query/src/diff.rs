//! The difference of two points, key by key: two scans in order of keys, walked side by side.

use std::sync::Arc;

use alluvium_log::{
    EVENT_TIME, Error, FOLD_COLUMNS, KeyFilter, ReadSpec, Result, RowFilter, STATE_KEY,
    StateDefinition, VERSION, event_time_type, read_file,
};
use alluvium_materializer::{BatchStream, whole_value};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt, stream};

use crate::basis::Basis;
use crate::point::Point;
use crate::reader::Reader;

/// Rows of a batch of differences at most.
const BATCH_ROWS: usize = 4_096;
/// Two points that differ by commit only are compared by looking at the keys changed between, up to so many rows.
const CHANGED_ROWS: u64 = 100_000;

/// The columns of a difference.
///
/// `state_key`; `change`: `inserted`, `updated` or `deleted`; `before` and `after`: the values, null where there is none; then
/// `version` and `event_time` of the value after, or of the one before when it was deleted. A key whose value is the same at both points is not
/// listed, whatever its version.
pub fn diff_schema(definition: &StateDefinition) -> SchemaRef {
    let value = DataType::Struct(definition.stored_fields());
    Arc::new(Schema::new(vec![
        Field::new(STATE_KEY, DataType::Utf8, false),
        Field::new("change", DataType::Utf8, false),
        Field::new("before", value.clone(), true),
        Field::new("after", value, true),
        Field::new(VERSION, DataType::Int64, false),
        Field::new(EVENT_TIME, event_time_type(), false),
    ]))
}

impl Reader {
    /// What changed from one point to another, in order of keys.
    #[tracing::instrument(name = "diff", level = "debug", skip_all, fields(state = self.name(), basis = basis.commit(), from = %from, to = %to), err(level = "debug"))]
    pub async fn diff_rows(
        &self,
        basis: &Basis,
        from: Point,
        to: Point,
        keys: KeyFilter,
    ) -> Result<BatchStream> {
        let keys = match self.changed_keys(basis, from, to).await? {
            Some(changed) => changed.intersect(&keys),
            None => keys,
        };
        let payload = whole_value(&basis.definition);
        let mut before = self.scan(basis, from, keys.clone(), payload.clone(), 1).await?;
        let mut after = self.scan(basis, to, keys, payload, 1).await?;
        let (Some(before), Some(after)) = (before.pop(), after.pop()) else {
            return Err(Error::internal("a scan without a partition"));
        };
        let walk = Walk {
            before: Side::new(before),
            after: Side::new(after),
            schema: diff_schema(&basis.definition),
        };
        let batches = stream::try_unfold(walk, |mut walk| async move {
            Ok::<_, Error>(walk.next_batch().await?.map(|batch| (batch, walk)))
        });
        Ok(batches.boxed())
    }

    /// The keys changed between two points that differ by commit only, when they are few.
    async fn changed_keys(
        &self,
        basis: &Basis,
        from: Point,
        to: Point,
    ) -> Result<Option<KeyFilter>> {
        let same = |a: Point, b: Point| a.version == b.version && a.event_time == b.event_time;
        if !same(from, to) {
            return Ok(None);
        }
        basis.check(from)?;
        basis.check(to)?;
        let commit = |point: Point| point.commit.unwrap_or(basis.commit());
        let (first, last) = (commit(from).min(commit(to)), commit(from).max(commit(to)));
        if basis.lacks_changes_after(first) {
            // Which keys were changed is not told any more; the states may be there all the same.
            return Ok(None);
        }
        let filter = RowFilter {
            after_commit: Some(first),
            up_to_commit: Some(last),
            ..RowFilter::default()
        };
        let files = self.log_files(basis, &filter).await?;
        if crate::scan::log_rows(&files) > CHANGED_ROWS {
            return Ok(None);
        }
        let spec = ReadSpec { payload: Vec::new(), filter };
        let mut keys = Vec::new();
        for file in files {
            let mut batches = read_file(self.log_table(), &file, &spec, self.footers()).await?;
            while let Some(batch) = batches.try_next().await? {
                let column = crate::reader::key_column(&batch)?;
                keys.extend(column.iter().flatten().map(str::to_owned));
            }
        }
        Ok(Some(KeyFilter::keys(keys)))
    }
}

/// One of the two scans, at one of its rows.
struct Side {
    rows: BatchStream,
    batches: Vec<RecordBatch>,
    row: usize,
    ended: bool,
}

impl Side {
    fn new(rows: BatchStream) -> Self {
        Self { rows, batches: Vec::new(), row: 0, ended: false }
    }

    /// Makes sure that the current row is there; batches already used stay until the differences are written.
    async fn fill(&mut self) -> Result<()> {
        while !self.ended && self.batches.last().is_none_or(|batch| self.row >= batch.num_rows()) {
            match self.rows.try_next().await? {
                Some(batch) => {
                    self.batches.push(batch);
                    self.row = 0;
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    fn key(&self) -> Option<&str> {
        if self.ended {
            return None;
        }
        let batch = self.batches.last()?;
        Some(batch.columns().first()?.as_string::<i32>().value(self.row))
    }

    fn place(&self) -> (usize, usize) {
        (self.batches.len().saturating_sub(1), self.row)
    }

    fn value(&self) -> Option<ArrayRef> {
        self.batches.last()?.columns().get(FOLD_COLUMNS).map(|column| column.slice(self.row, 1))
    }

    /// Drops the batches that are used up.
    fn forget(&mut self) {
        let last = self.batches.pop();
        self.batches.clear();
        self.batches.extend(last);
    }

    /// The values of a column at some places; no place gives null.
    fn gather(
        &self,
        index: usize,
        data_type: &DataType,
        places: &[Option<(usize, usize)>],
    ) -> Result<ArrayRef> {
        let null = new_null_array(data_type, 1);
        let mut arrays: Vec<&dyn Array> = vec![null.as_ref()];
        for batch in &self.batches {
            let column = batch.columns().get(index);
            arrays.push(column.ok_or_else(|| Error::internal("a scan lacks a column"))?.as_ref());
        }
        let indices: Vec<(usize, usize)> = places
            .iter()
            .map(|place| place.map_or((0, 0), |(batch, row)| (batch + 1, row)))
            .collect();
        Ok(interleave(&arrays, &indices)?)
    }
}

/// Both scans, walked in order of keys.
struct Walk {
    before: Side,
    after: Side,
    schema: SchemaRef,
}

/// The places of one key in both scans.
type Places = (Option<(usize, usize)>, Option<(usize, usize)>);

impl Walk {
    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.before.forget();
        self.after.forget();
        let mut found: Vec<Places> = Vec::new();
        loop {
            // Stop before a batch is dropped that differences still refer to in great number.
            if found.len() >= BATCH_ROWS || (!found.is_empty() && self.holds_much()) {
                break;
            }
            self.before.fill().await?;
            self.after.fill().await?;
            let order = match (self.before.key(), self.after.key()) {
                (None, None) => break,
                (Some(a), Some(b)) => a.cmp(b),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
            };
            let (before, after) = (self.before.place(), self.after.place());
            if order.is_lt() {
                found.push((Some(before), None));
            } else if order.is_gt() {
                found.push((None, Some(after)));
            } else if self.before.value() != self.after.value() {
                found.push((Some(before), Some(after)));
            }
            self.before.row += usize::from(order.is_le());
            self.after.row += usize::from(order.is_ge());
            if found.is_empty() {
                self.drop_used();
            }
        }
        if found.is_empty() { Ok(None) } else { self.write(&found).map(Some) }
    }

    fn holds_much(&self) -> bool {
        self.before.batches.len() + self.after.batches.len() > 16
    }

    fn drop_used(&mut self) {
        for side in [&mut self.before, &mut self.after] {
            if side.batches.len() > 1 {
                side.forget();
            }
        }
    }

    fn write(&self, found: &[Places]) -> Result<RecordBatch> {
        let before: Vec<_> = found.iter().map(|places| places.0).collect();
        let after: Vec<_> = found.iter().map(|places| places.1).collect();
        let changes: StringArray = found
            .iter()
            .map(|places| {
                Some(match places {
                    (None, _) => "inserted",
                    (_, None) => "deleted",
                    _ => "updated",
                })
            })
            .collect();
        let either = |index: usize| -> Result<ArrayRef> {
            let field = match index {
                0 => self.schema.field(0),
                1 => self.schema.field(4),
                _ => self.schema.field(5),
            };
            let old = self.before.gather(index, field.data_type(), &before)?;
            let new = self.after.gather(index, field.data_type(), &after)?;
            let rows: Vec<(usize, usize)> = after
                .iter()
                .enumerate()
                .map(|(row, place)| (usize::from(place.is_some()), row))
                .collect();
            Ok(interleave(&[old.as_ref(), new.as_ref()], &rows)?)
        };
        let value = self.schema.field(2).data_type();
        let columns = vec![
            either(0)?,
            Arc::new(changes) as ArrayRef,
            self.before.gather(FOLD_COLUMNS, value, &before)?,
            self.after.gather(FOLD_COLUMNS, value, &after)?,
            either(1)?,
            either(2)?,
        ];
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}
