//! Decoders that break down: some damage makes one panic, which is an error of its file like any other.
//!
//! Files of our own are checked by their sums before they are decoded. What others wrote is checked only as far as its footer, its
//! indexes and the heads of its pages tell, and a page may hold anything.

use std::any::Any;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::stream::{Stream, StreamExt};

use crate::error::{Error, ErrorKind, Result};

/// Runs a step of a decoder; a panic becomes an error of kind [`Corrupt`](ErrorKind::Corrupt).
pub fn decode<T>(step: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| Err(broken_down(panic.as_ref())))
}

/// The same of a step that waits for its bytes.
pub(crate) async fn decode_next<T, E: Into<Error>>(
    step: impl Future<Output = std::result::Result<T, E>>,
) -> Result<T> {
    match AssertUnwindSafe(step).catch_unwind().await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(panic) => Err(broken_down(panic.as_ref())),
    }
}

/// The batches of a decoder up to the first error; a panic is one, of kind [`Corrupt`](ErrorKind::Corrupt).
pub fn decode_all<E>(
    batches: impl Iterator<Item = std::result::Result<RecordBatch, E>>,
    told: impl Fn(E) -> Error,
) -> impl Iterator<Item = Result<RecordBatch>> {
    let mut rest = Some(batches);
    iter::from_fn(move || {
        let next = decode(|| rest.as_mut().and_then(Iterator::next).transpose().map_err(&told));
        if next.is_err() {
            rest = None;
        }
        next.transpose()
    })
}

/// The batches of a decoder that fetches meanwhile; a panic is the last error.
pub(crate) fn decode_stream<E: Into<Error>>(
    batches: impl Stream<Item = std::result::Result<RecordBatch, E>>,
) -> impl Stream<Item = Result<RecordBatch>> {
    AssertUnwindSafe(batches).catch_unwind().map(|next| match next {
        Ok(batch) => batch.map_err(Into::into),
        Err(panic) => Err(broken_down(panic.as_ref())),
    })
}

fn broken_down(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(
        ErrorKind::Corrupt,
        format!("a decoder broke down over it: {}", text.unwrap_or("it doesn't say why")),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::TryStreamExt;
    use futures::executor::block_on;
    use futures::stream;

    use super::*;

    fn batches() -> impl Iterator<Item = Result<RecordBatch>> {
        (0..5).map(|n| {
            assert!(n < 2, "no page {n}");
            Ok(RecordBatch::new_empty(arrow::datatypes::Schema::empty().into()))
        })
    }

    #[test]
    fn a_breakdown_is_an_error_and_the_end() {
        let mut rows = decode_all(batches(), |error| error);
        assert!(rows.next().unwrap().is_ok() && rows.next().unwrap().is_ok());
        let error = rows.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("no page 2"), "{error}");
        assert!(rows.next().is_none());
        let error = decode_stream(stream::iter(batches())).try_collect::<Vec<_>>();
        assert!(block_on(error).unwrap_err().to_string().contains("no page 2"));
    }
}
