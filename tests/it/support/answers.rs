//! Everything that a state answers about its past, as texts that can be compared.

use alluvium::{Point, RawState};
use alluvium_log::KeyFilter;
use arrow::array::RecordBatch;
use futures::TryStreamExt;

use super::stores::{DAY, START, live};

async fn changes(state: &RawState, after: i64) -> Vec<RecordBatch> {
    let basis = state.reader().basis().await.unwrap();
    state.reader().changes_rows(&basis, after).await.unwrap().try_collect().await.unwrap()
}

async fn history(state: &RawState) -> Vec<RecordBatch> {
    let basis = state.reader().basis().await.unwrap();
    let rows = state.reader().history_rows(&basis, KeyFilter::All, Point::LATEST).await.unwrap();
    rows.try_collect().await.unwrap()
}

/// Everything that can be asked about the past of the log.
pub(crate) async fn answers(state: &RawState, newest: i64) -> Vec<String> {
    let mut all = vec![format!("{:?}", changes(state, 0).await)];
    all.push(format!("{:?}", history(state).await));
    for n in 0..=newest {
        all.push(format!("{:?}", live(state, Point::at_commit(n)).await));
        all.push(format!("{:?}", live(state, Point::at_version(n)).await));
        all.push(format!("{:?}", live(state, Point::at_time(START + n * DAY)).await));
    }
    all
}
