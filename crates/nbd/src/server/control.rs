//! The server's control thread: for what may sleep, which a reactor thread must not do (R4).

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce() + Send>;

pub(super) struct Control {
    tasks: Mutex<Option<Sender<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    pub(super) fn start() -> io::Result<Control> {
        let (tasks, from) = channel::<Task>();
        let thread = std::thread::Builder::new()
            .name("nbd-control".into())
            .spawn(move || {
                for task in from {
                    task();
                }
            })?;
        Ok(Control {
            tasks: Mutex::new(Some(tasks)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Has `task` run on the control thread; false where it has stopped. Never waits: the lock
    /// is held for a push, and the number of tasks is bounded by that of connections.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) -> bool {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks
            .as_ref()
            .is_some_and(|tasks| tasks.send(Box::new(task)).is_ok())
    }

    /// Ends the thread after the tasks it has.
    pub(super) fn stop(&self) {
        self.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            blkmq::may_block("joining the control thread");
            // A task that panicked has said so already.
            let _ = thread.join();
        }
    }
}
