//! Runs the files of `slt/`: SQL and its answers as text, in the manner of sqllogictest.
//!
//! Blocks are separated by empty lines; lines that begin with `#` are comments.
//!
//! ```text
//! query IT rowsort        one letter per column: I integer, R other number, T text, B boolean, P time, ? other
//! SELECT ...              of any number of lines
//! ----
//! 1 a                     one line per row, NULL for null, (empty) for an empty text; rowsort: in any order
//!
//! statement error words   the statement fails, and its message has the words
//! DROP TABLE x
//! ```
//!
//! With `ALLUVIUM_SLT_REWRITE=1` the expected rows are replaced by what came: read the difference before you keep it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;

use super::fixture::{LAYOUTS, Layout, all_states};
use crate::sql::{SqlSession, sql_error};

#[derive(Debug, Clone)]
enum Block {
    /// Kept for rewriting.
    Comment(String),
    Query {
        types: String,
        rowsort: bool,
        sql: String,
        expected: Vec<String>,
        line: usize,
    },
    Fails {
        words: String,
        sql: String,
        line: usize,
    },
}

fn parse(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        if line.is_empty() {
            continue;
        }
        if line.starts_with('#') {
            blocks.push(Block::Comment(line.to_owned()));
            continue;
        }
        let mut sql = Vec::new();
        let mut expected = Vec::new();
        let mut answer = false;
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.is_empty()) {
            match line {
                "----" => answer = true,
                line if answer => expected.push(line.to_owned()),
                line => sql.push(line),
            }
        }
        let (sql, line_number) = (sql.join("\n"), index + 1);
        if let Some(words) = line.strip_prefix("statement error ") {
            blocks.push(Block::Fails { words: words.to_owned(), sql, line: line_number });
        } else if let Some(rest) = line.strip_prefix("query ") {
            let mut rest = rest.split(' ');
            let types = rest.next().unwrap().to_owned();
            let rowsort = rest.next() == Some("rowsort");
            blocks.push(Block::Query { types, rowsort, sql, expected, line: line_number });
        } else {
            panic!("line {line_number} begins no block: {line}");
        }
    }
    blocks
}

fn letter(data_type: &DataType) -> char {
    match data_type {
        _ if data_type.is_integer() => 'I',
        _ if data_type.is_numeric() => 'R',
        _ if data_type.is_string() => 'T',
        DataType::Boolean => 'B',
        DataType::Timestamp(..) | DataType::Date32 => 'P',
        _ => '?',
    }
}

pub(super) fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|column| (column, ArrayFormatter::try_new(column.as_ref(), &options).unwrap()))
            .collect();
        for row in 0..batch.num_rows() {
            let shown = |(column, formatter): &(&arrow::array::ArrayRef, ArrayFormatter<'_>)| {
                let value = formatter.value(row).to_string();
                if value.is_empty() && column.is_valid(row) { "(empty)".to_owned() } else { value }
            };
            lines.push(columns.iter().map(shown).collect::<Vec<_>>().join(" "));
        }
    }
    lines
}

pub(super) async fn collect(
    session: &SqlSession,
    sql: &str,
) -> alluvium_log::Result<Vec<RecordBatch>> {
    session.query(sql).await?.try_collect().await.map_err(sql_error)
}

/// What a query answers: the letters of its columns and its rows.
async fn answer(session: &SqlSession, sql: &str) -> alluvium_log::Result<(String, Vec<String>)> {
    let stream = session.query(sql).await?;
    let types = stream.schema().fields().iter().map(|field| letter(field.data_type())).collect();
    let batches: Vec<RecordBatch> = stream.try_collect().await.map_err(sql_error)?;
    Ok((types, lines(&batches)))
}

async fn run_file(path: &Path, layout: Layout, failures: &mut String) {
    let session = all_states(layout).await;
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let rewriting = std::env::var_os("ALLUVIUM_SLT_REWRITE").is_some() && layout == Layout::LogOnly;
    let mut rewritten = String::new();
    let mut was_comment = false;
    for block in parse(&std::fs::read_to_string(path).unwrap()) {
        if !rewritten.is_empty() && !was_comment {
            rewritten.push('\n');
        }
        was_comment = matches!(block, Block::Comment(_));
        match block {
            Block::Comment(text) => writeln!(rewritten, "{text}").unwrap(),
            Block::Fails { words, sql, line } => {
                writeln!(rewritten, "statement error {words}\n{sql}").unwrap();
                match answer(&session, &sql).await {
                    Err(error) if error.to_string().contains(&words) => {}
                    other => writeln!(
                        failures,
                        "{name}:{line} ({layout:?}): wanted an error with {words:?}, got {other:?}"
                    )
                    .unwrap(),
                }
            }
            Block::Query { types, rowsort, sql, mut expected, line } => {
                let (found_types, mut found) = match answer(&session, &sql).await {
                    Ok(answer) => answer,
                    Err(error) => (types.clone(), vec![format!("ERROR {error}")]),
                };
                if rowsort {
                    found.sort();
                    expected.sort();
                }
                let sort = if rowsort { " rowsort" } else { "" };
                write!(rewritten, "query {found_types}{sort}\n{sql}\n----\n").unwrap();
                for line in &found {
                    writeln!(rewritten, "{line}").unwrap();
                }
                if !rewriting && (found_types != types || found != expected) {
                    writeln!(failures, "{name}:{line} ({layout:?}): {sql}\nwanted {types} {expected:#?}\ngot {found_types} {found:#?}").unwrap();
                }
            }
        }
    }
    if rewriting {
        std::fs::write(path, rewritten).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_give_the_recorded_answers_whatever_is_materialized() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/sql/slt");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "slt"));
    files.sort();
    assert!(files.len() > 5, "the files of slt/ are missing");
    let mut failures = String::new();
    for layout in LAYOUTS {
        for file in &files {
            run_file(file, layout, &mut failures).await;
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
