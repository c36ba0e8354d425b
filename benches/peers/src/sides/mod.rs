//! The other sides of the state loop: each store's own way to be durable once per epoch.

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod slatedb;

use std::path::Path;

use alluvium_workload::{Measured, Outcome, Workload};

/// A store's name, and what measures it in a folder.
pub(crate) type Peer = (&'static str, fn(&Path, Workload) -> Outcome<Measured>);

/// All that this program was built with; SlateDB is another program, which is built when it is asked for.
pub(crate) fn all() -> Vec<Peer> {
    vec![
        #[cfg(feature = "rocksdb")]
        ("rocksdb", alluvium_workload::measure::<rocksdb::RocksDb>),
        #[cfg(feature = "fjall")]
        ("fjall", alluvium_workload::measure::<fjall::Fjall>),
        #[cfg(feature = "redb")]
        ("redb", alluvium_workload::measure::<redb::Redb>),
        ("slatedb", slatedb::measure),
    ]
}
