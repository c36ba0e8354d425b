//! A small server that speaks S3 as far as `object_store` asks for it, with faults that a test turns on: what a network and a busy
//! service do to requests, without a network.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium::{Durability, RemoteSettings, Storage, StorageOptions};

/// The bucket of every server.
pub(crate) const BUCKET: &str = "bucket";
/// How long a request without an answer is left waiting.
const STALL: Duration = Duration::from_secs(2);

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server is busy: nothing takes place.
    Throttled,
    /// It takes place, and the server says that it failed.
    FailedAfter,
    /// It takes place, and the connection is closed without an answer.
    ClosedAfter,
    /// It takes place, and no answer comes for a long time.
    Stalled,
    /// Another conditional write of the object is under way: nothing is decided.
    Undecided,
    /// Refused with an answer that repeats everything that was sent.
    Repeated,
}

/// A fault that waits for its request: the method, a part of the path and query, and the fault.
type Due = (&'static str, &'static str, Fault);

#[derive(Debug, Default)]
struct Shared {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    uploads: Mutex<BTreeMap<(String, u32), Vec<u8>>>,
    faults: Mutex<VecDeque<Due>>,
    requests: Mutex<Vec<String>>,
    ignores_conditions: AtomicBool,
}

/// A server in this process.
#[derive(Debug)]
pub(crate) struct S3Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl S3Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = serving.clone();
                // A client that goes away ends its thread.
                std::thread::spawn(move || while serve(&client, &shared).is_ok() {});
            }
        });
        Self { address, shared }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Settings under which faults are over soon.
    pub(crate) fn settings(&self) -> RemoteSettings {
        RemoteSettings {
            endpoint: Some(self.endpoint()),
            allow_http: true,
            request_timeout_ms: 700,
            max_retries: 4,
            retry_timeout_ms: 10_000,
            part_bytes: 5 * 1024 * 1024,
            ..RemoteSettings::default()
        }
    }

    pub(crate) fn options(&self) -> StorageOptions {
        StorageOptions::new(self.settings())
            .with("AWS_ACCESS_KEY_ID", "an-id-of-a-key")
            .with("AWS_SECRET_ACCESS_KEY", "a-secret-of-a-key")
    }

    /// A store in a folder of the bucket.
    pub(crate) fn storage(&self, folder: &str) -> Storage {
        let uri = format!("s3://{BUCKET}/{folder}");
        Storage::open_with(&uri, Durability::Os, &self.options()).unwrap()
    }

    /// The next request of a method whose path and query hold a text meets a fault; one that was told of earlier comes first.
    pub(crate) fn fail_next(&self, method: &'static str, part: &'static str, fault: Fault) {
        self.shared.faults.lock().unwrap().push_back((method, part, fault));
    }

    /// Faults that no request has met.
    pub(crate) fn faults_left(&self) -> usize {
        self.shared.faults.lock().unwrap().len()
    }

    /// From now on `If-None-Match` is not looked at.
    pub(crate) fn ignore_conditions(&self) {
        self.shared.ignores_conditions.store(true, Ordering::SeqCst);
    }

    /// The names of all objects.
    pub(crate) fn names(&self) -> Vec<String> {
        self.shared.objects.lock().unwrap().keys().cloned().collect()
    }

    /// Whether an object holds a text, in its name or its bytes.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let objects = self.shared.objects.lock().unwrap();
        let is_in = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        objects.iter().any(|(name, bytes)| name.contains(text) || is_in(bytes))
    }

    /// The requests since the last call, as `METHOD path?query`.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }
}

struct Request {
    method: String,
    /// Path and query as they came.
    target: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    head: String,
    body: Vec<u8>,
}

