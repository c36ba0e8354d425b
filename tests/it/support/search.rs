//! Looking for a text in everything that a store consists of: the bytes of every file, and what the columns of Parquet files decode
//! to.

use std::collections::BTreeSet;
use std::path::Path as FsPath;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// The files of a folder, by their paths in it.
pub(crate) fn files_of(folder: &FsPath) -> Vec<(String, Bytes)> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.push((name, std::fs::read(&path).unwrap().into()));
            }
        }
    }
    files
}

/// The objects of a store, by their paths.
pub(crate) async fn objects_of(store: &Arc<dyn ObjectStore>) -> Vec<(String, Bytes)> {
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let mut objects = Vec::new();
    for meta in listed {
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        objects.push((meta.location.as_ref().to_owned(), bytes));
    }
    objects
}

/// The files in which one of some texts, which are ASCII, occurs.
pub(crate) fn holding(files: &[(String, Bytes)], wanted: &[&str]) -> BTreeSet<String> {
    let found = files.iter().filter(|(name, bytes)| holds(name, bytes, wanted));
    found.map(|(name, _)| name.clone()).collect()
}

fn holds(name: &str, bytes: &Bytes, wanted: &[&str]) -> bool {
    let is_wanted = |text: &str| wanted.iter().any(|wanted| text.contains(wanted));
    if is_wanted(&String::from_utf8_lossy(bytes)) {
        return true;
    }
    if !name.ends_with(".parquet") {
        return false;
    }
    let rows = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap().build().unwrap();
    rows.map(Result::unwrap).any(|batch| texts(&batch).iter().any(|row| is_wanted(row)))
}

/// The rows of a batch as texts, every column with a bar after it.
pub(crate) fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options).unwrap())
        .collect();
    let row = |row| columns.iter().map(|column| format!("{}|", column.value(row))).collect();
    (0..batch.num_rows()).map(row).collect()
}
