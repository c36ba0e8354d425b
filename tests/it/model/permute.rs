//! Any order and any batching of the same rows give the same state.

use alluvium::{OrderBy, Point, SnapshotChange};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::plan::{Kind, Pools, handle_settings};
use crate::support::rows::{Change, Seen, Shape, batch, fields, seen};
use crate::support::stores::{Home, ordered_by, scan_rows};

/// Rows of which no two of one key tie: then the commit decides nothing.
fn rows_without_ties(rng: &mut StdRng, pools: &Pools) -> Vec<Change> {
    let mut known = std::collections::HashMap::new();
    let mut rows = Vec::new();
    while rows.len() < 300 {
        for change in pools.changes(rng, Shape::default(), &[]) {
            let place =
                (change.key.clone(), change.version, change.event_time, change.value.is_none());
            let value = known.entry(place).or_insert_with(|| change.value.clone());
            // A row may come again as it is, but not with another value.
            if *value == change.value {
                rows.push(change);
            }
        }
    }
    rows
}

async fn state_of(rows: &[Change], kind: Kind, rng: &mut StdRng) -> Vec<Seen> {
    let home = Home::new();
    let store = home.open_with(handle_settings(rng, kind)).await;
    let (state, _) = store
        .create_state("s", &fields(Shape::default()), ordered_by(kind.order_by))
        .await
        .unwrap();
    let mut left = rows;
    let most = rng.random_range(1..=rows.len());
    while !left.is_empty() {
        let size = rng.random_range(1..=most).min(left.len());
        let (now, later) = left.split_at(size);
        state.append(&batch(now, Shape::default())).await.unwrap();
        if rng.random_bool(0.2) {
            state.materialize(false).await.unwrap();
        }
        left = later;
    }
    let fresh = read(&state).await;
    let report = state.materialize(rng.random_bool(0.3)).await.unwrap();
    assert!(report.change != SnapshotChange::UpToDate || report.rows_folded == 0);
    assert!(state.verify().await.unwrap().is_sound());
    let folded = read(&state).await;
    assert_eq!(fresh, folded, "the state before and after materializing");
    folded
}

/// The latest state, without the commits: these depend on the batching.
async fn read(state: &alluvium::RawState) -> Vec<Seen> {
    let batches = scan_rows(state, Point::LATEST).await;
    batches
        .iter()
        .flat_map(seen)
        .map(|row| Seen { commit: 0, app: None, epoch: None, ..row })
        .collect()
}

async fn permutations(order_by: OrderBy, first_seed: u64) {
    for seed in first_seed..first_seed + 4 {
        let mut rng = StdRng::seed_from_u64(seed);
        let kind = Kind { tiny: true, ..Kind::of(order_by) };
        let pools = Pools::new(&mut rng);
        let mut rows = rows_without_ties(&mut rng, &pools);
        let expected = state_of(&rows, Kind { tiny: false, ..kind }, &mut rng).await;
        for _ in 0..3 {
            rows.shuffle(&mut rng);
            assert_eq!(state_of(&rows, kind, &mut rng).await, expected, "seed {seed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_order_and_batching_of_the_same_rows_gives_the_same_state_by_event_time() {
    permutations(OrderBy::EventTime, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_order_and_batching_of_the_same_rows_gives_the_same_state_by_version() {
    permutations(OrderBy::Version, 200).await;
}
