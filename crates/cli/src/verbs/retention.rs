//! `retention explain`: what is readable, what holds it, what it costs.

use alluvium::{Horizon, Point};

/// The earliest points that can be answered.
pub(super) fn tell_horizon(horizon: &Horizon) -> String {
    let mut from = vec![Point::at_commit(horizon.commit).to_string()];
    from.extend(horizon.version.map(|version| Point::at_version(version).to_string()));
    from.extend(horizon.event_time.map(|time| Point::at_time(time).to_string()));
    format!("{} and later", from.join(", "))
}
