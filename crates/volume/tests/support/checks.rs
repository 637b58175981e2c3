//! `volume::check` over the objects of a world.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use volume::check::{CheckCounts, CheckError, CheckPort, CheckReport, check};
use volume::driver::{ComputeError, StoreError, Version};

use super::waker;

/// Objects by key, with their versions.
pub(crate) type Objects = BTreeMap<String, (Vec<u8>, u64)>;

/// A store that is one thing, and after so many requests another.
struct Port<'a> {
    before: &'a Objects,
    after: &'a Objects,
    moves_at: usize,
    requests: AtomicUsize,
}

impl Port<'_> {
    fn objects(&self) -> &Objects {
        let nth = self.requests.fetch_add(1, Ordering::Relaxed);
        match nth < self.moves_at {
            true => self.before,
            false => self.after,
        }
    }
}

impl CheckPort for Port<'_> {
    async fn get(&self, key: &str) -> Result<(Vec<u8>, Version), StoreError> {
        let (data, version) = self.objects().get(key).ok_or(StoreError::NotFound)?;
        Ok((data.clone(), Version(version.to_string())))
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let (data, _) = self.objects().get(key).ok_or(StoreError::NotFound)?;
        let part = data.get(offset as usize..(offset + len) as usize);
        part.map(<[u8]>::to_vec).ok_or(StoreError::OutOfRange)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, StoreError> {
        Ok(list(self.objects(), prefix))
    }

    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        Ok(work())
    }

    fn on_progress(&self, _counts: &CheckCounts) {}
}

/// The keys below a prefix, and the sizes of their objects.
pub(crate) fn list(objects: &Objects, prefix: &str) -> Vec<(String, u64)> {
    let found = objects.iter().filter(|(key, _)| key.starts_with(prefix));
    let found = found.map(|(key, (data, _))| (key.clone(), data.len() as u64));
    found.collect()
}

/// Every request is answered at once.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(&waker())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing is left to wait for"),
    }
}

/// A check of a store that moves at its nth request.
pub(crate) fn check_moving(
    before: &Objects,
    after: &Objects,
    moves_at: usize,
    names: &[&str],
    is_deep: bool,
) -> Result<CheckReport, CheckError> {
    let requests = AtomicUsize::new(0);
    let port = Port {
        before,
        after,
        moves_at,
        requests,
    };
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    at_once(check(&port, &names, is_deep))
}

/// A check of a store that stands still.
pub(crate) fn check_all(objects: &Objects, is_deep: bool) -> CheckReport {
    check_moving(objects, objects, 0, &[], is_deep).expect("it came to its end")
}
