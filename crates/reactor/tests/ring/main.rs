//! Tests of the reactor on both drivers: one program. A test that counts what its whole process allocates is a
//! program of its own, beside this folder.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod operations;
mod sources;
