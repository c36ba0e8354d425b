//! SQL over states: sessions, tables, table functions.
//!
//! In the order of the flow:
//!
//! * [`SqlSession::query`] parses one statement (`statement`), pins the basis of each state that it names (`catalog`), and has
//!   DataFusion plan and run it;
//! * a state is a table (`live`, `columns`), its log and snapshot are too (`raw`), and so are the answers of the table functions
//!   (`functions`, `derived`);
//! * filters become keys (`keys`), bounds (`bounds`) and lists of files (`prune`): always a superset, as every filter is
//!   evaluated again on the rows;
//! * `exec` is the leaf of each plan: it says in EXPLAIN what is read, and streams it.
//!
//! What a user can write:
//!
//! | | |
//! |---|---|
//! | `user_status` | live rows: `state_key`, `version`, `event_time`, then the value's fields. A field named like one of these three, in any case, is `value_<name>` |
//! | `log.user_status` | every log row, `commit` being the row's log commit |
//! | `snapshot.user_status` | the snapshot's rows, tombstones included, with `tier` |
//! | `as_of('user_status', 'commit:5,time:2024-01-15T10:30:00Z')` | live rows at a point |
//! | `as_of('user_status', commit => 5, time => now() - INTERVAL '1 day')` | the same, by name; `'commit', 5` too |
//! | `history('user_status')`, `history('user_status', 'key')` | every change, with provenance; `commit =>`, `version =>`, `time =>` bound it |
//! | `diff('user_status', 'commit:1', 'latest')` | what was inserted, updated, deleted, with before and after |
//! | `changes('user_status', 5)` | log rows after a commit, in the order of commits |
//!
//! Names keep their case and need quotes only for characters other than letters, digits and `_`.
//!
//! Floating-point numbers: -0.0 equals 0.0 in every comparison, join and group, and only a sort puts it first; NaN equals
//! itself and is greater than infinity. Each is read back with the bits that were written. `slt/floats.slt` records it.

mod bounds;
mod catalog;
mod columns;
mod derived;
mod errors;
mod exec;
mod functions;
mod keys;
mod live;
mod prune;
mod raw;
mod session;
mod settings;
mod statement;
#[cfg(test)]
mod tests;
mod values;

pub use errors::sql_error;
pub use session::SqlSession;
pub use settings::SqlSettings;
