//! What can go wrong, told so that the caller knows what to do next.
//!
//! One public error for all crates of the project: an [`ErrorKind`] that says how to react, a message that
//! names the thing, the place and the remedy, and the cause underneath.

use std::error::Error as StdError;
use std::fmt;

use serde::Serialize;

/// A result of this project's libraries.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How to react to an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is wrong: mend the argument or the rows; nothing was written.
    InvalidInput,
    /// A state, key or file that was named does not exist.
    NotFound,
    /// What was to be created exists already, and differs.
    AlreadyExists,
    /// The point asked for lies before what can still be answered, or after what exists.
    PointUnavailable,
    /// Another process won a race as often as the bound on retries allows: try again.
    Conflict,
    /// A newer owner of the same application id has taken over: stop.
    Fenced,
    /// Whether a commit landed could not be learned: read again before retrying.
    Unknown,
    /// What is stored contradicts the format: do not go on writing.
    Corrupt,
    /// The table under this handle is another one than it was: reopen.
    IdentityChanged,
    /// A stated limit (days, rows, bytes) is exceeded.
    LimitExceeded,
    /// The memory that may be used, or the disk for what is spilled, does not suffice: allow more, or ask for less.
    OutOfMemory,
    /// The table uses a feature or type that this version does not support.
    Unsupported,
    /// The storage failed: retry when it works again.
    Storage,
    /// A fault of our own.
    Internal,
}

impl ErrorKind {
    /// Whether the same call may succeed when it is simply made again.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Conflict | Self::Storage | Self::Unknown)
    }

    /// What to do about errors of this kind, where their message names nothing better.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::InvalidInput => {
                "mend the argument, the setting or the rows that the message names"
            }
            Self::NotFound => "look whether what is named is there, and whether its name is right",
            Self::AlreadyExists => "take another name, or remove what is there",
            Self::PointUnavailable => "ask for a point that the message names as answerable",
            Self::Conflict => "run it again; let one process do this work",
            Self::Fenced => "stop this process: another one has taken over",
            Self::Unknown => "read again what came of it, then run it again",
            Self::Corrupt => {
                "see what else is damaged (verify --deep) and what can be repaired (repair --dry-run); put the file back from a copy where it can't"
            }
            Self::IdentityChanged => "reopen the store",
            Self::LimitExceeded => "give less at once",
            Self::OutOfMemory => "allow more memory, or more room in spill_dir, and run it again",
            Self::Unsupported => "use a version of this program, or a feature, that fits the other",
            Self::Storage => {
                "see to it that the storage can be reached and written, then run it again"
            }
            Self::Internal => "report it with the output of doctor",
        }
    }
}

type Source = Box<dyn StdError + Send + Sync + 'static>;

/// An error: its kind, what happened, and the cause.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

impl Error {
    /// An error with a message that names the thing, the place and the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same error with its cause.
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error, its message led by where it happened.
    pub fn context(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// How to react.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether a file that is not there is what it comes of.
    pub fn is_of_missing_file(&self) -> bool {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref::<Self>().is_some_and(|own| own.kind == ErrorKind::NotFound) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// What happened, without the causes.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Shorthand for [`ErrorKind::InvalidInput`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Shorthand for [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Shorthand for [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut cause = self.source.as_deref().map(|s| s as &dyn StdError);
        while let Some(error) = cause {
            let text = error.to_string();
            if !self.message.contains(&text) {
                write!(f, ": {text}")?;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { ref path, .. } => {
                Self::new(ErrorKind::NotFound, format!("no such file: {path}")).with_source(error)
            }
            object_store::Error::NotSupported { ref source } => {
                Self::new(ErrorKind::Unsupported, source.to_string()).with_source(error)
            }
            other => Self::new(ErrorKind::Storage, "the storage failed").with_source(other),
        }
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::new(ErrorKind::Internal, "columns could not be processed").with_source(error)
    }
}

impl From<parquet::errors::ParquetError> for Error {
    fn from(error: parquet::errors::ParquetError) -> Self {
        if let parquet::errors::ParquetError::External(source) = error {
            return match source.downcast::<object_store::Error>() {
                Ok(storage) => Self::from(*storage),
                Err(other) => match other.downcast::<Self>() {
                    Ok(own) => *own,
                    Err(other) => {
                        Self::new(ErrorKind::Corrupt, "a Parquet file could not be processed")
                            .with_source(other)
                    }
                },
            };
        }
        Self::new(ErrorKind::Corrupt, "a Parquet file could not be processed").with_source(error)
    }
}
