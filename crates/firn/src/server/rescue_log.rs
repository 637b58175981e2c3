//! `firn rescue log`: empties the log of a stopped server into the store, and replaces its files.
//!
//! It is a server without clients: the same lock on the cache directory, the same recovery, the same
//! opening and closing of volumes. In this order: everything to the store; then the new files; then
//! the list of what is attached is copied; then the old log goes out of use; last the old list is
//! cleared. A crash in between loses nothing, and until the old log is out of use the command can be
//! run again. It must never touch a disk of the driver: their requests wait for
//! the next server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use store::SharedStore;

use super::{messages, process, runtime};
use crate::abort_on_panic::abort_on_panic_under_locks;
use crate::cli::args::{RescueLogArgs, ServeArgs};
use crate::config::Settings;
use crate::control_plane::ControlPlane;
use crate::control_plane::give_back::{
    GiveBackReport, GivenBackVolume, describe_reasons, is_final,
};
use crate::control_plane::start_record::StartRecord;
use crate::engine::Engine;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::disks::attached_file::AttachedFile;
use crate::local_files::CacheDir;
use crate::log_lines;
use crate::store_access::{StoreAccess, StoreSettings};
use crate::units::Size;

/// What to do, checked before anything is touched.
#[derive(Debug)]
pub(crate) struct LogRescue {
    settings: Settings,
    without: Vec<String>,
    replacement: Option<Replacement>,
}

/// The files of the next server.
#[derive(Debug)]
struct Replacement {
    /// Another directory; else the files are made anew in the same one.
    to: Option<PathBuf>,
    log_size: Option<Size>,
    cache_size: Option<Size>,
}

/// What was done.
#[derive(Debug, Serialize)]
pub(crate) struct LogRescueReport {
    /// A sync of the log had failed.
    pub(crate) poisoned: bool,
    /// The volumes that were given back.
    pub(crate) volumes: Vec<GivenBackVolume>,
    /// Volumes of which the old log had something that cannot be brought to the store, and that
    /// `--without` named, each with the reasons.
    pub(crate) without: BTreeMap<String, String>,
    /// The cache directory with the new files, if any were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replaced: Option<PathBuf>,
}

impl LogRescue {
    pub(crate) fn new(args: RescueLogArgs) -> Result<Self> {
        let flags = ServeArgs {
            config: args.config,
            store: args.store,
            cache: args.cache,
            ring_dir: args.ring_dir,
            single_writer: args.single_writer,
            ..ServeArgs::default()
        };
        let settings = Settings {
            // What the file says may already be meant for the new files; the old ones are as they are.
            log_size: None,
            segment_size: None,
            cache_size: None,
            ..Settings::new(&[], flags)?
        };
        if !CacheDir::has_log(&settings.cache) {
            return Err(Failure::invalid(format!(
                "there is no log in {}; name the cache directory of the stopped server with --cache",
                settings.cache.display()
            )));
        }
        let wanted = args.to.is_some() || args.log_size.is_some() || args.cache_size.is_some();
        let replacement = wanted.then_some(Replacement {
            to: args.to,
            log_size: args.log_size,
            cache_size: args.cache_size,
        });
        if let Some(to) = replacement.as_ref().and_then(|new| new.to.as_ref()) {
            CacheDir::check_unused(to)?;
        }
        Ok(LogRescue {
            settings,
            without: args.without,
            replacement,
        })
    }

