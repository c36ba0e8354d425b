//! What the benches of all verbs share: seeded events, folders, the other side, timing, and figures as JSON lines.
//!
//! Each bench (`benches/verbs/`) does the same work on our side and on another one, in one process, on the same disk, in
//! turns; a figure without its other side says little on a shared machine.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod data;
mod figures;
mod floor;
mod peers;
mod place;
mod workload;

pub use data::{Events, KEYS, distinct_keys, key_text, value_fields};
pub use figures::{Figures, Samples, timed};
pub use floor::Floor;
pub use peers::{
    append_rows, count_rows, merge_rows, open_table, parquet_session, table_at, table_session,
    window_query,
};
pub use place::{Place, STATE, data_files, drain, folder_bytes, open_state, peak_rss_bytes};
pub use workload::{Event, Loop, UserStatus, Workload, alluvium_loop, logins};

/// What goes wrong in a bench ends it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
