//! What the server tells the person who starts it: progress, recovery, and how to use it.
//!
//! Reads state and prints; must never change anything.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use nbd::server::Listen;
use nbd::server::latency::SlowRequests;
use volume::RecoveryReport;

use crate::api_address::{SOCKET_DEFAULT, SYSTEM_SOCKET};
use crate::cli::output;
use crate::config::{ApiListen, Settings};
use crate::control_plane::ControlPlane;
use crate::engine::Engine;
use crate::failure::{FailureCode, Result};
use crate::frontends::nbd::flag_value;
use crate::local_files::Progress;
use crate::units::Size;

/// Logs what recovery found and an operator should know.
pub(super) fn log_recovery(report: &RecoveryReport) {
    if !report.formatted {
        tracing::info!(
            frames = report.frames,
            ring_entries = report.ring_entries,
            goes_on = report.goes_on,
            volumes = report.tails.len(),
            "the log was recovered"
        );
    }
    for volume in &report.rings_lost {
        tracing::error!(
            %volume,
            "the index ring is gone although the machine was not rebooted: writes after the \
             last flush are lost. Do not empty --ring-dir while a server may be restarted, and \
             do not name another one"
        );
    }
    for stale in &report.stale_rings {
        let session = stale.ring.session;
        let volume = stale.ring.tail.map(|tail| tail.volume.to_string());
        match &stale.aside {
            Ok(kept) => tracing::warn!(
                %session,
                volume_id = volume,
                place = kept.place,
                kept = kept.count,
                bytes = kept.bytes,
                "an index ring was not found by an earlier start, which reported the loss: what \
                 it holds is no part of the volume any more. It is kept aside; remove it if \
                 nobody wants to look into it"
            ),
            Err(error) => tracing::warn!(%session, volume_id = volume, error, "an old index ring"),
        }
    }
    for session in &report.foreign_sessions {
        tracing::warn!(
            %session,
            "there are index rings of a session that this log never had: a copy of the cache \
             directory was used here. Each of the two goes on by itself; never attach one volume \
             from both"
        );
    }
    for tail in &report.tails {
        if tail.rescue {
            tracing::warn!(
                volume = tail.volume,
                newest = tail.newest.0,
                "another host took this volume over; what this host had not uploaded is kept here"
            );
        }
    }
    if report.poisoned {
        tracing::error!(
            "a sync of this log has failed: volumes are read-only; `firn rescue log` is the way out"
        );
    }
}

/// Prints how to use the server, once it can be used.
pub(super) fn announce(
    settings: &Settings,
    api: &[ApiListen],
    engine: &Engine,
    control: &ControlPlane,
) -> Result<()> {
    let files = engine.files();
    let log_io = if files.log.align.is_some() {
        "direct"
    } else {
        "buffered"
    };
    let addresses = control.nbd_addresses();
    let nbd: Vec<String> = addresses.iter().map(flag_value).collect();
    let mut lines = vec![
        "firn is ready.".to_owned(),
        format!("  store  {}", settings.store),
        format!(
            "  cache  {} (log {}, {log_io} I/O: {})",
            files.path.display(),
            Size(files.log.bytes),
            files.log.reason
        ),
    ];
    lines.extend(api.iter().map(|listen| format!("  API    {listen}")));
    let is_tcp = |listen: &ApiListen| matches!(listen, ApiListen::Tcp(_));
    if api.iter().any(is_tcp) && !settings.api.insecure {
        let dir = settings.api.tokens.display();
        lines.push(format!("  tokens {dir}/{{read,attach,admin}}"));
    }
    lines.push(format!(
        "  NBD    {} ({})",
        nbd.join(", "),
        engine.backend()
    ));
    let firn = command_prefix(api);
    for volume in control.reachable_volumes() {
        lines.push(format!("\nvolume {} ({})", volume.name, Size(volume.bytes)));
        if let Some(device) = &volume.device {
            lines.push(format!("  disk {device}"));
        }
        let Some(uri) = volume.uris.first() else {
            continue;
        };
        lines.push(format!("  nbdinfo '{uri}'"));
        lines.push(format!(
            "  qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio'"
        ));
        if let Some(Listen::Tcp(address)) = addresses.first() {
            lines.push(format!(
                "  nbd-client {} {} /dev/nbd0 -name {}",
                address.ip(),
                address.port(),
                volume.name
            ));
        }
        lines.push(format!("  {firn} sync {}", volume.name));
    }
    let waiting = control.waiting.all();
    for (name, waiting) in &waiting {
        lines.push(match waiting.failure.code {
            FailureCode::LeftOut => format!("\n{}", waiting.failure),
            _ => format!("\nvolume {name} waits, and is retried: {}", waiting.failure),
        });
    }
    if control.reachable_volumes().is_empty() && waiting.is_empty() {
        lines.push(format!(
            "\nno volume yet: {firn} volume create demo --size 10GiB"
        ));
    }
    output::line(&lines.join("\n"))
}

