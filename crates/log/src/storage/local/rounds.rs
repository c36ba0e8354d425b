//! Waits for the disk that are had at once: a few threads of the process do nothing else.
//!
//! Whoever begins a round does one part of it, and then those parts that no thread has come to, so that a round never waits
//! for threads that are busy with others.

use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::together::Failed;

/// Begun when they are first asked for.
const THREADS: usize = 4;

type Outcome = Result<(), Failed>;

/// A part of a round.
pub(super) type Part = Box<dyn FnOnce() -> Outcome + Send>;

/// Leave to do a part of a round that nobody has begun.
struct Ticket {
    waiting: Arc<Mutex<Vec<Part>>>,
    done: mpsc::Sender<Outcome>,
}

impl Ticket {
    /// Does a part; whether there was one.
    fn redeem(&self) -> bool {
        let Some(part) = self.waiting.lock().pop() else { return false };
        let aborted = |_| Err(Failed::Own(io::Error::other("a sync was aborted")));
        let outcome = panic::catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(aborted);
        // Who began the round waits for as many outcomes as it has parts.
        self.done.send(outcome).ok();
        true
    }
}

#[derive(Default)]
struct Queue {
    tickets: Mutex<VecDeque<Ticket>>,
    added: Condvar,
}

/// The queue of the threads; `None` where no thread could be begun: nobody would ever take anything from it.
static QUEUE: LazyLock<Option<Arc<Queue>>> = LazyLock::new(|| {
    let queue = Arc::new(Queue::default());
    let begin = |number| {
        let (queue, name) = (queue.clone(), format!("alluvium-sync-{number}"));
        thread::Builder::new().name(name).spawn(move || serve(&queue))
    };
    let mut begun = 0;
    for number in 0..THREADS {
        match begin(number) {
            Ok(_) => begun += 1,
            // Others do its work.
            Err(error) => {
                tracing::warn!(%error, "a thread that waits for the disk could not be begun");
            }
        }
    }
    (begun > 0).then_some(queue)
});

fn serve(queue: &Queue) {
    loop {
        let mut tickets = queue.tickets.lock();
        let ticket = loop {
            match tickets.pop_front() {
                Some(ticket) => break ticket,
                None => queue.added.wait(&mut tickets),
            }
        };
        drop(tickets);
        ticket.redeem();
    }
}

/// Does all parts, the own one on this thread, and tells of one that failed once all have ended.
pub(super) fn at_once(own: impl FnOnce() -> Outcome, others: Vec<Part>) -> Outcome {
    let (parts, waiting) = (others.len(), Arc::new(Mutex::new(others)));
    let (done, outcomes) = mpsc::channel();
    if let Some(queue) = &*QUEUE {
        for _ in 0..parts {
            let ticket = Ticket { waiting: waiting.clone(), done: done.clone() };
            queue.tickets.lock().push_back(ticket);
            queue.added.notify_one();
        }
    }
    let outcome = own();
    let ticket = Ticket { waiting, done };
    while ticket.redeem() {}
    // As many come as there are parts, each from whoever did it.
    outcomes.iter().take(parts).fold(outcome, Outcome::and)
}
