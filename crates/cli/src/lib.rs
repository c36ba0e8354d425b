//! The program `alluvium`: verbs over a store, for people and for pipes.
//!
//! It has no logic of its own: arguments in, a call of the library, rows and messages out. [`main`] is what the program
//! runs; [`run`] is the same with the terminal as a value, for tests and for the demo.
//!
//! ```text
//! args -> verbs -> library -> output (table, jsonl, json, csv, parquet, arrow) -> console
//!                          -> failure (message, exit code)                     -> console
//! ```

mod args;

mod demo;
mod exporter;
mod failure;
mod output;
mod progress;
mod run;
mod terminal;
mod verbs;

pub use failure::ExitCodes;
pub use run::{main, run};
pub use terminal::{Capture, Console, Stop};
