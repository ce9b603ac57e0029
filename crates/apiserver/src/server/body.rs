//! Reading request bodies.

use bytes::{Bytes, BytesMut};
use http::Method;
use http::request::Parts;
use http_body_util::BodyExt as _;

use crate::error::{ApiError, Reason};

/// Reads the whole body.
///
/// # Errors
/// 413 above `limit` bytes (AS-038), 400 if the connection breaks.
pub(super) async fn read_body<B>(parts: &Parts, body: B, limit: usize) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(Bytes::new());
    }
    let too_large = || {
        let message = format!("Request entity too large: limit is {limit}");
        ApiError::new(413, Reason::RequestEntityTooLarge, message)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(body);
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad_request(format!("reading the body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = first.as_ref().map_or(all.len(), Bytes::len) + data.len();
        if length > limit {
            return Err(too_large());
        }
        // Most bodies arrive in one frame, which is not copied.
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(before) => {
                all.extend_from_slice(&before);
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}
