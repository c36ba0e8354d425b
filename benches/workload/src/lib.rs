//! The state loop of a stream, as every side of a comparison goes through it: events, values, and what is measured.
//!
//! It needs nothing of Alluvium, so that a peer whose dependencies don't fit beside ours can be a program of its own.

mod events;
mod side;

pub use events::{Event, UserStatus, Workload};
pub use side::{Measured, Side, decode, encode, measure};

/// What goes wrong in a bench ends it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
