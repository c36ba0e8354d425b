//! `cargo run --release -p alluvium-benches --bin plots -- RESULTS.jsonl.. FOLDER`: plots and tables from the JSON lines of benches.
//!
//! Each plot is an SVG file that can be read on light and dark pages; `tables.md` has every figure. Where a figure comes twice,
//! the later line counts: what was measured again is appended. What there are no lines for is left out, and said.
#![allow(clippy::print_stderr)]

mod axis;
mod catalog;
mod chart;
mod records;
mod tables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use records::Record;

/// What goes wrong, in words for people: the file and the line, or the plot.
type Outcome<T> = Result<T, String>;

const USAGE: &str = "usage: plots RESULTS.jsonl.. FOLDER";

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let done = match arguments.split_last() {
        Some((folder, results)) if !results.is_empty() => run(results, folder),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(results: &[PathBuf], folder: &Path) -> Outcome<()> {
    let mut records = Vec::new();
    for path in results {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{} can't be read: {error}", path.display()))?;
        records.extend(records::parse(&path.display().to_string(), &text)?);
    }
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{} can't be made: {error}", folder.display()))?;
    for (name, text) in files(&records)? {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|error| format!("{} can't be written: {error}", path.display()))?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

/// The files to write: a plot for each entry of the catalog that there are figures for, and the tables.
fn files(records: &[Record]) -> Outcome<Vec<(String, String)>> {
    let mut files = Vec::new();
    for plot in catalog::PLOTS {
        match plot.chart(records) {
            None => {
                let name = plot.name;
                eprintln!(
                    "no lines for {name}.svg: cargo bench -p alluvium-benches -- {}",
                    plot.bench
                );
            }
            Some(chart) => files.push((format!("{}.svg", plot.name), chart.svg()?)),
        }
    }
    files.push(("tables.md".to_owned(), tables::markdown(records)));
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plots_come_of_the_lines_that_there_are() {
        let lines = r#"{"bench":"commit","side":"alluvium","metric":"append of 1 row, p50","at":100,"at_unit":"commits","value":2.1,"unit":"ms","n":1}
{"bench":"commit","side":"alluvium","metric":"append of 1 row, p50","at":200,"at_unit":"commits","value":2.3,"unit":"ms","n":1}
{"bench":"get","side":"alluvium","metric":"get, present p50","value":0.28,"unit":"ms","n":5000}"#;
        let files = files(&records::parse("lines", lines).unwrap()).unwrap();
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["commit-latency.svg", "tables.md"]);
    }

    #[test]
    fn names_of_plots_differ() {
        let mut names: Vec<&str> = catalog::PLOTS.iter().map(|plot| plot.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), catalog::PLOTS.len());
    }
}
