//! Failures that real people had, by the ids under which they are collected; each comes out right here.

mod cleanup;
mod compaction;
mod concurrency;
mod embedded;
mod ergonomics;
mod expire;
mod foreign;
mod input;
mod leader;
mod maintain;
mod objects;
mod operator;
mod ordering;
mod performance;
mod program;
mod recovery;
mod restore;
mod savepoints;
mod schema;
mod statistics;
mod time_travel;
mod times;
mod types;
mod vacuum;
