//! What a host does with a volume at its root: folds, closes and takes it.

use super::{Host, ServedVolume, Tail, content_of, volume_name};
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::{
    OwnerView, OwnersError, OwnersUpdate, VersionedRoot, update_own_root,
};
use crate::hostlog::stop::Stop;
use crate::hostlog::taker::{TakeRequest, Taker};
use crate::hostlog::tests::world::lock_world;
use crate::object::root::Root;
use crate::units::{Lsn, VolumeId};

impl Host {
    pub(super) async fn update(
        &mut self,
        volume: VolumeId,
        is_repeated: bool,
        change: impl Fn(Root) -> Root,
    ) -> Result<bool, Stop> {
        while self.served.contains_key(&volume) {
            let new_mark = self.publisher.mark().await?;
            let served = &self.served[&volume];
            let stored = Lsn(self.tail(volume, |tail| tail.stored) as u64);
            let known = served.known.clone();
            let view = OwnerView {
                host: self.own.host,
                known: &known.root,
                stored,
                next: self.next(),
            };
            let mark = known.root.mark;
            let since = served.since.iter().filter(|(position, _)| *position > mark);
            let mut deltas = known.root.deltas.clone();
            deltas.extend(since.map(|(_, delta)| *delta));
            let mut sessions = known.root.sessions.clone();
            let named = sessions.extend(self.sessions.iter());
            named.expect("bits are not drawn twice");
            let next = change(Root {
                writer: self.own,
                mark: new_mark,
                lsn: stored,
                deltas,
                sessions,
                ..known.root.clone()
            });
            match update_own_root(&self.port, &view, next, &known.version).await {
                Ok(OwnersUpdate::Won(known)) => {
                    let since = Vec::new();
                    self.served.insert(volume, ServedVolume { known, since });
                    return Ok(true);
                }
                Ok(OwnersUpdate::Moved(known)) => {
                    if let Some(served) = self.served.get_mut(&volume) {
                        served.known = known;
                    }
                    if !is_repeated {
                        return Ok(false);
                    }
                }
                Ok(OwnersUpdate::Fenced) => self.forget(volume),
                Err(OwnersError::Stop(stop)) => return Err(stop),
                Err(OwnersError::Root(_)) => return Err(Stop::SetBack("a root is gone".into())),
            }
        }
        Ok(false)
    }

    pub(super) async fn fold(&mut self, volume: VolumeId) -> Result<(), Stop> {
        self.update(volume, true, |root| root).await.map(drop)
    }

    pub(super) async fn close(&mut self, volume: VolumeId) -> Result<(), Stop> {
        self.publish(Some(volume)).await?;
        let closed = |root| Root {
            owner: None,
            mark: Position::default(),
            ..root
        };
        if self.update(volume, true, closed).await? {
            self.forget(volume);
        }
        Ok(())
    }

    pub(super) async fn take(&mut self, volumes: &[VolumeId]) -> Result<(), Stop> {
        let wanted = volumes.iter().map(|volume| TakeRequest {
            name: volume_name(*volume),
            above: self.tail(*volume, |tail| tail.epoch),
            take_over: true,
            judged: None,
            continues: None,
            maintains: false,
        });
        let wanted: Vec<_> = wanted.collect();
        let mark = self.publisher.mark().await?;
        let taker = Taker {
            port: &self.port,
            own: self.own,
            label: "host",
            mark,
            unix_ms: 0,
        };
        let mut taken = taker.take(&wanted).await;
        for (volume, wanted) in volumes.iter().zip(wanted) {
            match taken.remove(&wanted.name) {
                Some(Ok(known)) => self.on_taken(*volume, known),
                _ => self.forget(*volume),
            }
        }
        Ok(())
    }

    /// The volume is this host's.
    fn on_taken(&mut self, volume: VolumeId, known: VersionedRoot) {
        let epoch = known.root.epoch;
        let mut shared = lock_world(&self.port.world);
        let Some(content) = content_of(&shared.objects, &known.root) else {
            shared.ghost.on_refused(volume);
            drop(shared);
            return self.forget(volume);
        };
        shared.ghost.on_opened(volume, epoch, &content);
        let disk = &mut shared.machines[self.port.machine].disk;
        let tail = disk.tails.entry(volume).or_default();
        let stored = content.len();
        // What a continued tail holds beyond the store goes on in the new epoch.
        let goes_on = tail.data.len() >= stored && tail.data[..stored] == content;
        *tail = Tail {
            epoch,
            durable: if goes_on {
                tail.durable.max(stored)
            } else {
                stored
            },
            data: if goes_on { tail.data.clone() } else { content },
            stored,
        };
        drop(shared);
        self.publisher
            .attach(volume, known.root.name.clone(), epoch);
        let since = Vec::new();
        self.served.insert(volume, ServedVolume { known, since });
    }
}
