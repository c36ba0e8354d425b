//! How object stores are reached: settings, which may be shown, and variables of the environment, which never are.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Variables that object stores are looked up by begin so.
const PREFIXES: [&str; 3] = ["aws_", "azure_", "google_"];
/// A variable whose name has one of these in it holds what must never be shown.
const SECRET_NAMES: [&str; 6] = ["key", "secret", "token", "sas", "password", "credential"];
/// But for those that only say where it lies.
const PLACE_NAMES: [&str; 5] = ["_file", "_path", "_uri", "_url", "_credentials"];
/// The least part that S3 takes of an upload in parts.
const LEAST_PART_BYTES: u64 = 5 * 1024 * 1024;
const MOST_PART_BYTES: u64 = 1024 * 1024 * 1024;
/// Shorter texts are no secrets, and would be struck out of messages everywhere.
const LEAST_SECRET_BYTES: usize = 4;

/// How object stores are reached. Nothing in it is secret: credentials come from the environment alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteSettings {
    /// The URL of the service, where it is not the provider's own: `https://s3.example.org`. It counts before `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
    /// The region of a bucket of S3. It counts before `AWS_REGION`.
    pub region: Option<String>,
    /// Whether an endpoint may begin with `http://`: what is read and written then crosses the network as plain text. No.
    pub allow_http: bool,
    /// Milliseconds that one request may take: 30,000.
    pub request_timeout_ms: u64,
    /// Milliseconds that a connection may take: 5,000.
    pub connect_timeout_ms: u64,
    /// How often a request that was throttled, failed at the server or found no connection is sent again: 10.
    pub max_retries: u64,
    /// No request is sent again this many milliseconds after it was sent first: 60,000.
    pub retry_timeout_ms: u64,
    /// Data files that are larger than twice this are sent in parts of so many bytes: 16 MiB.
    pub part_bytes: u64,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            allow_http: false,
            request_timeout_ms: 30_000,
            connect_timeout_ms: 5_000,
            max_retries: 10,
            retry_timeout_ms: 60_000,
            part_bytes: 16 * 1024 * 1024,
        }
    }
}

impl RemoteSettings {
    /// Refuses settings with which nothing works.
    pub fn validate(&self) -> Result<()> {
        if self.request_timeout_ms == 0 || self.connect_timeout_ms == 0 {
            return Err(Error::invalid(
                "remote.request_timeout_ms and remote.connect_timeout_ms must not be 0: 30000 and 5000 are usual",
            ));
        }
        if !(LEAST_PART_BYTES..=MOST_PART_BYTES).contains(&self.part_bytes) {
            return Err(Error::invalid(format!(
                "remote.part_bytes is {}: write 5MiB to 1GiB",
                self.part_bytes
            )));
        }
        Ok(())
    }
}

/// Settings and variables of the environment together. The values of variables are never shown.
#[derive(Clone, Default)]
pub struct StorageOptions {
    pub(super) settings: RemoteSettings,
    /// By names in lower case.
    variables: BTreeMap<String, String>,
}

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.variables.keys().collect();
        f.debug_struct("StorageOptions")
            .field("settings", &self.settings)
            .field("variables", &names)
            .finish()
    }
}

impl StorageOptions {
    /// These settings, and no variables.
    pub fn new(settings: RemoteSettings) -> Self {
        Self { settings, variables: BTreeMap::new() }
    }

    /// These settings, and the variables `AWS_*`, `AZURE_*` and `GOOGLE_*` of this process.
    pub fn from_process(settings: RemoteSettings) -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        variables.fold(Self::new(settings), |options, (name, value)| options.with(&name, &value))
    }

    /// The same with one variable, named as in the environment: `AWS_SECRET_ACCESS_KEY`. Others than those of object stores, and
    /// empty ones, are passed over.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        let name = name.to_ascii_lowercase();
        if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !value.is_empty() {
            self.variables.insert(name, value.to_owned());
        }
        self
    }

    /// The value of a variable, named in lower case.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The variables that begin with a prefix.
    #[cfg(any(feature = "s3", feature = "azure", feature = "gcs"))]
    pub(super) fn variables(&self, prefix: &'static str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(move |(name, _)| name.starts_with(prefix))
    }

    /// What must never be shown.
    pub(super) fn secrets(&self) -> Secrets {
        let is_secret = |name: &str| {
            SECRET_NAMES.iter().any(|part| name.contains(part))
                && !PLACE_NAMES.iter().any(|end| name.ends_with(end))
        };
        let values = self.variables.iter().filter(|(name, _)| is_secret(name));
        let mut texts: Vec<String> = values
            .map(|(_, value)| value.clone())
            .filter(|value| value.len() >= LEAST_SECRET_BYTES)
            .collect();
        // A text that holds another one goes first.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Secrets { texts }
    }
}

/// Texts that are struck out of everything that is told.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    texts: Vec<String>,
}

impl Secrets {
    /// Whether a text holds one.
    pub(super) fn are_in(&self, text: &str) -> bool {
        self.texts.iter().any(|secret| text.contains(secret.as_str()))
    }

    /// A text without them.
    pub(super) fn strike(&self, text: &str) -> String {
        self.texts.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn values_of_variables_are_not_shown_and_secrets_are_struck_out() {
        let options = StorageOptions::default()
            .with("AWS_SECRET_ACCESS_KEY", "hush-hush")
            .with("AWS_SESSION_TOKEN", "hush")
            .with("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/token")
            .with("AZURE_STORAGE_SAS_KEY", "sig=abc")
            .with("AWS_REGION", "eu-west-1")
            .with("AWS_ENDPOINT", "")
            .with("HOME", "/root");
        let shown = format!("{options:?}");
        assert!(shown.contains("aws_region") && !shown.contains("eu-west-1"), "{shown}");
        assert!(!shown.contains("hush") && !shown.contains("home"), "{shown}");
        let secrets = options.secrets();
        assert!(secrets.are_in("a hush b") && !secrets.are_in("/var/token eu-west-1"));
        assert_eq!(secrets.strike("hush-hush: hush, sig=abc"), "***: ***, ***");
    }

    #[test]
    fn settings_with_which_nothing_works_are_refused() {
        RemoteSettings::default().validate().unwrap();
        let small = RemoteSettings { part_bytes: 1024, ..RemoteSettings::default() };
        assert!(small.validate().unwrap_err().to_string().contains("5MiB"));
        let hasty = RemoteSettings { request_timeout_ms: 0, ..RemoteSettings::default() };
        assert!(hasty.validate().is_err());
    }
}
