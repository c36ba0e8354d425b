//! What a Parquet file of another writer claims, held against the file before anything is decoded by it. Files with checksums are as
//! we wrote them, and need none of this.
//!
//! The decoder makes room for as many row groups, pages and bytes as it is told of, and goes on until the rows that it is told of
//! have come. So lists must fit into the bytes that they are in, columns and indexes into the file, pages into what their bytes can
//! unfold to, and rows must be as many as the log says.

use std::ops::Range;

use arrow::array::RecordBatch;
use bytes::Bytes;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
};

use super::fetched::Fetched;
use super::ranges::RangeReader;
use super::thrift::Walker;
use crate::error::{Error, Result};

/// Bytes at the end of a file that are fetched with the first request: most footers and page indexes fit.
const TAIL_BYTES: u64 = 64 * 1024;
/// The length of the footer, and the mark behind it.
const END_BYTES: usize = 8;
/// A page may unfold to so many bytes whatever it has.
const PAGE_BYTES: i64 = 64 * 1024 * 1024;
/// Or to so many times its own bytes. A page of one value repeated becomes as small as that.
const UNFOLDING: i64 = 1_000;

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("the Parquet file can't be read: {what}"))
}

/// The footer and the page index of a file that says how they are to be read, fetched by `reader`.
pub(super) async fn load(reader: &RangeReader, size: u64) -> Result<ParquetMetaData> {
    let mut start = size.saturating_sub(TAIL_BYTES);
    let mut tail = reader.fetch_one(start..size).await?;
    let footer = footer_range(size, &tail)?;
    if footer.start < start {
        (start, tail) = (footer.start, reader.fetch_one(footer.start..size).await?);
    }
    let metadata = parse_footer(size, start, &tail)?;
    let mut parts = vec![(start, tail.clone())];
    if let Some(indexes) = index_range(&metadata)?.filter(|indexes| indexes.start < start) {
        let end = indexes.end.max(start);
        // One piece with the tail, since the decoder asks for all indexes at once.
        let before = reader.fetch_one(indexes.start..end).await?;
        let behind = tail.slice(usize::try_from(end - start).unwrap_or(tail.len())..);
        parts = vec![(indexes.start, Bytes::from([before, behind].concat()))];
    }
    parse(&metadata, size, parts)
}

/// The same of a file that is there as a whole, whose pages are looked at too.
pub(super) fn of_whole(bytes: &Bytes) -> Result<ParquetMetaData> {
    let size = bytes.len() as u64;
    let metadata = parse_footer(size, 0, bytes)?;
    check_all_pages(&metadata, bytes)?;
    parse(&metadata, size, vec![(0, bytes.clone())])
}

/// Looks at the pages of a file that is there as a whole.
pub(super) fn check_all_pages(metadata: &ParquetMetaData, bytes: &[u8]) -> Result<()> {
    for chunk in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        check_pages(slice(0, bytes, &chunk_range(chunk)?)?)?;
    }
    Ok(())
}

fn slice<'a>(start: u64, bytes: &'a [u8], range: &Range<u64>) -> Result<&'a [u8]> {
    let place = |at: u64| at.checked_sub(start).and_then(|at| usize::try_from(at).ok());
    let found = place(range.start).zip(place(range.end)).and_then(|(a, b)| bytes.get(a..b));
    found.ok_or_else(|| wrong(format_args!("it has no bytes {} to {}", range.start, range.end)))
}

/// Where the footer lies, by the last bytes of the file.
fn footer_range(size: u64, tail: &[u8]) -> Result<Range<u64>> {
    let mark: Option<&[u8; END_BYTES]> = tail.last_chunk();
    let Some(&[a, b, c, d, b'P', b'A', b'R', b'1']) = mark else {
        return Err(wrong("its end is not that of a Parquet file"));
    };
    let end = size - END_BYTES as u64;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let start = end.checked_sub(length).ok_or_else(|| wrong("its footer is longer than it"))?;
    Ok(start..end)
}

/// Reads the footer alone; `tail` are the file's last bytes, from `start` on.
fn parse_footer(size: u64, start: u64, tail: &Bytes) -> Result<ParquetMetaData> {
    let footer = footer_range(size, tail)?;
    Walker::new(slice(start, tail, &footer)?).pass_struct(&mut |_, _| {})?;
    let fetched = Fetched::parts(size, [(start, tail.clone())].into_iter());
    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Skip)
        .parse_and_finish(&fetched)?;
    check_footer(&metadata, size)?;
    Ok(metadata)
}

