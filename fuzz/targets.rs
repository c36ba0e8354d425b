//! What is fuzzed: everything that reads what others have written. Each target takes any bytes; it must neither panic nor grow
//! without bound, and what it accepts must read back as it was taken.
//!
//! The same functions are run by libFuzzer (`fuzz/run.sh`), and by the integration tests, which change the seeds at random.

#![allow(unreachable_pub)]

use std::io::Write;
use std::sync::{Arc, LazyLock};

use alluvium::format::{
    ChangeMapping, ChangeReader, InputFormat, OnBad, ReadOptions, build_array, decode_key,
    encode_key, format_date, format_fields, format_timestamp, format_timestamp_ntz,
    integer_key_part, parse_date, parse_fields, parse_json, parse_timestamp, parse_timestamp_ntz,
    write_value,
};
use alluvium::{
    Error, ErrorKind, KeyFilter, NamedPoint, OrderBy, Point, ProcessSettings, StateDefinition,
    StateSettings, Storage, Store, duration_text, parse_bytes, parse_duration, parse_time,
};
use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterVersion};

/// A target by its name, which is also that of its folder of seeds.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 9] = [
    ("change_lines", change_lines),
    ("csv_mapping", csv_mapping),
    ("schema", schema),
    ("points", points),
    ("keys", keys),
    ("settings", settings),
    ("commit_json", commit_json),
    ("log_rows", log_rows),
    ("sql_arguments", sql_arguments),
];

/// Longer inputs are cut: what is looked for is found in short ones.
const MAX_BYTES: usize = 64 * 1024;

/// Tells a panic instead of ending the process: what a decoder breaks down over is caught where it is called. One that nobody
/// catches ends the target.
#[allow(dead_code, clippy::print_stderr)]
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

fn cut(data: &[u8]) -> &[u8] {
    &data[..data.len().min(MAX_BYTES)]
}

/// An error is right for any bytes, but for one that says it is a fault of our own.
fn accept<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::Internal, "{error:?}");
            None
        }
    }
}

/// Lines of native changes.
pub fn change_lines(data: &[u8]) {
    read_changes(cut(data), ChangeMapping::default(), InputFormat::Jsonl);
}

/// CSV with the key in column `k`; the first byte tells what separates cells, what is null and what else is mapped.
pub fn csv_mapping(data: &[u8]) {
    let Some((choice, text)) = cut(data).split_first() else { return };
    let is = |bit: u8| choice & (1 << bit) != 0;
    let mapping = ChangeMapping {
        key: if is(0) { vec!["k".to_owned(), "j".to_owned()] } else { vec!["k".to_owned()] },
        text_key_parts: is(1),
        event_time: is(2).then(|| "t".to_owned()),
        version: is(3).then(|| "v".to_owned()),
        null_tokens: if is(4) { vec!["NA".to_owned(), String::new()] } else { Vec::new() },
        delimiter: if is(5) { b'\t' } else { b',' },
    };
    read_changes(text, mapping, InputFormat::Csv);
}

fn read_changes(text: &[u8], mapping: ChangeMapping, format: InputFormat) {
    let options = ReadOptions {
        format: Some(format),
        mapping,
        batch_rows: 7,
        on_bad: OnBad::Collect,
        ..ReadOptions::default()
    };
    let input = Box::new(std::io::Cursor::new(text.to_vec()));
    let Some(mut reader) = accept(ChangeReader::from_read("fuzz", input, options)) else { return };
    while let Some(Some(chunk)) = accept(reader.next_chunk()) {
        let rows = chunk.changes.num_rows();
        assert_eq!(chunk.lines.len(), rows);
        if let Some(value) = chunk.changes.column_by_name("state_value") {
            reads_back(value);
        }
    }
}

/// What was taken, written as JSON, is taken again as it was.
fn reads_back(values: &ArrayRef) {
    let texts: Vec<String> = (0..values.len())
        .map(|row| {
            let mut text = Vec::new();
            write_value(&mut text, values.as_ref(), row).unwrap();
            String::from_utf8(text).unwrap()
        })
        .collect();
    let parsed: Vec<_> = texts.iter().map(|text| parse_json(text).unwrap()).collect();
    let field = Field::new("value", values.data_type().clone(), true);
    let again = build_array(&field, &parsed)
        .unwrap_or_else(|error| panic!("{error}: {}", texts.join("\n")));
    assert_eq!(&again, values, "{}", texts.join("\n"));
}

/// Schemas as text.
pub fn schema(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(cut(data)) else { return };
    let Some(fields) = accept(parse_fields(text)) else { return };
    let written = format_fields(&fields);
    assert_eq!(parse_fields(&written).unwrap(), fields, "{written}");
    accept(StateDefinition::new(&fields, StateSettings::default()));
}

