//! What somebody who means harm may try: names, keys, planted files and commits, bombs, SQL. See `docs/security.md`.

use std::io::Write;
use std::path::{Path, PathBuf};

use alluvium::{ErrorKind, KeyFilter, OrderBy, Point, RawState, Result, StateSettings};
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::json;

use super::program::{change, fail, finish, lines, program, succeed};
use crate::support::stores::{Home, by_version, create, live, n_batch, n_fields};

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_of(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_could_be_paths_are_refused() {
    let home = Home::new();
    let inner = home.folder.path().join("a/b");
    std::fs::create_dir_all(&inner).unwrap();
    let uri = inner.to_str().unwrap();
    let store = alluvium::Store::open(uri).await.unwrap();
    by_version(&store, "Users").await;
    let before = files_of(home.folder.path());
    let long = "x".repeat(129);
    let names = [
        "",
        ".",
        "..",
        "../x",
        "x/..",
        "/x",
        "/etc/passwd",
        "x/y",
        "x\\y",
        "x\0y",
        "x y",
        "_x",
        "-x",
        ".x",
        "é",
        "x%2Fy",
        "%2e%2e",
        "C:",
        "x:",
        "~",
        "$HOME",
        "x\n",
        long.as_str(),
    ];
    for name in names {
        let error = store.create_state(name, &n_fields(), StateSettings::default()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
        let error = store.raw_state(name).await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound),
            "{name:?}: {error}"
        );
        for outcome in
            [store.examine(name).await.map(drop), store.repair(name, false).await.map(drop)]
        {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
        }
    }
    let state = store.raw_state("Users").await.unwrap();
    state.append(&n_batch(&[("k", 1, Some(1))])).await.unwrap();
    for name in ["..", "../../x", "/x", "x/y", "x\0"] {
        let error = state.create_savepoint(name, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
    }
    for name in ["users", "USERS"] {
        let error = store.create_state(name, &n_fields(), StateSettings::default()).await;
        let error = error.expect_err("a name in another case");
        assert!(error.to_string().contains("Users"), "{error}");
    }
    let outside = |file: &&PathBuf| !file.starts_with(&inner);
    assert_eq!(files_of(home.folder.path()).iter().filter(outside).count(), 0);
    assert!(before.iter().all(|file| file.exists()));
}

#[test]
fn keys_are_never_paths() {
    let home = Home::new();
    let long = "../".repeat(20_000);
    let keys = ["../../../etc/passwd", "/etc/passwd", "\0", "..", "CON", "a\\b", long.as_str()];
    let input: String = keys.iter().zip(1..).map(|(key, n)| change(key, n, n)).collect();
    succeed(&home, &["append", "s"], &input);
    succeed(&home, &["materialize", "s"], "");
    for (key, n) in keys.iter().zip(1..) {
        // An argument can hold no NUL.
        if *key != "\0" && key.len() < 1_000 {
            let found = lines(&succeed(&home, &["get", "s", "--", key], ""));
            assert_eq!(found[0]["value"], json!({"n": n}));
        }
    }
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), keys.len());
    for file in files_of(home.folder.path()) {
        let name = file.strip_prefix(home.folder.path()).unwrap().to_str().unwrap();
        assert!(name.starts_with("s/log/") || name.starts_with("s/snapshot/"), "{name}");
        assert!(name.len() < 120 && !name.contains("etc"), "{name}");
    }
}

