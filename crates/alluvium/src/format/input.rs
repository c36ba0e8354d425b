//! The bytes of a file of changes: opened, counted, uncompressed, and its format found.
//!
//! Compression is told by the first bytes, whatever the file is called: gzip (of any number of members)
//! and zstd. The format is told by the first bytes too where it has a mark (Parquet, Arrow), else by the
//! file's name, else by a `{` at the start.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_log::{Error, ErrorKind, Result};
use flate2::bufread::MultiGzDecoder;

/// How a file of changes is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputFormat {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a header row.
    Csv,
    /// Apache Parquet.
    Parquet,
    /// Apache Arrow IPC, as a stream or a file.
    Arrow,
}

const BUFFER_BYTES: usize = 1 << 17;
const PEEKED_BYTES: usize = 512;
const TELLING_BYTES: usize = 16;

pub(crate) type Bytes = Box<dyn Read + Send>;

/// An opened input.
pub(crate) struct Input {
    pub(crate) label: String,
    pub(crate) format: InputFormat,
    pub(crate) body: Body,
    pub(crate) progress: Progress,
}

/// What is read: bytes as they come, or a file in which one can seek.
pub(crate) enum Body {
    Stream(Bytes),
    File(File),
}

/// How much of the input has been read, in bytes of the file as it lies on disk.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl Progress {
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Tells the progress of a file that is not read from front to back.
    pub(crate) fn set_fraction(&self, done: u64, of: u64) {
        if let Some(total) = self.total {
            let bytes = u128::from(total) * u128::from(done) / u128::from(of.max(1));
            self.read.store(u64::try_from(bytes).unwrap_or(total), Ordering::Relaxed);
        }
    }
}

struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Input {
    pub(crate) fn open(path: &Path, format: Option<InputFormat>) -> Result<Self> {
        let label = path.display().to_string();
        let failed = |error: io::Error| open_error(&label, error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(Error::invalid(format!("{label} is a folder: name a file in it")));
        }
        let total = metadata.is_file().then_some(metadata.len());
        let progress = Progress { read: Arc::default(), total };
        let seekable = if metadata.is_file() { file.try_clone().ok() } else { None };
        Self::detect(label.clone(), Some(path), Box::new(file), seekable, format, progress)
    }

    pub(crate) fn from_read(
        label: String,
        read: Bytes,
        format: Option<InputFormat>,
    ) -> Result<Self> {
        Self::detect(label, None, read, None, format, Progress::default())
    }

    fn detect(
        label: String,
        path: Option<&Path>,
        read: Bytes,
        seekable: Option<File>,
        format: Option<InputFormat>,
        progress: Progress,
    ) -> Result<Self> {
        let counted = Counted { inner: read, read: Arc::clone(&progress.read) };
        let (head, raw) = peek(&label, Box::new(counted))?;
        let compressed = head.starts_with(GZIP) || head.starts_with(ZSTD);
        let bytes = uncompress(&label, &head, raw)?;
        let (head, bytes) = peek(&label, bytes)?;
        let format = match format {
            Some(format) => format,
            None => find_format(&label, path, &head)?,
        };
        let body = match (format, seekable) {
            (InputFormat::Parquet, Some(file)) if !compressed => Body::File(rewound(&label, file)?),
            (InputFormat::Arrow, Some(file)) if !compressed && head.starts_with(ARROW_FILE) => {
                Body::File(rewound(&label, file)?)
            }
            (InputFormat::Parquet, _) => Body::File(spool(&label, bytes)?),
            (InputFormat::Arrow, _) if head.starts_with(ARROW_FILE) => {
                Body::File(spool(&label, bytes)?)
            }
            (InputFormat::Jsonl | InputFormat::Csv, _) => Body::Stream(without_bom(&label, bytes)?),
            (InputFormat::Arrow, _) => {
                check_arrow_start(&label, &head)?;
                Body::Stream(bytes)
            }
        };
        Ok(Self { label, format, body, progress })
    }
}

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const PARQUET: &[u8] = b"PAR1";
const ARROW_FILE: &[u8] = b"ARROW1";
const ARROW_STREAM: &[u8] = &[0xff, 0xff, 0xff, 0xff];
const UTF8_BOM: &[u8] = &[0xef, 0xbb, 0xbf];

fn open_error(label: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Storage,
    };
    Error::new(kind, format!("{label} can't be opened")).with_source(error)
}

/// What went wrong while reading: damaged data is the input's fault, the rest the storage's.
pub(crate) fn read_error(label: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::Other => Error::new(
            ErrorKind::InvalidInput,
            format!("{label} is damaged or cut off: restore the file from its source"),
        )
        .with_source(error),
        _ => Error::new(ErrorKind::Storage, format!("{label} can't be read")).with_source(error),
    }
}

fn uncompress(label: &str, head: &[u8], raw: Bytes) -> Result<Bytes> {
    let raw = BufReader::with_capacity(BUFFER_BYTES, raw);
    if head.starts_with(GZIP) {
        Ok(Box::new(MultiGzDecoder::new(raw)))
    } else if head.starts_with(ZSTD) {
        let decoder = zstd::stream::read::Decoder::with_buffer(raw);
        Ok(Box::new(decoder.map_err(|error| read_error(label, error))?))
    } else {
        Ok(Box::new(raw))
    }
}

