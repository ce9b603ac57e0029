//! Reading request bodies.

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::Method;
use http::request::Parts;
use http_body_util::BodyExt as _;

use super::uploads::{Upload, Uploads};
use crate::error::{ApiError, Reason};

/// Reads the whole body. A body that does not arrive at once counts as one of the user's uploads until the body is complete.
///
/// # Errors
/// 413 above `limit` bytes (AS-038), 400 if the connection breaks; the errors of [`Uploads::begin`],
/// [`Upload::received`] and [`Upload::wait`] if the body is slow or the user has too many uploads.
pub(super) async fn read_body<B>(
    parts: &Parts,
    body: B,
    limit: usize,
    uploads: &Uploads,
    user: &str,
) -> Result<Bytes, ApiError>
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
    let broken = |error: B::Error| ApiError::bad_request(format!("reading the body: {error}"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(body);
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut upload: Option<Upload<'_>> = None;
    loop {
        let at_once = body.frame().map(|frame| frame.map(|frame| frame.map_err(broken))).now_or_never();
        let frame = match at_once {
            Some(frame) => frame,
            None => {
                let waiting = match upload.take() {
                    Some(waiting) => waiting,
                    None => uploads.begin(user, first.as_ref().map_or(all.len(), Bytes::len))?,
                };
                let next = body.frame().map(|frame| frame.map(|frame| frame.map_err(broken)));
                upload.insert(waiting).wait(next).await?
            }
        };
        let Some(frame) = frame.transpose()? else { break };
        let Ok(data) = frame.into_data() else { continue };
        let length = first.as_ref().map_or(all.len(), Bytes::len) + data.len();
        if length > limit {
            return Err(too_large());
        }
        if let Some(upload) = &mut upload {
            upload.received(data.len())?;
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
