//! Writes, reads and stats an object in a real Ceph cluster, over the messenger.
//!
//! The cluster has one OSD and no authentication; `xtask/ceph-mini.sh start DIR` makes one:
//! `cargo run -p messenger --example ceph_client -- 127.0.0.1:13300 data some-object`
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an application does I/O"
)]

mod map;
mod rados;

use std::io::Write;
use std::time::Duration;

use rados::Rados;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(mon), Some(pool), Some(object)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: ceph_client MONITOR:PORT POOL OBJECT".into());
    };
    let patience = Duration::from_secs(30);
    let mut rados = Rados::connect(mon.parse()?, patience)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "client.{}, osd map {}",
        rados.global_id,
        rados.map().epoch
    )?;
    writeln!(out, "monitor map of {} bytes", rados.mon_map.len())?;
    for (name, pool) in &rados.map().pools {
        writeln!(
            out,
            "pool {name}: id {}, {} groups, size {}",
            pool.id, pool.pg_num, pool.size
        )?;
    }
    rados.keepalive(patience)?;
    writeln!(out, "monitor and OSD answered a keepalive")?;
    let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    rados.write_full(&pool, &object, &bytes, patience)?;
    let size = rados.stat(&pool, &object, patience)?;
    let read = rados.read(&pool, &object, patience)?;
    let same = if read == bytes { "the same" } else { "OTHER" };
    writeln!(
        out,
        "{object}: wrote {}, stat says {size}, read {same}",
        bytes.len()
    )?;
    writeln!(out, "{} sessions to the OSD", rados.osd_sessions)?;
    Ok(())
}
