//! Object stores of a cloud, and those that speak like one: from `s3://bucket/prefix`, `az://container/prefix` or
//! `gs://bucket/prefix` to a store. Each is behind a feature of this crate: `s3`, `azure`, `gcs`.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;

use super::guard::{Guard, GuardedStore};
use super::options::StorageOptions;
use crate::error::{Error, Result};

/// A kind of object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Azure,
    Google,
}

impl Service {
    /// The service that a URI's scheme names.
    pub(super) fn of_scheme(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" | "s3a" => Some(Self::S3),
            "az" => Some(Self::Azure),
            "gs" => Some(Self::Google),
            _ => None,
        }
    }

    #[cfg(not(all(feature = "s3", feature = "azure", feature = "gcs")))]
    fn feature(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Azure => "azure",
            Self::Google => "gcs",
        }
    }

    /// What to look at when it can't be reached.
    fn remedy(self) -> &'static str {
        match self {
            Self::S3 => {
                "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, from a role (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_*), or from the machine; the place from remote.endpoint or AWS_ENDPOINT_URL, and remote.region or AWS_REGION"
            }
            Self::Azure => {
                "the account comes from AZURE_STORAGE_ACCOUNT_NAME, credentials from AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, a client (AZURE_STORAGE_CLIENT_ID and what belongs to it), or the machine; the place from remote.endpoint"
            }
            Self::Google => {
                "credentials come from GOOGLE_SERVICE_ACCOUNT (a file), GOOGLE_SERVICE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS (a file), or from the machine"
            }
        }
    }
}

/// A place in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    service: Service,
    bucket: String,
    prefix: Path,
    label: String,
}

impl Place {
    fn parse(service: Service, uri: &str) -> Result<Self> {
        let rest = uri.split_once("://").map_or("", |(_, rest)| rest);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        // Such a URI may hold credentials: it is not repeated.
        if bucket.contains(['@', ':']) || rest.contains(['?', '#']) {
            return Err(Error::invalid(format!(
                "the store's URI has a part that is neither bucket nor folder: write {}://bucket/folder, and give credentials by the environment; {}",
                uri.split_once("://").map_or("", |(scheme, _)| scheme),
                service.remedy()
            )));
        }
        if bucket.is_empty() {
            return Err(Error::invalid(format!("{uri} names no bucket: write {uri}bucket/folder")));
        }
        let prefix = prefix.trim_matches('/');
        let prefix = Path::parse(prefix).map_err(|error| {
            Error::invalid(format!("{uri} is no place in an object store")).with_source(error)
        })?;
        let label = uri.trim_end_matches('/').to_owned();
        Ok(Self { service, bucket: bucket.to_owned(), prefix, label })
    }
}

/// The store at a place; nothing is asked of it yet.
pub(super) fn open(
    service: Service,
    uri: &str,
    options: &StorageOptions,
) -> Result<(Arc<GuardedStore>, String)> {
    let place = Place::parse(service, uri)?;
    options.settings.validate()?;
    let endpoint = endpoint_of(&place, options)?;
    let bucket = build(&place, options)?;
    let root: Arc<dyn ObjectStore> = match place.prefix.as_ref() {
        "" => bucket,
        _ => Arc::new(PrefixStore::new(bucket, place.prefix.clone())),
    };
    let guard = Guard {
        label: place.label.clone(),
        shared_as: Some(format!("{:?} {} {endpoint}", service, place.bucket)),
        secrets: options.secrets(),
        part_bytes: usize::try_from(options.settings.part_bytes).unwrap_or(usize::MAX),
        remedy: service.remedy(),
    };
    Ok((Arc::new(GuardedStore::new(root, guard)), place.label))
}

/// Checks the endpoint, if one is given.
fn endpoint_of(place: &Place, options: &StorageOptions) -> Result<String> {
    const VARIABLES: [&str; 3] = ["aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint"];
    let variable = |names: &[&str]| names.iter().find_map(|name| options.variable(name));
    let of_environment = match place.service {
        Service::S3 => variable(&VARIABLES),
        _ => None,
    };
    let Some(endpoint) = options.settings.endpoint.as_deref().or(of_environment) else {
        return Ok(String::new());
    };
    let is_plain = endpoint.starts_with("http://");
    let is_allowed = options.settings.allow_http
        || variable(&["aws_allow_http"]).is_some_and(|text| text.eq_ignore_ascii_case("true"));
    if endpoint.contains(['@', '?', '#']) || !(is_plain || endpoint.starts_with("https://")) {
        return Err(Error::invalid(
            "the endpoint (remote.endpoint, or AWS_ENDPOINT_URL) is no address of a service: write one such as https://s3.example.org:8333, without credentials",
        ));
    }
    if is_plain && !is_allowed {
        return Err(Error::invalid(format!(
            "the store {}: {endpoint} is not encrypted: write https://, or set remote.allow_http = true (ALLUVIUM_REMOTE_ALLOW_HTTP=true) if that is meant",
            place.label
        )));
    }
    Ok(endpoint.to_owned())
}

#[cfg(any(feature = "s3", feature = "azure", feature = "gcs"))]
fn build(place: &Place, options: &StorageOptions) -> Result<Arc<dyn ObjectStore>> {
    let built = match place.service {
        #[cfg(feature = "s3")]
        Service::S3 => builders::s3(place, options),
        #[cfg(feature = "azure")]
        Service::Azure => builders::azure(place, options),
        #[cfg(feature = "gcs")]
        Service::Google => builders::google(place, options),
        #[cfg(not(all(feature = "s3", feature = "azure", feature = "gcs")))]
        _ => return Err(not_built(place)),
    };
    built.map_err(|error| {
        let why = options.secrets().strike(&error.to_string());
        let (label, remedy) = (&place.label, place.service.remedy());
        Error::invalid(format!("the store {label} can't be opened: {why}; {remedy}"))
    })
}

