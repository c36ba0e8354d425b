//! What the benches of all verbs share: seeded events, folders, the other side, timing, and figures as JSON lines.
//!
//! Each bench (`benches/verbs/`) does the same work on our side and on another one, in one process, on the same disk, in
//! turns; a figure without its other side says little on a shared machine.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod child;
mod data;
mod figures;
mod flights;
mod floor;
mod peers;
mod place;
mod workload;

pub use alluvium_workload::{Event, Outcome, UserStatus, Workload};
pub use child::{NOTHING, Ran, as_child, run_child};
pub use data::{Events, KEYS, distinct_keys, key_text, long_key_text, spread_keys, value_fields};
pub use figures::{Figures, Samples, processor_time, timed};
pub use flights::{AIRCRAFT, Hour, append_hour, read_hours};
pub use floor::Floor;
pub use peers::{
    append_rows, count_rows, merge_rows, open_table, parquet_session, table_at, table_session,
    window_query,
};
pub use place::{
    Place, STATE, data_files, drain, folder_bytes, link_folder, need_free, open_state, scan_rows,
};
pub use workload::{Loop, alluvium_loop, logins};
