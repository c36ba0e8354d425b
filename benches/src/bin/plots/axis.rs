//! Axes: where a value lies, and which ticks there are.

/// How values are laid out along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero, in equal steps.
    Linear,
    /// In equal ratios; there is no zero on it.
    Log,
}

/// An axis that holds some values, ends on ticks and has a few of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    pub(crate) ticks: Vec<f64>,
}

/// Ticks of a linear axis, about.
const LINEAR_TICKS: f64 = 5.0;
/// A log axis over more decades than this has ticks at powers of ten alone.
const FINE_DECADES: f64 = 2.0;

impl Axis {
    /// An axis for these values; `None` where there is none, or one that has no place on a log axis.
    pub(crate) fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            if !value.is_finite() || value < 0.0 || (scale == Scale::Log && value == 0.0) {
                return None;
            }
            (low, high) = (low.min(value), high.max(value));
        }
        match scale {
            _ if low > high => None,
            Scale::Linear => Some(Self::linear(high)),
            Scale::Log => Some(Self::log(low, high)),
        }
    }

    fn linear(high: f64) -> Self {
        let step = nice_step(if high > 0.0 { high } else { 1.0 } / LINEAR_TICKS);
        let steps = (high / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=steps as usize).map(|tick| tick as f64 * step).collect();
        Self { scale: Scale::Linear, low: 0.0, high: steps * step, ticks }
    }

    fn log(low: f64, high: f64) -> Self {
        let fine = (high / low).log10() <= FINE_DECADES;
        let factors: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let all: Vec<f64> = (first - 1..=last + 1)
            .flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)))
            .collect();
        // The last tick at or below the lowest value, and the first one at or above the highest.
        let from = all.iter().rposition(|&tick| tick <= low * (1.0 + 1e-9)).unwrap_or(0);
        let to = all.iter().position(|&tick| tick >= high * (1.0 - 1e-9)).unwrap_or(all.len() - 1);
        // One value on a tick: the axis gets some length.
        let to = if to <= from { from + 1 } else { to };
        let ticks = all[from..=to.min(all.len() - 1)].to_vec();
        Self { scale: Scale::Log, low: ticks[0], high: ticks[ticks.len() - 1], ticks }
    }

    /// Where a value lies: 0 at the low end, 1 at the high one.
    pub(crate) fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

/// The least of 1, 2, 2.5, 5 times a power of ten that is not below.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&nice| nice >= step * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// A number as short as it goes: 100k, 10M, 0.5.
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn axis(scale: Scale, values: &[f64]) -> Axis {
        Axis::of(scale, values.iter().copied()).unwrap()
    }

    #[test]
    fn linear_axes_begin_at_zero_and_end_on_a_tick() {
        assert_eq!(
            axis(Scale::Linear, &[100.0, 5_000.0]).ticks,
            [0.0, 1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0]
        );
        assert_eq!(axis(Scale::Linear, &[0.0]).ticks.first(), Some(&0.0));
    }

    #[test]
    fn log_axes_over_decades_have_powers_of_ten() {
        let keys = axis(Scale::Log, &[1e5, 1e8]);
        assert_eq!(keys.ticks.len(), 4);
        assert!((keys.place(1e6) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(axis(Scale::Log, &[3.0, 40.0]).ticks, [2.0, 5.0, 10.0, 20.0, 50.0]);
    }

    #[test]
    fn one_value_lies_on_its_axis() {
        for scale in [Scale::Linear, Scale::Log] {
            for value in [0.007, 1.0, 3.0, 1e8] {
                let place = axis(scale, &[value]).place(value);
                assert!((0.0..=1.0).contains(&place), "{scale:?} {value}: {place}");
            }
        }
    }

    #[test]
    fn a_log_axis_has_no_place_for_zero() {
        assert_eq!(Axis::of(Scale::Log, [0.0, 1.0].into_iter()), None);
        assert_eq!(Axis::of(Scale::Linear, std::iter::empty()), None);
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.05, 1.5, 999.0, 2_500.0, 1e5, 1e8, 2e9].map(short);
        assert_eq!(texts, ["0", "0.05", "1.5", "999", "2.5k", "100k", "100M", "2G"]);
    }
}
