//! `volume::rebuild` over the objects of a world.

use std::sync::{Mutex, MutexGuard, PoisonError};

use volume::check::{CheckCounts, CheckPort};
use volume::driver::{ComputeError, StoreError, Version};
use volume::rebuild::{RebuildError, RebuildPort, RebuildReport, RebuildRequest, rebuild};

use super::World;
use super::checks::{Objects, at_once, list};

/// What happens to the write of an object, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFault {
    /// It takes effect, and nobody hears of it.
    LostAnswer(usize),
    /// The process dies before it.
    Death(usize),
}

struct Port {
    objects: Mutex<(Objects, u64, usize)>,
    fault: Option<WriteFault>,
    /// After so many reads the store is another.
    moves: Mutex<Option<(usize, Objects)>>,
}

impl Port {
    fn lock(&self) -> MutexGuard<'_, (Objects, u64, usize)> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, as a read finds it.
    fn read(&self) -> MutexGuard<'_, (Objects, u64, usize)> {
        let mut moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        match moves.take() {
            Some((0, behind)) => self.lock().0 = behind,
            waits => *moves = waits.map(|(reads, behind)| (reads - 1, behind)),
        }
        self.lock()
    }

    fn write(&self, key: &str, data: Vec<u8>, expected: Option<u64>) -> Result<(), StoreError> {
        let (objects, versions, writes) = &mut *self.lock();
        *writes += 1;
        if self.fault == Some(WriteFault::Death(*writes)) {
            return Err(StoreError::Unavailable("the process is gone".into()));
        }
        if objects.get(key).map(|(_, version)| *version) != expected {
            return Err(StoreError::PreconditionFailed);
        }
        *versions += 1;
        objects.insert(key.to_owned(), (data, *versions));
        match self.fault == Some(WriteFault::LostAnswer(*writes)) {
            true => Err(StoreError::Unknown("no answer".into())),
            false => Ok(()),
        }
    }
}

impl CheckPort for Port {
    async fn get(&self, key: &str) -> Result<(Vec<u8>, Version), StoreError> {
        let (objects, ..) = &*self.read();
        let (data, version) = objects.get(key).ok_or(StoreError::NotFound)?;
        Ok((data.clone(), Version(version.to_string())))
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let (objects, ..) = &*self.read();
        let (data, _) = objects.get(key).ok_or(StoreError::NotFound)?;
        let part = data.get(offset as usize..(offset + len) as usize);
        part.map(<[u8]>::to_vec).ok_or(StoreError::OutOfRange)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, StoreError> {
        Ok(list(&self.read().0, prefix))
    }

    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        Ok(work())
    }

    fn on_progress(&self, _counts: &CheckCounts) {}
}

impl RebuildPort for Port {
    async fn create(&self, key: &str, data: Vec<u8>) -> Result<(), StoreError> {
        self.write(key, data, None)
    }

    async fn update(&self, key: &str, data: Vec<u8>, version: Version) -> Result<(), StoreError> {
        let version = version.0.parse().expect("one of this store's");
        self.write(key, data, Some(version))
    }

    fn on_footers(&self, _read: usize, _of: usize) {}
}

/// A request without any flags.
pub(crate) fn of(name: &str) -> RebuildRequest {
    RebuildRequest {
        name: name.into(),
        unix_ms: 1_700_000_000_000,
        nonce: 7,
        ..RebuildRequest::default()
    }
}

/// The same where the last holder did not give it back.
pub(crate) fn taking_over(name: &str) -> RebuildRequest {
    RebuildRequest {
        take_over: true,
        ..of(name)
    }
}

/// Rebuilds in the world's store.
pub(crate) fn try_rebuild(
    world: &mut World,
    request: &RebuildRequest,
) -> Result<RebuildReport, RebuildError> {
    rebuild_with(world, request, None)
}

/// Rebuilds in a store that is another after so many reads, and returns what that is then.
pub(crate) fn rebuild_moving(
    before: &Objects,
    behind: &Objects,
    moves_at: usize,
    request: &RebuildRequest,
) -> (Result<RebuildReport, RebuildError>, Objects) {
    let port = Port {
        objects: Mutex::new((before.clone(), 1 << 40, 0)),
        fault: None,
        moves: Mutex::new(Some((moves_at, behind.clone()))),
    };
    let report = at_once(rebuild(&port, request));
    let objects = std::mem::take(&mut port.lock().0);
    (report, objects)
}

/// The same, and something happens to a write.
pub(crate) fn rebuild_with(
    world: &mut World,
    request: &RebuildRequest,
    fault: Option<WriteFault>,
) -> Result<RebuildReport, RebuildError> {
    let env = &mut world.env;
    let objects = std::mem::take(&mut env.objects);
    let port = Port {
        objects: Mutex::new((objects, env.versions, 0)),
        fault,
        moves: Mutex::new(None),
    };
    let report = at_once(rebuild(&port, request));
    let (objects, versions, _) = std::mem::take(&mut *port.lock());
    (env.objects, env.versions) = (objects, versions);
    report
}

/// Removes all objects below a prefix; how many there were.
pub(crate) fn remove_below(world: &mut World, prefix: &str) -> usize {
    let before = world.env.objects.len();
    world.env.objects.retain(|key, _| !key.starts_with(prefix));
    before - world.env.objects.len()
}
