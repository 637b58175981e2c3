//! The object store of a world: each request takes effect at once, or as a test asked for.

use std::collections::BTreeMap;

use volume::driver::{StoreError, StoreOp, StoreReply, Version};
use volume::object::pack::HEADER_BYTES;

use super::World;
use super::environment::Fault;

fn kind_of(op: &StoreOp) -> &'static str {
    match op {
        StoreOp::Get { .. } => "get",
        // Whether a pack is there.
        StoreOp::GetRange { offset: 0, len, .. } if *len == HEADER_BYTES as u64 => "look",
        StoreOp::GetRange { .. } => "range",
        StoreOp::Put { .. } => "put",
        StoreOp::Create { .. } => "create",
        StoreOp::Update { .. } => "update",
        StoreOp::Delete { .. } => "delete",
        StoreOp::List { .. } | StoreOp::ListPart { .. } => "list",
    }
}

fn key_of(op: &StoreOp) -> &String {
    match op {
        StoreOp::Get { key }
        | StoreOp::GetRange { key, .. }
        | StoreOp::Put { key, .. }
        | StoreOp::Create { key, .. }
        | StoreOp::Update { key, .. }
        | StoreOp::Delete { key } => key,
        StoreOp::List { prefix } | StoreOp::ListPart { prefix, .. } => prefix,
    }
}

/// What the store keeps of an object that is PUT.
fn kept_of(key: &str, mut data: Vec<u8>, discards_packs: bool) -> Vec<u8> {
    if discards_packs && key.starts_with("packs/") {
        data.truncate(HEADER_BYTES);
        data.shrink_to_fit();
    }
    data
}

/// As in every store, a list is of all, or of what stands below a slash.
fn check_prefix(op: &StoreOp) -> Result<(), StoreError> {
    match op {
        StoreOp::List { prefix } | StoreOp::ListPart { prefix, .. }
            if !prefix.is_empty() && !prefix.ends_with('/') =>
        {
            Err(StoreError::Denied(format!("{prefix:?} is no prefix")))
        }
        _ => Ok(()),
    }
}

/// The first keys below a prefix behind a place.
fn listed(
    objects: &BTreeMap<String, (Vec<u8>, u64)>,
    prefix: &str,
    after: &str,
    limit: usize,
) -> StoreReply {
    let found = objects.range(after.max(prefix).to_owned()..);
    let found = found.filter(|(key, _)| key.as_str() > after && key.starts_with(prefix));
    let keys = found.map(|(key, (data, _))| (key.clone(), data.len() as u64));
    StoreReply::Keys(keys.take(limit).collect())
}

impl World {
    fn count(&mut self, op: &StoreOp) {
        let requests = &mut self.env.store_requests;
        *requests.entry(kind_of(op)).or_default() += 1;
        if let StoreOp::Put { key, .. } = op {
            self.env.put_keys.push(key.clone());
        }
        let key = key_of(op);
        let folder = key.split('/').next().unwrap_or_default().to_owned();
        let requests = &mut self.env.requests;
        *requests.entry((kind_of(op), folder.clone())).or_default() += 1;
        let bytes = match op {
            StoreOp::Put { data, .. } => data.len(),
            StoreOp::Create { data, .. } | StoreOp::Update { data, .. } => data.len(),
            _ => return,
        };
        *self.env.bytes_put.entry(folder).or_default() += bytes as u64;
    }

    fn is_told_to_fail(&mut self, op: &StoreOp) -> bool {
        let key = key_of(op);
        if self.env.failing_keys.contains(key) {
            return true;
        }
        if matches!(op, StoreOp::Delete { .. }) && self.env.refuses_deletes {
            return true;
        }
        let failing = match op {
            StoreOp::Put { .. } => &mut self.env.failing_puts,
            StoreOp::Create { key, .. } if key.contains("/log/") => &mut self.env.failing_creates,
            _ => return false,
        };
        let fails = *failing > 0;
        *failing = failing.saturating_sub(1);
        fails
    }

