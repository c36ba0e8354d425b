//! The tree of losers against sorting.

use super::super::tree::LoserTree;
use super::with_seeds;

#[test]
fn the_least_of_any_number_of_contestants_wins_and_the_second_least_is_the_runner_up() {
    with_seeds(200, |random| {
        let count = random.below(20);
        // No two are equal, as no two inputs of a merge are.
        let mut values: Vec<(usize, usize)> =
            (0..count).map(|contestant| (random.below(10), contestant)).collect();
        let mut tree = LoserTree::new(count, |a, b| values[a] < values[b]);
        for _ in 0..60 {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by_key(|contestant| values[*contestant]);
            let Some(winner) = order.first() else {
                assert!(tree.winner() >= count);
                break;
            };
            assert_eq!(tree.winner(), *winner);
            assert_eq!(tree.runner_up(|a, b| values[a] < values[b]), order.get(1).copied());
            values[*winner].0 += random.below(6);
            tree.replay(|a, b| values[a] < values[b]);
        }
    });
}