/// A commit as another engine would write it, which adds a file.
fn plant(home: &Home, commit: i64, path: &str, stats: &str) {
    let info = json!({"commitInfo": {"timestamp": 1_705_276_800_000_i64, "operation": "WRITE"}});
    let add = json!({"add": {
        "path": path, "partitionValues": {"dt": "2024-01-15"}, "size": 2_000,
        "modificationTime": 1, "dataChange": true, "stats": stats,
    }});
    std::fs::write(home.commit_file("s", commit), format!("{info}\n{add}\n")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_can_not_name_files_outside_of_its_table() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let other = by_version(&home.open().await, "other").await;
    for state in [&state, &other] {
        state.append(&n_batch(&[("mine", 1, Some(1))])).await.unwrap();
    }
    // A file with rows, in many places outside of the table.
    let rows = files_of(&home.table("other", "log"))
        .into_iter()
        .find(|file| file.extension().unwrap() == "parquet");
    let rows = rows.unwrap();
    let outside = home.folder.path().join("outside.parquet");
    std::fs::copy(&rows, &outside).unwrap();
    std::fs::copy(&rows, home.folder.path().join("s/outside.parquet")).unwrap();
    let absolute = outside.to_str().unwrap();
    let inside = rows.strip_prefix(home.folder.path()).unwrap().to_str().unwrap();
    for path in [
        "../outside.parquet".to_owned(),
        "../../outside.parquet".to_owned(),
        "dt=2024-01-15/../../../outside.parquet".to_owned(),
        "%2E%2E/%2E%2E/outside.parquet".to_owned(),
        "..%2F..%2Foutside.parquet".to_owned(),
        absolute.to_owned(),
        format!("file://{absolute}"),
        format!("alluvium:///{inside}"),
        format!("../../{inside}"),
    ] {
        plant(&home, 2, &path, "");
        let opened = home.open().await.raw_state("s").await;
        let error = match opened {
            Ok(state) => {
                use futures::TryStreamExt;
                let read = async {
                    state
                        .scan(Point::LATEST, alluvium::KeyFilter::All)
                        .await?
                        .try_collect::<Vec<_>>()
                        .await
                };
                read.await.expect_err(&path)
            }
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{path}: {error}");
        // Nor is it removed.
        if let Ok(state) = home.open().await.raw_state("s").await {
            drop(state.maintain(&alluvium::MaintainStep::ALL, false).await);
        }
        assert!(outside.exists() && rows.exists(), "{path}");
        std::fs::remove_file(home.commit_file("s", 2)).unwrap();
    }
    let state = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(live(&state, Point::LATEST).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_commit_is_an_error_and_no_crash() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    let deep = "[".repeat(200_000);
    let schema = |depth: usize| {
        let open =
            r#"{"type":"struct","fields":[{"name":"x","nullable":true,"metadata":{},"type":"#;
        format!("{}\"long\"{}", open.repeat(depth), "}]}".repeat(depth))
    };
    let metadata = |schema: String| {
        let id = state.log().state().metadata.id.clone();
        json!({"metaData": {"id": id, "format": {"provider": "parquet", "options": {}},
            "schemaString": schema, "partitionColumns": ["dt"], "configuration": {}}})
        .to_string()
    };
    for text in [
        deep.clone(),
        format!("{{\"add\":{deep}"),
        format!("{{\"commitInfo\":{{\"x\":{deep}}}}}"),
        "x".repeat(20_000_000),
        "\0".repeat(100_000),
        "{}\n".repeat(100_000),
        "{\"add\":null}".to_owned(),
        metadata(schema(5_000)),
        metadata("{".to_owned()),
        "{\"protocol\":{\"minReaderVersion\":99,\"minWriterVersion\":99}}".to_owned(),
        "{\"add\":{\"path\":\"x\",\"partitionValues\":{},\"size\":-1,\"modificationTime\":1e999,\"dataChange\":true}}".to_owned(),
    ] {
        std::fs::write(home.commit_file("s", 2), &text).unwrap();
        let what: String = text.chars().take(60).collect();
        match home.open().await.raw_state("s").await {
            // What says nothing that counts may be there.
            Ok(opened) => assert_eq!(live(&opened, Point::LATEST).await.len(), 1, "{what}"),
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "{what}: {error}"
            ),
        }
        drop(home.open().await.examine("s").await.unwrap());
    }
    // Statistics that can't be understood bound nothing.
    let huge = format!("{{\"numRecords\":{},\"minValues\":{deep}", "9".repeat(10_000_000));
    plant(&home, 2, "dt=2024-01-15/none.parquet", &huge);
    let opened = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(opened.get(Point::LATEST, "a").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

async fn rows_as_of_now(state: &RawState) -> Result<()> {
    let rows: Vec<RecordBatch> =
        state.scan(Point::LATEST, KeyFilter::All).await?.try_collect().await?;
    drop(rows);
    Ok(())
}

/// A file that begins and ends as a Parquet file does.
fn with_footer(footer: &[u8]) -> Vec<u8> {
    let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [b"PAR1", footer, &length, b"PAR1"].concat()
}

/// A footer of one column that says how many row groups follow, of which there are none.
fn footer_of_row_groups(count: &[u8]) -> Vec<u8> {
    let schema = [
        &[0x19, 0x2c, 0x48, 1, b'm', 0x15, 2, 0][..],
        &[0x15, 12, 0x25, 0, 0x18, 9],
        b"state_key",
        &[0],
    ];
    [&[0x15, 4][..], &schema.concat(), &[0x16, 2, 0x19, 0xfc], count, &[0; 40]].concat()
}

/// Rows as another writer makes a file of them, compressed.
fn rows_of_another_writer() -> Vec<u8> {
    let keys: Vec<String> = (0..2_000).map(|n| format!("{:x}", n * 0x9E37_79B9_i64)).collect();
    let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), 1, Some(1))).collect();
    let batch = n_batch(&rows);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planted_data_file_is_refused_by_name_whatever_it_claims() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    let sound = rows_of_another_writer();
    let changed = |at: usize, byte: u8| {
        let mut bytes = sound.clone();
        bytes[at] ^= byte;
        bytes
    };
    let end = sound.len();
    // Made of the first page's header: how large the page is when it is decompressed, of five bytes.
    let header = sound.windows(2).position(|bytes| bytes == [0x15, 0]).unwrap();
    let mut bomb = sound.clone();
    bomb[header..header + 8].copy_from_slice(&[0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f]);
    for (what, bytes, rows) in [
        (
            "as many row groups as there can be",
            with_footer(&footer_of_row_groups(&[0xff, 0xff, 0xff, 0xff, 7])),
            None,
        ),
        ("more of them than there can be", with_footer(&footer_of_row_groups(&[0xff; 12])), None),
        ("a footer that nests without end", with_footer(&[0x1c; 60_000]), None),
        ("no footer", with_footer(&[]), None),
        (
            "a footer longer than the file",
            [&sound[..end - 8], &[0xff, 0xff, 0xff, 0x7f], b"PAR1"].concat(),
            None,
        ),
        ("nothing", Vec::new(), None),
        ("a page that is not what its header says", changed(200, 0xff), None),
        ("a page of 2 GiB", bomb, None),
        ("more rows than the log says", sound.clone(), Some(1_999)),
    ] {
        let path = "dt=2024-01-15/planted.parquet";
        let file = home.table("s", "log").join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &bytes).unwrap();
        let stats = rows.map(|rows: i64| json!({"numRecords": rows}).to_string());
        let info = json!({"commitInfo": {"timestamp": 1_705_276_800_000_i64}});
        let add = json!({"add": {
            "path": path, "partitionValues": {"dt": "2024-01-15"}, "size": bytes.len(),
            "modificationTime": 1, "dataChange": true, "stats": stats,
        }});
        std::fs::write(home.commit_file("s", 2), format!("{info}\n{add}\n")).unwrap();
        let opened = home.open().await.raw_state("s").await.unwrap();
        for outcome in [
            opened.get(Point::LATEST, "a").await.map(drop),
            opened.materialize(false).await.map(drop),
            rows_as_of_now(&opened).await,
        ] {
            let error = outcome.err().unwrap_or_else(|| panic!("{what}: read"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            assert!(error.to_string().contains("planted.parquet"), "{what}: {error}");
        }
        // What was known before can be asked for.
        assert_eq!(live(&opened, Point::at_commit(1)).await.len(), 1, "{what}");
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_never_removes_what_a_link_leads_to() {
    use alluvium_log::VacuumOptions;
    let home = Home::new();
    let state = create(&home.open().await, "s", &n_fields(), OrderBy::Version).await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let precious = elsewhere.path().join("precious.parquet");
    std::fs::write(&precious, "x").unwrap();
    let table = home.table("s", "log");
    std::os::unix::fs::symlink(elsewhere.path(), table.join("dt=2020-01-01")).unwrap();
    std::os::unix::fs::symlink(&precious, table.join("link.parquet")).unwrap();
    let settings =
        VacuumOptions { file_retention_ms: 0, orphan_grace_ms: -1_000_000, dry_run: false };
    let outcome = state.log().table().vacuum(&settings).await;
    assert!(precious.exists(), "{outcome:?}");
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("link"), "{error}");
    assert_eq!(live(&state, Point::LATEST).await.len(), 1);
}

#[test]
fn a_gzip_bomb_is_read_in_bounded_memory() {
    let home = Home::new();
    let bomb = home.folder.path().join("bomb.jsonl.gz");
    let mut gzip = std::process::Command::new("gzip");
    gzip.args(["-1", "-c"]).stdin(std::process::Stdio::piped());
    gzip.stdout(std::fs::File::create(&bomb).unwrap());
    let mut child = gzip.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // One line of 256 MiB, a thousandth of it when it is compressed.
    input.write_all(b"{\"key\":\"").unwrap();
    for _ in 0..256 {
        input.write_all(&vec![b'a'; 1 << 20]).unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    assert!(std::fs::metadata(&bomb).unwrap().len() < 3 << 20);
    fail(&home, &["append", "s", bomb.to_str().unwrap()], "", 2, &["line 1", "64"]);
    assert_eq!(succeed(&home, &["states"], ""), "");
}

#[test]
fn sql_only_reads_and_only_the_states() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("a", 1, 1));
    let target = home.folder.path().join("written.csv");
    let file = target.to_str().unwrap();
    let secret = home.folder.path().join("secret.csv");
    std::fs::write(&secret, "n\n42\n").unwrap();
    let secret = secret.to_str().unwrap();
    let before = files_of(home.folder.path());
    for query in [
        format!("COPY s TO '{file}'"),
        format!("COPY (SELECT * FROM s) TO '{file}' STORED AS CSV"),
        format!("EXPLAIN ANALYZE COPY s TO '{file}'"),
        format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{secret}'"),
        format!("CREATE EXTERNAL TABLE t (n INT) STORED AS PARQUET LOCATION '{file}'"),
        "CREATE TABLE t AS SELECT * FROM s".to_owned(),
        "CREATE VIEW t AS SELECT * FROM s".to_owned(),
        "CREATE SCHEMA t".to_owned(),
        "CREATE FUNCTION f(INT) RETURNS INT RETURN $1".to_owned(),
        "INSERT INTO s SELECT * FROM s".to_owned(),
        "WITH x AS (SELECT 1) INSERT INTO s SELECT * FROM s".to_owned(),
        "DELETE FROM s".to_owned(),
        "UPDATE s SET n = 2".to_owned(),
        "MERGE INTO s USING s AS t ON true WHEN MATCHED THEN DELETE".to_owned(),
        "DROP TABLE s".to_owned(),
        "SELECT * INTO t FROM s".to_owned(),
        "SET datafusion.execution.batch_size = 1".to_owned(),
        "PREPARE p AS SELECT 1".to_owned(),
        "BEGIN".to_owned(),
        "SELECT 1; COPY s TO 'x'".to_owned(),
        format!("SELECT * FROM '{secret}'"),
        format!("SELECT * FROM \"{secret}\""),
        format!("SELECT * FROM read_csv('{secret}')"),
        format!("SELECT * FROM parquet_metadata('{secret}')"),
        "SELECT * FROM as_of('../s', 'latest')".to_owned(),
        "SELECT * FROM log.\"../s\"".to_owned(),
        format!("SELECT {}1{}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("SELECT {}1", "NOT ".repeat(50_000)),
        format!("SELECT * FROM {}s{}", "(SELECT * FROM ".repeat(5_000), ")".repeat(5_000)),
    ] {
        // A text this long doesn't fit into an argument.
        let output = finish(program(&home, &["sql", "-"]), &query);
        let message = String::from_utf8(output.stderr).unwrap();
        let what: String = query.chars().take(70).collect();
        // A file is not taken for a table: there is none of this name.
        let is_refused = matches!(output.status.code(), Some(2 | 3));
        assert!(is_refused, "{what}: {:?}: {message}", output.status);
        assert!(output.stdout.is_empty(), "{what}");
        assert!(!message.contains("42"), "{what}: {message}");
    }
    assert_eq!(files_of(home.folder.path()), before);
    assert_eq!(lines(&succeed(&home, &["sql", "SELECT n FROM s"], "")), [json!({"n": 1})]);
}

#[test]
fn sql_ends_in_time() {
    let home = Home::new();
    let input: String = (0..500).map(|n| change(&format!("k{n}"), 1, n)).collect();
    succeed(&home, &["append", "s"], &input);
    let query = "SELECT count(*) FROM s a, s b, s c, s d WHERE a.n + b.n + c.n + d.n = -1";
    fail(&home, &["sql", query, "--timeout", "1s"], "", 2, &["--timeout", "1s"]);
    let few = succeed(
        &home,
        &["sql", "SELECT n FROM s ORDER BY n", "--limit", "3", "--timeout", "5m"],
        "",
    );
    assert_eq!(lines(&few), [json!({"n": 0}), json!({"n": 1}), json!({"n": 2})]);
    fail(&home, &["sql", "SELECT 1", "--timeout", "never"], "", 2, &["never"]);
}
