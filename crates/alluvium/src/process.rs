//! Settings of a process: from a file, `alluvium.toml`, and from the environment.
//!
//! What the environment says counts before the file, and the file before the defaults. Names are those of [`StoreSettings`]; in the
//! environment they are in capitals behind `ALLUVIUM_`, those of a table joined by `_`: `ALLUVIUM_LAYOUT_FILE_ROWS`.

use std::collections::BTreeMap;
use std::path::Path;

use alluvium_log::{Error, ErrorKind, Result, parse_bytes, parse_duration};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::store::StoreSettings;

/// The name of the file of a process's settings.
pub const SETTINGS_FILE: &str = "alluvium.toml";
const PREFIX: &str = "ALLUVIUM_";
/// The setting that names the store, beside those of [`StoreSettings`].
const STORE: &str = "store";

/// Where a setting comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SettingSource {
    /// It was not given.
    Default,
    /// The file.
    File,
    /// A variable of the environment.
    Environment,
    /// An option of the command line, or a call.
    Option,
}

/// One setting as it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedSetting {
    /// Its name; of one in a table, with a dot between.
    pub name: String,
    /// Its value; null where there is none.
    pub value: Value,
    /// Where it comes from.
    pub source: SettingSource,
}

/// The settings of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessSettings {
    /// The store's URI, if it is given. A relative path in a file is relative to the file's folder.
    pub store: Option<String>,
    /// All others.
    pub settings: StoreSettings,
    named: BTreeMap<String, NamedSetting>,
}

impl ProcessSettings {
    /// Reads settings from a file, if one is given, and from variables of the environment, of which only those that are named after
    /// settings are looked at. An empty variable is none.
    ///
    /// # Errors
    /// The file can't be read, or something in it is no setting; a value doesn't fit. The error names the place.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let mut draft = Draft::new()?;
        if let Some(path) = file {
            let label = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|error| {
                let kind = match error.kind() {
                    std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                    _ => ErrorKind::Storage,
                };
                Error::new(kind, format!("the settings {label} can't be read")).with_source(error)
            })?;
            draft.take_file(&text, &label, path.parent().unwrap_or(Path::new("")))?;
        }
        draft.take_environment(environment)?;
        draft.finish()
    }

    /// The same with one setting as it is given, which counts before all sources.
    ///
    /// # Errors
    /// There is no such setting, or the value doesn't fit.
    pub fn with(self, name: &str, given: &str) -> Result<Self> {
        let mut draft = Draft { named: self.named };
        let Some(setting) = draft.named.get_mut(name) else { return Err(draft.unknown(name)) };
        set(setting, given, SettingSource::Option).map_err(Error::invalid)?;
        draft.finish()
    }

    /// Every setting in force, in order of names.
    pub fn named(&self) -> impl Iterator<Item = &NamedSetting> {
        self.named.values()
    }
}

/// What is known of the settings while sources are read.
struct Draft {
    named: BTreeMap<String, NamedSetting>,
}

impl Draft {
    /// The defaults, which also tell the names.
    fn new() -> Result<Self> {
        let defaults = serde_json::to_value(StoreSettings::default())
            .map_err(|error| Error::internal("settings").with_source(error))?;
        let mut named = BTreeMap::new();
        let mut add = |name: String, value: Value| {
            let setting =
                NamedSetting { name: name.clone(), value, source: SettingSource::Default };
            named.insert(name, setting);
        };
        add(STORE.to_owned(), Value::Null);
        for (name, value) in defaults.as_object().into_iter().flatten() {
            match value {
                Value::Object(table) => {
                    for (inner, value) in table {
                        add(format!("{name}.{inner}"), value.clone());
                    }
                }
                value => add(name.clone(), value.clone()),
            }
        }
        Ok(Self { named })
    }

