//! As much of Ceph's cluster maps as it takes to find one OSD: pools, their placement groups, and
//! the OSDs' addresses. Nothing is computed with CRUSH: the cluster has a single OSD.

use std::collections::BTreeMap;

use messenger::addr::{EntityAddr, decode_addrs};
use messenger::wire::{Reader, WireError};

/// A pool.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) id: i64,
    pub(crate) size: u8,
    pub(crate) pg_num: u32,
}

/// The OSD map.
#[derive(Debug, Clone, Default)]
pub(crate) struct OsdMap {
    pub(crate) epoch: u32,
    pub(crate) pools: BTreeMap<String, Pool>,
    /// The msgr2 address of each OSD that is up.
    pub(crate) osds: BTreeMap<usize, EntityAddr>,
}

const OSD_EXISTS_AND_UP: u32 = 3;

impl OsdMap {
    /// Reads a full map. Newer fields are behind the ones read here and are skipped.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let (_, mut outer) = Reader::new(bytes).enter_versioned(8, "osd map")?;
        let (_, mut r) = outer.enter_versioned(16, "client part of the osd map")?;
        r.take(16, "fsid")?;
        let epoch = r.u32("epoch")?;
        r.take(16, "times")?;
        let mut by_id = BTreeMap::new();
        for _ in 0..r.count(8, "pools")? {
            let id = r.i64("pool id")?;
            let (_, mut pool) = r.enter_versioned(40, "pool")?;
            pool.u8("pool type")?;
            let size = pool.u8("pool size")?;
            pool.u8("crush rule")?;
            pool.u8("object hash")?;
            let pg_num = pool.u32("pg_num")?;
            by_id.insert(id, Pool { id, size, pg_num });
        }
        let mut pools = BTreeMap::new();
        for _ in 0..r.count(8, "pool names")? {
            let id = r.i64("pool id")?;
            let name = r.text("pool name")?.to_owned();
            if let Some(pool) = by_id.remove(&id) {
                pools.insert(name, pool);
            }
        }
        r.take(12, "pool_max, flags, max_osd")?;
        let n = r.count(4, "osd states")?;
        let states: Vec<u32> = (0..n)
            .map(|_| r.u32("osd state"))
            .collect::<Result<_, _>>()?;
        for _ in 0..r.count(4, "osd weights")? {
            r.u32("osd weight")?;
        }
        let mut osds = BTreeMap::new();
        for id in 0..r.count(1, "osd addresses")? {
            let addrs = decode_addrs(&mut r)?;
            let up = states
                .get(id)
                .is_some_and(|s| s & OSD_EXISTS_AND_UP == OSD_EXISTS_AND_UP);
            if let Some(addr) = addrs.first().filter(|a| up && a.socket.is_some()) {
                osds.insert(id, *addr);
            }
        }
        Ok(Self { epoch, pools, osds })
    }
}

/// Ceph's hash of object names (Robert Jenkins' of 1996).
pub(crate) fn name_hash(name: &[u8]) -> u32 {
    fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
        for (x, y, z) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
            a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> x);
            b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << y);
            c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> z);
        }
        [a, b, c]
    }
    fn word(bytes: &[u8]) -> u32 {
        bytes
            .iter()
            .rev()
            .fold(0, |acc, b| acc << 8 | u32::from(*b))
    }
    let mut state: [u32; 3] = [0x9e37_79b9, 0x9e37_79b9, 0];
    let mut blocks = name.chunks_exact(12);
    for block in &mut blocks {
        for (i, s) in state.iter_mut().enumerate() {
            *s = s.wrapping_add(word(&block[4 * i..4 * i + 4]));
        }
        state = mix(state);
    }
    let rest = blocks.remainder();
    let part = |from: usize, to: usize| word(&rest[from.min(rest.len())..to.min(rest.len())]);
    state[0] = state[0].wrapping_add(part(0, 4));
    state[1] = state[1].wrapping_add(part(4, 8));
    // The lowest byte of the last word is the length's.
    let len = u32::try_from(name.len()).expect("object names are short");
    state[2] = state[2].wrapping_add(len).wrapping_add(part(8, 11) << 8);
    mix(state)[2]
}

/// The placement group of a hash: stable while `pg_num` grows towards the next power of two.
pub(crate) fn placement_group(hash: u32, pg_num: u32) -> u32 {
    let mask = pg_num.next_power_of_two() - 1;
    if hash & mask < pg_num {
        hash & mask
    } else {
        hash & (mask >> 1)
    }
}
