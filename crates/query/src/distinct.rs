//! Log rows that another engine's rewriting has put into two files, told once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use alluvium_log::{DataFile, Error, Rank, Result, STATE_VALUE};
use alluvium_materializer::rank;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;

/// The column of the rows of a history that names what brought a row.
const APPEND: usize = 7;

/// What tells a row from every other one: of rows that we appended, the append and the place among its ties; of others, the
/// commit, and what they hold.
type Identity<'a> = (&'a str, i64, i64, bool, i32, Option<&'a str>, Option<i64>);

/// Of rows that are in several of these files, each one once, with the commit that is known best.
pub(crate) fn distinct(rows: RecordBatch, files: &[Arc<DataFile>]) -> Result<RecordBatch> {
    if !files.iter().any(|file| file.may_double_rows()) {
        return Ok(rows);
    }
    let are_exact = files.iter().all(|file| file.commits.are_exact());
    let keys = crate::reader::key_column(&rows)?;
    let append_ids = rows.columns().get(APPEND).and_then(|column| column.as_string_opt::<i32>());
    let append_ids =
        append_ids.ok_or_else(|| Error::internal("a history lacks what brought its rows"))?;
    let values = rows
        .column_by_name(STATE_VALUE)
        .ok_or_else(|| Error::internal("a history lacks the values of its rows"))?;
    let ranks = (0..rows.num_rows()).map(|row| rank(&rows, row)).collect::<Result<Vec<Rank>>>()?;
    let mut known: HashMap<Identity<'_>, Vec<usize>> = HashMap::new();
    for (row, rank) in ranks.iter().enumerate() {
        let append = append_ids.is_valid(row).then(|| append_ids.value(row));
        let commit = (append.is_none() && are_exact).then_some(rank.commit);
        let identity = (
            keys.value(row),
            rank.version,
            rank.event_time,
            rank.is_delete,
            rank.append_seq,
            append,
            commit,
        );
        match known.entry(identity) {
            Entry::Vacant(entry) => {
                entry.insert(vec![row]);
            }
            Entry::Occupied(mut entry) => {
                let is_same = |other: &usize| append.is_some() || same(values, row, *other);
                match entry.get_mut().iter_mut().find(|other| is_same(other)) {
                    // Where a commit isn't known, the greatest is told that it may be.
                    Some(other) if rank.commit < ranks[*other].commit => *other = row,
                    Some(_) => {}
                    None => entry.get_mut().push(row),
                }
            }
        }
    }
    let mut kept: Vec<u32> = known.into_values().flatten().map(|row| row as u32).collect();
    kept.sort_unstable();
    match kept.len() == rows.num_rows() {
        true => Ok(rows),
        false => Ok(take_record_batch(&rows, &UInt32Array::from(kept))?),
    }
}

fn same(values: &ArrayRef, row: usize, other: usize) -> bool {
    values.slice(row, 1) == values.slice(other, 1)
}
