//! Control commands, typed: each under a deadline, each with the kernel's own errno.
pub mod port;
