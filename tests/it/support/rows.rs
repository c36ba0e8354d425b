//! Rows as the model knows them, and the way to and from Arrow: those of the simulation.

pub(crate) use alluvium_simulation::rows::{
    Change, Seen, Shape, Value, batch, fields, flags, seen, values,
};
