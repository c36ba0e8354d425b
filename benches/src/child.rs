//! Work in a process of its own, for the peak of its memory: the bench program runs itself again with `--child WORK FOLDER`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Outcome;

/// The work of a process that does nothing: what its memory peaks at is the program's own.
pub const NOTHING: &str = "nothing";

/// What a child says of its work, as one JSON line.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ran {
    /// How long the work took, in seconds; starting the process is not part of it.
    pub seconds: f64,
    /// The most memory that the process has held, in bytes.
    pub rss_bytes: u64,
    /// What the work counted; both sides of a comparison must count the same.
    pub count: u64,
}

impl Ran {
    /// How long the work took.
    pub fn took(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Runs this program again for one piece of work on a folder. What the child says to people goes to people.
pub fn run_child(work: &str, folder: &Path) -> Outcome<Ran> {
    let output = Command::new(std::env::current_exe()?)
        .arg("--child")
        .arg(work)
        .arg(folder)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!(
            "the child process for {work:?} on {} failed ({})",
            folder.display(),
            output.status
        )
        .into());
    }
    let text = String::from_utf8(output.stdout)?;
    serde_json::from_str(text.trim()).map_err(|error| {
        format!("the child process for {work:?} said {:?}: {error}", text.trim()).into()
    })
}

/// In the child: does the work, and prints how long it took, the peak of memory, and what it counted.
pub async fn as_child(work: impl Future<Output = Outcome<u64>>) -> Outcome<()> {
    let started = Instant::now();
    let count = work.await?;
    let seconds = started.elapsed().as_secs_f64();
    let ran = Ran { seconds, rss_bytes: peak_rss_bytes()?, count };
    println!("{}", serde_json::to_string(&ran)?);
    Ok(())
}

/// The most memory that this process has held, in bytes.
fn peak_rss_bytes() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
    Ok(kib * 1024)
}
