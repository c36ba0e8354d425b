//! What went wrong, as a message and as an exit code.

use std::error::Error as _;
use std::io;

use alluvium::{Error, ErrorKind};

/// The exit codes, which scripts may rely on.
#[derive(Debug, Clone, Copy)]
pub struct ExitCodes;

impl ExitCodes {
    /// It worked.
    pub const OK: u8 = 0;
    /// Any other failure.
    pub const FAILED: u8 = 1;
    /// The command line or the input is wrong.
    pub const BAD_INPUT: u8 = 2;
    /// A state, key or file was not found.
    pub const NOT_FOUND: u8 = 3;
    /// The point asked for can't be answered: its history has expired, or it isn't there yet.
    pub const POINT_UNAVAILABLE: u8 = 4;
    /// Somebody else was faster, or took over, or whether it worked isn't known.
    pub const CONFLICT: u8 = 5;
    /// What is stored is damaged, or the snapshot is not the fold of the log.
    pub const CORRUPT: u8 = 6;
    /// The storage failed.
    pub const STORAGE: u8 = 7;
    /// The memory that may be used does not suffice.
    pub const OUT_OF_MEMORY: u8 = 8;
    /// Stopped by the user.
    pub const INTERRUPTED: u8 = 130;
}

/// Why a verb did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library, or the storage below it.
    Error(Error),
    /// Nobody reads the output any more.
    BrokenPipe,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<arrow::error::ArrowError> for Failure {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::Error(error.into())
    }
}

impl From<io::Error> for Failure {
    /// Of writing the output: all other files are the library's.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::BrokenPipe;
        }
        let what = "the output can't be written";
        Self::Error(Error::new(ErrorKind::Storage, what).with_source(error))
    }
}

impl Failure {
    /// A fault of the command line that only shows when it is carried out.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Error(Error::invalid(message))
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::BrokenPipe => ExitCodes::OK,
            Self::Error(error) => exit_code(error.kind()),
        }
    }

    /// The lines to show: the message, then each cause that says something new.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Self::Error(error) = self else { return Vec::new() };
        let mut lines = vec![format!("error: {}", error.message())];
        let mut told = error.message().to_owned();
        let mut cause = error.source();
        while let Some(inner) = cause {
            // Our own errors tell their causes themselves when shown: one at a time here.
            let text = match inner.downcast_ref::<Error>() {
                Some(own) => own.message().to_owned(),
                None => inner.to_string(),
            };
            if !told.contains(&text) {
                lines.push(format!("cause: {text}"));
                told.push_str(&text);
            }
            cause = inner.source();
        }
        lines
    }
}

fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidInput
        | ErrorKind::Unsupported
        | ErrorKind::LimitExceeded
        | ErrorKind::AlreadyExists => ExitCodes::BAD_INPUT,
        ErrorKind::NotFound => ExitCodes::NOT_FOUND,
        ErrorKind::PointUnavailable => ExitCodes::POINT_UNAVAILABLE,
        ErrorKind::Conflict
        | ErrorKind::Fenced
        | ErrorKind::Unknown
        | ErrorKind::IdentityChanged => ExitCodes::CONFLICT,
        ErrorKind::Corrupt => ExitCodes::CORRUPT,
        ErrorKind::Storage => ExitCodes::STORAGE,
        ErrorKind::OutOfMemory => ExitCodes::OUT_OF_MEMORY,
        _ => ExitCodes::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let inner = Error::invalid("line 3: no number");
        let error =
            Error::new(ErrorKind::InvalidInput, "x.csv: line 3: no number; nothing was written");
        let failure = Failure::Error(error.with_source(inner));
        assert_eq!(failure.lines(), ["error: x.csv: line 3: no number; nothing was written"]);
        let io = io::Error::other("disk on fire");
        let failure =
            Failure::Error(Error::new(ErrorKind::Storage, "can't be read").with_source(io));
        assert_eq!(failure.lines(), ["error: can't be read", "cause: disk on fire"]);
        assert_eq!(failure.exit_code(), ExitCodes::STORAGE);
    }
}
