//! The table functions: `as_of`, `history`, `diff`, `changes`.
//!
//! Arguments come by position; `name => value` reaches here as the two arguments `'name', value`.

use std::sync::Arc;

use alluvium_log::{Error, KeyFilter, Result};
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result as DataFusionResult, ScalarValue};
use datafusion::logical_expr::Expr;

use super::catalog::Pins;
use super::derived::{DerivedTable, Question};
use super::errors::to_datafusion;
use super::live::LiveTable;
use crate::named::NamedPoint;
use crate::point::{Point, parse_time};

/// Which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    AsOf,
    History,
    Diff,
    Changes,
}

impl Function {
    pub(super) const ALL: [Self; 4] = [Self::AsOf, Self::History, Self::Diff, Self::Changes];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AsOf => "as_of",
            Self::History => "history",
            Self::Diff => "diff",
            Self::Changes => "changes",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::AsOf => {
                "as_of('state', 'commit:5'), as_of('state', commit => 5), and version =>, time => '2024-01-15T10:30:00Z', known_at => '2024-01-15T10:30:00Z', savepoint => 'name', alone or together"
            }
            Self::History => {
                "history('state'), history('state', 'key'), and commit =>, version =>, time =>, known_at =>, savepoint =>"
            }
            Self::Diff => {
                "diff('state', 'commit:1', 'latest') with points as for as_of; the second may be left out"
            }
            Self::Changes => "changes('state') or changes('state', 5): the changes after commit 5",
        }
    }
}

/// A function over the states of one statement.
#[derive(Debug)]
pub(super) struct StateFunction {
    pub(super) function: Function,
    pub(super) pins: Arc<Pins>,
}

impl TableFunctionImpl for StateFunction {
    fn call_with_args(
        &self,
        args: TableFunctionArgs<'_, '_>,
    ) -> DataFusionResult<Arc<dyn TableProvider>> {
        self.table(args.exprs()).map_err(to_datafusion)
    }
}

impl StateFunction {
    fn table(&self, exprs: &[Expr]) -> Result<Arc<dyn TableProvider>> {
        let function = self.function;
        let usage = |error: Error| {
            let message =
                format!("{}: {} (usage: {})", function.name(), error.message(), function.usage());
            Error::new(error.kind(), message)
        };
        let values = exprs.iter().map(literal).collect::<Result<Vec<_>>>().map_err(usage)?;
        let Some((state, rest)) = values.split_first() else {
            return Err(usage(Error::invalid("the state is missing")));
        };
        let name = text(state).map_err(usage)?;
        let (reader, basis) = self.pins.pinned(&name)?;
        let resolve = |named: NamedPoint| self.pins.point(&name, &named);
        let question = match function {
            Function::AsOf => {
                let point = resolve(point_of(rest).map_err(usage)?)?;
                basis.check(point)?;
                return Ok(Arc::new(LiveTable::new(reader, basis, point)));
            }
            Function::History => {
                let (keys, point) = history_of(rest).map_err(usage)?;
                Question::History(keys, resolve(point)?, 0)
            }
            Function::Diff => {
                let (from, to) = diff_of(rest).map_err(usage)?;
                Question::Diff(resolve(from)?, resolve(to)?)
            }
            Function::Changes => Question::Changes(changes_of(rest).map_err(usage)?),
        };
        Ok(Arc::new(DerivedTable::new(reader, basis, question)))
    }
}

fn literal(expr: &Expr) -> Result<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Ok(value.clone()),
        other => Err(Error::invalid(format!("{other} is not a constant"))),
    }
}

fn text(value: &ScalarValue) -> Result<String> {
    match value.try_as_str() {
        Some(Some(text)) => Ok(text.to_owned()),
        _ => Err(Error::invalid(format!("{value} is not a 'text' in quotes"))),
    }
}

fn integer(value: &ScalarValue) -> Result<i64> {
    let wrong = || Error::invalid(format!("{value} is not an integer"));
    match value.try_as_str() {
        Some(text) => text.and_then(|text| text.trim().parse().ok()).ok_or_else(wrong),
        None if value.data_type().is_integer() => match value.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(value))) => Ok(value),
            _ => Err(wrong()),
        },
        None => Err(wrong()),
    }
}

