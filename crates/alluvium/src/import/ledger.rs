//! Which rows of an import are in: kept so that whatever stops it, the error can say so exactly.

use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Receipt};

use super::target::Batch;

/// What has been settled so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Stretches of batches that are in, in order.
    landed: Vec<Span>,
    /// Batches of which it isn't known.
    unknown: Vec<Span>,
    last_counted: Option<i64>,
    pub(super) rows: u64,
    pub(super) deletes: u64,
    pub(super) commits: u64,
    pub(super) first_commit: Option<i64>,
    pub(super) last_commit: Option<i64>,
}

#[derive(Debug, Clone)]
struct Span {
    first_seq: u64,
    last_seq: u64,
    first: (Arc<str>, u64),
    last: (Arc<str>, u64),
    rows: u64,
}

impl Span {
    fn of(batch: &Batch) -> Self {
        Self {
            first_seq: batch.seq,
            last_seq: batch.seq,
            first: (Arc::clone(&batch.input), batch.first_line),
            last: (Arc::clone(&batch.input), batch.last_line),
            rows: batch.rows,
        }
    }

    fn place(&self) -> String {
        let ((first, from), (last, to)) = (&self.first, &self.last);
        if first == last && from == to {
            format!("line {from} of {first}")
        } else if first == last {
            format!("lines {from} to {to} of {first}")
        } else {
            format!("line {from} of {first} to line {to} of {last}")
        }
    }
}

impl Ledger {
    /// Notes a batch that is in.
    pub(super) fn land(&mut self, batch: &Batch, receipt: &Receipt) {
        let commit = receipt.commit;
        self.rows += batch.rows;
        self.deletes += batch.deletes;
        // Batches may share a commit; those of one import come in the order of their commits.
        if self.last_counted != Some(commit) {
            self.commits += 1;
            self.last_counted = Some(commit);
        }
        self.first_commit = Some(self.first_commit.map_or(commit, |first| first.min(commit)));
        self.last_commit = Some(self.last_commit.map_or(commit, |last| last.max(commit)));
        let at = self.landed.partition_point(|span| span.first_seq < batch.seq);
        self.landed.insert(at, Span::of(batch));
        self.landed.dedup_by(|next, span| {
            let follows = span.last_seq + 1 == next.first_seq;
            if follows {
                span.last_seq = next.last_seq;
                span.last = next.last.clone();
                span.rows += next.rows;
            }
            follows
        });
    }

    /// Notes a batch that is not in, or of which that isn't known.
    pub(super) fn fail(&mut self, batch: &Batch, kind: ErrorKind) {
        if kind == ErrorKind::Unknown {
            self.unknown.push(Span::of(batch));
        }
    }

    /// The place up to which everything is in.
    pub(super) fn place(&self) -> Option<String> {
        let start = self.landed.first().filter(|span| span.first_seq == 0)?;
        Some(format!("line {} of {}", start.last.1, start.last.0))
    }

    /// The error that stopped an import, with what is in and how to go on.
    pub(super) fn explain(&self, error: Error) -> Error {
        let mut text = error.to_string();
        for span in &self.unknown {
            text.push_str(&format!("; whether {} are in is not known", span.place()));
        }
        match (self.landed.is_empty(), self.commits_text()) {
            (false, Some(commits)) => {
                let places: Vec<String> = self.landed.iter().map(Span::place).collect();
                text.push_str(&format!(
                    "; the import stopped here: {} in already, as {commits}: {}",
                    if self.rows == 1 {
                        "1 row is".to_owned()
                    } else {
                        format!("{} rows are", self.rows)
                    },
                    places.join(" and ")
                ));
                text.push_str(&self.remedy());
            }
            _ if self.unknown.is_empty() => text.push_str("; nothing was appended"),
            _ => {}
        }
        Error::new(error.kind(), text).with_source(error)
    }

    fn commits_text(&self) -> Option<String> {
        let (first, last) = (self.first_commit?, self.last_commit?);
        Some(if first == last {
            format!("commit {first}")
        } else {
            format!("commits {first} to {last}")
        })
    }

    fn remedy(&self) -> String {
        match self.landed.as_slice() {
            [one] if one.first_seq == 0 && self.unknown.is_empty() && one.first.0 == one.last.0 => {
                format!(
                    "; to go on, append again after line {}; to have all or nothing, use an epoch",
                    one.last.1
                )
            }
            _ => "; to have all or nothing, use an epoch".to_owned(),
        }
    }
}
