//! What has passed a proxy: requests, bytes and the longest time, by method.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Requests with one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodTraffic {
    /// Requests that were answered, by whomever.
    pub requests: u64,
    /// Those answered with a status of 400 and above.
    pub refused: u64,
    /// Bytes of requests' bodies.
    pub sent: u64,
    /// Bytes of answers' bodies.
    pub received: u64,
    /// Longest time from a request's head to its answer's end.
    pub longest: Duration,
}

/// Requests with one method for objects of one folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderTraffic {
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of requests' bodies.
    pub sent: u64,
}

/// A ranged or whole read that was answered with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRead {
    /// Path of the object in the request, bucket included.
    pub path: String,
    /// First byte and bytes, where it asked for a range.
    pub range: Option<(u64, u64)>,
}

/// What has passed since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// By method.
    pub methods: BTreeMap<String, MethodTraffic>,
    /// By method and folder: the third part of the path, which is the first of a key in a store that
    /// [`url_at`](crate::url_at) names. Lists have none.
    pub folders: BTreeMap<(String, String), FolderTraffic>,
    /// Requests that met a fault.
    pub faults: u64,
    /// The reads, in the order of their answers, where they are recorded.
    pub reads: Vec<ObjectRead>,
}

impl Traffic {
    /// Of one method.
    pub fn of(&self, method: &str) -> MethodTraffic {
        self.methods.get(method).copied().unwrap_or_default()
    }

    /// Requests with one method for objects of one folder.
    pub fn of_folder(&self, method: &str, folder: &str) -> u64 {
        self.folder(method, folder).requests
    }

    /// Bytes of the bodies of requests with one method for objects of one folder.
    pub fn sent_to_folder(&self, method: &str, folder: &str) -> u64 {
        self.folder(method, folder).sent
    }

    fn folder(&self, method: &str, folder: &str) -> FolderTraffic {
        let key = (method.to_owned(), folder.to_owned());
        self.folders.get(&key).copied().unwrap_or_default()
    }

    /// Requests of all methods.
    pub fn requests(&self) -> u64 {
        self.methods.values().map(|method| method.requests).sum()
    }
}

/// Where exchanges note what has passed.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    traffic: Traffic,
    records_reads: bool,
}

/// One exchange that came to its end.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) took: Duration,
    pub(crate) read: Option<ObjectRead>,
}

impl TrafficCounter {
    pub(crate) fn note(&self, exchanged: Exchange<'_>) {
        let mut state = self.lock();
        let name = exchanged.method.to_owned();
        let method = state.traffic.methods.entry(name).or_default();
        method.requests += 1;
        method.refused += u64::from(exchanged.status >= 400);
        method.sent += exchanged.sent;
        method.received += exchanged.received;
        method.longest = method.longest.max(exchanged.took);
        let folder = exchanged.path.split('/').nth(3).unwrap_or_default();
        let key = (exchanged.method.to_owned(), folder.to_owned());
        let folder = state.traffic.folders.entry(key).or_default();
        folder.requests += 1;
        folder.sent += exchanged.sent;
        if let (true, Some(read)) = (state.records_reads, exchanged.read) {
            state.traffic.reads.push(read);
        }
    }

    pub(crate) fn note_fault(&self) {
        self.lock().traffic.faults += 1;
    }

    pub(crate) fn record_reads(&self, on: bool) {
        self.lock().records_reads = on;
    }

    pub(crate) fn snapshot(&self) -> Traffic {
        self.lock().traffic.clone()
    }

    pub(crate) fn take(&self) -> Traffic {
        std::mem::take(&mut self.lock().traffic)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
