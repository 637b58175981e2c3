//! Stores over HTTP: S3 and its relatives, Google Cloud Storage, Azure Blob Storage.
//!
//! Owns how a client of the `object_store` crate is set up for firn. The crate's own retries are
//! off: they repeat conditional PUTs, so a writer that won could be told that it lost
//! ([`crate::RetryStore`] repeats what may be repeated). The store verifies a CRC-64 of what it
//! receives. Where settings come from, the later wins: the crate's defaults, a profile, the
//! environment, the URL; credentials never come from a URL.

mod options;
mod profile;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::prefix::PrefixStore;
use object_store::{Certificate, ClientOptions, ObjectStore, RetryConfig};

use self::options::CloudUrl;
use self::profile::{ProfileCredentials, ProfileFiles};
use crate::addresses::Addresses;
use crate::exchange::ObservedConnector;
use crate::{Error, ObjectStoreAdapter, Result, SharedStore};

/// A host that does not even accept a connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter than the time after which services close idle connections, so that a request rarely
/// meets a connection that is just being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Whether [`open`] knows this scheme.
pub(crate) fn is_scheme(scheme: &str) -> bool {
    matches!(scheme, "s3" | "gs" | "az")
}

/// The files that a URL names. What is wrong with it [`open`] says.
pub(crate) fn files(scheme: &str, rest: &str) -> Vec<PathBuf> {
    let url = CloudUrl::parse(scheme, rest).ok();
    url.and_then(|url| url.ca).into_iter().collect()
}

/// Opens the bucket that follows `scheme://`. Sends nothing: the probe is the first to ask.
pub(crate) fn open(scheme: &str, rest: &str) -> Result<SharedStore> {
    // Fails if another part of the process has installed one, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = CloudUrl::parse(scheme, rest)?;
    let (inner, endpoint) = match scheme {
        "s3" => open_s3(&url)?,
        "gs" => open_gcs(&url)?,
        _ => open_azure(&url)?,
    };
    let inner: Arc<dyn ObjectStore> = if url.prefix.is_empty() {
        inner
    } else {
        Arc::new(PrefixStore::new(inner, url.prefix.as_str()))
    };
    let name = match endpoint {
        Some(endpoint) => format!("{} at {endpoint}", url.plain),
        None => url.plain.clone(),
    };
    let store = ObjectStoreAdapter::new(inner, name);
    Ok(Arc::new(match scheme {
        "s3" => store.allowing_bare_tags(),
        _ => store,
    }))
}

type ParsedStore = (Arc<dyn ObjectStore>, Option<String>);

fn no_retry() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Proxies from the environment (HTTPS_PROXY, NO_PROXY) hold unless the URL names one.
fn client_options(url: &CloudUrl, endpoint: Option<&str>) -> Result<ClientOptions> {
    let plain_http = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut options = ClientOptions::new()
        .with_user_agent(
            concat!("firn/", env!("CARGO_PKG_VERSION"))
                .parse()
                .map_err(|_| url.error("the user agent cannot be sent"))?,
        )
        .with_allow_http(plain_http)
        // How long a request may take depends on its size, which [`crate::RetryPolicy`] knows. The
        // client's bound of silence would also run while a body is being sent, when no answer can
        // come: on a slow line no pack would ever arrive.
        .with_timeout_disabled()
        .with_read_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_pool_idle_timeout(POOL_IDLE_TIMEOUT);
    let bundle = url
        .ca
        .clone()
        .or_else(|| environment("AWS_CA_BUNDLE").map(PathBuf::from));
    if let Some(path) = bundle {
        let failed = |why: String| {
            url.error(format!(
                "cannot use the CA certificates in {}: {why}; the file must hold certificates in \
                 PEM",
                path.display()
            ))
        };
        let pem = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|error| failed(error.to_string()))?;
        if certificates.is_empty() {
            return Err(failed("there is none in it".to_owned()));
        }
        options = options.with_no_system_certificates(true);
        for certificate in certificates {
            options = options.with_root_certificate(certificate);
        }
    }
    if let Some(proxy) = &url.proxy {
        options = options.with_proxy_url(proxy);
    }
    if let Some(excludes) = &url.no_proxy {
        options = options.with_proxy_excludes(excludes);
    }
    Ok(options)
}

