//! A thread of one's own for work that blocks or takes long, started when there is some.
//!
//! A pool's threads, taken in turn, would each keep pieces of what they once held: the usual allocator has an arena for each
//! thread and returns little of it. So what takes much memory is done by few threads.

use std::sync::mpsc::{Sender, channel};

use alluvium_log::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Does one thing after the other; ends with the last hold on it.
#[derive(Debug)]
pub(crate) struct OwnThread {
    name: &'static str,
    jobs: Mutex<Option<Sender<Job>>>,
}

impl OwnThread {
    /// A thread that is not started yet.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, jobs: Mutex::new(None) }
    }

    /// Does a piece of work there.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = oneshot::channel();
        let job = Box::new(move || {
            // Nobody waits any more when the work as a whole was dropped.
            drop(done.send(work()));
        });
        let aborted = || Error::internal(format!("the work of thread {} was aborted", self.name));
        self.jobs()?.send(job).map_err(|_| aborted())?;
        result.await.map_err(|error| aborted().with_source(error))?
    }

    fn jobs(&self) -> Result<Sender<Job>> {
        let mut jobs = self.jobs.lock();
        if let Some(jobs) = jobs.as_ref() {
            return Ok(jobs.clone());
        }
        let (sender, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job());
        let started = std::thread::Builder::new().name(self.name.to_owned()).spawn(work);
        started.map_err(|error| {
            let message = format!("the thread {} could not start", self.name);
            Error::new(ErrorKind::Storage, message).with_source(error)
        })?;
        Ok(jobs.insert(sender).clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn all_work_is_done_by_one_thread_and_errors_come_back() {
        let own = OwnThread::new("alluvium-test");
        let name = || {
            let current = std::thread::current();
            Ok((current.id(), current.name().map(str::to_owned)))
        };
        let (first, second) = (own.run(name).await.unwrap(), own.run(name).await.unwrap());
        assert_eq!(first, second);
        assert_eq!(first.1.as_deref(), Some("alluvium-test"));
        let failed = own.run(|| Err::<(), _>(Error::invalid("no"))).await.unwrap_err();
        assert_eq!(failed.message(), "no");
    }
}
