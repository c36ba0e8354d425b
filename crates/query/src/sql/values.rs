//! From a SQL predicate to bounds of the value's fields, by which row groups and pages need not be read.
//!
//! What is read is a superset: the predicate itself is evaluated again on the rows.

use alluvium_log::{FieldBounds, FieldValue};
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator};

use super::columns::Columns;

/// The bounds that all rows lie within for which all the predicates are true.
pub(super) fn value_bounds(filters: &[Expr], columns: &Columns) -> Vec<FieldBounds> {
    let mut bounds = Vec::new();
    for filter in filters {
        collect(filter, columns, &mut bounds);
    }
    bounds
}

fn collect(filter: &Expr, columns: &Columns, bounds: &mut Vec<FieldBounds>) {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            collect(left, columns, bounds);
            collect(right, columns, bounds);
        }
        Expr::BinaryExpr(binary) => bounds.extend(of_comparison(binary, columns)),
        Expr::Between(Between { expr, negated: false, low, high }) => {
            if let Some((field, data_type)) = value_field(expr, columns) {
                let low = constant(low, data_type);
                bounds.extend(within(field, low, constant(high, data_type)));
            }
        }
        Expr::InList(InList { expr, list, negated: false }) => {
            bounds.extend(of_list(expr, list, columns));
        }
        _ => {}
    }
}

fn of_comparison(binary: &BinaryExpr, columns: &Columns) -> Option<FieldBounds> {
    let BinaryExpr { left, op, right } = binary;
    let (field, op, value) = match (value_field(left, columns), value_field(right, columns)) {
        (Some((field, data_type)), None) => (field, *op, constant(right, data_type)?),
        (None, Some((field, data_type))) => (field, op.swap()?, constant(left, data_type)?),
        _ => return None,
    };
    match op {
        Operator::Eq => within(field, Some(value.clone()), Some(value)),
        Operator::Lt | Operator::LtEq => within(field, None, Some(value)),
        Operator::Gt | Operator::GtEq => within(field, Some(value), None),
        _ => None,
    }
}

fn of_list(expr: &Expr, list: &[Expr], columns: &Columns) -> Option<FieldBounds> {
    let (field, data_type) = value_field(expr, columns)?;
    let values: Option<Vec<FieldValue>> =
        list.iter().map(|value| constant(value, data_type)).collect();
    let mut values = values?.into_iter();
    let first = values.next()?;
    let (mut low, mut high) = (first.clone(), first);
    for value in values {
        if is_less(&value, &low) {
            low = value;
        } else if is_less(&high, &value) {
            high = value;
        }
    }
    within(field, Some(low), Some(high))
}

fn is_less(a: &FieldValue, b: &FieldValue) -> bool {
    match (a, b) {
        (FieldValue::Integer(a), FieldValue::Integer(b)) => a < b,
        (FieldValue::Float(a), FieldValue::Float(b)) => a < b,
        (FieldValue::Text(a), FieldValue::Text(b)) => a < b,
        _ => false,
    }
}

fn within(field: &str, low: Option<FieldValue>, high: Option<FieldValue>) -> Option<FieldBounds> {
    let is_bounded = low.is_some() || high.is_some();
    is_bounded.then(|| FieldBounds { field: field.to_owned(), low, high })
}

/// The field of the value that an expression is, and its type.
fn value_field<'a>(expr: &Expr, columns: &'a Columns) -> Option<(&'a str, &'a DataType)> {
    match expr {
        Expr::Column(column) => columns.value_field(&column.name),
        _ => None,
    }
}

/// A literal that can be compared with statistics of a field; it must be of the field's own type.
fn constant(expr: &Expr, data_type: &DataType) -> Option<FieldValue> {
    let Expr::Literal(value, _) = expr else { return None };
    if let DataType::Utf8 = data_type {
        return value.try_as_str().flatten().map(|text| FieldValue::Text(text.to_owned()));
    }
    match (value, data_type) {
        (ScalarValue::Int8(Some(value)), DataType::Int8) => {
            Some(FieldValue::Integer(i64::from(*value)))
        }
        (ScalarValue::Int16(Some(value)), DataType::Int16) => {
            Some(FieldValue::Integer(i64::from(*value)))
        }
        (ScalarValue::Int32(Some(value)), DataType::Int32)
        | (ScalarValue::Date32(Some(value)), DataType::Date32) => {
            Some(FieldValue::Integer(i64::from(*value)))
        }
        (ScalarValue::Int64(Some(value)), DataType::Int64)
        | (
            ScalarValue::TimestampMicrosecond(Some(value), _),
            DataType::Timestamp(TimeUnit::Microsecond, _),
        ) => Some(FieldValue::Integer(*value)),
        (ScalarValue::Float64(Some(value)), DataType::Float64) if !value.is_nan() => {
            Some(FieldValue::Float(*value))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use alluvium_log::{StateDefinition, StateSettings};
    use arrow::datatypes::{Field, Fields};
    use datafusion::logical_expr::{col, lit};

    fn bounds(filter: &Expr) -> Vec<FieldBounds> {
        let fields = Fields::from(vec![
            Field::new("count", DataType::Int64, true),
            Field::new("score", DataType::Float64, true),
            Field::new("name", DataType::Utf8, true),
            Field::new("version", DataType::Int64, true),
        ]);
        let definition = StateDefinition::new(&fields, StateSettings::default()).unwrap();
        value_bounds(std::slice::from_ref(filter), &Columns::live(&definition))
    }

    fn one(field: &str, low: Option<FieldValue>, high: Option<FieldValue>) -> Vec<FieldBounds> {
        vec![FieldBounds { field: field.to_owned(), low, high }]
    }

    #[test]
    fn comparisons_ranges_and_lists_bound_a_field() {
        let integer = |value| Some(FieldValue::Integer(value));
        let text = |value: &str| Some(FieldValue::Text(value.to_owned()));
        assert_eq!(bounds(&col("count").eq(lit(5_i64))), one("count", integer(5), integer(5)));
        assert_eq!(bounds(&lit(5_i64).lt(col("count"))), one("count", integer(5), None));
        assert_eq!(
            bounds(&col("score").lt_eq(lit(0.5))),
            one("score", None, Some(FieldValue::Float(0.5)))
        );
        assert_eq!(
            bounds(&col("name").in_list(vec![lit("b"), lit("a"), lit("c")], false)),
            one("name", text("a"), text("c"))
        );
        let both = col("count").between(lit(1_i64), lit(9_i64)).and(col("name").gt(lit("m")));
        assert_eq!(bounds(&both).len(), 2);
    }

    #[test]
    fn what_may_be_true_elsewhere_bounds_nothing() {
        assert!(bounds(&col("count").eq(lit(5_i64)).or(col("name").eq(lit("a")))).is_empty());
        assert!(bounds(&col("count").not_eq(lit(5_i64))).is_empty());
        assert!(bounds(&col("count").eq(lit(5_i32))).is_empty());
        assert!(bounds(&col("score").gt(lit(f64::NAN))).is_empty());
        assert!(bounds(&col("name").in_list(vec![lit("b")], true)).is_empty());
        // The state's own column, not the field of that name.
        assert!(bounds(&col("version").eq(lit(5_i64))).is_empty());
    }

    #[test]
    fn a_field_that_is_shown_under_another_name_is_found() {
        let filter = col("value_version").gt(lit(5_i64));
        assert_eq!(bounds(&filter), one("version", Some(FieldValue::Integer(5)), None));
    }
}