/// The keys of a profile. None where a metadata service is to be asked, which the crate does.
fn profile_keys(
    url: &CloudUrl,
    files: Option<ProfileFiles>,
    metadata: bool,
) -> Result<Option<ProfileCredentials>> {
    let named = url.profile.clone().or_else(|| environment("AWS_PROFILE"));
    match (files.and_then(ProfileCredentials::open), named) {
        (Some(keys), _) => Ok(Some(keys)),
        (None, Some(named)) => Err(url.error(format!(
            "profile {named:?} has no keys in ~/.aws/credentials or ~/.aws/config; firn reads \
             aws_access_key_id and aws_secret_access_key"
        ))),
        (None, None) if !metadata => Err(url.error(
            "there are no credentials for it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
             name a profile with profile=NAME, or write anonymous=true for a bucket that asks for \
             none",
        )),
        (None, None) => Ok(None),
    }
}

/// Whether a container's or an instance's metadata service may know credentials for this store. They are the
/// cloud's own: a store elsewhere takes none of them, and where there is no such service, a start would
/// wait a minute to say so.
fn may_ask_metadata(endpoint: Option<&str>) -> bool {
    let named = [
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_METADATA_ENDPOINT",
    ];
    let is_the_clouds = |endpoint: &str| {
        [".amazonaws.com", ".api.aws"]
            .iter()
            .any(|domain| endpoint.contains(domain))
    };
    named.iter().any(|name| environment(name).is_some()) || endpoint.is_none_or(is_the_clouds)
}

/// Where the store is, unless it is where the bucket's region says.
fn endpoint_of(url: &CloudUrl, builder: &AmazonS3Builder) -> Option<String> {
    let set = |key| builder.get_config_value(&key);
    url.endpoint
        .clone()
        .or_else(|| set(AmazonS3ConfigKey::S3Endpoint))
        .or_else(|| set(AmazonS3ConfigKey::Endpoint))
}

/// Refuses a web identity whose token is not there. Later it is read again each time that credentials expire.
fn check_token_file(url: &CloudUrl, builder: &AmazonS3Builder) -> Result<()> {
    let Some(file) = builder.get_config_value(&AmazonS3ConfigKey::WebIdentityTokenFile) else {
        return Ok(());
    };
    match std::fs::File::open(&file) {
        Ok(_) => Ok(()),
        Err(error) => Err(url.error(format!(
            "cannot read the web identity's token in {file} (AWS_WEB_IDENTITY_TOKEN_FILE): {error}"
        ))),
    }
}

fn open_s3(url: &CloudUrl) -> Result<ParsedStore> {
    let mut builder = AmazonS3Builder::from_env();
    let set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    let from_environment = set(&builder, AmazonS3ConfigKey::AccessKeyId)
        || set(&builder, AmazonS3ConfigKey::WebIdentityTokenFile);
    if !url.anonymous && url.profile.is_none() && !set(&builder, AmazonS3ConfigKey::AccessKeyId) {
        check_token_file(url, &builder)?;
    }
    let files = ProfileFiles::find(url.profile.as_deref());
    if let Some(profile) = files.as_ref().and_then(ProfileFiles::read) {
        if let (false, Some(region)) = (set(&builder, AmazonS3ConfigKey::Region), profile.region())
        {
            builder = builder.with_region(region);
        }
        if let (false, Some(endpoint)) = (
            set(&builder, AmazonS3ConfigKey::Endpoint),
            profile.endpoint(),
        ) {
            builder = builder.with_endpoint(endpoint);
        }
    }
    if url.anonymous {
        builder = builder.with_skip_signature(true);
    } else if url.profile.is_some() || !from_environment {
        let metadata = may_ask_metadata(endpoint_of(url, &builder).as_deref());
        if let Some(keys) = profile_keys(url, files, metadata)? {
            builder = builder.with_credentials(Arc::new(keys));
        }
    }
    if let Some(region) = &url.region {
        builder = builder.with_region(region);
    }
    let endpoint = endpoint_of(url, &builder);
    let virtual_hosted = url.path_style == Some(false);
    if let Some(endpoint) = &endpoint {
        let address = match endpoint.split_once("://") {
            Some((scheme, host)) if virtual_hosted => format!("{scheme}://{}.{host}", url.bucket),
            _ => endpoint.clone(),
        };
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, address);
    }
    if url.path_style.is_some() {
        builder = builder.with_virtual_hosted_style_request(virtual_hosted);
    }
    builder = match url.checksum.as_deref() {
        Some("none") => builder,
        Some("sha256") => builder.with_checksum_algorithm(Checksum::SHA256),
        _ => builder.with_checksum_algorithm(Checksum::CRC64NVME),
    };
    let addresses = s3_addresses(url, &builder);
    let tls = !endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    let store = builder
        .with_bucket_name(&url.bucket)
        // Under TLS with a CRC-64 a second hash of every byte would protect nothing more.
        .with_unsigned_payload(tls && url.checksum.as_deref() != Some("none"))
        .with_disable_bulk_delete(true)
        .with_retry(no_retry())
        .with_client_options(client_options(url, endpoint.as_deref())?)
        .with_http_connector(ObservedConnector::new(addresses))
        .build()
        .map_err(|source| setup_error(url, &source))?;
    Ok((Arc::new(store), endpoint))
}