/// Reads footer and page index, once the index is known to be one.
fn parse(
    metadata: &ParquetMetaData,
    size: u64,
    parts: Vec<(u64, Bytes)>,
) -> Result<ParquetMetaData> {
    for chunk in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        for range in indexes_of(chunk)?.into_iter().flatten() {
            let holds = |(start, bytes): &&(u64, Bytes)| {
                *start <= range.start && range.end <= *start + bytes.len() as u64
            };
            let part = parts.iter().find(holds);
            let (start, bytes) = part.ok_or_else(|| wrong("its page indexes lie apart"))?;
            Walker::new(slice(*start, bytes, &range)?).pass_struct(&mut |_, _| {})?;
        }
    }
    let fetched = Fetched::parts(size, parts.into_iter());
    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Optional)
        .parse_and_finish(&fetched)?;
    check_page_places(&metadata)?;
    Ok(metadata)
}

/// Rows and columns against the file.
fn check_footer(metadata: &ParquetMetaData, size: u64) -> Result<()> {
    let mut rows = 0_i64;
    for group in metadata.row_groups() {
        let of_group = Some(group.num_rows()).filter(|rows| *rows >= 0);
        rows = of_group
            .and_then(|of_group| rows.checked_add(of_group))
            .ok_or_else(|| wrong("a row group's number of rows is none"))?;
        for chunk in group.columns() {
            if chunk_range(chunk)?.end > size {
                return Err(wrong(format_args!("the column {} ends beyond it", name_of(chunk))));
            }
            let is_flat = chunk.column_descr().max_rep_level() == 0;
            let values = chunk.num_values();
            if values < 0 || (is_flat && values != group.num_rows()) {
                return Err(wrong(format_args!(
                    "the column {} has {values} values for {} rows",
                    name_of(chunk),
                    group.num_rows()
                )));
            }
            if let Some(beyond) = indexes_of(chunk)?.into_iter().flatten().find(|at| at.end > size)
            {
                return Err(wrong(format_args!("a page index ends at {}, beyond it", beyond.end)));
            }
        }
    }
    let told = metadata.file_metadata().num_rows();
    match told == rows {
        true => Ok(()),
        false => Err(wrong(format_args!("it says {told} rows, and its row groups have {rows}"))),
    }
}

/// The places of pages within their columns, and their rows in order.
fn check_page_places(metadata: &ParquetMetaData) -> Result<()> {
    let Some(indexes) = metadata.offset_index() else { return Ok(()) };
    for (group, columns) in metadata.row_groups().iter().zip(indexes) {
        for (chunk, pages) in group.columns().iter().zip(columns) {
            let range = chunk_range(chunk)?;
            let mut before: Option<i64> = None;
            for page in pages.page_locations() {
                let start = u64::try_from(page.offset).ok();
                let length = u64::try_from(page.compressed_page_size).ok();
                let end = start.zip(length).and_then(|(start, length)| start.checked_add(length));
                let is_inside = start.is_some_and(|start| start >= range.start)
                    && end.is_some_and(|end| end <= range.end);
                let first = page.first_row_index;
                let follows = before.map_or(first == 0, |before| first >= before);
                if !is_inside || !follows || first > group.num_rows() {
                    return Err(wrong(format_args!("a page of {} has no place", name_of(chunk))));
                }
                before = Some(first);
            }
        }
    }
    Ok(())
}

fn name_of(chunk: &ColumnChunkMetaData) -> String {
    chunk.column_path().string()
}

fn place(start: i64, length: i64) -> Option<Range<u64>> {
    let (start, length) = (u64::try_from(start).ok()?, u64::try_from(length).ok()?);
    Some(start..start.checked_add(length)?)
}

/// The bytes of a column in a row group.
fn chunk_range(chunk: &ColumnChunkMetaData) -> Result<Range<u64>> {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let range = place(start, chunk.compressed_size());
    range.ok_or_else(|| wrong(format_args!("the column {} has no place", name_of(chunk))))
}

/// The bytes of a column's two indexes.
fn indexes_of(chunk: &ColumnChunkMetaData) -> Result<[Option<Range<u64>>; 2]> {
    let found = |offset: Option<i64>, length: Option<i32>| match offset.zip(length) {
        None => Ok(None),
        Some((offset, length)) => place(offset, i64::from(length))
            .map(Some)
            .ok_or_else(|| wrong(format_args!("an index of {} has no place", name_of(chunk)))),
    };
    Ok([
        found(chunk.column_index_offset(), chunk.column_index_length())?,
        found(chunk.offset_index_offset(), chunk.offset_index_length())?,
    ])
}

