//! A tournament of losers: the least of many contestants, kept with one comparison a level.

/// Contestants are numbers from 0; who precedes whom is told by the caller at each step.
#[derive(Debug)]
pub(super) struct LoserTree {
    /// At 0 the winner of all, else the loser of the match that was played at this node.
    nodes: Vec<usize>,
}

const NOBODY: usize = usize::MAX;

impl LoserTree {
    pub(super) fn new(contestants: usize, precedes: impl Fn(usize, usize) -> bool) -> Self {
        let mut nodes = vec![NOBODY; contestants.max(1)];
        for contestant in 0..contestants {
            let mut rising = contestant;
            let mut node = (contestant + contestants) / 2;
            while node > 0 {
                if nodes[node] == NOBODY {
                    // Waits here for the winner of the other branch.
                    nodes[node] = rising;
                    rising = NOBODY;
                    break;
                }
                if precedes(nodes[node], rising) {
                    std::mem::swap(&mut nodes[node], &mut rising);
                }
                node /= 2;
            }
            if rising != NOBODY {
                nodes[0] = rising;
            }
        }
        Self { nodes }
    }

    #[inline]
    pub(super) fn winner(&self) -> usize {
        self.nodes[0]
    }

    /// Plays the winner's matches again, after it has changed.
    #[inline]
    pub(super) fn replay(&mut self, precedes: impl Fn(usize, usize) -> bool) {
        let mut rising = self.nodes[0];
        let mut node = (rising + self.nodes.len()) / 2;
        while node > 0 {
            if precedes(self.nodes[node], rising) {
                std::mem::swap(&mut self.nodes[node], &mut rising);
            }
            node /= 2;
        }
        self.nodes[0] = rising;
    }

    /// The least of all but the winner: it lost to the winner itself, so it is on the winner's path.
    pub(super) fn runner_up(&self, precedes: impl Fn(usize, usize) -> bool) -> Option<usize> {
        let mut best = None;
        let mut node = (self.nodes[0] + self.nodes.len()) / 2;
        while node > 0 {
            let loser = self.nodes[node];
            if best.is_none_or(|best| precedes(loser, best)) {
                best = Some(loser);
            }
            node /= 2;
        }
        best
    }
}
