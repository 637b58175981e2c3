//! Where figures are from, in a line: those of two lanes are never to be compared.

use crate::Failure;

/// Where the kernel says whether each session is a group of its own to the scheduler.
const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Has the guest's scheduler treat all processes alike. Otherwise each session is a group, and a
/// server that puts itself into the background preempts its client where one that does not, and so
/// shares its client's group, waits for it to sleep: two more switches for each request of depth one.
pub(crate) fn disable_autogroup() -> Result<(), Failure> {
    if std::path::Path::new(AUTOGROUP).exists() {
        std::fs::write(AUTOGROUP, "0").map_err(|error| format!("{AUTOGROUP}: {error}"))?;
    }
    Ok(())
}

/// The lane of a guest that was asked for as `kernel`. Run inside it.
pub(crate) fn describe_guest(kernel: &str, icount: bool) -> Result<String, Failure> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let processors = std::thread::available_parallelism()?;
    let how = match (kernel, icount) {
        ("uml", _) => "User-Mode Linux",
        (_, true) => "QEMU, instructions counted (1 ns of its clock is one instruction)",
        (_, false) => "QEMU",
    };
    Ok(format!(
        "lane: {how}, {processors} processors, Linux {}",
        release.trim()
    ))
}

/// The lane of this machine: without it figures mean nothing.
pub(crate) fn describe_machine() -> Result<String, Failure> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or("unknown");
    let processors = std::thread::available_parallelism()?;
    let model = std::fs::read_to_string("/proc/cpuinfo")?
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor".to_owned(), |(_, name)| name.to_owned());
    let kernel = kernel.trim();
    Ok(format!(
        "lane: native, {processors} x {model}, Linux {kernel}, load average {load}"
    ))
}
