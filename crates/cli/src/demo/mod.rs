//! `demo`: the verbs on real data, each step shown as the command that a user could type.
//!
//! The steps are run by the same code as typed commands, with their output caught, cut and timed.

mod folder;
mod steps;

use std::path::Path;
use std::time::Instant;

use alluvium::{Error, ErrorKind};

use crate::failure::{ExitCodes, Failure};
use crate::progress::duration;
use crate::run::run as run_command;
use crate::terminal::Console;
use crate::verbs::{Outcome, Session};
use folder::DemoFolder;
use steps::{STEPS, Step};

/// How wide the output of steps is where there is no terminal.
const DEFAULT_WIDTH: usize = 100;

pub(crate) async fn run(session: &mut Session<'_>, dir: &Path) -> Outcome {
    let started = Instant::now();
    let folder = DemoFolder::make(dir)?;
    let intro = steps::intro(&folder);
    session.console.stdout.write_all(intro.as_bytes())?;
    for step in STEPS {
        show(session.console, &folder, step).await?;
    }
    let outro = steps::outro(&folder, &duration(started.elapsed()));
    session.console.stdout.write_all(outro.as_bytes())?;
    Ok(ExitCodes::OK)
}

/// Runs one step, and shows the command, what it wrote, and how long it took.
async fn show(console: &mut Console, folder: &DemoFolder, step: &Step) -> Result<(), Failure> {
    let args = step.args(folder);
    let heading = console.styled("1", &format!("# {}", step.why));
    let typed = console.styled("36", &typed(&args));
    writeln!(console.stdout, "\n{heading}\n$ {typed}")?;
    console.stdout.flush()?;
    let (mut inner, stdout, stderr) = Console::captured(&[]);
    inner.stdout_is_terminal = true;
    inner.width = Some(console.width.unwrap_or(DEFAULT_WIDTH).saturating_sub(2));
    inner.has_color = console.has_color;
    inner.store = Some(folder.store());
    inner.stop = console.stop.clone();
    let started = Instant::now();
    let code = run_command(args.iter().map(String::as_str), &mut inner).await;
    let took = duration(started.elapsed());
    let (rows, messages) = (stdout.take_text(), stderr.take_text());
    if code != ExitCodes::OK {
        let what = format!("the demo stopped at `{}`: {}", self::typed(&args), messages.trim());
        return Err(Error::new(ErrorKind::Internal, what).into());
    }
    let lines: Vec<&str> = rows.lines().collect();
    for line in lines.iter().take(step.lines) {
        writeln!(console.stdout, "  {line}")?;
    }
    if let Some(more) = lines.len().checked_sub(step.lines).filter(|more| *more > 0) {
        writeln!(console.stdout, "  {}", console.styled("2", &format!("… {more} lines more")))?;
    }
    for line in messages.lines() {
        writeln!(console.stdout, "  {}", console.styled("2", line))?;
    }
    writeln!(console.stdout, "  {}", console.styled("32", &format!("✓ {took}")))?;
    console.stdout.flush()?;
    Ok(())
}

/// A command as it is typed into a shell.
fn typed(args: &[String]) -> String {
    args.iter().map(|arg| quoted(arg)).collect::<Vec<_>>().join(" ")
}

fn quoted(arg: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    if !arg.is_empty() && arg.chars().all(is_plain) {
        arg.to_owned()
    } else if arg.contains('\'') && !arg.contains(['"', '$', '`', '\\', '!']) {
        format!("\"{arg}\"")
    } else {
        format!("'{}'", arg.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(quoted("time:2013-01-15T12:00:00Z"), "time:2013-01-15T12:00:00Z");
        assert_eq!(quoted("as_of('a', 1)"), "\"as_of('a', 1)\"");
        assert_eq!(quoted("count(*)"), "'count(*)'");
        assert_eq!(quoted("it's $5"), "'it'\\''s $5'");
    }
}
