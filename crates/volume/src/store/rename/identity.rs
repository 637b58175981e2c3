//! Finds volumes by what they are, wherever names have gone.
//!
//! Reads only. Dear: it reads all roots, twice where it finds nothing; so names are asked first where they may tell.

use std::sync::Arc;

use crate::collect::limit::{LimitedPort, NoAnswer};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::name_look::{LookError, RootsOf, look_at_all, look_for};
use crate::object::ROOT_PREFIX;
use crate::object::name_table::NameTable;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::host_log::log_procedures::log_port;
use crate::units::VolumeId;

/// Failures of a request in a row that end it, as of other commands.
const FAILURES_MAX: u32 = 8;

/// The roots of a volume or snapshot among those below these prefixes; that there are none is certain.
pub(in crate::store) async fn find_roots(
    engine: &Arc<Engine>,
    prefixes: &[&str],
    volume: VolumeId,
) -> Result<RootsOf, OpenError> {
    let port = LimitedPort::new(log_port(engine), FAILURES_MAX);
    flatten(port.run(look_for(&port, prefixes, volume)).await)
}

/// The root of a volume, under whatever name.
pub(in crate::store) async fn find_volume(
    engine: &Arc<Engine>,
    volume: VolumeId,
) -> Result<Option<KnownRoot>, OpenError> {
    let found = find_roots(engine, &[ROOT_PREFIX], volume).await?;
    Ok(found.newest().map(|found| KnownRoot {
        root: found.root,
        version: found.version,
    }))
}

/// Which volumes have roots.
pub(in crate::store) async fn find_all_volumes(
    engine: &Arc<Engine>,
) -> Result<NameTable, OpenError> {
    let port = LimitedPort::new(log_port(engine), FAILURES_MAX);
    flatten(port.run(look_at_all(&port, &[ROOT_PREFIX])).await)
}

fn flatten<T>(found: Result<Result<T, LookError>, NoAnswer>) -> Result<T, OpenError> {
    match found {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(LookError::Unreadable(key, error))) => {
            Err(OpenError::Corrupt(format!("{key}: {error}")))
        }
        Ok(Err(LookError::Moving)) => Err(OpenError::Store(
            "volumes get other names faster than all roots are read, so it is not known which there are: try again"
                .into(),
        )),
        Err(NoAnswer { key, error }) => Err(OpenError::Store(format!("read of {key}: {error}"))),
    }
}