/// A time as microseconds: a text with its offset, a timestamp (in UTC unless it says otherwise), or a date's first instant.
fn time(value: &ScalarValue) -> Result<i64> {
    if let Some(Some(text)) = value.try_as_str() {
        return parse_time(text);
    }
    let wrong = || Error::invalid(format!("{value} is not a time"));
    match value {
        // Rows have whole microseconds: up to a finer time means up to the microsecond before it.
        ScalarValue::TimestampNanosecond(Some(nanos), _) => Ok(nanos.div_euclid(1_000)),
        ScalarValue::TimestampMicrosecond(Some(micros), _) => Ok(*micros),
        ScalarValue::TimestampSecond(..)
        | ScalarValue::TimestampMillisecond(..)
        | ScalarValue::Date32(_) => {
            match value.cast_to(&DataType::Timestamp(TimeUnit::Microsecond, None)) {
                Ok(ScalarValue::TimestampMicrosecond(Some(micros), _)) => Ok(micros),
                _ => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    }
}

/// Reads a point from texts like `commit:5` and from pairs like `'commit', 5`.
fn point_of(args: &[ScalarValue]) -> Result<NamedPoint> {
    if args.is_empty() {
        return Err(Error::invalid("the point is missing"));
    }
    let mut point = NamedPoint::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let word = text(arg)?;
        let Some(bound) = Bound::named(&word) else {
            point = point.and(word.parse()?)?;
            continue;
        };
        let value = rest.next().ok_or_else(|| Error::invalid(format!("{word} has no value")))?;
        point = point.and(bound.at(value)?)?;
    }
    Ok(point)
}

/// Which bound of a point a name means.
enum Bound {
    Commit,
    Version,
    Time,
    KnownAt,
    Savepoint,
}

impl Bound {
    fn named(word: &str) -> Option<Self> {
        match word {
            "commit" => Some(Self::Commit),
            "version" => Some(Self::Version),
            "time" | "event_time" => Some(Self::Time),
            "known_at" => Some(Self::KnownAt),
            "savepoint" => Some(Self::Savepoint),
            _ => None,
        }
    }

    fn at(&self, value: &ScalarValue) -> Result<NamedPoint> {
        Ok(match self {
            Self::Commit => Point::at_commit(integer(value)?).into(),
            Self::Version => Point::at_version(integer(value)?).into(),
            Self::Time => Point::at_time(time(value)?).into(),
            Self::KnownAt => NamedPoint::known_at(time(value)?),
            Self::Savepoint => NamedPoint::at_savepoint(&text(value)?),
        })
    }
}

/// An optional key, then pairs: so an odd number of arguments begins with the key.
fn history_of(args: &[ScalarValue]) -> Result<(KeyFilter, NamedPoint)> {
    let (key, pairs) = match args.split_first() {
        Some((key, pairs)) if args.len() % 2 == 1 => (Some(text(key)?), pairs),
        _ => (None, args),
    };
    let mut keys: Vec<String> = key.into_iter().collect();
    let mut point = NamedPoint::default();
    for pair in pairs.chunks(2) {
        let [name, value] = pair else { continue };
        let word = text(name)?;
        match Bound::named(&word) {
            Some(bound) => point = point.and(bound.at(value)?)?,
            None if word == "key" => keys.push(text(value)?),
            None => return Err(Error::invalid(format!("{word:?} is not an argument"))),
        }
    }
    let keys = if keys.is_empty() { KeyFilter::All } else { KeyFilter::keys(keys) };
    Ok((keys, point))
}

/// Two points, by position or as `from` and `to`.
fn diff_of(args: &[ScalarValue]) -> Result<(NamedPoint, NamedPoint)> {
    let (mut from, mut to) = (None, None);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let word = text(arg)?;
        let value = |rest: &mut std::slice::Iter<'_, ScalarValue>| {
            rest.next().ok_or_else(|| Error::invalid(format!("{word} has no value"))).and_then(text)
        };
        let (slot, point) = match word.as_str() {
            "from" => (&mut from, value(&mut rest)?),
            "to" => (&mut to, value(&mut rest)?),
            _ if from.is_none() => (&mut from, word),
            _ => (&mut to, word),
        };
        if slot.replace(point.parse::<NamedPoint>()?).is_some() {
            return Err(Error::invalid("there are more than two points"));
        }
    }
    let from = from.ok_or_else(|| Error::invalid("the points are missing"))?;
    Ok((from, to.unwrap_or_default()))
}

fn changes_of(args: &[ScalarValue]) -> Result<i64> {
    let from = match args {
        [] => return Ok(-1),
        [from] => from,
        [name, from] if text(name).is_ok_and(|name| name == "from_commit") => from,
        _ => return Err(Error::invalid("there are too many arguments")),
    };
    integer(from)
}