#[cfg(not(any(feature = "s3", feature = "azure", feature = "gcs")))]
fn build(place: &Place, _: &StorageOptions) -> Result<Arc<dyn ObjectStore>> {
    Err(not_built(place))
}

#[cfg(not(all(feature = "s3", feature = "azure", feature = "gcs")))]
fn not_built(place: &Place) -> Error {
    let (label, feature) = (&place.label, place.service.feature());
    Error::new(
        crate::ErrorKind::Unsupported,
        format!(
            "{label}: this build has no {feature}: build it with the feature {feature:?}, or use a folder"
        ),
    )
}

#[cfg(any(feature = "s3", feature = "azure", feature = "gcs"))]
mod builders {
    use std::sync::Arc;
    use std::time::Duration;

    use object_store::{BackoffConfig, ClientOptions, ObjectStore, Result, RetryConfig};

    use super::super::options::{RemoteSettings, StorageOptions};
    use super::super::requests::CountingConnector;
    use super::Place;

    /// The longest wait between two tries of a request.
    const MAX_BACKOFF: Duration = Duration::from_secs(5);

    fn client(settings: &RemoteSettings) -> ClientOptions {
        ClientOptions::new()
            .with_timeout(Duration::from_millis(settings.request_timeout_ms))
            .with_connect_timeout(Duration::from_millis(settings.connect_timeout_ms))
            .with_allow_http(settings.allow_http)
    }

    /// Tries again by growing waits, each drawn at random.
    fn retry(settings: &RemoteSettings) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig { max_backoff: MAX_BACKOFF, ..BackoffConfig::default() },
            max_retries: usize::try_from(settings.max_retries).unwrap_or(usize::MAX),
            retry_timeout: Duration::from_millis(settings.retry_timeout_ms),
        }
    }

    #[cfg(feature = "s3")]
    pub(super) fn s3(place: &Place, options: &StorageOptions) -> Result<Arc<dyn ObjectStore>> {
        use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
        let settings = &options.settings;
        let mut builder = AmazonS3Builder::new().with_client_options(client(settings));
        for (name, value) in options.variables("aws_") {
            if let Ok(key) = name.parse() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &settings.region {
            builder = builder.with_region(region);
        }
        let builder = builder
            .with_bucket_name(&place.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retry(settings))
            .with_http_connector(CountingConnector);
        Ok(Arc::new(builder.build()?))
    }

    #[cfg(feature = "azure")]
    pub(super) fn azure(place: &Place, options: &StorageOptions) -> Result<Arc<dyn ObjectStore>> {
        use object_store::azure::MicrosoftAzureBuilder;
        let settings = &options.settings;
        let mut builder = MicrosoftAzureBuilder::new().with_client_options(client(settings));
        for (name, value) in options.variables("azure_") {
            if let Ok(key) = name.parse() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let builder = builder
            .with_container_name(&place.bucket)
            .with_retry(retry(settings))
            .with_http_connector(CountingConnector);
        Ok(Arc::new(builder.build()?))
    }

    #[cfg(feature = "gcs")]
    pub(super) fn google(place: &Place, options: &StorageOptions) -> Result<Arc<dyn ObjectStore>> {
        use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
        let settings = &options.settings;
        let mut builder = GoogleCloudStorageBuilder::new().with_client_options(client(settings));
        for (name, value) in options.variables("google_") {
            if let Ok(key) = name.parse() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
        }
        let builder = builder
            .with_bucket_name(&place.bucket)
            .with_retry(retry(settings))
            .with_http_connector(CountingConnector);
        Ok(Arc::new(builder.build()?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_place_is_a_bucket_and_a_folder_and_nothing_else() {
        let parse = |uri| Place::parse(Service::S3, uri);
        let place = parse("s3://bucket/a/b c/").unwrap();
        assert_eq!((place.bucket.as_str(), place.prefix.as_ref()), ("bucket", "a/b c"));
        assert_eq!(place.label, "s3://bucket/a/b c");
        assert_eq!(parse("s3://bucket").unwrap().prefix, Path::default());
        assert!(parse("s3://").unwrap_err().to_string().contains("names no bucket"));
        assert!(parse("s3://bucket/a//b").unwrap_err().to_string().contains("no place"));
        for uri in ["s3://id:hush@bucket/a", "s3://bucket/a?token=hush", "s3://bucket#hush"] {
            let text = parse(uri).unwrap_err().to_string();
            assert!(text.contains("AWS_SECRET_ACCESS_KEY") && !text.contains("hush"), "{text}");
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn what_is_missing_or_unsafe_is_named_when_a_store_is_opened() {
        let open = |endpoint: Option<&str>, variables: &[(&str, &str)]| {
            let mut options = StorageOptions::default();
            options.settings.endpoint = endpoint.map(str::to_owned);
            let options = variables.iter().fold(options, |o, (name, value)| o.with(name, value));
            super::open(Service::S3, "s3://bucket/a", &options).map(drop)
        };
        let text = |opened: Result<()>| opened.unwrap_err().to_string();
        let half = text(open(None, &[("AWS_SECRET_ACCESS_KEY", "hush")]));
        assert!(half.contains("AWS_ACCESS_KEY_ID") && !half.contains("hush"), "{half}");
        assert!(text(open(Some("http://localhost:1"), &[])).contains("remote.allow_http"));
        let with_password = text(open(Some("https://id:hush@localhost"), &[]));
        assert!(!with_password.contains("hush"), "{with_password}");
        open(Some("https://localhost:1"), &[]).unwrap();
    }
}
