//! Where the program reads, writes and is interrupted: the process's own streams, or captured ones.

use std::future::Future;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use alluvium::SETTINGS_FILE;
use tokio::sync::watch;

use crate::failure::Failure;

const BUFFER_BYTES: usize = 1 << 16;

/// The surroundings of one run of the program.
pub struct Console {
    /// What is read where a file is given as `-`; taken by the first that reads it.
    pub stdin: Option<Box<dyn Read + Send>>,
    /// Rows.
    pub stdout: Box<dyn Write + Send>,
    /// Messages.
    pub stderr: Box<dyn Write + Send>,
    /// Whether somebody types the input.
    pub stdin_is_terminal: bool,
    /// Whether rows are looked at, rather than read by a program.
    pub stdout_is_terminal: bool,
    /// Whether progress can be drawn.
    pub stderr_is_terminal: bool,
    /// Columns of the terminal, when there is one.
    pub width: Option<usize>,
    /// Whether rows are in color.
    pub has_color: bool,
    /// Whether colors are welcome at all (`NO_COLOR`).
    pub allows_color: bool,
    /// The store, where no option names it.
    pub store: Option<String>,
    /// The file of settings, where no option names it.
    pub config: Option<PathBuf>,
    /// The variables of the environment that begin with `ALLUVIUM_`.
    pub environment: Vec<(String, String)>,
    /// What tells that the user wants to stop.
    pub stop: Stop,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console")
            .field("stdout_is_terminal", &self.stdout_is_terminal)
            .field("width", &self.width)
            .field("has_color", &self.has_color)
            .finish_non_exhaustive()
    }
}

impl Console {
    /// The streams of this process.
    pub fn of_process(stop: Stop) -> Self {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let stdout_is_terminal = stdout.is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let width = console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        Self {
            stdin_is_terminal: stdin.is_terminal(),
            stdout_is_terminal,
            stderr_is_terminal: stderr.is_terminal(),
            width: width.filter(|_| stdout_is_terminal),
            has_color: stdout_is_terminal && !no_color && !is_dumb,
            allows_color: !no_color && !is_dumb,
            store: None,
            config: config_of_process(),
            environment: environment_of_process(),
            stdin: Some(Box::new(stdin)),
            stdout: Box::new(BufWriter::with_capacity(BUFFER_BYTES, stdout)),
            stderr: Box::new(stderr),
            stop,
        }
    }

    /// Streams in memory: `input` is read; what is written is in the two captures. Nothing is a terminal.
    pub fn captured(input: &[u8]) -> (Self, Capture, Capture) {
        let (stdout, stderr) = (Capture::default(), Capture::default());
        let console = Self {
            stdin: Some(Box::new(io::Cursor::new(input.to_vec()))),
            stdout: Box::new(stdout.clone()),
            stderr: Box::new(stderr.clone()),
            stdin_is_terminal: false,
            stdout_is_terminal: false,
            stderr_is_terminal: false,
            width: None,
            has_color: false,
            allows_color: false,
            store: None,
            config: None,
            environment: Vec::new(),
            stop: Stop::never(),
        };
        (console, stdout, stderr)
    }

    /// A text in a terminal's style, where there are colors. The codes are those of ECMA-48: `1` is bold, `2` faint.
    pub(crate) fn styled(&self, code: &str, text: &str) -> String {
        if self.has_color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// Whether messages are in color.
    pub(crate) fn has_error_color(&self) -> bool {
        self.stderr_is_terminal && self.allows_color
    }

    /// A text that stands for a failure.
    pub(crate) fn styled_error(&self, text: &str) -> String {
        if self.has_error_color() {
            format!("\u{1b}[1;31m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// Tells of a failure, its causes on lines of their own.
    pub(crate) fn tell(&mut self, failure: &Failure) {
        for line in failure.lines() {
            let line = match line.strip_prefix("error:") {
                Some(rest) => format!("{}{rest}", self.styled_error("error:")),
                None => line,
            };
            self.say(&line);
        }
    }

    /// Writes a line to the user. That it can't be written is no reason to fail.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stderr, "{line}").and_then(|()| self.stderr.flush()).ok();
    }
}

/// The file that `ALLUVIUM_CONFIG` names, or the one in the current folder if there is one.
fn config_of_process() -> Option<PathBuf> {
    let named = std::env::var_os("ALLUVIUM_CONFIG").filter(|name| !name.is_empty());
    let here = PathBuf::from(SETTINGS_FILE);
    named.map(PathBuf::from).or_else(|| here.is_file().then_some(here))
}

/// Variables that are no text can't be settings, which all are.
fn environment_of_process() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("ALLUVIUM_")).collect()
}

/// What was written to a stream in memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Capture {
    /// Everything written so far, which is then forgotten.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything written so far as text, which is then forgotten.
    pub fn take_text(&self) -> String {
        String::from_utf8_lossy(&self.take()).into_owned()
    }
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells that the user wants to stop. Clones tell the same.
#[derive(Debug, Clone)]
pub struct Stop {
    wanted: Option<watch::Receiver<bool>>,
}

impl Stop {
    /// Nobody will want it.
    pub fn never() -> Self {
        Self { wanted: None }
    }

    /// Is wanted when `true` is sent.
    pub fn when(wanted: watch::Receiver<bool>) -> Self {
        Self { wanted: Some(wanted) }
    }

    /// Resolves when it is wanted.
    pub fn wait(&self) -> impl Future<Output = ()> + Send + 'static {
        let wanted = self.wanted.clone();
        async move {
            if let Some(mut wanted) = wanted
                && wanted.wait_for(|wanted| *wanted).await.is_ok()
            {
                return;
            }
            std::future::pending().await
        }
    }
}
