//! Integration tests: one binary, topics as modules in the order of the flow.
//!
//! * [`model`]: random sequences against a plain in-memory model; every find is replayed from its seed.
//! * [`cases`]: failures that real people had, one test per id.
//! * [`tables`]: what another Delta engine sees.
//! * [`fuzz`]: any bytes where others write.
//! * [`planted`]: bugs that the tests have to find.
//! * [`documented`]: the table of cases in the documents.
//! * [`golden`]: stores of earlier formats.
//! * [`git_history`]: the project's own history, with git as the oracle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod documented;
mod fuzz;
mod git_history;
mod golden;
mod model;
mod planted;
mod simulation;
mod support;
mod tables;