    fn answer_of_get(&mut self, key: &str, mut data: Vec<u8>, version: u64) -> StoreReply {
        if key.starts_with("hosts/") && self.env.damaged_gets > 0 {
            self.env.damaged_gets -= 1;
            data[20] ^= 4;
        }
        StoreReply::Object {
            data,
            version: Version(version.to_string()),
        }
    }

    fn answer_of_create(
        &mut self,
        is_record: bool,
        version: Version,
    ) -> Result<StoreReply, StoreError> {
        if is_record && std::mem::take(&mut self.env.outage_after_record) {
            self.env.outage = true;
            return Err(StoreError::Unknown("no answer".into()));
        }
        Ok(StoreReply::Written { version })
    }

    pub(crate) fn store(&mut self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let fault = match &mut self.env.fault_after {
            Some((0, fault)) => Some(*fault),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        let Some(fault) = fault else {
            return self.take_effect(op);
        };
        self.env.fault_after = None;
        let answer = match fault {
            Fault::Outage => Err(StoreError::Unavailable("the store is down".into())),
            Fault::LostAnswer | Fault::OutageBehind => self.take_effect(op),
        };
        self.env.outage |= fault != Fault::LostAnswer;
        answer.and(Err(StoreError::Unknown("no answer".into())))
    }

    fn take_effect(&mut self, op: StoreOp) -> Result<StoreReply, StoreError> {
        if self.env.outage {
            return Err(StoreError::Unavailable("the store is down".into()));
        }
        self.count(&op);
        check_prefix(&op)?;
        if self.is_told_to_fail(&op) {
            return Err(StoreError::Unavailable("it is told to fail".into()));
        }
        let objects = &mut self.env.objects;
        self.env.versions += 1;
        let version = Version(self.env.versions.to_string());
        match op {
            StoreOp::Get { key } => {
                let (data, v) = objects.get(&key).cloned().ok_or(StoreError::NotFound)?;
                Ok(self.answer_of_get(&key, data, v))
            }
            StoreOp::GetRange { key, offset, len } => {
                let generated = self.env.generated.as_ref();
                if let Some(data) = generated.and_then(|generate| generate(&key, offset, len)) {
                    return Ok(StoreReply::Range(data));
                }
                let (data, _) = objects.get(&key).ok_or(StoreError::NotFound)?;
                let range = data.get(offset as usize..(offset + len) as usize);
                let range = range.ok_or(StoreError::OutOfRange)?;
                Ok(StoreReply::Range(range.to_vec()))
            }
            StoreOp::Put { key, data } => {
                if objects.contains_key(&key) {
                    return Err(StoreError::PreconditionFailed);
                }
                let kept = kept_of(&key, data.into(), self.env.discards_packs);
                objects.insert(key, (kept, self.env.versions));
                Ok(StoreReply::Written { version })
            }
            StoreOp::Create { key, data } => {
                if objects.contains_key(&key) {
                    return Err(StoreError::PreconditionFailed);
                }
                let is_record = key.contains("/log/");
                objects.insert(key, (data, self.env.versions));
                self.answer_of_create(is_record, version)
            }
            StoreOp::Update {
                key,
                data,
                version: expected,
            } => {
                let found = objects.get(&key).ok_or(StoreError::NotFound)?;
                if found.1.to_string() != expected.0 {
                    return Err(StoreError::PreconditionFailed);
                }
                objects.insert(key, (data, self.env.versions));
                if std::mem::take(&mut self.env.outage_after_update) {
                    self.env.outage = true;
                    return Err(StoreError::Unknown("no answer".into()));
                }
                Ok(StoreReply::Written { version })
            }
            StoreOp::Delete { key } => {
                objects.remove(&key);
                Ok(StoreReply::Deleted)
            }
            StoreOp::List { prefix } => Ok(listed(objects, &prefix, "", usize::MAX)),
            StoreOp::ListPart {
                prefix,
                after,
                limit,
            } => Ok(listed(objects, &prefix, &after, limit)),
        }
    }
}