/// Points, times, dates, spans and numbers of bytes.
pub fn points(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(cut(data)) else { return };
    if let Some(point) = accept(text.parse::<Point>()) {
        let written = point.to_string();
        assert_eq!(written.parse::<Point>().unwrap(), point, "{written}");
    }
    if let Some(point) = accept(text.parse::<NamedPoint>()) {
        let written = point.to_string();
        assert_eq!(written.parse::<NamedPoint>().unwrap(), point, "{written}");
    }
    accept(parse_time(text));
    if let Some(micros) = accept(parse_timestamp(text)) {
        assert_eq!(parse_timestamp(&format_timestamp(micros)).unwrap(), micros);
    }
    if let Some(micros) = accept(parse_timestamp_ntz(text)) {
        assert_eq!(parse_timestamp_ntz(&format_timestamp_ntz(micros)).unwrap(), micros);
    }
    if let Some(days) = accept(parse_date(text)) {
        assert_eq!(parse_date(&format_date(days)).unwrap(), days);
    }
    if let Some(span) = accept(parse_duration(text)) {
        assert_eq!(parse_duration(&duration_text(span)).unwrap(), span, "{}", duration_text(span));
    }
    accept(parse_bytes(text));
}

/// Keys of several parts: the first half of the lines is one key, the second half another one.
pub fn keys(data: &[u8]) {
    let text = String::from_utf8_lossy(cut(data));
    decode_key(&text);
    let parts: Vec<&str> = text.split('\n').collect();
    let (one, rest) = parts.split_at(parts.len() / 2);
    let two = &rest[..one.len()];
    // A single part is the key as it is.
    if parts.len() > 1 {
        assert_eq!(decode_key(&encode_key(&parts)), parts);
    }
    assert_eq!(encode_key(one).cmp(&encode_key(two)), one.cmp(two), "{one:?} {two:?}");
    let number = |at: usize| {
        let bytes = data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(i64::from_le_bytes)
    };
    if let (Some(one), Some(two)) = (number(0), number(8)) {
        assert_eq!(integer_key_part(one).cmp(&integer_key_part(two)), one.cmp(&two));
    }
}

/// `alluvium.toml`.
pub fn settings(data: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(cut(data)).unwrap();
    let path = file.path();
    let Some(loaded) = accept(ProcessSettings::load(Some(path), [])) else { return };
    loaded.settings.validate().unwrap();
}

/// What the targets with a store share: a runtime, and a state of three commits to copy.
struct World {
    runtime: tokio::runtime::Runtime,
    objects: InMemory,
    /// Sound data files, and the partition that they lie in.
    files: Vec<Bytes>,
    day: String,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (objects, files, day) = runtime.block_on(template());
    World { runtime, objects, files, day }
});

fn fields() -> Fields {
    Fields::from(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
    ])
}

fn rows(first: i64) -> RecordBatch {
    changes(&["a", "b", "c"].map(str::to_owned), first)
}

fn changes(keys: &[String], first: i64) -> RecordBatch {
    let numbers: ArrayRef =
        Arc::new(Int64Array::from_iter_values(first..first + keys.len() as i64));
    // Values of their own, which do not compress away.
    let mixed = |at: usize| (at as u64 + 7).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    let text = |at: usize| (at % 3 != 1).then(|| format!("{:x}{:x}", mixed(at), mixed(at * 3)));
    let texts: ArrayRef = Arc::new((0..keys.len()).map(text).collect::<StringArray>());
    let value = StructArray::new(fields(), vec![numbers.clone(), texts], None);
    RecordBatch::try_from_iter([
        ("state_key", Arc::new(StringArray::from_iter_values(keys)) as ArrayRef),
        ("version", numbers),
        ("state_value", Arc::new(value)),
    ])
    .unwrap()
}

async fn store_over(objects: InMemory) -> (Store, Arc<InMemory>) {
    let objects = Arc::new(objects);
    let storage = Storage::from_object_store(objects.clone(), "fuzz");
    (Store::builder("fuzz").storage(storage).open().await.unwrap(), objects)
}

async fn template() -> (InMemory, Vec<Bytes>, String) {
    let (store, objects) = store_over(InMemory::new()).await;
    let settings = StateSettings { order_by: OrderBy::Version, ..StateSettings::default() };
    let (state, _) = store.create_state("s", &fields(), settings).await.unwrap();
    state.append(&rows(1)).await.unwrap();
    state.materialize(false).await.unwrap();
    state.append(&rows(10)).await.unwrap();
    let sound = objects.fork();
    // One that is fetched in parts: of many keys, each with a value of its own.
    let (other, _) = store.create_state("large", &fields(), settings).await.unwrap();
    let keys: Vec<String> = (0..20_000_u64).map(|n| format!("{:016x}", n * 0x9E37_79B9)).collect();
    other.append(&changes(&keys, 1)).await.unwrap();
    let ((_, large), (path, small)) =
        (data_file(&objects, "large").await, data_file(&objects, "s").await);
    assert!(large.len() > 256 * 1024, "{} bytes", large.len());
    let day = path.parts().find_map(|part| Some(part.as_ref().strip_prefix("dt=")?.to_owned()));
    let files = vec![small.clone(), written_anew(&small), written_anew(&large), large];
    (sound, files, day.unwrap())
}