    /// Does all of it, or fails with what is in the way.
    pub(crate) fn run(self) -> Result<LogRescueReport> {
        abort_on_panic_under_locks();
        // Disks of the stopped server may hold swap or a file system that waits, as while `serve` runs.
        if let Some(memory) = process::prepare() {
            memory.fill_beside();
        }
        let _lines = log_lines::write_by_a_thread();
        let runtime = runtime()?;
        let store = StoreAccess::new(StoreSettings {
            url: self.settings.store.clone(),
            single_writer: self.settings.single_writer,
            faults: None,
            may_create: false,
        });
        runtime.block_on(store.start())?;
        if let Some(failure) = store.failure() {
            return Err(failure);
        }
        let files = CacheDir::open(&self.settings, &mut messages::LogFillBar::default())?;
        let new_settings = match &self.replacement {
            Some(replacement) => Some(replacement.settings(&self.settings, &files)?),
            None => None,
        };
        let shared = Arc::clone(&store) as SharedStore;
        let started = Engine::start(&self.settings, shared, files, runtime.handle(), None, None);
        let mut engine = runtime.block_on(started)?;
        messages::log_recovery(&engine.report);
        let control = Arc::new(ControlPlane::new(
            &engine,
            Some(store),
            self.settings.control(engine.files().cache.bytes),
            None,
            StartRecord::default(),
        )?);
        let lost = engine.report.rings_lost.clone();
        if !engine.report.poisoned {
            // The next start on this log does not know of a lost ring any more.
            control.disks.end_holds(lost.iter())?;
        }
        let given_back = runtime.block_on(control.give_back_all(&engine.report));
        engine.stop(None);
        check_left(&given_back, &self.without)?;
        if let Some(settings) = &new_settings {
            let ended = lost.iter().chain(given_back.abandoned());
            control.disks.end_holds(ended)?;
            self.replace(settings, &engine, &control.disks.attached)?;
        }
        let left = given_back.left.into_iter();
        let left = left.map(|(name, reasons)| (name, describe_reasons(&reasons)));
        Ok(LogRescueReport {
            poisoned: engine.report.poisoned,
            volumes: given_back.volumes,
            without: left.collect(),
            replaced: new_settings.map(|settings| settings.cache),
        })
    }

    fn replace(&self, settings: &Settings, engine: &Engine, attached: &AttachedFile) -> Result<()> {
        let old = engine.files();
        let progress = &mut messages::LogFillBar::default();
        if self.to().is_none() {
            old.replace_files(settings, progress)?;
        } else {
            let new = CacheDir::open_unused(settings, progress)?;
            attached.copy_to(&AttachedFile::load(&new.path)?)?;
            old.retire_log()?;
            attached.clear()?;
        }
        if let Some(host) = engine.host.id() {
            engine.rings.remove_all(host);
        }
        Ok(())
    }

    fn to(&self) -> Option<&Path> {
        self.replacement.as_ref()?.to.as_deref()
    }
}

impl Replacement {
    /// What the new files are made by: sizes that are not named stay.
    fn settings(&self, old: &Settings, files: &CacheDir) -> Result<Settings> {
        old.with_files(
            self.to.clone().unwrap_or_else(|| old.cache.clone()),
            self.log_size.unwrap_or(Size(files.log.bytes)),
            self.cache_size.unwrap_or(Size(files.cache.bytes)),
        )
    }
}

/// Fails if something stays in the log that nobody gave up, or that may still get to the store.
fn check_left(given_back: &GiveBackReport, without: &[String]) -> Result<()> {
    for (name, reasons) in &given_back.left {
        let passing = reasons.iter().find(|why| !is_final(why));
        let remedy = match passing {
            None if without.contains(name) => continue,
            None => format!(", or go on without them with --without {name}"),
            Some(_) if without.contains(name) => {
                "; --without gives up only what can never get to the store".to_owned()
            }
            Some(_) => String::new(),
        };
        let text = format!(
            "{} volumes are in the store; nothing was replaced, because the log holds writes of volume \
             {name} that the store lacks: {}. Run this again once the cause is gone{remedy}",
            given_back.volumes.len(),
            describe_reasons(reasons)
        );
        let code = passing.or(reasons.first()).map(|why| why.code);
        return Err(Failure::new(code.unwrap_or(FailureCode::Internal), text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `--without demo` says if the log holds tails of it that stay for these reasons.
    fn check_without_demo(codes: &[FailureCode]) -> Result<()> {
        let reasons = codes.iter().map(|code| Failure::new(*code, code.name()));
        let given_back = GiveBackReport {
            left: BTreeMap::from([("demo".to_owned(), reasons.collect())]),
            ..GiveBackReport::default()
        };
        assert!(check_left(&given_back, &[]).is_err());
        check_left(&given_back, &["demo".to_owned()])
    }

    #[test]
    fn a_tail_that_may_still_get_to_the_store_is_not_given_up_beside_one_that_is_kept() {
        use FailureCode as C;
        assert!(check_without_demo(&[C::TailWanted, C::VolumeHeld]).is_ok());
        for passing in [C::StoreFailed, C::StoreUnavailable, C::Internal] {
            let failure = check_without_demo(&[C::TailWanted, passing]).unwrap_err();
            assert_eq!(failure.code, passing);
            let says_all = ["tail-wanted", passing.name(), "can never get to the store"];
            assert!(
                says_all.iter().all(|text| failure.detail.contains(text)),
                "{failure}"
            );
        }
    }
}
