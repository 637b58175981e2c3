//! The list of volumes, a part at a time.
//!
//! The store says which there are. While it does not, this server tells those that it has open, and why there are no
//! others: who asks for a list in an outage wants to know what goes on.

use std::time::{Duration, Instant};

use volume::{ListPart, ListPlace, VolumeInfo};

use super::{ControlPlane, attach};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{VolumeList, WaitingVolume};

/// How long a list waits for a store that is in trouble, and how often it looks whether it is.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

impl ControlPlane {
    /// A part of the volumes of the store, and those of the names that it covers that wait here. While the store is
    /// away: what this server knows by itself.
    pub(crate) async fn list(&self, place: ListPlace) -> Result<VolumeList> {
        if let Some(after) = &place.after {
            volume::check_name(after).map_err(Failure::from)?;
        }
        let (part, store_error) = match self.list_stored(&place).await {
            Ok(part) => (part, None),
            Err(failure) => (self.list_open(&place), Some(failure.detail)),
        };
        Ok(VolumeList {
            volumes: part.items.iter().map(|info| self.describe(info)).collect(),
            waiting: self.list_waiting(&place, part.next.as_deref()),
            next: part.next,
            store_error,
        })
    }

    /// The volumes of the store. A large store takes its time; one that is in trouble is not waited for.
    async fn list_stored(&self, place: &ListPlace) -> Result<ListPart<VolumeInfo>> {
        let mut listed = std::pin::pin!(self.host.list_volumes(place.clone()));
        let asked = Instant::now();
        loop {
            let look = tokio::time::sleep(LOOK_INTERVAL);
            tokio::select! {
                part = &mut listed => return part.map_err(Failure::from),
                () = look => {}
            }
            let trouble = self.store.as_ref().and_then(|store| store.trouble());
            let may_give_up = !canary::active!("list_waits_for_the_store");
            if let Some(trouble) = trouble.filter(|_| may_give_up)
                && asked.elapsed() >= PATIENCE
            {
                return Err(Failure::new(FailureCode::StoreUnavailable, trouble.why));
            }
        }
    }

    /// The volumes that are open here.
    fn list_open(&self, place: &ListPlace) -> ListPart<VolumeInfo> {
        let open = self.volumes.all().into_iter();
        let is_behind = |name: &str| place.after.as_deref().is_none_or(|after| name > after);
        let infos = open.map(|open| open.volume.info());
        let infos = infos.filter(|info| !attach::is_snapshot(&info.name) && is_behind(&info.name));
        let mut items: Vec<VolumeInfo> = infos.collect();
        items.sort_by(|one, other| one.name.cmp(&other.name));
        let is_cut = items.len() > place.limit;
        items.truncate(place.limit);
        let last = items.last().map(|info| info.name.clone());
        ListPart {
            items,
            next: last.filter(|_| is_cut),
        }
    }

    /// What waits of the names behind the place, up to where the next part begins.
    fn list_waiting(&self, place: &ListPlace, next: Option<&str>) -> Vec<WaitingVolume> {
        let after = place.after.as_deref();
        let is_covered = |name: &str| {
            after.is_none_or(|after| name > after) && next.is_none_or(|next| name <= next)
        };
        let waiting = self.waiting.all().into_iter();
        waiting
            .filter(|(name, _)| is_covered(name))
            .map(|(name, waiting)| WaitingVolume {
                name,
                why: waiting.failure.detail,
                code: waiting.failure.code.name().to_owned(),
                since_seconds: waiting.since.elapsed().as_secs_f64(),
            })
            .collect()
    }
}
