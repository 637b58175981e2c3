//! The script that runs in the guest: it sets the scratch disk up, runs the command, says how it ended.
//!
//! The status travels through the kernel's log, behind everything the kernel had to say before, so
//! a run whose console was cut off is never taken for a good one.

use std::path::Path;

use super::console::{SETUP_FAILED_PREFIX, STATUS_PREFIX};
use super::host_files;

/// Where the scratch disk is mounted in the guest.
const SCRATCH: &str = "/run/firn-scratch";

/// Where a guest with a network finds the loopback addresses of this machine.
pub(crate) const HOST: &str = "10.0.2.2";

/// The name of the port through which the command's output leaves the guest.
pub(super) const PORT: &str = "firn.output";

/// What differs between the lanes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane<'a> {
    /// A packaged kernel in QEMU; modules are loaded, and the start of the guest was another's.
    Packaged {
        /// Whether its clock counts instructions: then it leaps where all processors wait.
        icount: bool,
        /// Whether it has a network card.
        network: bool,
    },
    /// User-Mode Linux: no modules, and the script is the first process.
    UserMode {
        /// The program that turns the guest off.
        busybox: &'a Path,
    },
}

/// Finds the port for the output and the disk of a packaged kernel.
const PACKAGED: &str = r#"command -v modprobe > /proc/sys/kernel/modprobe || unready modprobe
modprobe -a virtio_blk virtio_console ext4 || unready the modules
for port in /sys/class/virtio-ports/*; do
  read -r name < "$port/name" && [ "$name" = {PORT} ] && output=/dev/${port##*/}
done
[ -c "$output" ] || unready the port for the output
disk=/dev/vda
hung=/proc/sys/kernel/hung_task_timeout_secs
[ ! -e $hung ] || echo {HUNG_TASK_S} > $hung || unready $hung
# A complaint's trace is said in a lower voice than the complaint.
echo 7 > /proc/sys/kernel/printk || unready printk"#;

/// Sets up the network of the emulator, on which this machine is 10.0.2.2.
const NETWORK: &str = "modprobe virtio_net && ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 || unready the network\n";

/// Seconds after which the kernel complains of a task that waits and cannot be interrupted. Its own
/// two minutes are longer than most tests, which then end before it says anything.
const HUNG_TASK_S: u32 = 60;
/// The same where the clock leaps.
const HUNG_TASK_ICOUNT_S: u32 = 600;

/// The same as the first process of User-Mode Linux, which finds no file system but its root.
const USER_MODE: &str = r#"mount -t proc proc /proc && mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run || unready /run
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm || unready /dev/shm
output=/dev/tty1 disk=/dev/ubda
stty -F "$output" raw -echo || unready the console for the output"#;

/// Gives the guest a /tmp of its own, in which what the command needs of this machine's stays.
const TMP: &str = r#"mkdir -p /run/firn-tmp && mount --bind /tmp /run/firn-tmp || unready /tmp
mount -t tmpfs tmpfs /tmp || unready /tmp
for kept in{KEPT}; do
  mkdir -p "$kept" && mount --bind "/run/firn-tmp/${kept#/tmp/}" "$kept" || unready "$kept"
done"#;

/// What the guest runs, and where.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) command: &'a [String],
    /// The working directory.
    pub(super) directory: &'a Path,
    /// Directories of programs that come before all others.
    pub(super) tools: &'a [&'a Path],
    /// Directories of this machine that the command needs; those below /tmp are mounted again.
    pub(super) needed: &'a [&'a Path],
}

/// The script for a task.
pub(super) fn script(lane: Lane, task: &Task) -> String {
    let Task {
        command,
        directory,
        tools,
        needed,
    } = task;
    let quoted = |path: &&Path| format!(" {}", shell_quote(&path.display().to_string()));
    let kept = needed.iter().filter(|path| path.starts_with("/tmp"));
    let tmp = TMP.replace("{KEPT}", &kept.map(quoted).collect::<String>());
    let command: Vec<String> = command.iter().map(|word| shell_quote(word)).collect();
    let command = command.join(" ");
    let mut path = String::new();
    for tools in *tools {
        path += &format!("{}:", tools.display());
    }
    path += &std::env::var("PATH").unwrap_or_default();
    let path = shell_quote(&format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"));
    let directory = shell_quote(&directory.display().to_string());
    let (before, host_files, after) = match lane {
        Lane::Packaged { icount, network } => {
            let hung = if icount {
                HUNG_TASK_ICOUNT_S
            } else {
                HUNG_TASK_S
            };
            let before = PACKAGED.replace("{PORT}", PORT);
            let mut files =
                host_files::script(&needed.iter().map(quoted).collect::<String>()) + "\n";
            if network {
                files += NETWORK;
            }
            (
                before.replace("{HUNG_TASK_S}", &hung.to_string()),
                files,
                String::new(),
            )
        }
        Lane::UserMode { busybox } => {
            let busybox = shell_quote(&busybox.display().to_string());
            let after = format!("{busybox} poweroff -f\n");
            (USER_MODE.to_owned(), String::new(), after)
        }
    };
    format!(
        r#"#!/bin/sh
export PATH={path} FIRN_VM_SCRATCH={SCRATCH}
unready() {{ echo "{SETUP_FAILED_PREFIX}$*" > /dev/kmsg; {after}exit 1; }}
{before}
mkdir -p {SCRATCH} && mount -t ext4 "$disk" {SCRATCH} || unready the scratch disk
{tmp}
{host_files}cd {directory} || unready the working directory
(exec {command}) < /dev/null > "$output" 2>&1
status=$?
cd /
umount {SCRATCH} || umount -l {SCRATCH}
echo "{STATUS_PREFIX}$status" > /dev/kmsg
{after}"#
    )
}

/// A word that the shell reads back as it is.
pub(super) fn shell_quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_quoted_word_comes_out_of_the_shell_unchanged() {
        for word in ["plain", "a b", "it's", "$HOME `x` \\ \"", "", "*", "a\nb"] {
            let output = Command::new("sh")
                .args(["-c", &format!("printf %s {}", shell_quote(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn the_scripts_are_ones_that_the_shell_can_read() {
        let command = ["sh", "-c", "echo 'BUG: planted' > /dev/kmsg; exit 3"];
        let command = command.map(str::to_owned);
        let busybox = Path::new("/tools/busybox");
        let (icount, network) = (false, true);
        for lane in [
            Lane::Packaged { icount, network },
            Lane::UserMode { busybox },
        ] {
            let task = Task {
                command: &command,
                directory: Path::new("/it's/here"),
                tools: &[Path::new("/tools")],
                needed: &[Path::new("/tmp/it's/here"), Path::new("/home")],
            };
            let script = script(lane, &task);
            assert!(
                script.contains(r"for kept in '/tmp/it'\''s/here'; do"),
                "{script}"
            );
            let status = Command::new("sh").args(["-n", "-c", &script]).status();
            assert!(status.unwrap().success(), "{script}");
        }
    }
}