/// How a command for this server begins: without an address where the commands look by themselves.
fn command_prefix(api: &[ApiListen]) -> String {
    let is_usual = |listen: &ApiListen| match listen {
        ApiListen::Unix(path) => [SOCKET_DEFAULT, SYSTEM_SOCKET]
            .map(Path::new)
            .contains(&&**path),
        ApiListen::Tcp(_) => false,
    };
    match api.first() {
        Some(first) if !api.iter().any(is_usual) => {
            let address = first.to_string();
            format!("firn --api {}", address.trim_start_matches("http://"))
        }
        _ => "firn".to_owned(),
    }
}

/// How often slow requests are logged: what came meanwhile is one group of lines.
const SLOW_REQUESTS_INTERVAL: Duration = Duration::from_secs(5);

/// Logs requests of clients that took long, at most a few lines at a time.
pub(super) async fn report_slow_requests(slow: &SlowRequests) {
    loop {
        tokio::time::sleep(SLOW_REQUESTS_INTERVAL).await;
        let (requests, omitted) = slow.take();
        for one in requests {
            tracing::warn!(
                volume = &*one.volume,
                request = ?one.op,
                took_ms = one.took.as_millis(),
                step = one.step,
                step_ms = one.step_took.as_millis(),
                error = one.error.map(|error| error.to_string()),
                "a slow request"
            );
        }
        if omitted > 0 {
            tracing::warn!(omitted, "more slow requests, which are not listed");
        }
    }
}

/// Shows the progress of creating a log: a bar on a terminal, else one line.
#[derive(Default)]
pub(super) struct LogFillBar {
    bar: Option<ProgressBar>,
    announced: bool,
}

impl Progress for LogFillBar {
    fn on_filled(&mut self, done: u64, total: u64) {
        if !std::io::stderr().is_terminal() {
            if !std::mem::replace(&mut self.announced, true) {
                eprintln!("firn: making the log ({})", Size(total));
            }
            return;
        }
        if self.bar.is_none() {
            let bar = ProgressBar::new(total);
            bar.set_style(
                ProgressStyle::with_template("making the log [{bar:30}] {bytes}/{total_bytes}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            if done == total {
                bar.finish_and_clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_printed_finds_the_server_that_prints_it() {
        let tcp = ApiListen::Tcp("127.0.0.1:17077".parse().unwrap());
        let socket = |path: &str| ApiListen::Unix(path.into());
        assert_eq!(command_prefix(&[socket(SOCKET_DEFAULT)]), "firn");
        assert_eq!(
            command_prefix(&[tcp.clone(), socket(SYSTEM_SOCKET)]),
            "firn"
        );
        assert_eq!(command_prefix(&[tcp]), "firn --api 127.0.0.1:17077");
        assert_eq!(
            command_prefix(&[socket("/x.sock")]),
            "firn --api unix:/x.sock"
        );
    }
}
