//! From a SQL predicate to the keys that may satisfy it.
//!
//! What comes of it is always a superset: the predicate itself is evaluated again on the rows that were read.

use alluvium_log::{KeyFilter, STATE_KEY};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::{InList, Like, ScalarFunction};
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, Operator};

/// More keys than this are read as the range that they span.
const MAX_KEYS: usize = 10_000;

/// The keys that may satisfy all the predicates.
pub(super) fn key_filter(filters: &[Expr]) -> KeyFilter {
    filters.iter().fold(KeyFilter::All, |known, filter| known.intersect(&keys_of(filter)))
}

/// Whether a predicate narrows the keys.
pub(super) fn narrows_keys(filter: &Expr) -> bool {
    keys_of(filter) != KeyFilter::All
}

fn keys_of(filter: &Expr) -> KeyFilter {
    match filter {
        Expr::BinaryExpr(binary) => keys_of_binary(binary),
        Expr::InList(InList { expr, list, negated: false }) if is_key(expr) => {
            let keys: Option<Vec<String>> = list.iter().map(text).collect();
            keys.map_or(KeyFilter::All, some_keys)
        }
        Expr::Between(Between { expr, negated: false, low, high }) if is_key(expr) => {
            match (text(low), text(high)) {
                (Some(low), Some(high)) => {
                    KeyFilter::Range { from: Some(low), to: Some(just_above(&high)) }
                }
                _ => KeyFilter::All,
            }
        }
        Expr::Like(like) => keys_of_like(like),
        Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == "starts_with" => {
            match args.as_slice() {
                [column, prefix] if is_key(column) => {
                    text(prefix).map_or(KeyFilter::All, |prefix| KeyFilter::prefix(&prefix))
                }
                _ => KeyFilter::All,
            }
        }
        // A predicate that is never true: nothing needs to be read.
        Expr::Literal(ScalarValue::Boolean(value), _) if *value != Some(true) => {
            some_keys(Vec::new())
        }
        _ => KeyFilter::All,
    }
}

fn keys_of_binary(binary: &BinaryExpr) -> KeyFilter {
    let BinaryExpr { left, op, right } = binary;
    match op {
        Operator::And => return keys_of(left).intersect(&keys_of(right)),
        Operator::Or => return either(keys_of(left), keys_of(right)),
        _ => {}
    }
    let (op, value) = match (is_key(left), is_key(right)) {
        (true, false) => (Some(*op), text(right)),
        (false, true) => (op.swap(), text(left)),
        _ => (None, None),
    };
    let (Some(op), Some(value)) = (op, value) else { return KeyFilter::All };
    let from = |from: String| KeyFilter::Range { from: Some(from), to: None };
    let to = |to: String| KeyFilter::Range { from: None, to: Some(to) };
    match op {
        Operator::Eq | Operator::IsNotDistinctFrom => some_keys(vec![value]),
        Operator::Lt => to(value),
        Operator::LtEq => to(just_above(&value)),
        Operator::Gt => from(just_above(&value)),
        Operator::GtEq => from(value),
        _ => KeyFilter::All,
    }
}

fn keys_of_like(like: &Like) -> KeyFilter {
    let Like { negated, expr, pattern, escape_char, case_insensitive } = like;
    match text(pattern) {
        Some(pattern) if !negated && !case_insensitive && is_key(expr) => {
            let (prefix, whole) = literal_prefix(&pattern, escape_char.unwrap_or('\\'));
            if whole { some_keys(vec![prefix]) } else { KeyFilter::prefix(&prefix) }
        }
        _ => KeyFilter::All,
    }
}

/// The text before the first wildcard of a pattern, and whether that is the whole pattern.
fn literal_prefix(pattern: &str, escape: char) -> (String, bool) {
    let mut prefix = String::new();
    let mut chars = pattern.chars();
    while let Some(next) = chars.next() {
        match next {
            '%' | '_' => return (prefix, false),
            // Engines differ on an escape before an ordinary character or the end: stop before it.
            c if c == escape => match chars.next() {
                Some(escaped) if escaped == '%' || escaped == '_' || escaped == escape => {
                    prefix.push(escaped)
                }
                _ => return (prefix, false),
            },
            c => prefix.push(c),
        }
    }
    (prefix, true)
}

fn some_keys(keys: Vec<String>) -> KeyFilter {
    if keys.len() <= MAX_KEYS {
        return KeyFilter::keys(keys);
    }
    KeyFilter::Range {
        from: keys.iter().min().cloned(),
        to: keys.iter().max().map(|max| just_above(max)),
    }
}

