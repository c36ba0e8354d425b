//! When a run of the job begins nothing further: it is told to, or its time is up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Tells a run of the job to begin no further step. What is begun is brought to its end. Clones tell the same.
#[derive(Debug, Clone)]
pub struct StopSignal {
    wanted: Arc<watch::Sender<bool>>,
    deadline: Option<Instant>,
}

impl Default for StopSignal {
    fn default() -> Self {
        Self { wanted: Arc::new(watch::Sender::new(false)), deadline: None }
    }
}

impl StopSignal {
    /// The same signal, which also tells so when a time from now has passed.
    pub fn within(&self, time: Duration) -> Self {
        let deadline = Instant::now().checked_add(time);
        Self { wanted: self.wanted.clone(), deadline: deadline.or(self.deadline) }
    }

    /// Tells it.
    pub fn stop(&self) {
        self.wanted.send_replace(true);
    }

    /// Whether it was told, whatever the time is.
    pub fn is_told(&self) -> bool {
        *self.wanted.borrow()
    }

    /// Whether nothing further is to be begun.
    pub fn is_wanted(&self) -> bool {
        self.is_told() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Resolves when it is told.
    pub async fn told(&self) {
        // It can't fail while the sender lives, and `self` holds it.
        self.wanted.subscribe().wait_for(|wanted| *wanted).await.ok();
    }
}
