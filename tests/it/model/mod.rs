//! The store against a model that is too simple to be wrong: every row in one list, and the fold by definition.
//!
//! A sequence of random steps is made of a seed. When it fails, the seed is printed; `ALLUVIUM_SEED=<seed>
//! ALLUVIUM_STEPS=<steps>` replays it, and `ALLUVIUM_CASES=<n>` runs more sequences per test than usual.
//!
//! [`ledger`] is the model, [`plan`] draws steps, [`run`] does them to store and model, [`checks`] compares
//! every kind of read. [`writes`], [`tending`] and [`undo`] are the steps; [`expiry`] and [`floors`] what may be refused; [`branches`]
//! are forks of the state, each a world of its own, [`held`] what readers hold.

mod branches;
mod checks;
mod expiry;
mod finds;
mod floors;
mod held;
mod ledger;
mod permute;
mod plan;
mod run;
mod tending;
mod typed;
mod undo;
mod writes;

use alluvium::OrderBy;
use plan::Kind;

/// Sequences of each test, unless `ALLUVIUM_CASES` says otherwise.
const CASES: u64 = 4;
/// Steps of a sequence, unless `ALLUVIUM_STEPS` says otherwise.
const STEPS: u64 = 60;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// Runs sequences of one kind; each test has seeds of its own.
async fn sequences(kind: Kind, first_seed: u64) {
    let steps = from_environment("ALLUVIUM_STEPS").unwrap_or(STEPS);
    if let Some(seed) = from_environment("ALLUVIUM_SEED") {
        return run::sequence(kind, seed, steps).await;
    }
    for case in 0..from_environment("ALLUVIUM_CASES").unwrap_or(CASES) {
        run::sequence(kind, first_seed + case, steps).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_ordered_by_event_time_agrees_with_the_model_whatever_is_done_to_it() {
    sequences(Kind::of(OrderBy::EventTime), 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_ordered_by_version_agrees_with_the_model_whatever_is_done_to_it() {
    sequences(Kind::of(OrderBy::Version), 2_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_event_time_in_tiny_files_runs_and_budgets_agrees_with_the_model() {
    sequences(Kind { tiny: true, ..Kind::of(OrderBy::EventTime) }, 3_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_version_in_tiny_files_runs_and_budgets_agrees_with_the_model() {
    sequences(Kind { tiny: true, ..Kind::of(OrderBy::Version) }, 4_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_event_time_whose_log_another_engine_optimizes_agrees_with_the_model() {
    sequences(Kind { tiny: true, foreign: true, ..Kind::of(OrderBy::EventTime) }, 5_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_version_whose_log_another_engine_optimizes_agrees_with_the_model() {
    sequences(Kind { foreign: true, ..Kind::of(OrderBy::Version) }, 6_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_event_time_that_is_maintained_over_months_agrees_with_the_model() {
    let kind = Kind { tiny: true, months: true, ..Kind::of(OrderBy::EventTime) };
    sequences(kind, 7_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_version_that_is_maintained_over_months_agrees_with_the_model() {
    let kind = Kind { tiny: true, months: true, ..Kind::of(OrderBy::Version) };
    sequences(kind, 8_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_event_time_whose_log_expires_agrees_with_the_model_or_names_the_horizon() {
    let kind = Kind { tiny: true, months: true, expires: true, ..Kind::of(OrderBy::EventTime) };
    sequences(kind, 9_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_by_version_whose_log_expires_agrees_with_the_model_or_names_the_horizon() {
    let kind = Kind { tiny: true, months: true, expires: true, ..Kind::of(OrderBy::Version) };
    sequences(kind, 10_000).await;
}
