//! The stores: in which version, what is expected of each, how each is started with an empty bucket.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::{from_go, from_node, is_installed};
use super::server::{RunningStore, ServerDir, free_address};
use crate::{Failure, minio, process, vm, workspace};

const VERSITYGW: &str = "v1.8.0";
const AZURITE: &str = "3.37.0";
const FAKE_GCS_SERVER: &str = "v1.56.1";

const BUCKET: &str = "firn-test";
const ACCESS_KEY: &str = "firn";
const SECRET_KEY: &str = "firn-secret";
/// Azurite wants a key in base64: this says "firn-secret".
const AZURITE_KEY: &str = "Zmlybi1zZWNyZXQ=";
/// Where Ceph's monitor listens.
const CEPH_PORT: &str = "13400";

/// A foreign store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    Minio,
    Versitygw,
    Azurite,
    FakeGcsServer,
    Radosgw,
}

/// What the probe says of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    Good,
    Refused,
}

impl Expectation {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Expectation::Good => "passes",
            Expectation::Refused => "is refused",
        }
    }
}

impl Kind {
    pub(super) const ALL: &[Kind] = &[
        Kind::Minio,
        Kind::Versitygw,
        Kind::Azurite,
        Kind::FakeGcsServer,
        Kind::Radosgw,
    ];

    pub(super) fn title(self) -> String {
        match self {
            Kind::Minio => "MinIO".to_owned(),
            Kind::Versitygw => format!("versitygw {VERSITYGW}"),
            Kind::Azurite => format!("Azurite {AZURITE}"),
            Kind::FakeGcsServer => format!("fake-gcs-server {FAKE_GCS_SERVER}"),
            Kind::Radosgw => "Ceph radosgw".to_owned(),
        }
    }

    pub(super) fn expectation(self) -> Expectation {
        match self {
            Kind::Minio | Kind::Versitygw | Kind::Azurite | Kind::Radosgw => Expectation::Good,
            Kind::FakeGcsServer => Expectation::Refused,
        }
    }