/// The least text greater than a text.
fn just_above(text: &str) -> String {
    format!("{text}\0")
}

/// The keys that one or the other wants, or more.
fn either(a: KeyFilter, b: KeyFilter) -> KeyFilter {
    match (a, b) {
        (KeyFilter::All, _) | (_, KeyFilter::All) => KeyFilter::All,
        (KeyFilter::Keys(a), KeyFilter::Keys(b)) => {
            some_keys(a.iter().chain(b.iter()).cloned().collect())
        }
        (a, b) => {
            let ((a_from, a_to), (b_from, b_to)) = match (span(&a), span(&b)) {
                (Some(a), Some(b)) => (a, b),
                (None, _) => return b,
                (_, None) => return a,
            };
            KeyFilter::Range {
                from: a_from.zip(b_from).map(|(a, b)| a.min(b)),
                to: a_to.zip(b_to).map(|(a, b)| a.max(b)),
            }
        }
    }
}

/// The bounds of the keys wanted, an absent one being open; none when no key is wanted.
fn span(filter: &KeyFilter) -> Option<(Option<String>, Option<String>)> {
    match filter {
        KeyFilter::All => Some((None, None)),
        KeyFilter::Range { from, to } => Some((from.clone(), to.clone())),
        KeyFilter::Keys(keys) => {
            let (first, last) = (keys.first()?, keys.last()?);
            Some((Some(first.clone()), Some(just_above(last))))
        }
    }
}

/// Whether an expression is the key, as it is or in another type of text.
fn is_key(expr: &Expr) -> bool {
    match expr {
        Expr::Column(column) => column.name == STATE_KEY,
        Expr::Cast(Cast { expr, field }) => field.data_type().is_string() && is_key(expr),
        _ => false,
    }
}

/// The value of a literal text. A null is none: comparing with it is never true, but that is DataFusion's to see.
fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten().map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{col, lit};

    fn range(from: Option<&str>, to: Option<&str>) -> KeyFilter {
        KeyFilter::Range { from: from.map(str::to_owned), to: to.map(str::to_owned) }
    }

    fn keys(keys: &[&str]) -> KeyFilter {
        KeyFilter::keys(keys.iter().map(|&key| key.to_owned()))
    }

    #[test]
    fn comparisons_become_keys_and_ranges() {
        let key = || col(STATE_KEY);
        assert_eq!(keys_of(&key().eq(lit("a"))), keys(&["a"]));
        assert_eq!(keys_of(&lit("a").eq(key())), keys(&["a"]));
        assert_eq!(keys_of(&key().gt(lit("a"))), range(Some("a\0"), None));
        assert_eq!(keys_of(&lit("a").gt(key())), range(None, Some("a")));
        assert_eq!(keys_of(&key().between(lit("a"), lit("b"))), range(Some("a"), Some("b\0")));
        assert_eq!(keys_of(&key().not_eq(lit("a"))), KeyFilter::All);
        assert_eq!(
            keys_of(&key().in_list(vec![lit("b"), lit("a"), lit("b")], false)),
            keys(&["a", "b"])
        );
        assert_eq!(keys_of(&key().in_list(vec![lit("b")], true)), KeyFilter::All);
    }

    #[test]
    fn patterns_become_prefixes() {
        let like = |pattern: &str| keys_of(&col(STATE_KEY).like(lit(pattern)));
        assert_eq!(like("ab%"), range(Some("ab"), Some("ac")));
        assert_eq!(like("a_c%"), range(Some("a"), Some("b")));
        assert_eq!(like("%a"), KeyFilter::All);
        assert_eq!(like("plain"), keys(&["plain"]));
        assert_eq!(like(r"50\%%"), range(Some("50%"), Some("50&")));
        assert_eq!(like(r"a\b"), range(Some("a"), Some("b")));
    }

    #[test]
    fn alternatives_are_joined_and_never_lose_a_key() {
        let key = || col(STATE_KEY);
        assert_eq!(keys_of(&key().eq(lit("a")).or(key().eq(lit("c")))), keys(&["a", "c"]));
        assert_eq!(keys_of(&key().eq(lit("a")).or(col("x").eq(lit(1)))), KeyFilter::All);
        assert_eq!(keys_of(&key().eq(lit("c")).or(key().lt(lit("b")))), range(None, Some("c\0")));
        assert_eq!(keys_of(&lit(false).or(key().gt_eq(lit("b")))), range(Some("b"), None));
        let both = [key().gt_eq(lit("b")), key().lt(lit("d")), col("x").eq(lit(1))];
        assert_eq!(key_filter(&both), range(Some("b"), Some("d")));
    }
}
