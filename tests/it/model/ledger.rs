//! The model: that of the simulation.

pub(crate) use alluvium_simulation::ledger::{Difference, Ledger, Row};