    /// Why it cannot be got or run here.
    pub(super) fn check_available(self) -> Result<(), String> {
        let needs = |there: bool, what: &str| match there {
            true => Ok(()),
            false => Err(what.to_owned()),
        };
        match self {
            Kind::Minio => needs(minio::is_available(), "go is not installed"),
            Kind::Versitygw | Kind::FakeGcsServer => {
                let there = self.folder().is_dir() || is_installed("go", "version");
                needs(there, "go is not installed")
            }
            Kind::Azurite => {
                needs(is_installed("node", "--version"), "node is not installed")?;
                let there = self.folder().is_dir() || is_installed("npm", "--version");
                needs(there, "npm is not installed")
            }
            Kind::Radosgw => {
                needs(
                    rustix::process::geteuid().is_root(),
                    "a Ceph cluster needs root here",
                )?;
                let there = ["ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "curl"]
                    .iter()
                    .all(|program| is_installed(program, "--version"));
                needs(
                    there,
                    "Debian's packages are missing; run xtask/ceph-mini.sh install and apt-get \
                     install radosgw curl",
                )
            }
        }
    }

    /// Where it is kept, where it is not Debian's.
    fn folder(self) -> PathBuf {
        let name = self.title().replace(' ', "-").to_ascii_lowercase();
        vm::cache_of("stores").join(name)
    }

    /// Gets it if it is missing, and starts it.
    pub(super) fn start(self) -> Result<RunningStore, Failure> {
        let dir = ServerDir::new()?;
        let folder = self.folder();
        match self {
            Kind::Minio => start_minio(dir),
            Kind::Versitygw => start_versitygw(dir, &folder),
            Kind::Azurite => start_azurite(dir, &folder),
            Kind::FakeGcsServer => start_fake_gcs_server(dir, &folder),
            Kind::Radosgw => start_radosgw(dir),
        }
    }
}

/// The keys of a store that speaks S3, and its URL.
fn with_s3_keys(mut store: RunningStore, address: std::net::SocketAddr) -> RunningStore {
    store.url = format!("s3://{BUCKET}/demo?endpoint=http://{address}");
    store.environment = vec![
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
    ];
    store
}

fn start_minio(dir: ServerDir) -> Result<RunningStore, Failure> {
    let address = free_address()?;
    let mut server = Command::new(minio::build()?);
    server
        .args(["server", "--quiet", "--address", &address.to_string()])
        .arg(dir.make_bucket(BUCKET)?)
        .env("MINIO_ROOT_USER", ACCESS_KEY)
        .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
        .env("MINIO_BROWSER", "off")
        .env("MINIO_UPDATE", "off");
    let store = RunningStore::start(dir, server, address, None)?;
    Ok(with_s3_keys(store, address))
}

fn start_versitygw(dir: ServerDir, folder: &Path) -> Result<RunningStore, Failure> {
    let package = "github.com/versity/versitygw/cmd/versitygw";
    let address = free_address()?;
    let mut server = Command::new(from_go(package, VERSITYGW, folder)?);
    server
        .args(["--port", &address.to_string(), "posix"])
        .arg(dir.make_bucket(BUCKET)?)
        .env("ROOT_ACCESS_KEY", ACCESS_KEY)
        .env("ROOT_SECRET_KEY", SECRET_KEY);
    let store = RunningStore::start(dir, server, address, None)?;
    Ok(with_s3_keys(store, address))
}

fn start_azurite(dir: ServerDir, folder: &Path) -> Result<RunningStore, Failure> {
    let main = from_node("azurite", AZURITE, "dist/src/blob/main.js", folder)?;
    let address = free_address()?;
    let mut server = Command::new("node");
    server
        .arg(main)
        .args(["--blobHost", "127.0.0.1", "--blobPort"])
        .arg(address.port().to_string())
        .arg("--location")
        .arg(dir.path().join("data"))
        .env("AZURITE_ACCOUNTS", format!("{ACCESS_KEY}:{AZURITE_KEY}"));
    let mut store = RunningStore::start(dir, server, address, None)?;
    let endpoint = format!("http://{address}/{ACCESS_KEY}");
    let mut container = Command::new("node");
    container.args(["-e", MAKE_CONTAINER, "--", &endpoint, BUCKET]);
    container.args([ACCESS_KEY, AZURITE_KEY]);
    process::run_quietly(&mut container)?;
    store.url = format!("az://{BUCKET}/demo?endpoint={endpoint}");
    store.environment = vec![
        ("AZURE_STORAGE_ACCOUNT_NAME", ACCESS_KEY.to_owned()),
        ("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY.to_owned()),
    ];
    Ok(store)
}

/// Azure makes no container without a signed request; Node, which Azurite needs anyhow, signs it.
const MAKE_CONTAINER: &str = r"
const [endpoint, container, account, key] = process.argv.slice(1);
const date = new Date().toUTCString();
const path = `/${account}/${container}`;
const signed = 'PUT' + '\n'.repeat(12) + `x-ms-date:${date}\nx-ms-version:2021-08-06\n/${account}${path}\nrestype:container`;
const signature = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(signed).digest('base64');
const headers = {
  'x-ms-date': date,
  'x-ms-version': '2021-08-06',
  'content-length': 0,
  authorization: `SharedKey ${account}:${signature}`,
};
require('http').request(`${endpoint}/${container}?restype=container`, { method: 'PUT', headers }, (answer) => {
  if (answer.statusCode !== 201) {
    console.error(`the container was not made: ${answer.statusCode}`);
    process.exit(1);
  }
}).end();
";

fn start_fake_gcs_server(dir: ServerDir, folder: &Path) -> Result<RunningStore, Failure> {
    let package = "github.com/fsouza/fake-gcs-server";
    let address = free_address()?;
    let mut server = Command::new(from_go(package, FAKE_GCS_SERVER, folder)?);
    server
        .args(["-scheme", "http", "-host", "127.0.0.1"])
        .args(["-port", &address.port().to_string()])
        .args(["-public-host", &address.to_string()])
        .arg("-filesystem-root")
        .arg(dir.make_bucket(BUCKET)?);
    let mut store = RunningStore::start(dir, server, address, None)?;
    store.url = format!("gs://{BUCKET}/demo?endpoint=http://{address}&anonymous=true");
    Ok(store)
}

/// On the cluster that tests of the messenger use, with a user and a bucket.
fn start_radosgw(dir: ServerDir) -> Result<RunningStore, Failure> {
    let address = free_address()?;
    let cluster = dir.path().join("ceph");
    let script = |action: &str| {
        let mut command = Command::new(workspace::root().join("xtask/ceph-mini.sh"));
        command.arg(action).arg(&cluster);
        command
    };
    // The OSD leaves nothing running if it does not come up: the script ends what it has recorded.
    let stop = script("stop");
    if let Err(failure) = process::run(script("start").arg(CEPH_PORT)) {
        process::run(&mut script("stop"))?;
        return Err(failure);
    }
    let conf = cluster.join("ceph.conf");
    let mut server = Command::new("radosgw");
    server
        .args(["-f", "-n", "client.rgw.a"])
        .arg(format!("--rgw-data={}", cluster.display()))
        .arg(format!("--rgw-frontends=beast endpoint={address}"))
        .env("CEPH_CONF", &conf);
    let store = RunningStore::start(dir, server, address, Some(stop))?;
    let mut user = Command::new("radosgw-admin");
    user.args(["user", "create", "--uid", ACCESS_KEY, "--display-name"])
        .args([ACCESS_KEY, "--access-key", ACCESS_KEY])
        .args(["--secret-key", SECRET_KEY])
        .env("CEPH_CONF", &conf);
    process::run_quietly(&mut user)?;
    let mut bucket = Command::new("curl");
    bucket
        .args(["--silent", "--show-error", "--fail", "-X", "PUT"])
        .args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user"])
        .arg(format!("{ACCESS_KEY}:{SECRET_KEY}"))
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
        .arg(format!("http://{address}/{BUCKET}"));
    process::run_quietly(&mut bucket)?;
    Ok(with_s3_keys(store, address))
}
