//! What tests share: rows and batches of one small schema, stores in temporary folders, refusals.

pub(crate) mod answers;
pub(crate) mod delta;
pub(crate) mod faults;
pub(crate) mod reports;
pub(crate) mod rows;
pub(crate) mod s3;
pub(crate) mod search;
pub(crate) mod stores;
