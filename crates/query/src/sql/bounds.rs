//! From SQL predicates to bounds on version, event time and commit.
//!
//! As with keys, what comes of it is a superset: the predicates are evaluated again on the rows.

use alluvium_log::{COMMIT, EVENT_TIME, VERSION};
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, Operator};

/// A least and a greatest value, both included; an absent one is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) least: Option<i64>,
    pub(super) greatest: Option<i64>,
}

impl Bounds {
    fn at_least(&mut self, value: i64) {
        self.least = Some(self.least.map_or(value, |known| known.max(value)));
    }

    fn at_most(&mut self, value: i64) {
        self.greatest = Some(self.greatest.map_or(value, |known| known.min(value)));
    }
}

/// Bounds of the rows that may satisfy some predicates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowBounds {
    pub(super) version: Bounds,
    /// In microseconds.
    pub(super) event_time: Bounds,
    pub(super) commit: Bounds,
}

impl RowBounds {
    /// The bounds that all the predicates together set.
    pub(super) fn of(filters: &[Expr]) -> Self {
        let mut bounds = Self::default();
        for conjunct in filters.iter().flat_map(split_conjunction) {
            bounds.narrow(conjunct);
        }
        bounds
    }

    /// Whether no bound is set.
    pub(super) fn is_open(&self) -> bool {
        *self == Self::default()
    }

    fn narrow(&mut self, conjunct: &Expr) {
        match conjunct {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                if matches!(right.as_ref(), Expr::Literal(..)) {
                    self.compare(left, *op, right);
                } else if let Some(op) = op.swap() {
                    self.compare(right, op, left);
                }
            }
            Expr::Between(Between { expr, negated: false, low, high }) => {
                self.compare(expr, Operator::GtEq, low);
                self.compare(expr, Operator::LtEq, high);
            }
            _ => {}
        }
    }

    fn compare(&mut self, column: &Expr, op: Operator, literal: &Expr) {
        let Expr::Literal(value, _) = literal else { return };
        let Some((name, (below, above))) = named_value(column, value) else { return };
        let bounds = match name {
            VERSION => &mut self.version,
            COMMIT => &mut self.commit,
            _ => &mut self.event_time,
        };
        // A literal finer than a microsecond lies between two values, so bounds are moved outward to whole ones.
        match op {
            Operator::Eq => {
                bounds.at_least(below);
                bounds.at_most(above);
            }
            Operator::Gt if below == above => bounds.at_least(below.saturating_add(1)),
            Operator::Lt if below == above => bounds.at_most(above.saturating_sub(1)),
            Operator::Gt | Operator::GtEq => bounds.at_least(below),
            Operator::Lt | Operator::LtEq => bounds.at_most(above),
            _ => {}
        }
    }
}

/// A column that has bounds and the value that it is compared with, rounded down and up.
fn named_value(column: &Expr, value: &ScalarValue) -> Option<(&'static str, (i64, i64))> {
    let column = match column {
        Expr::Column(column) => column,
        Expr::Cast(Cast { expr, field }) => match (expr.as_ref(), field.data_type()) {
            (
                Expr::Column(column),
                DataType::Timestamp(TimeUnit::Microsecond | TimeUnit::Nanosecond, _),
            ) => column,
            _ => return None,
        },
        _ => return None,
    };
    let exact = |value: i64| (value, value);
    match (column.name.as_str(), value) {
        (VERSION, ScalarValue::Int64(Some(value))) => Some((VERSION, exact(*value))),
        (COMMIT, ScalarValue::Int64(Some(value))) => Some((COMMIT, exact(*value))),
        (EVENT_TIME, ScalarValue::TimestampMicrosecond(Some(value), _)) => {
            Some((EVENT_TIME, exact(*value)))
        }
        (EVENT_TIME, ScalarValue::TimestampNanosecond(Some(value), _)) => {
            let below = value.div_euclid(1_000);
            let fraction = i64::from(value.rem_euclid(1_000) != 0);
            Some((EVENT_TIME, (below, below + fraction)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{cast, col, lit};

    #[test]
    fn conjunctions_narrow_and_alternatives_do_not() {
        let filters = [
            col(VERSION).gt_eq(lit(5_i64)).and(lit(9_i64).gt(col(VERSION))),
            col(COMMIT).between(lit(2_i64), lit(3_i64)),
            col(VERSION).eq(lit(1_i64)).or(col("x").eq(lit(1))),
        ];
        let bounds = RowBounds::of(&filters);
        assert_eq!(bounds.version, Bounds { least: Some(5), greatest: Some(8) });
        assert_eq!(bounds.commit, Bounds { least: Some(2), greatest: Some(3) });
        assert_eq!(bounds.event_time, Bounds::default());
    }

    #[test]
    fn finer_times_are_rounded_outward() {
        let nanos = lit(ScalarValue::TimestampNanosecond(Some(-1_500), None));
        let column = cast(col(EVENT_TIME), DataType::Timestamp(TimeUnit::Nanosecond, None));
        let bounds = RowBounds::of(&[column.eq(nanos)]);
        assert_eq!(bounds.event_time, Bounds { least: Some(-2), greatest: Some(-1) });
    }
}
