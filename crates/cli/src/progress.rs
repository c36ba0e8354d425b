//! How far an append is, drawn on the user's terminal.

use std::time::Instant;

use alluvium::ImportProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of the bytes read, with rows, rows a second and the newest commit.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// A bar on standard error, or none at all.
    pub(crate) fn new(is_shown: bool) -> Self {
        let target =
            if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        Self { bar, started: Instant::now() }
    }

    /// Shows how far it is.
    pub(crate) fn update(&self, progress: &ImportProgress) {
        if self.bar.is_hidden() {
            return;
        }
        let template = match progress.total_bytes {
            Some(total) => {
                self.bar.set_length(total);
                "{bar:24} {percent:>3}%  {msg}"
            }
            None => "{spinner} {bytes}  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("━╸─"));
        }
        self.bar.set_position(progress.bytes_read);
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let rate = progress.rows as f64 / seconds;
        let mut text = format!("{} rows  {rate:.0} rows/s", thousands(progress.rows));
        if let Some(commit) = progress.commit {
            text.push_str(&format!("  commit {commit}"));
        }
        if progress.rejected > 0 {
            text.push_str(&format!("  {} rejected", thousands(progress.rejected)));
        }
        self.bar.set_message(text);
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A number with commas between its thousands.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of things in words, such as `1 row` or `1,200 rows`.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", thousands(number))
}

/// Milliseconds as text: with a fraction while it matters, in seconds when they are many.
pub(crate) fn duration(elapsed: std::time::Duration) -> String {
    let millis = elapsed.as_secs_f64() * 1_000.0;
    if millis < 10.0 {
        format!("{millis:.1} ms")
    } else if millis < 10_000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.1} s", millis / 1_000.0)
    }
}

/// Bytes as text, in the unit that suits.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1_000 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut name = "B";
    for unit in UNITS {
        if value < 1_000.0 {
            break;
        }
        value /= 1_000.0;
        name = unit;
    }
    if value < 10.0 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [thousands(0), thousands(999), thousands(1_000), thousands(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!([bytes(999), bytes(1_500), bytes(12_345_678)], ["999 B", "1.5 kB", "12 MB"]);
        assert_eq!(counted(1, "row"), "1 row");
    }
}