/// The first bytes, and a reader that still gives them. A pipe that gives little is not waited for once the format can be told.
fn peek(label: &str, mut read: Bytes) -> Result<(Vec<u8>, Bytes)> {
    let mut head = vec![0_u8; PEEKED_BYTES];
    let mut filled = 0;
    while filled < PEEKED_BYTES && !is_telling(&head[..filled]) {
        match read.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(label, error)),
        }
    }
    head.truncate(filled);
    let whole = Cursor::new(head.clone()).chain(read);
    Ok((head, Box::new(whole)))
}

/// Whether these first bytes are as good as more of them: all marks are shorter.
fn is_telling(head: &[u8]) -> bool {
    head.len() >= TELLING_BYTES && !head.trim_ascii_start().is_empty()
}

fn without_bom(label: &str, mut bytes: Bytes) -> Result<Bytes> {
    let mut start = Vec::with_capacity(UTF8_BOM.len());
    let limit = UTF8_BOM.len() as u64;
    bytes.by_ref().take(limit).read_to_end(&mut start).map_err(|error| read_error(label, error))?;
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return Err(Error::invalid(format!(
            "{label} is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
        )));
    }
    if start == UTF8_BOM {
        return Ok(bytes);
    }
    Ok(Box::new(Cursor::new(start).chain(bytes)))
}

fn find_format(label: &str, path: Option<&Path>, head: &[u8]) -> Result<InputFormat> {
    if head.starts_with(PARQUET) {
        return Ok(InputFormat::Parquet);
    }
    if head.starts_with(ARROW_FILE) || head.starts_with(ARROW_STREAM) {
        return Ok(InputFormat::Arrow);
    }
    let text = head.strip_prefix(UTF8_BOM).unwrap_or(head).trim_ascii_start();
    match path.and_then(extension).as_deref() {
        Some("csv" | "tsv") => return Ok(InputFormat::Csv),
        Some("jsonl" | "ndjson") => return Ok(InputFormat::Jsonl),
        Some("json") if !text.starts_with(b"[") => return Ok(InputFormat::Jsonl),
        _ => {}
    }
    match text.first() {
        Some(b'{') => Ok(InputFormat::Jsonl),
        None => Ok(InputFormat::Jsonl),
        Some(b'[') => Err(Error::invalid(format!(
            "{label} holds one JSON array: write one object per line instead (jq -c '.[]')"
        ))),
        _ => Err(Error::invalid(format!(
            "{label}: the format can't be told from the name or the first bytes: say which it is, jsonl, csv, \
             parquet or arrow"
        ))),
    }
}

/// The extension that tells the format, below that of the compression.
fn extension(path: &Path) -> Option<String> {
    let lower = path.file_name()?.to_string_lossy().to_lowercase();
    let mut name = lower.as_str();
    for compression in [".gz", ".zst", ".zstd", ".gzip"] {
        name = name.strip_suffix(compression).unwrap_or(name);
    }
    name.rsplit_once('.').map(|(_, extension)| extension.to_owned())
}

/// Refuses what can't be an Arrow stream, before its first four bytes are taken for the size of a message.
fn check_arrow_start(label: &str, head: &[u8]) -> Result<()> {
    const MAX_SCHEMA_BYTES: u32 = 64 << 20;
    let size = match head {
        [0xff, 0xff, 0xff, 0xff, size @ ..] => size,
        size => size,
    };
    let is_sound = match size {
        [a, b, c, d, ..] => (1..=MAX_SCHEMA_BYTES).contains(&u32::from_le_bytes([*a, *b, *c, *d])),
        _ => false,
    };
    if is_sound {
        return Ok(());
    }
    Err(Error::invalid(format!("{label} is not an Arrow stream, or it is damaged")))
}

fn rewound(label: &str, mut file: File) -> Result<File> {
    file.seek(SeekFrom::Start(0)).map_err(|error| read_error(label, error))?;
    Ok(file)
}

/// Copies a stream to a nameless temporary file: Parquet is read from its end.
fn spool(label: &str, mut bytes: Bytes) -> Result<File> {
    let (path, mut file) = temporary_file()?;
    // Where an open file can't be unlinked it stays behind for the system's clean-up of its temporary folder.
    let _ = std::fs::remove_file(&path);
    let mut buffer = vec![0_u8; BUFFER_BYTES];
    loop {
        let count = bytes.read(&mut buffer).map_err(|error| read_error(label, error))?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else { break };
        file.write_all(read).map_err(|error| {
            Error::new(ErrorKind::Storage, format!("{label} can't be copied to a temporary file"))
                .with_source(error)
        })?;
    }
    rewound(label, file)
}

fn temporary_file() -> Result<(PathBuf, File)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    const ATTEMPTS: usize = 1_000;
    let folder = std::env::temp_dir();
    for _ in 0..ATTEMPTS {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("alluvium-{}-{number}.spool", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let what = format!("no temporary file can be made in {}", folder.display());
                return Err(Error::new(ErrorKind::Storage, what).with_source(error));
            }
        }
    }
    Err(Error::new(ErrorKind::Storage, "no free name for a temporary file was found"))
}
