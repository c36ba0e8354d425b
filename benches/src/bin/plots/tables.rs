//! Every figure in tables, as Markdown: one section for each bench.

use crate::axis::short;
use crate::records::Record;

/// How the side of a comparison begins.
const AGAINST: &str = "alluvium against ";

/// All tables.
pub(crate) fn markdown(records: &[Record]) -> String {
    let mut text =
        String::from("# Figures\n\nMade by `plots` from the JSON lines of the benches.\n");
    for bench in distinct(records.iter().map(|record| record.bench.as_str())) {
        let of_bench: Vec<&Record> =
            records.iter().filter(|record| record.bench == bench).collect();
        text.push_str(&format!("\n## {bench}\n"));
        text.push_str(&plain(&of_bench));
        text.push_str(&comparisons(&of_bench));
        text.push_str(&rows_of(&of_bench));
    }
    text
}

/// The different ones, in the order in which they come first.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut different = Vec::new();
    for name in names {
        if !different.contains(&name) {
            different.push(name);
        }
    }
    different
}

fn plain(records: &[&Record]) -> String {
    let rows = records
        .iter()
        .filter(|of| of.at.is_none() && !of.side.starts_with(AGAINST))
        .map(|of| {
            let value = format!("{} {}", figure(of.value), of.unit);
            vec![of.metric.clone(), of.side.clone(), value.trim().to_owned(), of.n.to_string()]
        })
        .collect();
    table(&["work", "side", "figure", "n"].map(str::to_owned), rows)
}

fn comparisons(records: &[&Record]) -> String {
    let rows = records
        .iter()
        .filter_map(|of| Some((of, of.side.strip_prefix(AGAINST)?)))
        .map(|(of, other)| {
            let reached = of.value.zip(of.wanted).is_none_or(|(value, wanted)| value >= wanted);
            let value = figure(of.value);
            let value = if reached { value } else { format!("**{value}**") };
            vec![of.metric.clone(), other.to_owned(), value, figure(of.wanted)]
        })
        .collect();
    table(&["work", "against", "times better", "wanted"].map(str::to_owned), rows)
}

/// Figures by size: the sizes across, or down where there are more of them than lines.
fn rows_of(records: &[&Record]) -> String {
    let mut text = String::new();
    for unit in distinct(records.iter().filter_map(|of| of.at_unit.as_deref())) {
        let of_unit: Vec<&Record> =
            records.iter().copied().filter(|of| of.at_unit.as_deref() == Some(unit)).collect();
        let mut sizes: Vec<f64> = of_unit.iter().filter_map(|of| of.at).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let name = |of: &Record| format!("{}: {} ({})", of.side, of.metric, of.unit);
        let names: Vec<String> = of_unit.iter().map(|of| name(of)).collect();
        let names = distinct(names.iter().map(String::as_str));
        let cell = |line: &str, size: f64| {
            let found = of_unit.iter().find(|of| name(of) == line && of.at == Some(size));
            found.map_or_else(String::new, |of| figure(of.value))
        };
        let (head, rows) = match sizes.len() > names.len() {
            true => (
                names.iter().map(|&line| line.to_owned()).collect::<Vec<_>>(),
                sizes
                    .iter()
                    .map(|&size| {
                        let cells = names.iter().map(|line| cell(line, size));
                        std::iter::once(short(size)).chain(cells).collect()
                    })
                    .collect(),
            ),
            false => (
                sizes.iter().map(|&size| short(size)).collect(),
                names
                    .iter()
                    .map(|&line| {
                        let cells = sizes.iter().map(|&size| cell(line, size));
                        std::iter::once(line.to_owned()).chain(cells).collect()
                    })
                    .collect(),
            ),
        };
        let head: Vec<String> = std::iter::once(unit.to_owned()).chain(head).collect();
        text.push_str(&table(&head, rows));
    }
    text
}

fn table(head: &[String], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = format!("\n{}|{}\n", line(head), "---|".repeat(head.len()));
    for row in rows {
        text.push_str(&line(&row));
    }
    text
}

/// A figure with three digits that count, or all before the point.
fn figure(value: Option<f64>) -> String {
    let Some(value) = value else { return "not measured".to_owned() };
    let digits = match value.abs() {
        0.0 => 0,
        large if large >= 100.0 => 0,
        small => (2 - small.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => thousands(&text),
    }
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::records::parse;

    #[test]
    fn figures_comparisons_and_rows_have_tables_of_their_own() {
        let lines = r#"{"bench":"get","side":"alluvium","metric":"get p50","value":0.2812,"unit":"ms","n":5000}
{"bench":"get","side":"alluvium against datafusion","metric":"get","value":14.2,"unit":"times better","n":1,"wanted":5}
{"bench":"get","side":"alluvium against 1 us","metric":"get","value":0.7,"unit":"times better","n":1,"wanted":1}
{"bench":"scale","side":"alluvium","metric":"rebuild","at":1000000,"at_unit":"keys","value":4.4,"unit":"M rows/s","n":1}
{"bench":"scale","side":"alluvium","metric":"rebuild","at":100000,"at_unit":"keys","value":null,"unit":"M rows/s","n":1}
{"bench":"scale","side":"alluvium","metric":"open","at":100000,"at_unit":"keys","value":9.0,"unit":"ms","n":1}"#;
        let text = markdown(&parse("lines", lines).unwrap());
        for part in [
            "| get p50 | alluvium | 0.281 ms | 5000 |",
            "| get | datafusion | 14.2 | 5 |",
            "| get | 1 us | **0.7** | 1 |",
            "| keys | 100k | 1M |",
            "| alluvium: rebuild (M rows/s) | not measured | 4.4 |",
            "| alluvium: open (ms) | 9 |  |",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn many_sizes_go_down() {
        let line = |at: u32| {
            format!(
                r#"{{"bench":"commit","side":"floor","metric":"append","at":{at},"at_unit":"commits","value":{at},"unit":"ms","n":1}}"#
            )
        };
        let text = markdown(&parse("lines", &[line(100), line(200)].join("\n")).unwrap());
        assert!(
            text.contains(
                "| commits | floor: append (ms) |\n|---|---|\n| 100 | 100 |\n| 200 | 200 |"
            ),
            "{text}"
        );
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        let texts = [0.0, 0.00123456, 0.5, 7.0, 12.345, 999.6, 1_234_567.8]
            .map(|value| figure(Some(value)));
        assert_eq!(texts, ["0", "0.00123", "0.5", "7", "12.3", "1,000", "1,234,568"]);
    }
}
