//! `sql`: a query over all states of the store.

use std::io::Read;

use alluvium::sql_error;
use futures::TryStreamExt;

use super::{Outcome, Session};
use crate::args::SqlArgs;
use crate::failure::{ExitCodes, Failure};

pub(super) async fn run(session: &mut Session<'_>, args: SqlArgs) -> Outcome {
    let query = match args.query.as_str() {
        "-" => read_query(session)?,
        query => query.to_owned(),
    };
    let store = session.open().await?;
    let stream = store.sql(&query).await?;
    let schema = stream.schema();
    let batches = stream.map_err(|error| Failure::from(sql_error(error)));
    let (rows, remark) = session.emit(&schema, None, batches).await?;
    session.summarize(rows, None, remark);
    Ok(ExitCodes::OK)
}

fn read_query(session: &mut Session<'_>) -> Result<String, Failure> {
    let mut query = String::new();
    if let Some(mut stdin) = session.console.stdin.take() {
        stdin.read_to_string(&mut query).map_err(|error| {
            Failure::usage(format!("the query can't be read from standard input: {error}"))
        })?;
    }
    Ok(query)
}
