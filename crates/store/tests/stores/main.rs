//! Tests of the stores that need no server: one program, a file for each promise. Beside this folder are programs
//! that ask a server which somebody has started.

#![allow(clippy::unwrap_used)]

mod bare_tags;
mod contract;
mod cut_short;
mod decorators;
mod dir_gone;
mod dir_hangs;
mod dir_open;
mod dir_processes;
mod governor;
mod odd_answers;
mod probe;
