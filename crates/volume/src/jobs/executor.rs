//! The executor of the engine's procedures: futures without a runtime, a clock or I/O.
//!
//! A procedure (open, upload, fetch, reclaim) is an `async fn` that asks for I/O through a
//! [`super::Port`]. Asking queues a [`Request`]; the future goes on when its outcome is given. Nothing
//! runs by itself: [`Jobs::run`] polls what is ready, on the caller's thread, and time
//! passes only by [`Jobs::advance`]. So the same code runs under the server and, one request at a
//! time and in any order, under the simulator.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use super::reply::{Reply, ReplyCell};
use crate::driver::{Notify, Outcome, Request, RequestId, RequestOp};
use crate::failures::Failures;
use crate::lock::lock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Now;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

struct TaskCell {
    /// `None` while it is being polled.
    task: Option<Task>,
    queued: bool,
    /// The same for all polls, so that a signal keeps it once however often it is waited for.
    waker: Option<Waker>,
}

#[derive(Default)]
pub(super) struct Inner {
    tasks: BTreeMap<u64, TaskCell>,
    ready: VecDeque<u64>,
    requests: VecDeque<Request>,
    waiting: BTreeMap<RequestId, Arc<ReplyCell>>,
    pub(super) timers: BTreeMap<(u64, u64), Waker>,
    /// Procedures that let others go first; woken at the end of a run.
    pub(super) pausing: Vec<Waker>,
    next_task: u64,
    next_request: u64,
    pub(super) next_timer: u64,
    pub(super) now: Now,
}

/// All procedures in progress.
pub(crate) struct Jobs {
    pub(super) inner: Mutex<Inner>,
    /// `inner.now`, to be read without the lock.
    mono_ns: AtomicU64,
    /// Held by the one thread that polls.
    running: Mutex<()>,
    notify: Arc<dyn Notify>,
    /// Failed I/O of procedures, the committer and requests.
    pub(crate) failures: Failures,
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("tasks", &lock(&self.inner).tasks.len())
            .finish()
    }
}

impl Jobs {
    pub(crate) fn new(notify: Arc<dyn Notify>) -> Arc<Jobs> {
        Arc::new(Jobs {
            inner: Mutex::default(),
            mono_ns: AtomicU64::new(0),
            running: Mutex::new(()),
            notify,
            failures: Failures::default(),
        })
    }

    pub(crate) fn notifier(&self) -> &Arc<dyn Notify> {
        &self.notify
    }