/// The last data file of a state's log.
async fn data_file(objects: &InMemory, state: &str) -> (Path, Bytes) {
    let log = Path::from(format!("{state}/log"));
    let listed: Vec<_> = objects.list(Some(&log)).try_collect().await.unwrap();
    let path = listed.into_iter().map(|meta| meta.location);
    let path = path.filter(|path| path.as_ref().ends_with(".parquet")).max().unwrap();
    let bytes = objects.get(&path).await.unwrap().bytes().await.unwrap();
    (path, bytes)
}

/// The same rows as another writer makes a file of them: without our own columns, in pages of another form and small groups.
fn written_anew(file: &Bytes) -> Bytes {
    let batches = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap().build().unwrap();
    let batches: Vec<RecordBatch> = batches.collect::<Result<_, _>>().unwrap();
    let batches: Vec<RecordBatch> =
        batches.iter().map(|batch| batch.project(&[0, 1, 2, 3, 4]).unwrap()).collect();
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(7_000))
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(100)
        .build();
    let mut writer =
        ArrowWriter::try_new(Vec::new(), batches[0].schema(), Some(properties)).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap().into()
}

/// Reads all that there is of the state, and folds it.
async fn use_state(objects: InMemory) {
    let (store, _) = store_over(objects).await;
    let Some(state) = accept(store.raw_state("s").await) else { return };
    for point in [Point::LATEST, Point::at_commit(2), Point::at_version(5)] {
        let Some(found) = accept(state.scan(point, KeyFilter::All).await) else { continue };
        let rows: Result<Vec<RecordBatch>, Error> = found.try_collect().await;
        accept(rows);
    }
    accept(state.get(Point::LATEST, "b").await);
    accept(state.materialize(false).await);
    accept(state.verify().await);
    accept(state.append(&rows(100)).await);
}

/// Reads the rows of all files once, then folds them.
async fn use_rows(objects: InMemory) {
    let (store, _) = store_over(objects).await;
    let Some(state) = accept(store.raw_state("s").await) else { return };
    if let Some(found) = accept(state.scan(Point::LATEST, KeyFilter::All).await) {
        let rows: Result<Vec<RecordBatch>, Error> = found.try_collect().await;
        accept(rows);
    }
    accept(state.get(Point::LATEST, "b").await);
    accept(state.materialize(false).await);
}

const NEXT_COMMIT: &str = "s/log/_delta_log/00000000000000000003.json";

/// A commit of another writer.
pub fn commit_json(data: &[u8]) {
    WORLD.runtime.block_on(async {
        let objects = WORLD.objects.fork();
        let bytes = Bytes::copy_from_slice(cut(data));
        objects.put(&Path::from(NEXT_COMMIT), bytes.into()).await.unwrap();
        use_state(objects).await;
    });
}

/// A data file of another writer: a sound one, changed at some places. The first byte tells which file, and whether places are
/// counted from its beginning or its end; then come two bytes of place and one of change, again and again.
pub fn log_rows(data: &[u8]) {
    let Some((choice, patches)) = cut(data).split_first() else { return };
    WORLD.runtime.block_on(async {
        let World { objects, files, day, .. } = &*WORLD;
        let objects = objects.fork();
        // The large ones take most of the time: half of what chance makes leaves them out.
        let of = if choice & 64 == 0 { 4 } else { 2 };
        let mut bytes = files[usize::from(choice % of)].to_vec();
        for patch in patches.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % bytes.len();
            let at = if choice & 128 == 0 { at } else { bytes.len() - 1 - at };
            bytes[at] ^= patch[2];
        }
        let add = serde_json::json!({ "add": {
            "path": format!("dt={day}/foreign.parquet"), "partitionValues": { "dt": day },
            "size": bytes.len(), "modificationTime": 1, "dataChange": true,
        }});
        let commit = format!("{{\"commitInfo\":{{\"timestamp\":1}}}}\n{add}\n");
        let path = Path::from(format!("s/log/dt={day}/foreign.parquet"));
        objects.put(&path, bytes.into()).await.unwrap();
        objects.put(&Path::from(NEXT_COMMIT), commit.into()).await.unwrap();
        use_rows(objects).await;
    });
}

/// The arguments of the functions of SQL; the first byte tells which.
pub fn sql_arguments(data: &[u8]) {
    let Some((choice, text)) = cut(data).split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let quoted = text.replace('\'', "''");
    let query = match choice % 6 {
        0 => format!("SELECT * FROM as_of('s', '{quoted}')"),
        1 => format!("SELECT * FROM as_of('s', time => '{quoted}')"),
        2 => format!("SELECT * FROM history('s') WHERE key = '{quoted}'"),
        3 => format!("SELECT * FROM diff('s', '{quoted}', 'latest')"),
        4 => format!("SELECT * FROM changes('{quoted}')"),
        _ => format!("SELECT * FROM as_of('{quoted}', 'commit:1')"),
    };
    WORLD.runtime.block_on(async {
        let (store, _) = store_over(WORLD.objects.fork()).await;
        let Some(found) = accept(store.sql(&query).await) else { return };
        let rows: Result<Vec<RecordBatch>, _> = found.try_collect().await;
        accept(rows.map_err(alluvium::sql_error));
    });
}
