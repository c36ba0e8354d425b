//! The JSON lines that benches print.

use serde::Deserialize;

use crate::Outcome;

/// One line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Record {
    pub(crate) bench: String,
    pub(crate) side: String,
    pub(crate) metric: String,
    /// None where something could not be measured.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) value: Option<f64>,
    pub(crate) unit: String,
    pub(crate) n: u64,
    /// For which size the figure holds, where it is one of a row.
    #[serde(default)]
    pub(crate) at: Option<f64>,
    #[serde(default)]
    pub(crate) at_unit: Option<String>,
    /// What a comparison aims at.
    #[serde(default)]
    pub(crate) wanted: Option<f64>,
}

impl Record {
    /// Whether both lines are of the same figure.
    fn is_same(&self, other: &Self) -> bool {
        (&self.bench, &self.side, &self.metric, &self.unit)
            == (&other.bench, &other.side, &other.metric, &other.unit)
            && self.at == other.at
    }
}

/// The lines of a file in their order; of the same figure the last one. Empty lines are passed over.
pub(crate) fn parse(file: &str, text: &str) -> Outcome<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let record: Record = serde_json::from_str(line).map_err(|error| {
            format!("{file}, line {number}: no figure of a bench ({error}): {line}")
        })?;
        if record.at.is_some() != record.at_unit.is_some() {
            return Err(format!(
                "{file}, line {number}: \"at\" and \"at_unit\" need each other: {line}"
            ));
        }
        match records.iter_mut().find(|known| known.is_same(&record)) {
            Some(known) => *known = record,
            None => records.push(record),
        }
    }
    match records.is_empty() {
        true => Err(format!("{file} has no lines: redirect a bench's standard output into it")),
        false => Ok(records),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LINE: &str =
        r#"{"bench":"get","side":"alluvium","metric":"get","value":0.28,"unit":"ms","n":5000}"#;

    #[test]
    fn a_garbage_line_is_named() {
        let text = format!("{LINE}\n\nnot a figure\n");
        let error = parse("results.jsonl", &text).unwrap_err();
        assert!(error.starts_with("results.jsonl, line 3: "), "{error}");
        assert!(error.ends_with(": not a figure"), "{error}");
    }

    #[test]
    fn a_line_without_a_field_is_named() {
        for field in ["bench", "side", "metric", "value", "unit", "n"] {
            let text = LINE.replace(&format!("\"{field}\":"), "\"other\":");
            let error = parse("results.jsonl", &text).unwrap_err();
            assert!(error.contains("line 1") && error.contains(field), "{error}");
        }
    }

    #[test]
    fn a_figure_at_a_size_without_a_unit_is_refused() {
        let text = LINE.replace("\"n\":", "\"at\":5,\"n\":");
        assert!(parse("results.jsonl", &text).unwrap_err().contains("at_unit"));
    }

    #[test]
    fn the_later_line_of_a_figure_counts() {
        let text = format!("{LINE}\n{}", LINE.replace("0.28", "0.30"));
        let records = parse("results.jsonl", &text).unwrap();
        assert_eq!(records.iter().map(|record| record.value).collect::<Vec<_>>(), [Some(0.30)]);
    }

    #[test]
    fn what_could_not_be_measured_is_kept_as_a_gap() {
        let records = parse("results.jsonl", &LINE.replace("0.28", "null")).unwrap();
        assert_eq!(records[0].value, None);
    }

    #[test]
    fn nothing_is_an_error() {
        assert!(parse("results.jsonl", "\n").unwrap_err().contains("no lines"));
    }
}