/// The bytes from the first index of pages to the end of the last one.
fn index_range(metadata: &ParquetMetaData) -> Result<Option<Range<u64>>> {
    let mut all: Option<Range<u64>> = None;
    for chunk in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        for range in indexes_of(chunk)?.into_iter().flatten() {
            all = Some(match all {
                Some(all) => all.start.min(range.start)..all.end.max(range.end),
                None => range,
            });
        }
    }
    Ok(all)
}

/// Pages that follow each other: none may unfold to more than its bytes can.
pub(super) fn check_pages(mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let (mut unfolded, mut stored, mut values) = (-1, -1, 0);
        let mut walker = Walker::new(bytes);
        walker.pass_struct(&mut |path, number| match path {
            [2] => unfolded = number,
            [3] => stored = number,
            // Of a dictionary.
            [7, 1] => values = number,
            _ => {}
        })?;
        let page = usize::try_from(stored).ok().and_then(|stored| walker.rest().get(stored..));
        let rest = page.ok_or_else(|| wrong("a page ends beyond its column"))?;
        let most = PAGE_BYTES.max(stored.saturating_mul(UNFOLDING));
        if !(0..=most).contains(&unfolded) || !(0..=unfolded).contains(&values) {
            return Err(wrong(format_args!(
                "a page of {stored} bytes claims to be {unfolded} with {values} values in its dictionary"
            )));
        }
        bytes = rest;
    }
    Ok(())
}

/// Refuses the rows that row groups have beyond those that the footer tells of: pages say on their own how many they have.
pub(super) fn counted(
    metadata: &ParquetMetaData,
    row_groups: &[usize],
) -> impl FnMut(RecordBatch) -> Result<RecordBatch> + Send + use<> {
    let rows = row_groups.iter().map(|&group| metadata.row_group(group).num_rows());
    let mut left = rows.fold(0_i64, i64::saturating_add);
    move |batch| {
        left = left.saturating_sub(i64::try_from(batch.num_rows()).unwrap_or(i64::MAX));
        match left < 0 {
            true => Err(wrong("its pages have more rows than its footer says")),
            false => Ok(batch),
        }
    }
}

/// The metadata of a file of which the log says how many rows it has.
pub(super) fn check_rows(metadata: &ParquetMetaData, told: Option<u64>) -> Result<()> {
    let rows = u64::try_from(metadata.file_metadata().num_rows()).ok();
    match told {
        Some(told) if rows != Some(told) => Err(wrong(format_args!(
            "it has {} rows, and the log says {told}",
            metadata.file_metadata().num_rows()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn the_decoder_gives_errors_for_ever_so_that_the_first_one_has_to_end_it() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let mut bytes = writer.into_inner().unwrap();
        // In the header of the first page.
        bytes[4] = 0xff;
        let bytes = Bytes::from(bytes);
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
        let errors = reader.build().unwrap().take(1_000).filter(|batch| batch.is_err()).count();
        assert_eq!(errors, 1_000);
        assert!(of_whole(&bytes).is_err());
    }

    /// A page with a header: its size decompressed and stored, and the values of its dictionary.
    fn page(unfolded: &[u8], stored: &[u8], values: Option<&[u8]>, bytes: usize) -> Vec<u8> {
        let mut page = [&[0x15, 4, 0x15][..], unfolded, &[0x15], stored].concat();
        if let Some(values) = values {
            // Field 7, a struct, whose first field it is.
            page.extend([&[0x4c, 0x15][..], values, &[0]].concat());
        }
        page.push(0);
        page.resize(page.len() + bytes, 7);
        page
    }

    #[test]
    fn pages_unfold_to_what_their_bytes_can() {
        let small = page(&[80], &[40], None, 20);
        let with_dictionary = page(&[80], &[40], Some(&[80]), 20);
        let pages = [small.clone(), with_dictionary, small.clone()].concat();
        assert!(check_pages(&pages).is_ok());
        assert!(check_pages(&[]).is_ok());
        // 64 MiB of 20 bytes, and 2 GiB of as many.
        assert!(check_pages(&page(&[0x80, 0x80, 0x80, 0x40], &[40], None, 20)).is_ok());
        let bomb = page(&[0xfe, 0xff, 0xff, 0xff, 0x0f], &[40], None, 20);
        assert!(check_pages(&bomb).is_err());
        assert!(check_pages(&[small.clone(), bomb].concat()).is_err());
        // Less than nothing, more than there is, more values than bytes, no end.
        assert!(check_pages(&page(&[79], &[40], None, 20)).is_err());
        assert!(check_pages(&page(&[80], &[42], None, 20)).is_err());
        assert!(check_pages(&page(&[80], &[40], Some(&[82]), 20)).is_err());
        assert!(check_pages(&small[..6]).is_err());
        assert!(check_pages(&[&small[..], &[0]].concat()).is_err());
    }
}
