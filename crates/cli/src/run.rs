//! From the command line to an exit code.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Verb};
use crate::failure::{ExitCodes, Failure};
use crate::terminal::{Console, Stop};
use crate::verbs;

/// How long threads that still read are waited for when everything is told.
const SHUTDOWN: Duration = Duration::from_millis(100);

/// The program: reads the process's arguments, runs, and gives its exit code.
pub fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let mut console = Console::of_process(Stop::never());
            console.say(&format!("error: the program can't start: {error}"));
            return ExitCode::from(ExitCodes::FAILED);
        }
    };
    let code = runtime.block_on(async {
        let (wanted, stop) = watch::channel(false);
        // On a thread of its own: a query may keep all threads of the runtime busy.
        std::thread::spawn(move || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(listen(wanted)),
                Err(error) => tracing::warn!(%error, "Ctrl-C ends the program without a report"),
            }
        });
        let mut console = Console::of_process(Stop::when(stop));
        run(std::env::args_os(), &mut console).await
    });
    // A thread that waits for input would otherwise keep the program.
    runtime.shutdown_timeout(SHUTDOWN);
    ExitCode::from(code)
}

/// Tells of the first Ctrl-C or SIGTERM; the second one ends the process at once.
async fn listen(wanted: watch::Sender<bool>) {
    if signal().await.is_ok() {
        wanted.send(true).ok();
        if signal().await.is_ok() {
            std::process::exit(i32::from(ExitCodes::INTERRUPTED));
        }
    }
    // Without signals nothing will be told, but the receivers stay connected.
    wanted.closed().await;
}

/// Resolves when the process is asked to end.
#[cfg(unix)]
async fn signal() -> std::io::Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = terminated.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn signal() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}

/// Runs one command line, the program's name included, and gives its exit code.
pub async fn run<I, T>(args: I, console: &mut Console) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return explain_usage(&error, console),
    };
    start_logging(cli.verbose, console);
    // These end cleanly by themselves; everything else is simply dropped, which the library allows at any moment.
    let ends_itself = match &cli.verb {
        Verb::Append(_) | Verb::Maintain(_) => true,
        Verb::Changes(args) => args.follow,
        _ => false,
    };
    let stop = if ends_itself { Stop::never() } else { console.stop.clone() };
    let outcome = tokio::select! {
        outcome = verbs::run(cli, console) => Some(outcome),
        () = stop.wait() => None,
    };
    let Some(outcome) = outcome else {
        console.stdout.flush().ok();
        return ExitCodes::INTERRUPTED;
    };
    let outcome = outcome.and_then(|code| {
        console.stdout.flush()?;
        Ok(code)
    });
    match outcome {
        Ok(code) => code,
        Err(failure) => tell(&failure, console),
    }
}

/// Shows a failure, after the rows written before it.
fn tell(failure: &Failure, console: &mut Console) -> u8 {
    if !matches!(failure, Failure::BrokenPipe) {
        console.stdout.flush().ok();
    }
    console.tell(failure);
    failure.exit_code()
}

/// Shows help where it was asked for, or what is wrong with the command line.
fn explain_usage(error: &clap::Error, console: &mut Console) -> u8 {
    let text = error.render();
    let is_help = !error.use_stderr();
    let has_color = if is_help { console.has_color } else { console.has_error_color() };
    let text = if has_color { text.ansi().to_string() } else { text.to_string() };
    let stream = if is_help { &mut console.stdout } else { &mut console.stderr };
    // That nobody reads the help is no failure.
    stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).ok();
    if is_help { ExitCodes::OK } else { ExitCodes::BAD_INPUT }
}

fn start_logging(verbose: u8, console: &Console) {
    let level = match verbose {
        0 => return,
        1 => "alluvium=info,alluvium_log=info,alluvium_materializer=info,alluvium_query=info",
        2 => "alluvium=debug,alluvium_log=debug,alluvium_materializer=debug,alluvium_query=debug",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // Only the first run of a process can set it up.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(console.has_error_color())
        .try_init()
        .ok();
}
