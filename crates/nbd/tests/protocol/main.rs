//! Tests of the protocol over real sockets and on bytes: one program, a file for each part of it.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod blocking_client;
mod connections;
mod dispatch;
mod foreign;
mod golden;
mod handover;
mod mutations;
mod parked;
mod requests;
mod structured;
mod tls;
