//! Every request to an object store is counted here, also those that `object_store` sends again by itself.

use std::time::Instant;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use crate::metrics::{STORE_REQUEST_SECONDS, STORE_REQUESTS};

/// What S3 says when two conditional writes of one object meet: neither was judged, and each is to be sent again.
const UNDECIDED: &[u8] = b"ConditionalRequestConflict";
/// The server can't serve now; `object_store` sends such a request again.
const UNAVAILABLE: u16 = 503;

/// Makes clients that count.
#[derive(Debug)]
pub(super) struct CountingConnector;

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(CountingService { client }))
    }
}

#[derive(Debug)]
struct CountingService {
    client: HttpClient,
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let method = match request.method().as_str() {
            "GET" => "GET",
            "HEAD" => "HEAD",
            "PUT" => "PUT",
            "POST" => "POST",
            "DELETE" => "DELETE",
            _ => "other",
        };
        let begun = Instant::now();
        let response = match self.client.execute(request).await {
            Ok(response) => judged(response).await,
            Err(error) => Err(error),
        };
        let outcome = match &response {
            Ok(response) => outcome_of(response.status().as_u16()),
            Err(error) => match error.kind() {
                HttpErrorKind::Timeout => "timeout",
                HttpErrorKind::Connect => "unreachable",
                _ => "broken",
            },
        };
        // Neither address nor headers are told: they may hold what opens the store.
        tracing::trace!(method, outcome, "a request to the object store");
        metrics::counter!(STORE_REQUESTS, "method" => method, "outcome" => outcome).increment(1);
        metrics::histogram!(STORE_REQUEST_SECONDS, "method" => method).record(begun.elapsed());
        response
    }
}

/// What a status says, in a word that `docs/operations.md` explains.
fn outcome_of(status: u16) -> &'static str {
    match status {
        200..=399 => "ok",
        404 => "not_found",
        409 | 412 => "exists",
        401 | 403 => "denied",
        429 | 503 => "throttled",
        500..=599 => "failed",
        _ => "refused",
    }
}

/// A response, a conflict that nothing was decided by made one that is sent again.
async fn judged(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    if response.status().as_u16() != 409 {
        return Ok(response);
    }
    let (mut parts, body) = response.into_parts();
    let bytes = body.bytes().await?;
    let is_undecided = bytes.windows(UNDECIDED.len()).any(|part| part == UNDECIDED);
    if let (true, Ok(status)) = (is_undecided, UNAVAILABLE.try_into()) {
        parts.status = status;
    }
    Ok(HttpResponse::from_parts(parts, bytes.into()))
}
