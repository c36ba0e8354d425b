//! Timing, and figures as JSON lines on standard output.

use std::time::{Duration, Instant};

use serde_json::json;

/// How long some work took, and what came of it.
pub async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    let done = work.await;
    (done, started.elapsed())
}

/// The processor time that this process has taken so far, if the system tells: other processes at work change it little.
pub fn processor_time() -> Option<Duration> {
    // After the name, which may hold anything, in hundredths of a second: user and system are the 12th and 13th.
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

/// Durations of one kind of work.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    seconds: Vec<f64>,
}

impl Samples {
    /// Adds one.
    pub fn push(&mut self, duration: Duration) {
        self.seconds.push(duration.as_secs_f64());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// Some of them, in the order of measuring.
    pub fn part(&self, from: usize, to: usize) -> Self {
        let to = to.min(self.seconds.len());
        Self { seconds: self.seconds[from.min(to)..to].to_vec() }
    }

    /// The duration below which this share of them lies, in seconds.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
    }

    /// The middle one, in seconds.
    pub fn median(&self) -> f64 {
        self.percentile(0.5)
    }
}

/// The figures of one bench; each is printed when it is known.
#[derive(Debug)]
pub struct Figures {
    bench: &'static str,
}

impl Figures {
    /// Figures of a bench.
    pub fn of(bench: &'static str) -> Self {
        eprintln!("-- {bench}");
        Self { bench }
    }

    /// One figure.
    pub fn line(&self, side: &str, metric: &str, value: f64, unit: &str, n: usize) {
        let value = (value * 1e4).round() / 1e4;
        println!(
            "{}",
            json!({"bench": self.bench, "side": side, "metric": metric, "value": value, "unit": unit, "n": n})
        );
        eprintln!("   {side:<10} {metric:<44} {value:>14.3} {unit} (n={n})");
    }

    /// One figure of a row of them: `at` says for how many commits or keys, or how deep, it holds. What plots are made of.
    pub fn point(&self, side: &str, metric: &str, at: (f64, &str), value: f64, unit: &str) {
        let (at, at_unit) = at;
        let value = (value * 1e4).round() / 1e4;
        println!(
            "{}",
            json!({"bench": self.bench, "side": side, "metric": metric, "at": at, "at_unit": at_unit,
                   "value": value, "unit": unit, "n": 1})
        );
        eprintln!("   {side:<10} {metric:<32} {at:>11} {at_unit:<8} {value:>13.3} {unit}");
    }

    /// Tells people how far a long bench is.
    pub fn progress(&self, what: &str) {
        eprintln!("   .. {what}");
    }

    /// Median and 99th percentile in milliseconds.
    pub fn latency(&self, side: &str, metric: &str, samples: &Samples) {
        self.line(side, &format!("{metric} p50"), samples.median() * 1e3, "ms", samples.len());
        self.line(
            side,
            &format!("{metric} p99"),
            samples.percentile(0.99) * 1e3,
            "ms",
            samples.len(),
        );
    }

    /// The median in milliseconds.
    pub fn duration(&self, side: &str, metric: &str, samples: &Samples) {
        self.line(side, metric, samples.median() * 1e3, "ms", samples.len());
    }

    /// The median as rows per second.
    pub fn rate(&self, side: &str, metric: &str, rows: usize, samples: &Samples) {
        self.line(side, metric, rows as f64 / samples.median() / 1e6, "M rows/s", samples.len());
    }

    /// How many times longer the other side takes by the medians; `wanted` is what we aim at.
    pub fn times(&self, other: &str, metric: &str, theirs: &Samples, ours: &Samples, wanted: f64) {
        self.ratio(other, metric, theirs.median() / ours.median(), wanted);
    }

    /// A ratio against another side, more being better for us; `wanted` is what we aim at.
    pub fn ratio(&self, other: &str, metric: &str, value: f64, wanted: f64) {
        let value = (value * 100.0).round() / 100.0;
        println!(
            "{}",
            json!({"bench": self.bench, "side": format!("alluvium against {other}"), "metric": metric,
                   "value": value, "unit": "times better", "n": 1, "wanted": wanted})
        );
        let mark = if value >= wanted { "" } else { "  <-- below" };
        eprintln!("   => {metric}: {value:.2} times better than {other}, wanted {wanted}{mark}");
    }
}