/// Where the crate asks for objects and for credentials.
fn s3_addresses(url: &CloudUrl, builder: &AmazonS3Builder) -> Addresses {
    let set = |key| builder.get_config_value(&key);
    let named = set(AmazonS3ConfigKey::S3Endpoint).or_else(|| set(AmazonS3ConfigKey::Endpoint));
    let bucket = &url.bucket;
    let mut addresses = match named {
        Some(endpoint) => Addresses::at_endpoint(bucket, &endpoint),
        None => {
            let region = set(AmazonS3ConfigKey::Region).unwrap_or_else(|| "us-east-1".to_owned());
            let is_hosted = set(AmazonS3ConfigKey::VirtualHostedStyleRequest);
            let host = match is_hosted.as_deref() {
                Some("true") => format!("{bucket}.s3.{region}"),
                _ => format!("s3.{region}"),
            };
            Addresses::usually_at(bucket, &format!("https://{host}.amazonaws.com"))
        }
    };
    if let Some(container) = set(AmazonS3ConfigKey::ContainerCredentialsFullUri) {
        addresses = addresses.with_credentials(&container);
    }
    if let Some(instance) = set(AmazonS3ConfigKey::MetadataEndpoint) {
        let instance = instance.trim_end_matches('/');
        for path in ["/latest/api/token", "/latest/meta-data/iam/"] {
            addresses = addresses.with_credentials(&format!("{instance}{path}"));
        }
    }
    addresses
}

fn open_gcs(url: &CloudUrl) -> Result<ParsedStore> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&url.bucket);
    if let Some(endpoint) = &url.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if url.anonymous {
        // The crate keeps to the first for reads alone: for a write it would look for credentials.
        builder = builder.with_skip_signature(true).with_bearer_token("");
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let addresses = match &endpoint {
        Some(endpoint) => Addresses::at_endpoint(&url.bucket, endpoint),
        None => Addresses::usually_at(&url.bucket, "https://storage.googleapis.com"),
    };
    let store = builder
        .with_retry(no_retry())
        .with_client_options(client_options(url, endpoint.as_deref())?)
        .with_http_connector(ObservedConnector::new(addresses))
        .build()
        .map_err(|source| setup_error(url, &source))?;
    Ok((Arc::new(store), endpoint))
}

fn open_azure(url: &CloudUrl) -> Result<ParsedStore> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(&url.bucket);
    if let Some(account) = &url.account {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = &url.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if url.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let set = |key| builder.get_config_value(&key);
    let addresses = match (
        set(AzureConfigKey::Endpoint),
        set(AzureConfigKey::AccountName),
    ) {
        (Some(endpoint), _) => Addresses::at_endpoint(&url.bucket, &endpoint),
        (_, account) => {
            let host = format!("{}.blob.core.windows.net", account.unwrap_or_default());
            Addresses::usually_at(&url.bucket, &format!("https://{host}"))
        }
    };
    let store = builder
        .with_retry(no_retry())
        .with_client_options(client_options(url, url.endpoint.as_deref())?)
        .with_http_connector(ObservedConnector::new(addresses))
        .build()
        .map_err(|source| setup_error(url, &source))?;
    Ok((Arc::new(store), url.endpoint.clone()))
}

/// The crate's messages of this kind name a setting and no value.
fn setup_error(url: &CloudUrl, source: &object_store::Error) -> Error {
    url.error(format!("its settings do not fit together: {source}"))
}