struct Response {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> Response {
    Response { status, headers: Vec::new(), body: body.into() }
}

fn failure(status: u16, code: &str) -> Response {
    answer(status, format!("<Error><Code>{code}</Code></Error>"))
}

fn read_request(client: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut first = head.split_ascii_whitespace();
    let method = first.next().unwrap().to_owned();
    let target = first.next().unwrap().to_owned();
    let headers: BTreeMap<String, String> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let url = url::Url::parse(&format!("http://host{target}")).unwrap();
    let path = object_store::path::Path::from_url_path(url.path()).unwrap();
    let key = path.as_ref().strip_prefix(BUCKET).unwrap().trim_start_matches('/').to_owned();
    let query = url.query_pairs().into_owned().collect();
    Ok(Request { method, target, key, query, headers, head, body })
}

fn serve(client: &TcpStream, shared: &Shared) -> io::Result<()> {
    let request = read_request(client)?;
    shared.requests.lock().unwrap().push(format!("{} {}", request.method, request.target));
    let fault = {
        let mut faults = shared.faults.lock().unwrap();
        let is_met = |due: &Due| due.0 == request.method && request.target.contains(due.1);
        faults.iter().position(is_met).and_then(|at| faults.remove(at)).map(|due| due.2)
    };
    let response = match fault {
        Some(Fault::Throttled) => failure(503, "SlowDown"),
        Some(Fault::Undecided) => failure(409, "ConditionalRequestConflict"),
        Some(Fault::Repeated) => answer(400, request.head.clone()),
        _ => carry_out(&request, shared),
    };
    match fault {
        Some(Fault::ClosedAfter) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Some(Fault::Stalled) => {
            std::thread::sleep(STALL);
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        _ => {}
    }
    let response =
        if fault == Some(Fault::FailedAfter) { failure(500, "InternalError") } else { response };
    let mut text = format!("HTTP/1.1 {} said\r\n", response.status);
    if !response.headers.iter().any(|header| header.starts_with("Content-Length")) {
        text.push_str(&format!("Content-Length: {}\r\n", response.body.len()));
    }
    for header in &response.headers {
        text.push_str(&format!("{header}\r\n"));
    }
    text.push_str("\r\n");
    let mut client = client;
    client.write_all(text.as_bytes())?;
    if request.method != "HEAD" {
        client.write_all(&response.body)?;
    }
    client.flush()
}

fn carry_out(request: &Request, shared: &Shared) -> Response {
    let has = |name: &str| request.query.contains_key(name);
    match request.method.as_str() {
        "GET" if has("list-type") => list(request, shared),
        "GET" | "HEAD" => read(request, shared),
        "PUT" if has("partNumber") => {
            let part = request.query["partNumber"].parse().unwrap();
            let key = (request.key.clone(), part);
            shared.uploads.lock().unwrap().insert(key, request.body.clone());
            Response { headers: vec![format!("ETag: \"{part}\"")], ..answer(200, "") }
        }
        "PUT" => write(request, shared),
        "POST" if has("delete") => delete(request, shared),
        "POST" if has("uploads") => answer(
            200,
            "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
        ),
        "POST" if has("uploadId") => {
            let mut uploads = shared.uploads.lock().unwrap();
            let parts: Vec<u8> = uploads
                .iter()
                .filter(|((key, _), _)| *key == request.key)
                .flat_map(|(_, part)| part.clone())
                .collect();
            uploads.retain(|(key, _), _| *key != request.key);
            shared.objects.lock().unwrap().insert(request.key.clone(), parts);
            answer(
                200,
                "<CompleteMultipartUploadResult><ETag>\"1\"</ETag></CompleteMultipartUploadResult>",
            )
        }
        "DELETE" if has("uploadId") => {
            shared.uploads.lock().unwrap().retain(|(key, _), _| *key != request.key);
            answer(204, "")
        }
        other => failure(405, other),
    }
}

fn write(request: &Request, shared: &Shared) -> Response {
    let mut objects = shared.objects.lock().unwrap();
    let creates = request.headers.get("if-none-match").is_some_and(|value| value == "*");
    let creates = creates && !shared.ignores_conditions.load(Ordering::SeqCst);
    if creates && objects.contains_key(&request.key) {
        return failure(412, "PreconditionFailed");
    }
    objects.insert(request.key.clone(), request.body.clone());
    Response { headers: vec!["ETag: \"1\"".to_owned()], ..answer(200, "") }
}

fn read(request: &Request, shared: &Shared) -> Response {
    let objects = shared.objects.lock().unwrap();
    let Some(bytes) = objects.get(&request.key) else { return failure(404, "NoSuchKey") };
    let mut headers = vec![
        "ETag: \"1\"".to_owned(),
        format!("Last-Modified: {}", chrono::Utc::now().format("%a, %d %b %Y %H:%M:%S GMT")),
    ];
    let whole = bytes.len();
    let Some(range) = request.headers.get("range") else {
        headers.push(format!("Content-Length: {whole}"));
        return Response { headers, ..answer(200, bytes.clone()) };
    };
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let (first, last) = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => (first, last.min(whole - 1)),
        (Ok(first), Err(_)) => (first, whole - 1),
        (Err(_), last) => (whole - last.unwrap().min(whole), whole - 1),
    };
    headers.push(format!("Content-Range: bytes {first}-{last}/{whole}"));
    Response { headers, ..answer(206, &bytes[first..=last]) }
}

fn list(request: &Request, shared: &Shared) -> Response {
    let text = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let (prefix, after, delimiter) = (text("prefix"), text("start-after"), text("delimiter"));
    let (mut contents, mut folders) = (String::new(), BTreeSet::new());
    let now = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%S%.3fZ");
    for (key, bytes) in shared.objects.lock().unwrap().iter() {
        let Some(rest) = key.strip_prefix(&prefix).filter(|_| *key > after) else { continue };
        match rest.split_once('/') {
            Some((folder, _)) if !delimiter.is_empty() => {
                folders.insert(format!("{prefix}{folder}/"));
            }
            _ => contents.push_str(&format!(
                "<Contents><Key>{key}</Key><LastModified>{now}</LastModified><ETag>\"1\"</ETag><Size>{}</Size></Contents>",
                bytes.len()
            )),
        }
    }
    let folders = folders
        .iter()
        .map(|folder| format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"));
    let folders: String = folders.collect();
    answer(200, format!("<ListBucketResult>{contents}{folders}</ListBucketResult>"))
}

fn delete(request: &Request, shared: &Shared) -> Response {
    let body = String::from_utf8(request.body.clone()).unwrap();
    let mut deleted = String::new();
    for key in body.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")) {
        shared.objects.lock().unwrap().remove(key.0);
        deleted.push_str(&format!("<Deleted><Key>{}</Key></Deleted>", key.0));
    }
    answer(200, format!("<DeleteResult>{deleted}</DeleteResult>"))
}
