//! Response bodies and headers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::codec::protobuf;
use crate::error::ApiError;

/// Bytes of one part of a long body.
const PART: usize = 64 << 10;
/// Most bytes of warning texts in one response; further text is cut (AS-037).
const MAX_WARNINGS: usize = 4096;

/// The body of an answer: known bytes, chunks that are made while they are sent, or an endless stream.
pub enum Body {
    Full(Option<Bytes>),
    /// Chunks that are made when the connection asks for more. Their total length is known.
    Chunks {
        chunks: Box<dyn Iterator<Item = Bytes> + Send + Sync>,
        remaining: u64,
    },
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    /// A finite body that tells how far its client has read.
    Held(HeldBody),
}

/// Is told how far the client of a response has read. Dropped when no byte of the response is left in the process.
pub(crate) trait ReadProgress: Send + Sync {
    /// The connection has let go of bytes: the system has them, or the connection has ended.
    fn advanced(&self, bytes: usize);
}

/// A finite body that tells how far its client has read.
pub struct HeldBody {
    body: Box<Body>,
    progress: Arc<dyn ReadProgress>,
}

/// Bytes on their way to the client.
struct Part {
    bytes: Bytes,
    progress: Arc<dyn ReadProgress>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.progress.advanced(self.bytes.len());
    }
}

impl HeldBody {
    pub(crate) fn new(body: Body, progress: Arc<dyn ReadProgress>) -> Self {
        Self { body: Box::new(body), progress }
    }

    /// Bytes that tell when the connection has let go of them.
    pub(crate) fn part(bytes: Bytes, progress: Arc<dyn ReadProgress>) -> Bytes {
        Bytes::from_owner(Part { bytes, progress })
    }

    /// The next bytes. Those of a long text come in parts, so that it is seen whether the client reads.
    fn next(&mut self) -> Option<Bytes> {
        let bytes = match &mut *self.body {
            Body::Full(rest) => {
                let mut bytes = rest.take()?;
                if bytes.len() > PART {
                    *rest = Some(bytes.split_off(PART));
                }
                bytes
            }
            Body::Chunks { chunks, remaining } => {
                let chunk = chunks.next()?;
                *remaining = remaining.saturating_sub(chunk.len() as u64);
                chunk
            }
            Body::Stream(_) | Body::Held(_) => return None,
        };
        Some(Self::part(bytes, self.progress.clone()))
    }
}

impl Body {
    pub fn empty() -> Self {
        Self::Full(None)
    }

    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Stream(Box::pin(stream))
    }

    /// All bytes of a finite body; `None` for a stream.
    pub fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::Full(bytes) => Some(bytes.unwrap_or_default()),
            Self::Chunks { chunks, remaining } => {
                let mut all = Vec::with_capacity(usize::try_from(remaining).unwrap_or(0));
                chunks.for_each(|chunk| all.extend_from_slice(&chunk));
                Some(all.into())
            }
            Self::Stream(_) => None,
            Self::Held(held) => held.body.into_bytes(),
        }
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self::Full(Some(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Chunks { chunks, remaining } => Poll::Ready(chunks.next().map(|chunk| {
                *remaining = remaining.saturating_sub(chunk.len() as u64);
                Ok(Frame::data(chunk))
            })),
            Self::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|chunk| chunk.map(|c| Ok(Frame::data(c))))
            }
            Self::Held(held) => Poll::Ready(held.next().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Chunks { remaining, .. } => *remaining == 0,
            Self::Stream(_) => false,
            Self::Held(held) => held.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Chunks { remaining, .. } => SizeHint::with_exact(*remaining),
            Self::Stream(_) => SizeHint::default(),
            Self::Held(held) => held.body.size_hint(),
        }
    }
}

/// A response with the headers of every answer of the API, except the audit id.
pub fn new(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// An error as compact or indented JSON, or as plain text where Kubernetes answers in plain text (AS-002).
pub fn error(error: &ApiError, pretty: bool) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if error.plain {
        let mut response = new(status, "text/plain; charset=utf-8", error.message.clone());
        response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        if error.code == 429 {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        return response;
    }
    let mut bytes = crate::encode::status_bytes(&error.status());
    if pretty {
        bytes = crate::codec::pretty::indent(&bytes);
    }
    let mut response = new(status, "application/json", bytes);
    if error.code == 403 {
        response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    }
    if let Some(seconds) = error.details.as_ref().and_then(|d| d.retry_after_seconds) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// An error for a client that accepts protobuf only (AS-030).
pub fn error_protobuf(error: &ApiError) -> Response<Body> {
    let mut response = self::error(error, false);
    if !error.plain
        && let Ok(bytes) = protobuf::encode(&error.status())
    {
        *response.body_mut() = bytes.into();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(protobuf::MEDIA_TYPE));
    }
    response
}

/// Adds `Warning: 299 - "..."` headers. Drops duplicates and bounds the total length (AS-037).
pub fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    let mut total = 0;
    let mut seen: Vec<&str> = Vec::new();
    for text in warnings {
        if seen.contains(&text.as_str()) {
            continue;
        }
        seen.push(text);
        total += text.len();
        if total > MAX_WARNINGS {
            break;
        }
        if let Ok(value) = HeaderValue::from_bytes(warning(text).as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// The header value of one warning. Escapes quotes and backslashes and drops control characters.
fn warning(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 12);
    quoted.push_str("299 - \"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' | '\r' | '\t' => quoted.push(' '),
            c if c.is_control() => {}
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
