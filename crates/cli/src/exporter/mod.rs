//! The metrics of this process for Prometheus: `GET /metrics` on a port, as text.
//!
//! One thread answers one request after the other; a scrape takes microseconds, and nothing else is served. It never waits long for
//! a client, and reads no more of a request than its head.

mod recorder;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use alluvium::Error;

use crate::failure::Failure;
use recorder::Registry;

/// How long a client has for its request, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request's head at most.
const MAX_HEAD_BYTES: usize = 8 * 1024;
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Begins to record metrics and to serve them; gives the address, with the port that was found for port 0.
///
/// # Errors
/// The address can't be listened on, or another recorder is at work in this process.
pub(crate) fn start(address: SocketAddr) -> Result<SocketAddr, Failure> {
    let failed = |error: io::Error| {
        let message = format!(
            "metrics can't be served at {address} ({error}): give another --metrics-listen ADDRESS:PORT"
        );
        Failure::Error(Error::invalid(message).with_source(error))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let registry = Registry::default();
    metrics::set_global_recorder(registry.clone())
        .map_err(|error| Error::internal("metrics are recorded already").with_source(error))?;
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || serve(&listener, &registry))
        .map_err(failed)?;
    Ok(bound)
}

fn serve(listener: &TcpListener, registry: &Registry) {
    for client in listener.incoming() {
        // One client that goes away is no reason to serve no others.
        if let Err(error) = client.and_then(|client| answer(client, registry)) {
            tracing::debug!(%error, "a request for metrics failed");
            // Where no connection can be taken at all, there is no hurry to try again.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn answer(mut client: TcpStream, registry: &Registry) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut client)?;
    let mut words = head.split_ascii_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some(path)) if path.split('?').next() == Some("/metrics") => {
            ("200 OK", registry.text())
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        (Some(_), Some(_)) => ("405 Method Not Allowed", "use GET\n".to_owned()),
        _ => ("400 Bad Request", "this is no HTTP request\n".to_owned()),
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    client.flush()
}

/// The head of a request, as far as it comes in time.
fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let (mut head, mut buffer) = (Vec::new(), [0_u8; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the request did not come"));
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut buffer)? {
            0 => break,
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
