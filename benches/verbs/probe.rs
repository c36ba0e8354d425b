//! Temporary: what each choice of the encoder costs.
use crate::Setup;
use alluvium::OrderBy;
use alluvium_benches::{Events, KEYS, Outcome, data_files};
use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::sync::Arc;
use std::time::Instant;

fn encode(batch: &RecordBatch, p: &WriterProperties) -> Outcome<Vec<u8>> {
    let mut w = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(p.clone()))?;
    w.write(batch)?;
    Ok(w.into_inner()?)
}
fn decode(bytes: &[u8]) -> Outcome<usize> {
    let r = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::copy_from_slice(bytes))?
        .with_batch_size(8192)
        .build()?;
    let mut n = 0;
    for b in r {
        n += b?.num_rows();
    }
    Ok(n)
}
pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let place = setup.place("probe")?;
    let (store, state) = place.new_state("store", OrderBy::Version).await?;
    let mut events = Events::seeded(2);
    let given = events.random(100_000, KEYS)?;
    state.append(&given).await?;
    let file = data_files(&place.log("store"))?.remove(0);
    let bytes = bytes::Bytes::from(std::fs::read(&file)?);
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(bytes)?.with_batch_size(200_000).build()?;
    let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>()?;
    let batch = batches[0].clone();
    eprintln!(
        "{:?}",
        batch.schema().fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>()
    );
    let base = || alluvium_log::writer_properties(&batch, batch.num_rows(), 95_000).into_builder();
    let key = ColumnPath::from("state_key");
    let leaf = |n: &str| ColumnPath::from(vec!["state_value".to_owned(), n.to_owned()]);
    let nobloom = |b: parquet::file::properties::WriterPropertiesBuilder| {
        b.set_column_bloom_filter_enabled(key.clone(), false)
    };
    let plain_ints = |b: parquet::file::properties::WriterPropertiesBuilder| {
        b.set_column_encoding("version".into(), Encoding::PLAIN)
            .set_column_encoding("event_time".into(), Encoding::PLAIN)
    };
    let nodict = |b: parquet::file::properties::WriterPropertiesBuilder| {
        b.set_column_dictionary_enabled(leaf("score"), false)
            .set_column_dictionary_enabled(leaf("login_count"), false)
    };
    let novalstats = |b: parquet::file::properties::WriterPropertiesBuilder| {
        b.set_column_statistics_enabled(leaf("score"), EnabledStatistics::Chunk)
            .set_column_statistics_enabled(leaf("login_count"), EnabledStatistics::Chunk)
            .set_column_statistics_enabled(leaf("source"), EnabledStatistics::Chunk)
    };
    let variants: Vec<(&str, WriterProperties)> = vec![
        ("as is (zstd1)", base().build()),
        ("lz4", base().set_compression(Compression::LZ4_RAW).build()),
        ("snappy", base().set_compression(Compression::SNAPPY).build()),
        ("none", base().set_compression(Compression::UNCOMPRESSED).build()),
        ("zstd3", base().set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?)).build()),
        ("no bloom", nobloom(base()).build()),
        ("plain ints", plain_ints(base()).build()),
        ("no dict on numbers", nodict(base()).build()),
        (
            "no dict on score only",
            base().set_column_dictionary_enabled(leaf("score"), false).build(),
        ),
        ("value stats by chunk", novalstats(base()).build()),
        (
            "pages 8192",
            base().set_data_page_row_count_limit(8192).set_write_batch_size(8192).build(),
        ),
        ("pages 20000", base().set_data_page_row_count_limit(20000).build()),
        (
            "key delta byte array",
            base().set_column_encoding(key.clone(), Encoding::DELTA_BYTE_ARRAY).build(),
        ),
        (
            "key delta length",
            base().set_column_encoding(key.clone(), Encoding::DELTA_LENGTH_BYTE_ARRAY).build(),
        ),
        (
            "lz4, key delta byte array",
            base()
                .set_compression(Compression::LZ4_RAW)
                .set_column_encoding(key.clone(), Encoding::DELTA_BYTE_ARRAY)
                .build(),
        ),
        (
            "lz4, no dict score",
            base()
                .set_compression(Compression::LZ4_RAW)
                .set_column_dictionary_enabled(leaf("score"), false)
                .build(),
        ),
        (
            "lz4, no bloom, nodict, chunk stats",
            novalstats(nodict(nobloom(base()))).set_compression(Compression::LZ4_RAW).build(),
        ),
        (
            "delta-rs like: snappy, defaults",
            WriterProperties::builder().set_compression(Compression::SNAPPY).build(),
        ),
    ];
    for (name, p) in &variants {
        let (mut best, mut bestd, mut size) = (f64::MAX, f64::MAX, 0);
        for _ in 0..9 {
            let t = Instant::now();
            let b = encode(&batch, p)?;
            best = best.min(t.elapsed().as_secs_f64() * 1e3);
            size = b.len();
            let t = Instant::now();
            decode(&b)?;
            bestd = bestd.min(t.elapsed().as_secs_f64() * 1e3);
        }
        eprintln!(
            "{name:40} encode {best:7.2} ms  decode {bestd:7.2} ms  {:6.2} bytes/row",
            size as f64 / 100_000.0
        );
    }
    // parts of an append
    for col in 0..batch.num_columns() {
        let one = batch.project(&[col])?;
        let p = base().build();
        let mut best = f64::MAX;
        for _ in 0..9 {
            let t = Instant::now();
            encode(&one, &p)?;
            best = best.min(t.elapsed().as_secs_f64() * 1e3);
        }
        eprintln!("column {:12} {best:7.2} ms", one.schema().field(0).name());
    }
    let _ = Arc::new(0);
    for _ in 0..5 {
        let t = Instant::now();
        state.append(&given).await?;
        eprintln!("append {:.2} ms", t.elapsed().as_secs_f64() * 1e3);
    }
    store.close().await;
    use alluvium::{Durability, StateSettings, Store};
    let settings = StateSettings { order_by: OrderBy::Version, ..StateSettings::default() };
    let mut stores = Vec::new();
    for d in [Durability::Fsync, Durability::Os] {
        let s = Store::builder(&place.path(&format!("{d:?}")).display().to_string()).durability(d).open().await?;
        let (st, _) = s.create_state("x", &alluvium_benches::value_fields(), settings).await?;
        stores.push((format!("{d:?}"), s, st));
    }
    let mem = Store::open("memory://").await?;
    let (st, _) = mem.create_state("x", &alluvium_benches::value_fields(), settings).await?;
    stores.push(("memory".into(), mem, st));
    let one_row = events.random(1, KEYS)?;
    for _ in 0..6 { for (n, _, st) in &stores {
        let batch = events.random(100_000, KEYS)?;
        let t = Instant::now(); st.append(&batch).await?; let big = t.elapsed().as_secs_f64() * 1e3;
        let t = Instant::now(); for _ in 0..20 { st.append(&one_row).await?; } 
        eprintln!("{n:10} append 100k {big:.2} ms; 1 row {:.3} ms", t.elapsed().as_secs_f64() * 1e3 / 20.0);
    } }
    for _ in 0..4 { let t = Instant::now(); use std::io::Write; let mut f = std::fs::File::create(place.path("f"))?; f.write_all(&vec![7_u8; 2_200_000])?; let w = t.elapsed(); f.sync_all()?; eprintln!("write 2.2 MB {:?}, then fsync {:?}", w, t.elapsed() - w); std::fs::remove_file(place.path("f"))?; }
    fold_probe(setup).await
}

