//! Where figures are from, in a line: those of two lanes are never to be compared.

use crate::Failure;

/// The lane of a guest that was asked for as `kernel`. Run inside it.
pub(crate) fn of_guest(kernel: &str, icount: bool) -> Result<String, Failure> {
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
