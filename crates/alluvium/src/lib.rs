//! What an application embeds.

pub mod format;