fn read_ahead(
    stream: alluvium_materializer::BatchStream,
    depth: usize,
) -> alluvium_materializer::BatchStream {
    use futures::{SinkExt, StreamExt};
    let (mut tx, rx) = futures::channel::mpsc::channel(depth);
    tokio::spawn(async move {
        let mut stream = stream;
        while let Some(item) = stream.next().await {
            if tx.send(item).await.is_err() {
                return;
            }
        }
    });
    rx.boxed()
}

async fn fold_probe(setup: &Setup) -> Outcome<()> {
    use alluvium_log::{ReadSpec, RowFilter};
    use alluvium_materializer::{FoldInput, FoldSettings, file_stream, log_files, whole_value};
    let place = setup.place("probe")?;
    let (store, state) = place.new_state("store", OrderBy::EventTime).await?;
    let mut events = Events::seeded(3);
    for _ in 0..20 {
        state.append(&events.random(100_000, KEYS)?).await?;
    }
    let log = state.log();
    let log_state = log.refresh().await?;
    let definition = log.definition();
    let filter = RowFilter {
        after_commit: Some(0),
        up_to_commit: Some(log_state.version),
        ..RowFilter::default()
    };
    let files = log_files(&log_state, &filter);
    let spec = ReadSpec { payload: whole_value(&definition), filter };
    let footers = state.reader().footers();
    for round in 0..4 {
        for (name, depth) in
            [("plain", None), ("ahead 0", Some(0)), ("ahead 1", Some(1)), ("ahead 4", Some(4))]
        {
            let inputs = files
                .iter()
                .map(|file| {
                    let s = file_stream(log.table(), file, &spec, footers);
                    FoldInput::Sorted {
                        bytes: 20 << 20,
                        open: Box::new(move || match depth {
                            None => s,
                            Some(d) => read_ahead(s, d),
                        }),
                    }
                })
                .collect();
            let t = Instant::now();
            let folded = alluvium_materializer::fold(
                definition.order_by,
                spec.schema(),
                inputs,
                &FoldSettings::default(),
            )
            .await?;
            let n = alluvium_benches::drain(vec![folded]).await?;
            eprintln!(
                "fold {name:10} round {round}: {:.1} ms, {n} keys",
                t.elapsed().as_secs_f64() * 1e3
            );
        }
        let t = Instant::now();
        let streams =
            files.iter().map(|file| file_stream(log.table(), file, &spec, footers)).collect();
        let n = alluvium_benches::drain(streams).await?;
        eprintln!("decode only, all at once: {:.1} ms {n}", t.elapsed().as_secs_f64() * 1e3);
        let t = Instant::now();
        let mut n = 0;
        for file in &files {
            n += alluvium_benches::drain(vec![file_stream(log.table(), file, &spec, footers)])
                .await?;
        }
        eprintln!("decode only, one by one: {:.1} ms {n}", t.elapsed().as_secs_f64() * 1e3);
    }
    store.close().await;
    Ok(())
}
