//! MinIO, a real S3 server for tests: built from its Go module into the cache, once per version.
//!
//! A new machine pays about 300 processor seconds, 1.3 GB of Go's module cache and 1.5 GB of memory
//! for it (two idle cores: some three minutes), so the step of `cargo xtask test` that needs it runs
//! in the background. It must never use what it did not build itself: the binary appears under the
//! version's name only when it is whole.

use std::path::PathBuf;
use std::process::Command;

use crate::stores::programs;
use crate::{Failure, process, vm};

const MODULE: &str = "github.com/minio/minio";
/// Has the fixes of conditional writes without a quorum and of If-Match on a missing key.
const VERSION: &str = "v0.0.0-20260212201848-7aac2a2c5b7c";

/// Test programs that need one begin with this.
pub(crate) const TESTS: &str = "minio";

/// Keys of a server that lives as long as a test.
pub(crate) const ACCESS_KEY: &str = "firn";
pub(crate) const SECRET_KEY: &str = "firn-secret";

/// Arguments of `cargo xtask minio`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Start it, with a bucket `firn` whose objects are in this directory, and run until it is ended
    #[arg(long, value_name = "DIR")]
    serve: Option<PathBuf>,
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:9000")]
    address: String,
}

/// Builds it if it is missing, and prints where it is or runs it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let program = build()?;
    let Some(dir) = &arguments.serve else {
        println!("{}", program.display());
        return Ok(());
    };
    let bucket = dir.join("firn");
    std::fs::create_dir_all(&bucket)
        .map_err(|error| format!("cannot make {}: {error}", bucket.display()))?;
    let address = &arguments.address;
    println!(
        "MinIO at http://{address} with the bucket firn; in another shell:\n\n    \
         export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY}\n    \
         export AWS_ENDPOINT_URL=http://{address}\n"
    );
    let mut server = Command::new(program);
    server
        .args(["server", "--quiet", "--address", address])
        .arg(dir);
    server
        .env("MINIO_ROOT_USER", ACCESS_KEY)
        .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
        .env("MINIO_BROWSER", "off")
        .env("MINIO_UPDATE", "off");
    process::run(&mut server)
}

/// Whether it can be built here, or is there already.
pub(crate) fn is_available() -> bool {
    program().is_file() || programs::is_installed("go", "version")
}

/// Tells tests where the server is, and the keys for it.
pub(crate) fn set_environment(command: &mut Command) {
    command
        .env("FIRN_MINIO", program())
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
}

fn folder() -> PathBuf {
    vm::cache().join("minio").join(VERSION)
}

fn program() -> PathBuf {
    folder().join("minio")
}

/// Builds it if it is missing; where it is.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    programs::from_go(MODULE, VERSION, &folder())
}
