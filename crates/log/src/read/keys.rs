//! Looking keys up in one file: from the page index to the pages that may hold them, and from these to the rows.
//!
//! The file is sorted by key, so both steps are searches in sorted lists. Few pages are decoded one by one and left in the page
//! cache; many are gone through in one sweep per row group, on a thread for such, and only the wanted rows are kept.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StringArray, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ParquetRecordBatchReaderBuilder, RowSelection, RowSelectionPolicy, RowSelector,
};
use parquet::file::metadata::ParquetMetaData;

use super::breakdown::{decode, decode_all};
use super::fetched::Fetched;
use super::hints::{Leading, ReadHints};
use super::pages::{PageCache, PageId};
use super::ranges::RangeReader;
use super::shape::shape;
use super::{
    BATCH_ROWS, Footer, FooterCache, KeyFilter, ReadSpec, RowFilter, bloom_filters, cache_key,
    check_span, gone, is_small, projection, read_file, remember, unreadable,
};
use crate::columns::STATE_KEY;
use crate::error::{Error, Result};
use crate::table::{DataFile, Table};

/// Pages up to so many are decoded on the thread that asks: it takes well under a millisecond.
const INLINE_PAGES: usize = 4;
/// More keys of a page than these are looked up in the page itself, decoded once for all.
const SPILLED_KEYS: usize = 16;
/// Decoded bytes of a row beside those that are stored.
const ROW_BYTES: u64 = 96;
/// Where a row group has fewer than so many rows for each key, its bloom filter is not asked: nearly every page is read anyway.
const ROWS_PER_ASKED_KEY: usize = 4;

/// The rows of a file that have one of the keys of a spec, whose other conditions hold too. They come in no order.
///
/// The same rows as [`read_file`] gives, which is what reads them where the file is not one of ours or no keys are listed.
pub async fn read_keys(
    table: &Table,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    footers: &Arc<FooterCache>,
    pages: &PageCache,
) -> Result<Vec<RecordBatch>> {
    use futures::TryStreamExt;
    let KeyFilter::Keys(keys) = &spec.filter.keys else {
        return read_file(table, file, spec, footers).await?.try_collect().await;
    };
    let table = file.home(table);
    check_span(table, file, &spec.filter)?;
    if !spec.filter.may_match(file) {
        return Ok(Vec::new());
    }
    let place = || format!("table {}, file {}", table.label(), file.add.path);
    let failed = |error| gone(error, file).context(place());
    let (footer, whole) = open(table, file, footers).await.map_err(failed)?;
    if !file.is_sorted() || !footer.key_pages.is_indexed() {
        return read_file(table, file, spec, footers).await?.try_collect().await;
    }
    let lookup = Lookup::new(footer, file, spec, keys);
    let mut rows = Vec::new();
    for group in 0..lookup.metadata().num_row_groups() {
        let found = lookup.in_group(table, group, whole.as_ref(), pages).await.map_err(failed)?;
        rows.extend(found);
    }
    Ok(rows)
}

/// A file's footer, and all of the file if it was small enough to be fetched with it.
async fn open(
    table: &Table,
    file: &DataFile,
    footers: &FooterCache,
) -> Result<(Arc<Footer>, Option<Bytes>)> {
    if let Some(known) = footers.entries.get(&cache_key(table, file)) {
        return Ok((known, None));
    }
    let mut reader = RangeReader::new(table, file)?;
    if is_small(file) {
        let (bytes, metadata) = reader.load_whole(None).await?;
        return Ok((remember(table, file, footers, metadata), Some(bytes)));
    }
    let metadata = reader.load_metadata().await?;
    Ok((remember(table, file, footers, metadata), None))
}

/// A page that may hold some of the keys: these, by their places among all.
struct WantedPage {
    page: usize,
    rows: Range<usize>,
    keys: Vec<usize>,
}

/// One lookup of keys in one file.
struct Lookup {
    footer: Arc<Footer>,
    file: Arc<DataFile>,
    spec: ReadSpec,
    keys: Arc<[String]>,
    /// What rows are asked beside their key, where the file doesn't tell that all fulfil it.
    rest: Option<RowFilter>,
    leading: Leading,
    columns: ProjectionMask,
}

