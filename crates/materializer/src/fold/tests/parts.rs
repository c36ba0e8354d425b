//! The parts that the fold is made of, each alone.

use super::super::FoldSettings;
use super::super::batch::KeyedBatch;
use super::super::bytes::{Footprint, Weights, batch_bytes, cumulative_row_bytes};
use super::super::tree::LoserTree;
use super::{batch_of, random_rows, row, schema, with_seeds};

#[test]
fn a_word_of_a_key_compares_as_its_bytes_do() {
    let keys = ["", "\0", "a", "a\0", "a\0b", "abcdefgh", "abcdefgh\0", "abcdefghi", "é", "💧💧💧"];
    let rows: Vec<_> = keys.iter().map(|key| row(key, 1)).collect();
    for batch in [batch_of(&rows), batch_of(&rows).slice(0, 10)] {
        let batch = KeyedBatch::try_new(batch, &schema()).unwrap();
        for (at, key) in keys.iter().enumerate() {
            let mut padded = [0; 8];
            let length = key.len().min(8);
            padded[..length].copy_from_slice(&key.as_bytes()[..length]);
            assert_eq!(batch.word(at, 0), u64::from_be_bytes(padded), "{key:?}");
            assert_eq!(batch.word(at, key.len()), 0, "{key:?}");
        }
    }
}

#[test]
fn the_rows_of_a_batch_weigh_together_what_the_batch_does() {
    with_seeds(50, |random| {
        let rows = random_rows(random, 100);
        let batch = batch_of(&rows);
        let start = random.below(100);
        for part in [batch.clone(), batch.slice(start, random.below(101 - start))] {
            let sums = cumulative_row_bytes(&part);
            let (all, each) = (batch_bytes(&part) as u64, *sums.last().unwrap());
            assert_eq!(sums.len(), part.num_rows() + 1);
            // Only the bits that tell nulls are not of a row.
            assert!(each <= all && all <= each + 400, "{each} {all}");
        }
    });
}

#[test]
fn as_many_rows_fit_as_weigh_no_more_than_is_free() {
    let weights = Weights::Cumulative(vec![0, 10, 10, 30, 100]);
    assert_eq!(weights.fitting(0, 4, 9), 0);
    assert_eq!(weights.fitting(0, 4, 10), 2);
    assert_eq!(weights.fitting(1, 4, 20), 2);
    assert_eq!(weights.fitting(0, 2, 1000), 2);
    assert_eq!(weights.of_rows(1, 3), 20);
    assert_eq!(Weights::Mean(10).fitting(0, 9, 35), 3);
    assert_eq!(Weights::Mean(0).fitting(0, 9, 0), 0);
}

#[test]
fn memory_that_slices_share_is_counted_once_and_whole() {
    let batch = batch_of(&(0..1000).map(|key| row(&format!("{key}"), 1)).collect::<Vec<_>>());
    let footprint = |batches: &[_]| {
        let mut footprint = Footprint::default();
        batches.iter().for_each(|batch| footprint.add(batch));
        footprint.bytes()
    };
    let whole = footprint(std::slice::from_ref(&batch));
    assert!(whole >= batch_bytes(&batch));
    assert!(footprint(&[batch.slice(10, 1)]) >= batch_bytes(&batch));
    let slices: Vec<_> = (0..10).map(|part| batch.slice(part * 100, 100)).collect();
    assert!(footprint(&slices) < whole + whole / 2);
}

#[test]
fn a_tree_of_losers_gives_the_least_and_the_second_least() {
    with_seeds(200, |random| {
        let count = 1 + random.below(20);
        let mut values: Vec<(usize, usize)> =
            (0..count).map(|contestant| (random.below(30), contestant)).collect();
        let mut tree = LoserTree::new(count, |a, b| values[a] < values[b]);
        for _ in 0..100 {
            let mut order = values.clone();
            order.sort_unstable();
            assert_eq!(tree.winner(), order[0].1);
            let second = tree.runner_up(|a, b| values[a] < values[b]);
            assert_eq!(second, order.get(1).map(|second| second.1));
            values[tree.winner()].0 += random.below(10);
            tree.replay(|a, b| values[a] < values[b]);
        }
    });
}

#[test]
fn settings_with_which_nothing_can_be_folded_are_refused_and_named() {
    let good = FoldSettings::default();
    good.validate().unwrap();
    for (bad, name) in [
        (FoldSettings { memory_budget_bytes: 0, ..good.clone() }, "memory_budget_bytes"),
        (FoldSettings { batch_rows: 0, ..good.clone() }, "batch_rows"),
        (FoldSettings { fan_in: 1, ..good.clone() }, "fan_in"),
    ] {
        assert!(bad.validate().unwrap_err().message().contains(name));
    }
}
