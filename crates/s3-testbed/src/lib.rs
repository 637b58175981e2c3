//! A private S3 server (MinIO) for tests, and a proxy in front of it that simulates a network with faults.
//!
//! For tests and benchmarks alone; no crate of the product may see it. It owns how a MinIO is
//! started, killed, stopped and restarted ([`Minio`]), and what a network does to requests on their
//! way ([`Proxy`]): bandwidth, latency, refusals, connections that break, answers that never come. A store that
//! only a company's proxy can reach is behind a [`ForwardProxy`], and an [`IdentityProvider`] or an
//! [`InstanceMetadata`] vouches for who has no keys.
//! It must never change a byte that it passes on, except where a [`Fault`] says so: what is measured
//! through it is the store's.
//!
//! One thread for each connection, blocking: a few dozen connections are all there are.

#![forbid(unsafe_code)]

mod certificates;
mod fault;
mod forward_proxy;
mod http;
mod identity_provider;
mod instance_metadata;
mod line;
mod minio;
mod named;
mod proxy;
mod traffic;

pub use certificates::make_certificates;
pub use fault::{Fault, FaultRule, RequestFilter};
pub use forward_proxy::ForwardProxy;
pub use identity_provider::{IdentityProvider, ROLE_ARN};
pub use instance_metadata::InstanceMetadata;
pub use minio::{Minio, MinioConfig, url_at};
pub use named::NamedStore;
pub use proxy::Proxy;
pub use traffic::{FolderTraffic, MethodTraffic, ObjectRead, Traffic};
