//! From text to a statement that only reads, its table functions brought to the form that DataFusion plans.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use alluvium_log::{Error, Result};
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, ObjectNamePart,
    Statement as SqlStatement, TableFactor, Value, VisitMut, VisitorMut,
};

use super::errors::sql_error;

/// A statement and the states that its table functions name.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) statement: Statement,
    pub(super) states: BTreeSet<String>,
    /// Whether one of them may name a savepoint.
    pub(super) names_savepoint: bool,
}

/// Parses one statement, and refuses what does not only read.
pub(super) fn parse(session: &SessionState, sql: &str) -> Result<Parsed> {
    let dialect = session.config_options().sql_parser.dialect;
    let mut statement = session.sql_to_statement(sql, &dialect).map_err(sql_error)?;
    check_reads(&statement)?;
    let mut calls = Calls { states: BTreeSet::new(), names_savepoint: false };
    if let ControlFlow::Break(error) = visit(&mut statement, &mut calls) {
        return Err(error);
    }
    let Calls { states, names_savepoint } = calls;
    Ok(Parsed { statement, states, names_savepoint })
}

fn check_reads(statement: &Statement) -> Result<()> {
    let refused = |what: String| {
        let first: Vec<&str> = what.split_whitespace().take(2).collect();
        Err(Error::invalid(format!(
            "SQL only reads here, and {} does not: states are written with append, one SELECT, SHOW, DESCRIBE or EXPLAIN is a query",
            first.join(" ")
        )))
    };
    match statement {
        Statement::Explain(explain) => check_reads(&explain.statement),
        Statement::Statement(inner) => match inner.as_ref() {
            SqlStatement::Query(_)
            | SqlStatement::ExplainTable { .. }
            | SqlStatement::ShowTables { .. }
            | SqlStatement::ShowColumns { .. }
            | SqlStatement::ShowFunctions { .. }
            | SqlStatement::ShowVariable { .. } => Ok(()),
            SqlStatement::Explain { statement, .. } => {
                check_reads(&Statement::Statement(statement.clone()))
            }
            other => refused(other.to_string()),
        },
        other => refused(other.to_string()),
    }
}

fn visit(statement: &mut Statement, calls: &mut Calls) -> ControlFlow<Error> {
    match statement {
        Statement::Statement(inner) => inner.visit(calls),
        Statement::Explain(explain) => visit(&mut explain.statement, calls),
        _ => ControlFlow::Continue(()),
    }
}

/// Finds calls of table functions.
struct Calls {
    states: BTreeSet<String>,
    names_savepoint: bool,
}

impl VisitorMut for Calls {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table { name, args: Some(args), .. } => self.call(name, &mut args.args),
            TableFactor::Function { name, args, .. } => self.call(name, args),
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Calls {
    fn call(&mut self, name: &mut ObjectName, args: &mut Vec<FunctionArg>) -> ControlFlow<Error> {
        let [ObjectNamePart::Identifier(function)] = name.0.as_mut_slice() else {
            return ControlFlow::Break(Error::invalid(format!(
                "{name} is not the name of a table function"
            )));
        };
        if function.quote_style.is_none() {
            *function = Ident::new(function.value.to_lowercase());
        }
        *args = std::mem::take(args).into_iter().flat_map(positional).collect();
        let mut texts = args.iter().map(text_of);
        if let Some(Some(state)) = texts.next() {
            self.states.insert(state.to_owned());
        }
        self.names_savepoint |= texts.flatten().any(|text| text.contains("savepoint"));
        ControlFlow::Continue(())
    }
}

/// An argument that is a text in quotes.
fn text_of(arg: &FunctionArg) -> Option<&str> {
    match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// `name => value` as the two arguments `'name', value`: DataFusion takes table functions' arguments by position only.
fn positional(arg: FunctionArg) -> Vec<FunctionArg> {
    let unnamed = |expr: Expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
    let text = |name: String| unnamed(Expr::value(Value::SingleQuotedString(name)));
    match arg {
        FunctionArg::Named { name, arg, .. } => {
            vec![text(name.value.to_lowercase()), FunctionArg::Unnamed(arg)]
        }
        FunctionArg::ExprNamed { name: Expr::Identifier(name), arg, .. } => {
            vec![text(name.value.to_lowercase()), FunctionArg::Unnamed(arg)]
        }
        other => vec![other],
    }
}