    fn take_file(&mut self, text: &str, label: &str, folder: &Path) -> Result<()> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            Error::invalid(format!("{label} is not TOML: {}", error.to_string().trim()))
        })?;
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) if self.is_table(&name) => {
                    for (within, value) in inner {
                        self.set_from_file(&format!("{name}.{within}"), &value, label)?;
                    }
                }
                value => self.set_from_file(&name, &value, label)?,
            }
        }
        if let Some(Value::String(store)) = self.named.get_mut(STORE).map(|store| &mut store.value)
            && !store.contains("://")
        {
            *store = folder.join(store.as_str()).display().to_string();
        }
        Ok(())
    }

    fn is_table(&self, name: &str) -> bool {
        self.named.keys().any(|known| known.split('.').next() == Some(name) && known != name)
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> = self.named.keys().map(String::as_str).collect();
        Error::invalid(format!(
            "there is no setting {name:?}; the settings are {}",
            names.join(", ")
        ))
    }

    fn set_from_file(&mut self, name: &str, value: &toml::Value, label: &str) -> Result<()> {
        let Some(setting) = self.named.get_mut(name) else {
            return Err(self.unknown(name).context(label.to_owned()));
        };
        let given = match value {
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::String(text) => text.clone(),
            toml::Value::Boolean(choice) => choice.to_string(),
            other => {
                return Err(Error::invalid(format!(
                    "{label}: {name} is a {}; {}",
                    other.type_str(),
                    wanted(name, &setting.value)
                )));
            }
        };
        set(setting, &given, SettingSource::File)
            .map_err(|why| Error::invalid(format!("{label}: {why}")))
    }

    fn take_environment(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<()> {
        let variables: BTreeMap<String, String> =
            environment.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        for setting in self.named.values_mut() {
            let variable = format!("{PREFIX}{}", setting.name.replace('.', "_").to_uppercase());
            if let Some(given) = variables.get(&variable) {
                set(setting, given, SettingSource::Environment)
                    .map_err(|why| Error::invalid(format!("{variable}: {why}")))?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<ProcessSettings> {
        let (mut root, mut store) = (Map::new(), None);
        for setting in self.named.values() {
            let value = setting.value.clone();
            match setting.name.split_once('.') {
                Some((table, name)) => {
                    let table = root.entry(table).or_insert_with(|| Value::Object(Map::new()));
                    if let Value::Object(table) = table {
                        table.insert(name.to_owned(), value);
                    }
                }
                None if setting.name == STORE => store = value.as_str().map(str::to_owned),
                None => drop(root.insert(setting.name.clone(), value)),
            }
        }
        let settings: StoreSettings = serde_json::from_value(Value::Object(root))
            .map_err(|error| Error::invalid(format!("the settings don't fit: {error}")))?;
        settings.validate()?;
        Ok(ProcessSettings { store, settings, named: self.named })
    }
}

/// Gives a setting a value that was written as text or as a number.
fn set(
    setting: &mut NamedSetting,
    given: &str,
    source: SettingSource,
) -> std::result::Result<(), String> {
    let name = &setting.name;
    let wrong = || format!("{name} is {given:?}; {}", wanted(name, &setting.value));
    let value = match &setting.value {
        Value::Number(_) => {
            let number = match given.parse::<u64>() {
                Ok(number) => Some(number),
                Err(_) if name.ends_with("_bytes") => parse_bytes(given).ok(),
                Err(_) if name.ends_with("_ms") => {
                    parse_duration(given).ok().and_then(|ms| u64::try_from(ms).ok())
                }
                Err(_) => None,
            };
            Value::Number(Number::from(number.ok_or_else(wrong)?))
        }
        Value::Bool(_) => Value::Bool(given.parse().map_err(|_| wrong())?),
        _ if name == "durability" && !["fsync", "os"].contains(&given) => return Err(wrong()),
        _ => Value::String(given.to_owned()),
    };
    setting.value = value;
    setting.source = source;
    Ok(())
}

/// What a setting takes, told by its default.
fn wanted(name: &str, default: &Value) -> &'static str {
    match default {
        _ if name == "durability" => "write fsync or os",
        Value::Number(_) if name.ends_with("_bytes") => {
            "write a number of bytes, such as 512MiB, 2GiB or 1000000000"
        }
        Value::Number(_) if name.ends_with("_ms") => {
            "write milliseconds, or a span such as 90s or 15m"
        }
        Value::Number(_) => "write a whole number from 0 up",
        Value::Bool(_) => "write true or false",
        _ => "write a text",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use alluvium_log::Durability;

    use super::*;

    fn load(text: &str, environment: &[(&str, &str)]) -> Result<ProcessSettings> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SETTINGS_FILE);
        std::fs::write(&path, text).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        ProcessSettings::load(Some(&path), environment.collect::<Vec<_>>())
    }

    #[test]
    fn the_environment_counts_before_the_file_and_the_file_before_the_defaults() {
        let text = "store = \"s3://bucket/state\"\ndurability = \"os\"\ntail_bytes = \"1GiB\"\nbatch_rows = 77\nmax_staleness_ms = \"2s\"\n\
                    [layout]\nfile_rows = 1000\n[remote]\nendpoint = \"https://s3.example.org\"\nallow_http = true\n";
        let environment = [
            ("ALLUVIUM_TAIL_BYTES", "3 MB"),
            ("ALLUVIUM_LAYOUT_LOOKUP_ROWS", "5"),
            ("ALLUVIUM_BATCH_ROWS", ""),
            ("ALLUVIUM_CASES", "1..2"),
            ("ALLUVIUM_ROW_CACHE_BYTES", "0"),
            ("ALLUVIUM_SPILL_DIR", "/var/tmp"),
            ("ALLUVIUM_REMOTE_REGION", "eu-west-1"),
            ("ALLUVIUM_REMOTE_ALLOW_HTTP", "false"),
        ];
        let loaded = load(text, &environment).unwrap();
        let mut expected = StoreSettings {
            durability: Durability::Os,
            tail_bytes: 3_000_000,
            batch_rows: 77,
            max_staleness_ms: 2_000,
            row_cache_bytes: 0,
            spill_dir: Some("/var/tmp".into()),
            ..StoreSettings::default()
        };
        expected.layout.file_rows = 1_000;
        expected.layout.lookup_rows = 5;
        expected.remote.endpoint = Some("https://s3.example.org".to_owned());
        expected.remote.region = Some("eu-west-1".to_owned());
        assert_eq!(loaded.settings, expected);
        assert_eq!(loaded.store.as_deref(), Some("s3://bucket/state"));
        let source = |name: &str| loaded.named().find(|known| known.name == name).unwrap().source;
        assert_eq!(source("tail_bytes"), SettingSource::Environment);
        assert_eq!(source("layout.file_rows"), SettingSource::File);
        assert_eq!(source("epoch_bytes"), SettingSource::Default);
        assert_eq!(load("", &[]).unwrap().settings, StoreSettings::default());
        let with = loaded.with("tail_bytes", "7").unwrap();
        assert_eq!((with.settings.tail_bytes, with.settings.batch_rows), (7, 77));
        assert!(with.clone().with("tail", "7").unwrap_err().to_string().contains("tail_bytes"));
        assert!(with.with("partitions", "0").is_err());
    }

    #[test]
    fn a_relative_store_lies_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        std::fs::write(&path, "store = \"data\"").unwrap();
        let loaded = ProcessSettings::load(Some(&path), []).unwrap();
        assert_eq!(loaded.store, Some(folder.path().join("data").display().to_string()));
        let variable = ("ALLUVIUM_STORE".to_owned(), "data".to_owned());
        let loaded = ProcessSettings::load(Some(&path), [variable]).unwrap();
        assert_eq!(loaded.store.as_deref(), Some("data"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_place() {
        let wrong = [
            ("tail_byte = 1", &["alluvium.toml", "\"tail_byte\"", "tail_bytes"][..]),
            ("tail_bytes = 1.5", &["tail_bytes is a float", "512MiB"]),
            ("tail_bytes = \"lots\"", &["tail_bytes is \"lots\"", "512MiB"]),
            ("tail_bytes = -1", &["tail_bytes is \"-1\""]),
            ("partitions = 0", &["partitions is 0"]),
            ("partitions = \"two\"", &["whole number"]),
            ("durability = \"maybe\"", &["fsync or os"]),
            ("durability = true", &["fsync or os"]),
            ("[remote]\nallow_http = \"perhaps\"", &["remote.allow_http", "true or false"]),
            ("[remote]\npart_bytes = \"1MiB\"", &["remote.part_bytes", "5MiB"]),
            ("[remote]\nsecret = \"s\"", &["\"remote.secret\"", "remote.endpoint"]),
            ("max_staleness_ms = \"soon\"", &["90s"]),
            ("layout = 3", &["no setting \"layout\"", "layout.file_rows"]),
            ("[layout]\nrows = 3", &["\"layout.rows\""]),
            ("[stores]\na = 3", &["\"stores\""]),
            ("store = ", &["not TOML", "line 1"]),
        ];
        for (text, names) in wrong {
            let error = load(text, &[]).unwrap_err().to_string();
            for name in names {
                assert!(error.contains(name), "{text}: no {name:?} in {error}");
            }
        }
        let error = load("", &[("ALLUVIUM_EPOCH_BYTES", "x")]).unwrap_err().to_string();
        assert!(error.contains("ALLUVIUM_EPOCH_BYTES"), "{error}");
        let error = ProcessSettings::load(Some(Path::new("/nowhere/a.toml")), []).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("/nowhere/a.toml"), "{error}");
    }
}
