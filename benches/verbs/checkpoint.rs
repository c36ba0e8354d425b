//! Checkpoints of both kinds, as deltalake writes them: how long that takes, how large they are, and how long a table takes to open by
//! one. The tables have the same files, ten in a commit; only what the protocol allows differs.

use std::path::Path;

use alluvium_benches::{Figures, Outcome, Samples, open_table, timed};
use deltalake_core::checkpoints::create_checkpoint;
use serde_json::{Value, json};

use crate::Setup;

/// Files of a commit.
const FILES: usize = 10;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("checkpoint");
    let commits = setup.pick(1_000, 100);
    let mut openings = Vec::new();
    for (kind, features) in [("classic", json!([])), ("V2", json!(["v2Checkpoint"]))] {
        let place = setup.place("checkpoint")?;
        let folder = place.path("table");
        write_log(&folder, commits, &features)?;
        let (mut writing, mut opening) = (Samples::default(), Samples::default());
        let table = open_table(&folder).await?;
        for _ in 0..setup.pick(10, 3) {
            let (written, took) = timed(create_checkpoint(&table, None)).await;
            written?;
            writing.push(took);
        }
        let file = folder.join(format!("_delta_log/{:020}.checkpoint.parquet", commits - 1));
        let bytes =
            std::fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        for _ in 0..setup.pick(20, 5) {
            let (opened, took) = timed(open_table(&folder)).await;
            let files = opened?.get_file_uris()?.count();
            if files != commits * FILES {
                return Err(format!("{files} files by a {kind} checkpoint").into());
            }
            opening.push(took);
        }
        figures.duration(kind, "write", &writing);
        figures.line(kind, "size", bytes.len() as f64 / 1e3, "kB", 1);
        figures.duration(kind, "open", &opening);
        openings.push(opening);
    }
    figures.times("V2", "open", &openings[1], &openings[0], 1.0);
    Ok(())
}

/// A log that names files which nobody reads.
fn write_log(folder: &Path, commits: usize, features: &Value) -> Outcome<()> {
    let log = folder.join("_delta_log");
    std::fs::create_dir_all(&log)?;
    let schema = json!({"type": "struct", "fields": [
        {"name": "state_key", "type": "string", "nullable": true, "metadata": {}},
        {"name": "dt", "type": "string", "nullable": true, "metadata": {}},
    ]});
    let policy = if features == &json!([]) { "classic" } else { "v2" };
    let head = [
        json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
            "readerFeatures": features, "writerFeatures": features}}),
        json!({"metaData": {"id": "00000000-0000-0000-0000-000000000000",
            "format": {"provider": "parquet", "options": {}}, "schemaString": schema.to_string(),
            "partitionColumns": ["dt"], "createdTime": 0,
            "configuration": {"delta.checkpointPolicy": policy}}}),
    ];
    for commit in 0..commits {
        let mut lines = if commit == 0 { head.to_vec() } else { Vec::new() };
        lines.push(json!({"commitInfo": {"timestamp": commit, "operation": "WRITE"}}));
        lines.extend((0..FILES).map(|file| add(commit * FILES + file)));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(log.join(format!("{commit:020}.json")), text)?;
    }
    Ok(())
}

/// A file as a commit of the log names it.
fn add(number: usize) -> Value {
    let day = format!("2024-{:02}-{:02}", number / 28 % 12 + 1, number % 28 + 1);
    let stats = json!({"numRecords": 48, "minValues": {"state_key": format!("a{number:08}")},
        "maxValues": {"state_key": format!("z{number:08}")}, "nullCount": {"state_key": 0}});
    json!({"add": {"path": format!("dt={day}/part-{number:016x}.parquet"), "size": 4_000 + number,
        "partitionValues": {"dt": day}, "modificationTime": number, "dataChange": true,
        "stats": stats.to_string(),
        "tags": {"alluvium.commit": number.to_string(), "alluvium.check": format!("{number:064x}")}}})
}
