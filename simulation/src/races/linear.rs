//! Whether the history of a register is linearizable, where every write writes a value of its own: the zones of Gibbons and Korach
//! ("Testing shared memories", 1997). It takes n log n, however much is going on at once.
//!
//! A write and the reads of its value are a cluster. Its zone lies between the first return and the last invocation in it. Where the
//! return comes first, the register has to hold the value from the one to the other ("forward"). The history is linearizable just if
//! no read returned before its write was invoked, no two forward zones overlap, and no other zone lies within a forward one.

use std::collections::HashMap;

/// One operation on a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The value written or read; none before the first write.
    pub id: Option<i64>,
    /// Whether it was written.
    pub is_write: bool,
    /// When it was begun.
    pub invoked: i64,
    /// When its outcome was told.
    pub returned: i64,
}

#[derive(Debug, Clone, Copy)]
struct Zone {
    id: Option<i64>,
    first_return: i64,
    last_invocation: i64,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_return < self.last_invocation
    }

    fn low(&self) -> i64 {
        self.first_return.min(self.last_invocation)
    }

    fn high(&self) -> i64 {
        self.first_return.max(self.last_invocation)
    }
}

/// Refuses a history that no order of single steps explains.
pub fn check_register(accesses: &[Access]) -> Result<(), String> {
    let mut writes: HashMap<Option<i64>, Access> = HashMap::new();
    for access in accesses.iter().filter(|access| access.is_write) {
        if writes.insert(access.id, *access).is_some() {
            return Err(format!("{:?} was written twice", access.id));
        }
    }
    // Nothing is what was there before everything.
    let nothing = Access { id: None, is_write: true, invoked: i64::MIN, returned: i64::MIN };
    writes.entry(None).or_insert(nothing);
    let mut zones: HashMap<Option<i64>, Zone> = HashMap::new();
    for access in accesses.iter().chain([&nothing]) {
        let Some(write) = writes.get(&access.id) else {
            return Err(format!("{:?} was read, and nobody wrote it", access.id));
        };
        if access.returned < write.invoked {
            return Err(format!("{access:?} read what was written later: {write:?}"));
        }
        let zone = zones.entry(access.id).or_insert(Zone {
            id: access.id,
            first_return: i64::MAX,
            last_invocation: i64::MIN,
        });
        zone.first_return = zone.first_return.min(access.returned);
        zone.last_invocation = zone.last_invocation.max(access.invoked);
    }
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) =
        zones.into_values().partition(Zone::is_forward);
    forward.sort_by_key(Zone::low);
    for pair in forward.windows(2) {
        if let [one, other] = pair
            && other.low() < one.high()
        {
            return Err(format!("it held two values at once: {one:?} and {other:?}"));
        }
    }
    for zone in backward {
        let place = forward.partition_point(|forward| forward.low() < zone.low());
        let within = place.checked_sub(1).and_then(|before| forward.get(before));
        if let Some(around) = within.filter(|around| zone.high() < around.high()) {
            return Err(format!(
                "{:?} was written while it held another value: {zone:?} within {around:?}",
                zone.id
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(id: i64, invoked: i64, returned: i64) -> Access {
        Access { id: Some(id), is_write: true, invoked, returned }
    }

    fn read(id: Option<i64>, invoked: i64, returned: i64) -> Access {
        Access { id, is_write: false, invoked, returned }
    }

    #[test]
    fn histories_with_an_order_are_accepted_and_others_are_not() {
        let good: &[&[Access]] = &[
            &[],
            &[read(None, 0, 1), write(1, 2, 3), read(Some(1), 4, 5)],
            // Both orders of writes at once are possible, and so is a read of either while they go on.
            &[write(1, 0, 10), write(2, 0, 10), read(Some(2), 3, 4), read(Some(1), 11, 12)],
            &[write(1, 0, 10), read(None, 2, 3), read(Some(1), 4, 5)],
        ];
        for history in good {
            assert_eq!(check_register(history), Ok(()), "{history:?}");
        }
        let bad: &[&[Access]] = &[
            // Stale: the write had returned.
            &[write(1, 0, 1), read(None, 2, 3)],
            &[write(1, 0, 1), write(2, 2, 3), read(Some(1), 4, 5)],
            // There and back.
            &[
                write(1, 0, 10),
                write(2, 0, 10),
                read(Some(1), 11, 12),
                read(Some(2), 13, 14),
                read(Some(1), 15, 16),
            ],
            // Before it was written.
            &[read(Some(1), 0, 1), write(1, 2, 3)],
            &[read(Some(7), 0, 1)],
        ];
        for history in bad {
            assert!(check_register(history).is_err(), "{history:?}");
        }
    }
}
