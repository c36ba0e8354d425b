//! The verbs: each one opens the store, calls the library, and hands rows to the output.

mod append;
mod changes;
mod config;
mod create;
mod diff;
mod doctor;
mod erase;
mod fork;
mod history;
mod live;
mod maintain;
mod repair;
mod reports;
mod restore;
mod retention;
mod savepoint;
mod session;
mod sql;
mod stats;
mod upkeep;

use clap::CommandFactory;
use futures::FutureExt;
use futures::future::BoxFuture;

pub(crate) use session::Session;

use crate::args::{Cli, OutputFormat, Verb};
use crate::demo;
use crate::failure::{ExitCodes, Failure};
use crate::terminal::Console;

/// What a verb gives: an exit code, or why it failed.
pub(crate) type Outcome = Result<u8, Failure>;

/// Carries out a command line. In a box, because the demo runs others inside of it.
pub(crate) fn run(cli: Cli, console: &mut Console) -> BoxFuture<'_, Outcome> {
    async move {
        let Cli { store, config, output, memory, quiet, verbose: _, verb } = cli;
        let output = match &verb {
            Verb::Stats(args) if args.json => Some(OutputFormat::Json),
            _ => output,
        };
        let mut session = Session::new(console, store, config.as_deref(), output, memory, quiet)?;
        match verb {
            Verb::Create(args) => create::run(&mut session, args).await,
            Verb::Append(args) => append::run(&mut session, args).await,
            Verb::Get(args) => live::get(&mut session, args).await,
            Verb::Scan(args) => live::scan(&mut session, args).await,
            Verb::History(args) => history::run(&mut session, args).await,
            Verb::Diff(args) => diff::run(&mut session, args).await,
            Verb::Sql(args) => sql::run(&mut session, args).await,
            Verb::Changes(args) => changes::run(&mut session, args).await,
            Verb::Restore(args) => restore::run(&mut session, args).await,
            Verb::Fork(args) => fork::run(&mut session, args).await,
            Verb::Erase(args) => erase::run(&mut session, args).await,
            Verb::Materialize { state, rebuild } => {
                upkeep::materialize(&mut session, state, rebuild).await
            }
            Verb::Maintain(args) => maintain::run(&mut session, args).await,
            Verb::Savepoint(args) => savepoint::run(&mut session, args.verb).await,
            Verb::Retention(args) => retention::run(&mut session, args.verb).await,
            Verb::Set(args) => maintain::set(&mut session, args).await,
            Verb::Verify { state, deep: true } => repair::verify_deep(&mut session, state).await,
            Verb::Verify { state, deep: false } => upkeep::verify(&mut session, state).await,
            Verb::Repair(args) => repair::run(&mut session, args).await,
            Verb::Doctor => doctor::run(&mut session).await,
            Verb::Stats(args) => stats::run(&mut session, args).await,
            Verb::Config => config::run(&mut session),
            Verb::States => upkeep::states(&mut session).await,
            Verb::Demo { dir } => demo::run(&mut session, &dir).await,
            Verb::Completions { shell } => completions(&mut session, shell),
        }
    }
    .boxed()
}

fn completions(session: &mut Session<'_>, shell: clap_complete::Shell) -> Outcome {
    // The generator panics where it can't write: so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "alluvium", &mut script);
    session.console.stdout.write_all(&script)?;
    Ok(ExitCodes::OK)
}