impl Lookup {
    fn new(
        footer: Arc<Footer>,
        file: &Arc<DataFile>,
        spec: &ReadSpec,
        keys: &Arc<[String]>,
    ) -> Arc<Self> {
        let rest = RowFilter { keys: KeyFilter::All, ..spec.filter.clone() };
        let leading = Leading::of(&ReadHints::default(), &spec.filter, file);
        Arc::new(Self {
            rest: (!rest.matches_all(file)).then_some(rest),
            columns: projection(&footer, file, spec, leading),
            leading,
            footer,
            file: file.clone(),
            spec: spec.clone(),
            keys: keys.clone(),
        })
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.footer.metadata.metadata()
    }

    /// The wanted rows of one row group.
    async fn in_group(
        self: &Arc<Self>,
        table: &Table,
        group: usize,
        whole: Option<&Bytes>,
        cache: &PageCache,
    ) -> Result<Vec<RecordBatch>> {
        let wanted = self.wanted_pages(table, group).await?;
        let schema = self.spec.schema();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for page in wanted {
            let id = self.id_of(group, page.page);
            if let Some(rows) = cache.get(id, &schema) {
                found.extend(self.select(&rows, &page.keys)?);
            } else if let Some(rows) = self.spilled(id, &page.keys, &schema, cache) {
                for row in rows {
                    found.extend(self.fulfilling(row)?);
                }
            } else {
                missing.push(page);
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let fetched = self.fetch(table, group, &missing, whole).await?;
        let (lookup, is_short) = (self.clone(), missing.len() <= INLINE_PAGES);
        let is_small = cache.keeps(self.decoded_bytes(group, &missing));
        let is_kept = |page: &WantedPage| is_small && cache.admits(self.id_of(group, page.page));
        let (kept, passing): (Vec<_>, Vec<_>) = missing.into_iter().partition(is_kept);
        let decode = move || {
            let pages = lookup.decode_pages(group, &kept, &fetched)?;
            Ok((pages, kept, lookup.sweep(group, &passing, fetched)?))
        };
        let (pages, kept, passed) = in_turn(is_short, decode).await?;
        found.extend(passed);
        for (page, rows) in kept.iter().zip(pages) {
            found.extend(self.select(&rows, &page.keys)?);
            cache.insert(self.id_of(group, page.page), rows);
        }
        Ok(found)
    }

    /// The rows of a page that had to leave memory, where there are few to read and all can be.
    fn spilled(
        &self,
        id: PageId,
        keys: &[usize],
        schema: &SchemaRef,
        cache: &PageCache,
    ) -> Option<Vec<RecordBatch>> {
        if keys.len() > SPILLED_KEYS {
            return None;
        }
        keys.iter().map(|&key| cache.spilled(id, &self.keys[key], schema)).collect()
    }

    fn id_of(&self, group: usize, page: usize) -> PageId {
        PageId { footer: self.footer.id, group, page }
    }

    /// The pages of a row group that may hold keys, in order.
    async fn wanted_pages(&self, table: &Table, group: usize) -> Result<Vec<WantedPage>> {
        let Some(pages) = self.footer.key_pages.of_group(self.metadata(), group) else {
            return Err(Error::internal("a row group without an index of its pages"));
        };
        let (least, greatest) = pages.bounds();
        let from = self.keys.partition_point(|key| key.as_bytes() < least);
        let to = self.keys.partition_point(|key| key.as_bytes() <= greatest);
        if from >= to {
            return Ok(Vec::new());
        }
        let ask = (to - from).saturating_mul(ROWS_PER_ASKED_KEY) < pages.rows();
        let blooms = match ask {
            true => Some(bloom_filters(&self.footer, self.range_reader(table)?).await?),
            false => None,
        };
        let bloom = blooms.as_ref().and_then(|blooms| blooms.get(group)?.as_ref());
        let mut wanted: Vec<WantedPage> = Vec::new();
        let mut at = 0;
        for place in from..to {
            let key = self.keys[place].as_str();
            if bloom.is_some_and(|bloom| !bloom.check(&key)) {
                continue;
            }
            at = pages.seek(at, key.as_bytes());
            let reaches = |page: &usize| !pages.begins_after(*page, key.as_bytes());
            for page in (at..pages.count()).take_while(reaches) {
                match wanted.last_mut() {
                    Some(last) if last.page == page => last.keys.push(place),
                    // The rows of a key may go on in the next page, where a later key of the page before was noted too.
                    Some(last) if last.page > page => {
                        let known = wanted.iter_mut().rev().find(|known| known.page == page);
                        known.into_iter().for_each(|known| known.keys.push(place));
                    }
                    _ => wanted.push(WantedPage {
                        page,
                        rows: pages.rows_of(page),
                        keys: vec![place],
                    }),
                }
            }
        }
        Ok(wanted)
    }

    fn range_reader(&self, table: &Table) -> Result<RangeReader> {
        let reader = RangeReader::new(table, &self.file)?;
        Ok(reader.with_blocks(self.footer.blocks.clone()))
    }

    /// The bytes that the decoded pages take, about.
    fn decoded_bytes(&self, group: usize, pages: &[WantedPage]) -> u64 {
        let group = self.metadata().row_group(group);
        let rows: u64 = pages.iter().map(|page| page.rows.len() as u64).sum();
        let stored = u64::try_from(group.total_byte_size()).unwrap_or(0);
        let all = u64::try_from(group.num_rows()).unwrap_or(1).max(1);
        rows * (ROW_BYTES + stored / all)
    }

    /// The bytes of all columns' pages that hold rows of some pages of the key.
    async fn fetch(
        &self,
        table: &Table,
        group: usize,
        pages: &[WantedPage],
        whole: Option<&Bytes>,
    ) -> Result<Fetched> {
        if let Some(bytes) = whole {
            return Ok(Fetched::whole(bytes.clone()));
        }
        let ranges = self.byte_ranges(group, pages)?;
        let bytes = self.range_reader(table)?.fetch_pages(&ranges).await?;
        Ok(Fetched::parts(self.file.add.size, ranges.iter().map(|range| range.start).zip(bytes)))
    }

    /// Where these bytes lie; neighbours are one range.
    fn byte_ranges(&self, group: usize, pages: &[WantedPage]) -> Result<Vec<Range<u64>>> {
        let incomplete = || Error::corrupt("the index of a file's pages is incomplete");
        let metadata = self.metadata();
        let offsets =
            metadata.offset_index().and_then(|all| all.get(group)).ok_or_else(incomplete)?;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut add = |range: Range<u64>| match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            Some(last) if last.start <= range.start && range.end <= last.end => {}
            _ => ranges.push(range),
        };
        for (leaf, offsets) in
            offsets.iter().enumerate().filter(|(leaf, _)| self.columns.leaf_included(*leaf))
        {
            let locations = offsets.page_locations();
            let range_of = |page: usize| -> Option<Range<u64>> {
                let location = locations.get(page)?;
                let start = u64::try_from(location.offset).ok()?;
                Some(start..start + u64::try_from(location.compressed_page_size).ok()?)
            };
            let start = metadata.row_group(group).column(leaf).byte_range().0;
            let first = range_of(0).ok_or_else(incomplete)?;
            if start < first.start {
                // The dictionary.
                add(start..first.start);
            }
            let mut next = 0;
            for page in pages {
                let begins = |at: usize| {
                    locations.get(at).map_or(usize::MAX, |location| {
                        usize::try_from(location.first_row_index).unwrap_or(usize::MAX)
                    })
                };
                while next < locations.len() && begins(next + 1) <= page.rows.start {
                    next += 1;
                }
                let mut at = next;
                while at < locations.len() && begins(at) < page.rows.end {
                    add(range_of(at).ok_or_else(incomplete)?);
                    at += 1;
                }
            }
        }
        Ok(ranges)
    }

    fn reader(
        &self,
        group: usize,
        selection: RowSelection,
        batch_rows: usize,
        fetched: Fetched,
    ) -> Result<impl Iterator<Item = Result<RecordBatch>> + use<>> {
        let metadata = self.footer.metadata.clone();
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(fetched, metadata)
            .with_projection(self.columns.clone())
            .with_batch_size(batch_rows)
            .with_row_groups(vec![group])
            // The bytes of what is skipped are not there.
            .with_row_selection_policy(RowSelectionPolicy::Selectors)
            .with_row_selection(selection);
        Ok(decode_all(decode(|| Ok(builder.build()?))?, unreadable))
    }

    /// Whole pages in the shape of a fold, each with memory of its own.
    fn decode_pages(
        &self,
        group: usize,
        pages: &[WantedPage],
        fetched: &Fetched,
    ) -> Result<Vec<RecordBatch>> {
        let decode = |page: &WantedPage| {
            let selection = RowSelection::from(vec![
                RowSelector::skip(page.rows.start),
                RowSelector::select(page.rows.len()),
            ]);
            let mut batches = self.reader(group, selection, page.rows.len(), fetched.clone())?;
            let rows = batches.next().transpose()?;
            let rows = rows.filter(|rows| rows.num_rows() == page.rows.len());
            let rows =
                rows.ok_or_else(|| Error::corrupt("a page has fewer rows than its index says"))?;
            self.shaped(&rows)
        };
        pages.iter().map(decode).collect()
    }

    /// The wanted rows of many pages, of which nothing else is kept.
    fn sweep(
        &self,
        group: usize,
        pages: &[WantedPage],
        fetched: Fetched,
    ) -> Result<Vec<RecordBatch>> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let mut selectors = Vec::with_capacity(pages.len() * 2);
        let mut end = 0;
        for page in pages {
            selectors.push(RowSelector::skip(page.rows.start - end));
            selectors.push(RowSelector::select(page.rows.len()));
            end = page.rows.end;
        }
        let mut keys: Vec<usize> =
            pages.iter().flat_map(|page| page.keys.iter().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut found = Vec::new();
        for batch in self.reader(group, RowSelection::from(selectors), BATCH_ROWS, fetched)? {
            let batch = batch?;
            let column = batch.column_by_name(STATE_KEY).and_then(|column| column.as_string_opt());
            let Some(column) = column else {
                return Err(Error::corrupt("the column of keys is missing or no text"));
            };
            // All keys before this batch's first one are done with.
            let first = if column.is_empty() { "" } else { column.value(0) };
            let done = keys.partition_point(|&key| self.keys[key].as_str() < first);
            let wanted = keys[done..].iter().map(|&key| self.keys[key].as_str());
            if let Some(rows) = take(&batch, places_of(column, wanted))? {
                found.extend(self.fulfilling(self.shaped(&rows)?)?);
            }
        }
        Ok(found)
    }

    fn shaped(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        shape(rows, &self.file, &self.spec, self.leading, self.footer.only_upserts)
    }

    /// Of a page in the shape of a fold the rows of keys, copied: what is looked up must not hold on to pages.
    fn select(&self, page: &RecordBatch, keys: &[usize]) -> Result<Option<RecordBatch>> {
        let column = page.column(0).as_string::<i32>();
        let wanted = keys.iter().map(|&key| self.keys[key].as_str());
        match take(page, places_of(column, wanted))? {
            Some(rows) => self.fulfilling(rows),
            None => Ok(None),
        }
    }

    /// Of rows those that fulfil what is asked beside their keys.
    fn fulfilling(&self, rows: RecordBatch) -> Result<Option<RecordBatch>> {
        let Some(rest) = &self.rest else { return Ok(Some(rows)) };
        let rows = filter_record_batch(&rows, &rest.mask(&rows)?)?;
        Ok((rows.num_rows() > 0).then_some(rows))
    }
}

/// Runs decoding here if it is short, else on a thread for such, beside that of other files.
async fn in_turn<T: Send + 'static>(
    is_short: bool,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if is_short {
        return work();
    }
    let aborted = |error| Error::internal("decoding pages was aborted").with_source(error);
    tokio::task::spawn_blocking(work).await.map_err(aborted)?
}

/// The places of sorted keys in a sorted column, by steps that double until they are too wide.
fn places_of<'a>(column: &StringArray, keys: impl Iterator<Item = &'a str>) -> Vec<u32> {
    let (mut places, mut at) = (Vec::new(), 0);
    for key in keys {
        let (mut low, mut step) = (at, 1);
        while low + step <= column.len() && column.value(low + step - 1) < key {
            low += step;
            step *= 2;
        }
        let mut high = column.len().min(low + step);
        while low < high {
            let middle = low + (high - low) / 2;
            match column.value(middle) < key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        at = low;
        while at < column.len() && column.value(at) == key {
            places.push(u32::try_from(at).unwrap_or(u32::MAX));
            at += 1;
        }
        if at >= column.len() {
            break;
        }
    }
    places
}

fn take(rows: &RecordBatch, places: Vec<u32>) -> Result<Option<RecordBatch>> {
    if places.is_empty() {
        return Ok(None);
    }
    Ok(Some(take_record_batch(rows, &UInt32Array::from(places))?))
}

#[cfg(test)]
mod tests;
