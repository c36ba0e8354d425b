//! 23: who was told that it leads a job, and when. Whoever leads is followed only once it has let go, or shown no sign of life for a span.

use crate::checks::Broken;

/// The job of all runs.
pub const JOB: &str = "job";
/// For how long a leader may show no sign of life, in milliseconds.
pub const SPAN_MS: i64 = 2_000;

/// A beat after which its holder led.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Led {
    holder: String,
    begun_ms: i64,
    ended_ms: i64,
    /// When the holder set out to let go after that.
    released_ms: Option<i64>,
}

/// All beats of a run that led.
#[derive(Debug, Default)]
pub struct Leads {
    led: Vec<Led>,
}

impl Leads {
    /// Notes that a holder was told that it leads. Its number was written between the two times; so one who leads after another has
    /// watched that one's number for a whole span, whatever the clocks of either say.
    pub fn note(&mut self, holder: &str, begun_ms: i64, ended_ms: i64) -> Result<(), Broken> {
        let own = Led { holder: holder.to_owned(), begun_ms, ended_ms, released_ms: None };
        let meets = |other: &&Led| {
            let follows = |first: &Led, second: &Led| {
                second.ended_ms - first.begun_ms >= SPAN_MS
                    || first.released_ms.is_some_and(|released| released <= second.ended_ms)
            };
            other.holder != own.holder && !follows(other, &own) && !follows(&own, other)
        };
        match self.led.iter().find(meets) {
            None => {
                self.led.push(own);
                Ok(())
            }
            Some(other) => Err(format!("invariant 23: {own:?} leads beside {other:?}")),
        }
    }

    /// Notes that a holder sets out to let go.
    pub fn release(&mut self, holder: &str, now_ms: i64) {
        for led in self.led.iter_mut().filter(|led| led.holder == holder) {
            led.released_ms.get_or_insert(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_lead_within_a_span_are_found_unless_one_let_go() {
        let mut leads = Leads::default();
        leads.note("a", 0, 10).unwrap();
        leads.note("a", 1_000, 1_010).unwrap();
        assert!(leads.note("b", 1_500, 2_900).is_err());
        leads.note("b", 2_500, 1_000 + SPAN_MS).unwrap();
        assert!(leads.note("a", 3_000, 3_100).is_err());
        leads.release("b", 3_050);
        leads.note("a", 3_000, 3_100).unwrap();
    }
}
