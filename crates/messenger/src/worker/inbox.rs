//! How other threads reach the worker: a list of orders with a small lock of its own, and an event
//! descriptor that is written when the list stops being empty.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::Order;
use crate::lock::{Lock, Site};

#[derive(Debug)]
pub(crate) struct Inbox {
    orders: Lock<Orders>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Orders {
    list: Vec<Order>,
    /// The worker is gone; nothing is taken any more.
    ended: bool,
}

impl Inbox {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            orders: Lock::new(Orders::default()),
            wake,
        })
    }

    /// Gives the worker an order, or gives it back when the worker is gone.
    pub(crate) fn post(&self, order: Order) -> Result<(), Order> {
        let mut orders = self.orders.lock(Site::Post);
        if orders.ended {
            return Err(order);
        }
        let first = orders.list.is_empty();
        orders.list.push(order);
        drop(orders);
        if first {
            // A full counter means that a wake-up is pending already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Takes all orders. The descriptor is cleared before the list is: an order that comes in
    /// between costs one wake-up for nothing, never a lost one.
    pub(super) fn take(&self, into: &mut Vec<Order>) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        std::mem::swap(&mut self.orders.lock(Site::Take).list, into);
    }

    /// Takes the last orders and refuses all later ones.
    pub(super) fn end(&self) -> Vec<Order> {
        let mut orders = self.orders.lock(Site::Take);
        orders.ended = true;
        std::mem::take(&mut orders.list)
    }

    /// What the lock cost so far.
    #[cfg(feature = "meter")]
    pub(crate) fn lock_stats(&self) -> crate::lock::LockStats {
        self.orders.stats()
    }

    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
