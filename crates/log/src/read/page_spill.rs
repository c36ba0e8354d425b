//! Rows of decoded pages that had to leave memory, on a disk of this machine, where one row is read without decoding a page.
//!
//! ```text
//! temporary file  [page][page] ..                          four of them, the oldest is given up for a new one
//! page            [slot] x 2^n   [row] ..                  a slot: 4 bytes of the key's hash, 4 of the row's place in the page
//! row             [length: 4][sum: 4][the row in Arrow's row format]
//! ```
//!
//! Pages of Parquet are good for scans and for storage: to have one row of one, all of its rows are decoded, column by column. That is
//! done once or twice, and what a lookup needs of a page later are two small reads. The files have no name, so that nothing is left of
//! them when the process ends, and whatever goes wrong with them is only that a page is decoded again.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use parking_lot::{Mutex, RwLock};

use super::pages::PageId;
use crate::checksum::sum;
use crate::columns::STATE_KEY;
use crate::storage::{read_in_memory, write_at};

/// Rows of pages that left the page cache: at most so many bytes of temporary files.
pub const DEFAULT_PAGE_SPILL_BYTES: u64 = 256 * 1024 * 1024;
/// Temporary files at a time.
const FILES: u64 = 4;
/// What a page takes of a file at least.
const LEAST_BYTES: u64 = 4 * 1024;
const SLOT_BYTES: usize = 8;
/// Slots that are read at once; a key is seldom farther from its own.
const READ_SLOTS: usize = 8;
/// Slots behind the last one that a key may have for its own.
const MORE_SLOTS: usize = 64;
const HEAD_BYTES: usize = 8;
/// Most rows fit in as many bytes, which are read at once.
const READ_BYTES: usize = 512;
/// No row is taken to be longer.
const MAX_ROW_BYTES: usize = 1 << 20;

/// Where the rows of a page are.
#[derive(Debug, Clone)]
struct Place {
    file: Arc<File>,
    start: u64,
    slots: usize,
    shape: Arc<Shape>,
}

/// How rows of a schema are written; types that Arrow's row format doesn't have are not.
#[derive(Debug)]
struct Shape {
    schema: SchemaRef,
    rows: Option<RowConverter>,
}

#[derive(Debug)]
struct Filled {
    file: Arc<File>,
    bytes: u64,
    pages: Vec<PageId>,
}

/// Rows of pages that had to leave memory.
#[derive(Debug)]
pub(super) struct PageSpill {
    folder: PathBuf,
    file_bytes: u64,
    shapes: RwLock<Vec<Arc<Shape>>>,
    places: RwLock<HashMap<PageId, Place>>,
    /// From the oldest to the one that is written.
    files: Mutex<VecDeque<Filled>>,
    /// Nothing is written any more: the disk is full or can't be written.
    has_failed: AtomicBool,
    hits: AtomicU64,
    bytes: AtomicU64,
}

