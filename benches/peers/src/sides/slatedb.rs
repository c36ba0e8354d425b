//! SlateDB, in a program of its own (`slatedb/`): beside ours, its dependencies would have all of DataFusion compiled anew.

use std::path::Path;
use std::process::{Command, Stdio};

use alluvium_workload::{Measured, Outcome, Workload};

/// Builds and runs the program in this folder's `slatedb/`.
pub(crate) fn measure(folder: &Path, work: Workload) -> Outcome<Measured> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("slatedb/Cargo.toml");
    let output = Command::new("cargo")
        .args(["run", "--release", "--locked", "--quiet", "--manifest-path"])
        .arg(&manifest)
        .arg("--")
        .arg(folder)
        .args([work.events, usize::try_from(work.keys)?, work.epoch_events].map(|n| n.to_string()))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo, for {}: {error}", manifest.display()))?;
    if !output.status.success() {
        return Err(format!("{} failed ({})", manifest.display(), output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