    /// Starts a procedure; it is polled by the next [`Jobs::run`].
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut inner = lock(&self.inner);
        let id = inner.next_task;
        inner.next_task += 1;
        inner.tasks.insert(
            id,
            TaskCell {
                task: Some(Box::pin(task)),
                queued: true,
                waker: None,
            },
        );
        inner.ready.push_back(id);
        drop(inner);
        self.notify.jobs_ready();
    }

    /// Polls everything that is ready until nothing is, or until `has_time` says no, or until what is
    /// left has only paused to let the requests so far go out: then true, and another call goes on. A
    /// second caller returns at once: the first one polls what became ready meanwhile.
    pub(crate) fn run(self: &Arc<Self>, mut has_time: impl FnMut() -> bool) -> bool {
        loop {
            {
                let Ok(_running) = self.running.try_lock() else {
                    return false;
                };
                while let Some((id, task, waker)) = self.next_ready() {
                    self.poll(id, task, &waker);
                    if !has_time() {
                        // What paused has let others go first.
                        self.wake_pausing();
                        return true;
                    }
                }
            }
            // Something may have become ready after the last look and before the unlock, and its
            // caller then found the lock held.
            if lock(&self.inner).ready.is_empty() || canary::active!("run_ends_without_a_last_look")
            {
                return self.wake_pausing();
            }
        }
    }

    /// True if there was any.
    fn wake_pausing(&self) -> bool {
        let pausing = std::mem::take(&mut lock(&self.inner).pausing);
        let any = !pausing.is_empty();
        pausing.into_iter().for_each(Waker::wake);
        any
    }

    fn next_ready(self: &Arc<Self>) -> Option<(u64, Task, Waker)> {
        let mut inner = lock(&self.inner);
        while let Some(id) = inner.ready.pop_front() {
            if let Some(cell) = inner.tasks.get_mut(&id) {
                cell.queued = false;
                if let Some(task) = cell.task.take() {
                    let waker = cell.waker.get_or_insert_with(|| self.waker(id));
                    return Some((id, task, waker.clone()));
                }
            }
        }
        None
    }

    fn waker(self: &Arc<Self>, id: u64) -> Waker {
        // Tasks belong to the jobs, and keep their wakers.
        let jobs = Arc::downgrade(self);
        Waker::from(Arc::new(TaskWaker { jobs, id }))
    }

    fn poll(&self, id: u64, mut task: Task, waker: &Waker) {
        let done = task
            .as_mut()
            .poll(&mut Context::from_waker(waker))
            .is_ready();
        let mut inner = lock(&self.inner);
        if done {
            inner.tasks.remove(&id);
            drop(inner);
            // Dropped outside the lock: what the task owned may wake others.
            drop(task);
        } else if let Some(cell) = inner.tasks.get_mut(&id) {
            cell.task = Some(task);
            if cell.queued {
                inner.ready.push_back(id);
            }
        }
    }

    fn wake(&self, id: u64) {
        let mut inner = lock(&self.inner);
        let Some(cell) = inner.tasks.get_mut(&id) else {
            return;
        };
        if cell.queued {
            return;
        }
        cell.queued = true;
        // While it is being polled, `poll` puts it back into the list itself.
        if cell.task.is_some() {
            inner.ready.push_back(id);
        }
        drop(inner);
        self.notify.jobs_ready();
    }

    /// Takes the requests emitted so far, in order.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        lock(&self.inner).requests.drain(..).collect()
    }

    /// A fresh id for a request that is emitted elsewhere (the committer's).
    pub(crate) fn next_request_id(&self) -> RequestId {
        let mut inner = lock(&self.inner);
        let id = RequestId(inner.next_request);
        inner.next_request += 1;
        id
    }

    /// Gives the outcome of a request; returned if no procedure waits for it.
    pub(crate) fn complete(&self, id: RequestId, outcome: Outcome) -> Result<(), Outcome> {
        let Some(cell) = lock(&self.inner).waiting.remove(&id) else {
            return Err(outcome);
        };
        cell.set(outcome);
        Ok(())
    }

    /// Lets time pass; wakes what slept until now.
    pub(crate) fn advance(&self, now: Now) {
        let mut due = Vec::new();
        {
            let mut inner = lock(&self.inner);
            inner.now.mono_ns = inner.now.mono_ns.max(now.mono_ns);
            inner.now.unix_ms = now.unix_ms;
            self.mono_ns.store(inner.now.mono_ns, Ordering::Relaxed);
            let later = inner.timers.split_off(&(now.mono_ns + 1, 0));
            due.extend(std::mem::replace(&mut inner.timers, later).into_values());
        }
        due.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn now(&self) -> Now {
        lock(&self.inner).now
    }

    /// The same clock without the jobs' lock: every write reads it.
    pub(crate) fn mono_ns(&self) -> u64 {
        self.mono_ns.load(Ordering::Relaxed)
    }

    /// When the next sleeper is due.
    pub(crate) fn next_timer_ns(&self) -> Option<u64> {
        lock(&self.inner).timers.keys().next().map(|(at, _)| *at)
    }

    /// Drops all procedures where they stand.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut lock(&self.inner).tasks);
        drop(tasks);
    }

    pub(super) fn emit(&self, op: RequestOp) -> Reply {
        let cell = Arc::new(ReplyCell::default());
        let mut inner = lock(&self.inner);
        let id = RequestId(inner.next_request);
        inner.next_request += 1;
        inner.waiting.insert(id, Arc::clone(&cell));
        inner.requests.push_back(Request { id, op });
        drop(inner);
        self.notify.jobs_ready();
        Reply(cell)
    }
}

struct TaskWaker {
    jobs: Weak<Jobs>,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(jobs) = self.jobs.upgrade() {
            jobs.wake(self.id);
        }
    }
}