impl PageSpill {
    /// Of at most so many bytes; the first file is made with the first page.
    pub(super) fn new(bytes: u64, folder: PathBuf) -> Self {
        Self {
            folder,
            file_bytes: bytes / FILES,
            shapes: RwLock::default(),
            places: RwLock::default(),
            files: Mutex::default(),
            has_failed: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Lookups that were answered.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Bytes of the temporary files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The row of a key in a page; `None` if only the page itself can tell, also where it has none.
    pub(super) fn row_of(&self, id: PageId, key: &str, schema: &SchemaRef) -> Option<RecordBatch> {
        let place = self.places.read().get(&id).cloned()?;
        let is_same = Arc::ptr_eq(&place.shape.schema, schema) || place.shape.schema == *schema;
        let found = if is_same { place.row_of(key)? } else { return None };
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Writes the rows of a page, unless they are written already.
    pub(super) fn keep(&self, id: PageId, rows: &RecordBatch) {
        if self.has_failed.load(Ordering::Relaxed) || self.places.read().contains_key(&id) {
            return;
        }
        let shape = self.shape_of(rows.schema_ref());
        let Some((slots, image)) = image_of(&shape, rows) else { return };
        if (image.len() as u64).max(LEAST_BYTES) > self.file_bytes {
            return;
        }
        if let Err(error) = self.write(id, &shape, slots, &image) {
            self.has_failed.store(true, Ordering::Relaxed);
            tracing::warn!(folder = %self.folder.display(), %error, "decoded pages can't be written to a temporary file, and are decoded again when they are needed: free space there, or set spill_dir to another folder");
        }
    }

    fn write(
        &self,
        id: PageId,
        shape: &Arc<Shape>,
        slots: usize,
        image: &[u8],
    ) -> std::io::Result<()> {
        // Small pages take as much as this too, which bounds how many places are kept in memory.
        let length = (image.len() as u64).max(LEAST_BYTES);
        let mut files = self.files.lock();
        let has_room = files.back().is_some_and(|last| last.bytes + length <= self.file_bytes);
        if !has_room {
            if files.len() as u64 >= FILES
                && let Some(oldest) = files.pop_front()
            {
                self.bytes.fetch_sub(oldest.bytes, Ordering::Relaxed);
                let mut places = self.places.write();
                oldest.pages.iter().for_each(|page| drop(places.remove(page)));
            }
            let file = Arc::new(tempfile::tempfile_in(&self.folder)?);
            files.push_back(Filled { file, bytes: 0, pages: Vec::new() });
        }
        let Some(last) = files.back_mut() else { return Ok(()) };
        write_at(&last.file, image, last.bytes)?;
        let place =
            Place { file: last.file.clone(), start: last.bytes, slots, shape: shape.clone() };
        last.bytes += length;
        last.pages.push(id);
        self.bytes.fetch_add(length, Ordering::Relaxed);
        self.places.write().insert(id, place);
        Ok(())
    }

    fn shape_of(&self, schema: &SchemaRef) -> Arc<Shape> {
        let known =
            |shapes: &[Arc<Shape>]| shapes.iter().find(|shape| shape.schema == *schema).cloned();
        if let Some(known) = known(&self.shapes.read()) {
            return known;
        }
        let mut shapes = self.shapes.write();
        if let Some(known) = known(&shapes) {
            return known;
        }
        let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
        let rows = RowConverter::new(fields.collect()).ok();
        let shape = Arc::new(Shape { schema: schema.clone(), rows });
        shapes.push(shape.clone());
        shape
    }
}

/// The rows of a page as they are written, and how many slots there are; `None` for what can't be read back one by one.
fn image_of(shape: &Shape, rows: &RecordBatch) -> Option<(usize, Vec<u8>)> {
    let converted = shape.rows.as_ref()?.convert_columns(rows.columns()).ok()?;
    let keys: &StringArray = rows.column_by_name(STATE_KEY)?.as_string_opt()?;
    let slots = (rows.num_rows() * 2).next_power_of_two();
    let table = (slots + MORE_SLOTS) * SLOT_BYTES;
    let mut image = vec![0; table];
    for row in 0..rows.num_rows() {
        let key = keys.value(row);
        // Of a key with several rows all are needed.
        if row > 0 && keys.value(row - 1) == key {
            return None;
        }
        let (own, mark) = slot_of(key, slots);
        let start = u32::try_from(image.len()).ok()?;
        let free = (own..slots + MORE_SLOTS).find(|slot| {
            let at = slot * SLOT_BYTES;
            image[at..at + SLOT_BYTES] == [0; SLOT_BYTES]
        })?;
        let at = free * SLOT_BYTES;
        image[at..at + 4].copy_from_slice(&mark.to_le_bytes());
        image[at + 4..at + SLOT_BYTES].copy_from_slice(&start.to_le_bytes());
        let bytes = converted.row(row);
        let bytes: &[u8] = bytes.as_ref();
        if bytes.len() > MAX_ROW_BYTES {
            return None;
        }
        image.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_le_bytes());
        image.extend_from_slice(&row_sum(bytes));
        image.extend_from_slice(bytes);
    }
    Some((slots, image))
}

/// The slot that a key has for its own, and the part of its hash that tells it from others there.
fn slot_of(key: &str, slots: usize) -> (usize, u32) {
    let hash = sum(key.as_bytes());
    let [a, b, c, d, rest @ ..] = hash.to_le_bytes();
    let own = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(0) & (slots - 1);
    (own, u32::from_le_bytes(rest))
}

fn row_sum(bytes: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = sum(bytes).to_le_bytes();
    [a, b, c, d]
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Place {
    /// The row of a key. That there is none is not told: it is seldom asked for, and slots have no sum.
    fn row_of(&self, key: &str) -> Option<RecordBatch> {
        let (own, mark) = slot_of(key, self.slots);
        let mut slots = [0; READ_SLOTS * SLOT_BYTES];
        let end = self.slots + MORE_SLOTS;
        for first in (own..end).step_by(READ_SLOTS) {
            let count = READ_SLOTS.min(end - first) * SLOT_BYTES;
            self.read(&mut slots[..count], first * SLOT_BYTES)?;
            for slot in slots[..count].chunks_exact(SLOT_BYTES) {
                let start = number(slot, 4)?;
                if start == 0 {
                    return None;
                }
                if number(slot, 0)? != mark {
                    continue;
                }
                let row = self.row_at(start as usize)?;
                let keys: &StringArray = row.column_by_name(STATE_KEY)?.as_string_opt()?;
                if keys.value(0) == key {
                    return Some(row);
                }
            }
        }
        None
    }

    fn row_at(&self, start: usize) -> Option<RecordBatch> {
        let mut short = [0; READ_BYTES];
        let found = self.read_some(&mut short, start)?;
        let length = number(&short[..found], 0)? as usize;
        let sum = short.get(4..HEAD_BYTES)?;
        let long;
        let bytes = match short[..found].get(HEAD_BYTES..HEAD_BYTES + length) {
            Some(bytes) => bytes,
            None if length <= MAX_ROW_BYTES => {
                let mut rest = vec![0; length];
                self.read(&mut rest, start + HEAD_BYTES)?;
                long = rest;
                &long
            }
            None => return None,
        };
        if row_sum(bytes) != *sum {
            tracing::warn!(
                "a temporary file with decoded pages is damaged: the page is decoded again"
            );
            return None;
        }
        let converter = self.shape.rows.as_ref()?;
        let columns = converter.convert_rows([converter.parser().parse(bytes)]).ok()?;
        RecordBatch::try_new(self.shape.schema.clone(), columns).ok()
    }

    fn read(&self, bytes: &mut [u8], at: usize) -> Option<()> {
        (self.read_some(bytes, at)? == bytes.len()).then_some(())
    }

    fn read_some(&self, bytes: &mut [u8], at: usize) -> Option<usize> {
        read_in_memory(&self.file, bytes, self.start + at as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{ArrayRef, Int64Array, StructArray};
    use arrow::datatypes::{DataType, Field, Fields, Schema};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn page(keys: &[String], seed: u64) -> RecordBatch {
        let mut rng = StdRng::seed_from_u64(seed);
        let numbers: Int64Array =
            keys.iter().map(|_| rng.random_bool(0.8).then(|| rng.random())).collect();
        let texts: StringArray = keys
            .iter()
            .map(|key| rng.random_bool(0.8).then(|| key.repeat(rng.random_range(0..40))))
            .collect();
        let fields = Fields::from(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("t", DataType::Utf8, true),
        ]);
        let valid = (0..keys.len()).map(|_| rng.random_bool(0.9)).collect::<Vec<_>>();
        let value = StructArray::new(
            fields.clone(),
            vec![Arc::new(numbers.clone()) as ArrayRef, Arc::new(texts)],
            Some(valid.into()),
        );
        let schema = Schema::new(vec![
            Field::new(STATE_KEY, DataType::Utf8, false),
            Field::new("version", DataType::Int64, true),
            Field::new("state_value", DataType::Struct(fields), true),
        ]);
        let keys = Arc::new(StringArray::from_iter_values(keys));
        RecordBatch::try_new(Arc::new(schema), vec![keys, Arc::new(numbers), Arc::new(value)])
            .unwrap()
    }

    fn some_keys(seed: u64) -> Vec<String> {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = rng.random_range(1..600);
        let mut keys: Vec<String> = (0..count)
            .map(|_| format!("{}é{}", rng.random_range(0..5), rng.random::<u32>()))
            .chain([String::new(), "k".repeat(3_000)])
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn id(page: usize) -> PageId {
        PageId { footer: 1, group: 0, page }
    }

    #[test]
    fn rows_come_back_as_they_were_and_the_oldest_files_are_given_up() {
        let spill = PageSpill::new(400_000, std::env::temp_dir());
        let pages: Vec<_> = (0..40).map(|seed| (some_keys(seed), seed)).collect();
        for (number, (keys, seed)) in pages.iter().enumerate() {
            let rows = page(keys, *seed);
            spill.keep(id(number), &rows);
            assert!(spill.bytes() <= 400_000);
            for (row, key) in keys.iter().enumerate() {
                if let Some(found) = spill.row_of(id(number), key, rows.schema_ref()) {
                    assert_eq!(found, rows.slice(row, 1), "{key:?}");
                }
            }
            assert_eq!(spill.row_of(id(number), "none", rows.schema_ref()), None);
        }
        let is_there = |number: &usize| spill.places.read().contains_key(&id(*number));
        let there: Vec<usize> = (0..pages.len()).filter(is_there).collect();
        assert!(!there.is_empty() && there.len() < pages.len() && there[0] > 0, "{there:?}");
        assert!(spill.hits() > 1_000);
    }

    #[test]
    fn what_is_damaged_is_never_a_row() {
        let keys = some_keys(3);
        let rows = page(&keys, 3);
        let mut rng = StdRng::seed_from_u64(9);
        for _ in 0..300 {
            let spill = PageSpill::new(1 << 24, std::env::temp_dir());
            spill.keep(id(0), &rows);
            let place = spill.places.read().get(&id(0)).cloned().unwrap();
            let at = rng.random_range(0..spill.bytes());
            let mut byte = [0];
            read_in_memory(&place.file, &mut byte, at).unwrap();
            write_at(&place.file, &[byte[0] ^ (1 << rng.random_range(0..8))], at).unwrap();
            for (row, key) in keys.iter().enumerate() {
                if let Some(found) = spill.row_of(id(0), key, rows.schema_ref()) {
                    assert_eq!(found, rows.slice(row, 1), "{key:?}, byte {at}");
                }
            }
        }
    }

    #[test]
    fn pages_with_a_key_twice_and_other_columns_are_left_to_the_page_itself() {
        let spill = PageSpill::new(1 << 20, std::env::temp_dir());
        let twice = page(&["a".to_owned(), "a".to_owned()], 1);
        spill.keep(id(0), &twice);
        assert_eq!(spill.bytes(), 0);
        let rows = page(&["a".to_owned()], 1);
        spill.keep(id(1), &rows);
        assert!(spill.row_of(id(1), "a", rows.schema_ref()).is_some());
        let fewer = rows.project(&[0, 1]).unwrap().schema();
        assert_eq!(spill.row_of(id(1), "a", &fewer), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_only_means_that_nothing_is_kept() {
        let spill = PageSpill::new(1 << 20, "/nowhere/at/all".into());
        let rows = page(&["a".to_owned()], 1);
        spill.keep(id(0), &rows);
        assert_eq!(spill.row_of(id(0), "a", rows.schema_ref()), None);
        assert!(spill.has_failed.load(Ordering::Relaxed));
    }
}
