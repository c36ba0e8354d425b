//! `doctor`: one report of what somebody who is to help has to know: versions, settings, tables, checks, errors; no data and no
//! secrets.

use alluvium::{RawState, Store};
use serde_json::{Value, json};

use super::{Outcome, Session};
use crate::failure::{ExitCodes, Failure};

/// Tail rows from which reads are slower than they could be.
const LONG_TAIL_ROWS: u64 = 1 << 20;
/// Commits that an opening reads one by one, from which it is slow.
const MANY_COMMITS: i64 = 2_000;
/// Open files that a process should be allowed.
const FEW_FILES: u64 = 256;

pub(super) async fn run(session: &mut Session<'_>) -> Outcome {
    let mut report = json!({
        "alluvium": env!("CARGO_PKG_VERSION"),
        "made_at": chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        "system": system(),
        "settings": settings(session),
    });
    let (mut checks, mut states, mut errors) = (checks_of_system(), Vec::new(), Vec::new());
    match session.open().await {
        Ok(store) => {
            report["store"] = json!(without_secrets(store.label()));
            let names = store.state_names().await;
            match names {
                Ok(names) => {
                    for name in names {
                        states.push(state(&store, &name, &mut checks, &mut errors).await);
                    }
                }
                Err(error) => errors.push(error_of("listing the states", &error.into())),
            }
        }
        Err(failure) => errors.push(error_of("opening the store", &failure)),
    }
    let is_well = errors.is_empty() && checks.iter().all(|check| check["ok"] == json!(true));
    report["states"] = json!(states);
    report["checks"] = json!(checks);
    report["errors"] = json!(errors);
    let text = serde_json::to_string_pretty(&report)
        .map_err(|error| alluvium::Error::internal("the report").with_source(error))?;
    writeln!(session.console.stdout, "{text}")?;
    if !is_well {
        session.say("not all is well: see checks and errors in the report");
    }
    Ok(ExitCodes::OK)
}

fn system() -> Value {
    json!({
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "open_files_limit": open_files_limit(),
    })
}

/// The files that this process may have open, where that can be told.
fn open_files_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn settings(session: &Session<'_>) -> Vec<Value> {
    let given = session.process().named();
    given
        .map(|setting| {
            let value = match &setting.value {
                Value::String(text) => json!(without_secrets(text)),
                other => other.clone(),
            };
            json!({ "name": setting.name, "value": value, "source": setting.source })
        })
        .collect()
}

/// A place without what a URI may carry as a password: the user's part, and parameters.
fn without_secrets(place: &str) -> String {
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

fn check(name: &str, ok: bool, found: String, remedy: &str) -> Value {
    let remedy = if ok { Value::Null } else { json!(remedy) };
    json!({ "check": name, "ok": ok, "found": found, "remedy": remedy })
}

fn checks_of_system() -> Vec<Value> {
    let mut checks = Vec::new();
    if let Some(limit) = open_files_limit() {
        let remedy = "raise it: ulimit -n 1024";
        checks.push(check("open files", limit >= FEW_FILES, limit.to_string(), remedy));
    }
    let spill = tempfile_probe();
    let found = spill.clone().err().unwrap_or_else(|| "writable".to_owned());
    checks.push(check(
        "folder for what is spilled",
        spill.is_ok(),
        found,
        "free space, or set spill_dir",
    ));
    checks
}

/// Whether a temporary file can be written.
fn tempfile_probe() -> Result<(), String> {
    let path = std::env::temp_dir().join(format!("alluvium-doctor-{}", std::process::id()));
    let written = std::fs::write(&path, [0; 4_096]);
    std::fs::remove_file(&path).ok();
    written.map_err(|error| format!("{}: {error}", std::env::temp_dir().display()))
}

fn error_of(what: &str, failure: &Failure) -> Value {
    json!({ "while": what, "error": failure.lines(), "exit_code": failure.exit_code() })
}

async fn state(
    store: &Store,
    name: &str,
    checks: &mut Vec<Value>,
    errors: &mut Vec<Value>,
) -> Value {
    let state = match store.raw_state(name).await {
        Ok(state) => state,
        Err(error) => {
            errors.push(error_of(&format!("opening {name}"), &error.into()));
            return json!({ "state": name, "opens": false });
        }
    };
    let figures = match state.stats().await {
        Ok(stats) => {
            let tail = check(
                &format!("{name}: rows that reads have to fold"),
                stats.tail_rows < LONG_TAIL_ROWS,
                stats.tail_rows.to_string(),
                "run alluvium maintain --steps materialize more often",
            );
            checks.push(tail);
            json!({
                "commit": stats.commit, "log_rows": stats.log_rows,
                "snapshot_commit": stats.snapshot_commit, "tail_commits": stats.tail_commits,
                "tail_rows": stats.tail_rows,
            })
        }
        Err(error) => {
            errors.push(error_of(&format!("counting {name}"), &error.into()));
            Value::Null
        }
    };
    let snapshot = match state.snapshot().state().table() {
        Some((snapshot, _)) => table(snapshot, checks, errors).await,
        None => Value::Null,
    };
    json!({
        "state": name, "opens": true,
        "order_by": state.definition().order_by.to_string(),
        "fields": state.definition().fields.len(),
        "figures": figures,
        "savepoints": savepoints(&state, errors).await,
        "log": table(state.log().table(), checks, errors).await,
        "snapshot": snapshot,
    })
}

async fn savepoints(state: &RawState, errors: &mut Vec<Value>) -> Value {
    match state.savepoints().await {
        Ok(found) => json!(found.len()),
        Err(error) => {
            let what = format!("reading the savepoints of {}", state.name());
            errors.push(error_of(&what, &error.into()));
            Value::Null
        }
    }
}

async fn table(table: &alluvium::Table, checks: &mut Vec<Value>, errors: &mut Vec<Value>) -> Value {
    let state = table.state();
    let commits = table.commits_since_checkpoint();
    checks.push(check(
        &format!("{}: commits after the newest checkpoint", table.label()),
        commits < MANY_COMMITS,
        commits.to_string(),
        "run alluvium maintain --steps checkpoint",
    ));
    let oldest = match table.oldest_version().await {
        Ok(oldest) => json!(oldest),
        Err(error) => {
            errors.push(error_of(&format!("listing {}", table.label()), &error.into()));
            Value::Null
        }
    };
    // What other engines or applications note there is theirs.
    let is_known = |name: &str| name.starts_with("delta.") || name.starts_with("alluvium.");
    let properties: serde_json::Map<String, Value> = state
        .metadata
        .properties
        .iter()
        .filter(|(name, _)| is_known(name))
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    json!({
        "version": state.version, "oldest_version": oldest, "files": state.file_count(),
        "commits_since_checkpoint": commits,
        "protocol": { "reader": state.protocol.reader, "writer": state.protocol.writer, "features": state.protocol.features },
        "properties": properties,
    })
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn what_may_be_a_password_is_left_out() {
        for (given, told) in [
            ("./a b/c", "./a b/c"),
            ("s3://key:secret@bucket/path?token=x#y", "s3://bucket/path"),
            ("s3://bucket", "s3://bucket"),
            ("file:///srv/a@b", "file:///srv/a@b"),
        ] {
            assert_eq!(without_secrets(given), told);
        }
    }
}
