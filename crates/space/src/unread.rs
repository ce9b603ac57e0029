//! What to do with the rest of a request's body that nobody has read.
//!
//! An answer that comes early (401, 403, 413, 429) leaves a part of the body on an HTTP/1.1 connection. hyper closes such a
//! connection without saying so, and the client's next request on it fails. As Go's server does, a small rest is read and
//! dropped, so that the connection stays usable; otherwise the answer says `Connection: close`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;

/// Most bytes that are read and dropped. A body above the API server's limit of 3 MiB fits, so that the client has sent all of
/// it when the 413 arrives, and does not meet a closed connection instead.
const MOST: u64 = 8 << 20;
/// How long the client may take to send them.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request body that comes back when its reader drops it before the end.
pub(crate) struct LentBody<B> {
    body: Option<B>,
    rest: Option<Rest<B>>,
}

/// Where a body is left that was not read to its end.
type Rest<B> = Arc<Mutex<Option<B>>>;

impl<B: Body<Data = Bytes> + Unpin> Body for LentBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            // At the end, and after an error, there is no rest.
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B> Drop for LentBody<B> {
    fn drop(&mut self) {
        if let Some(rest) = &self.rest {
            *rest.lock() = self.body.take();
        }
    }
}

/// The unread rest of one request's body.
pub(crate) struct Unread<B> {
    /// `None` if the rest does not matter: the request has no body, as every GET, or its connection is one of HTTP/2, which
    /// resets the one stream instead.
    rest: Option<Rest<B>>,
    /// The client waits for `100 Continue`: reading would ask it for the body.
    waits: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Unread<B> {
    /// Lends the body of `request` to whoever answers it.
    pub(crate) fn lend(request: Request<B>) -> (Request<LentBody<B>>, Self) {
        let sequential = request.version() <= Version::HTTP_11;
        let rest = (sequential && !request.body().is_end_stream()).then(Arc::default);
        let unread = Self { rest: rest.clone(), waits: request.headers().contains_key(EXPECT) };
        (request.map(|body| LentBody { body: Some(body), rest }), unread)
    }

    /// Reads and drops what is left of the body, at most 8 MiB in 2 s. If more is left, the response says that the
    /// connection ends.
    pub(crate) async fn settle<R>(self, response: &mut Response<R>) {
        let rest = self.rest.and_then(|rest| rest.lock().take());
        let Some(rest) = rest.filter(|body| !body.is_end_stream()) else { return };
        let dropped = !self.waits
            && rest.size_hint().lower() <= MOST
            && tokio::time::timeout(PATIENCE, drop_rest(rest)).await.unwrap_or(false);
        if !dropped {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Returns whether the body came to its end within the limit.
async fn drop_rest<B: Body<Data = Bytes> + Unpin>(mut body: B) -> bool {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if read > MOST {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};
    use http_body_util::StreamBody;

    use super::*;

    /// The header `Connection` of the answer to a request with `frames` frames of 1 MiB, of which `read` were read.
    async fn answered(
        frames: usize,
        read: usize,
        change: impl FnOnce(&mut http::request::Builder),
    ) -> String {
        let one = || Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![0; 1 << 20])));
        let body = StreamBody::new(stream::repeat_with(one).take(frames));
        let mut builder = Request::post("/");
        change(&mut builder);
        let (request, unread) = Unread::lend(builder.body(body).unwrap());
        let mut body = request.into_body();
        for _ in 0..read {
            body.frame().await;
        }
        drop(body);
        let mut response = Response::new(());
        unread.settle(&mut response).await;
        response.headers().get(CONNECTION).map_or(String::new(), |it| it.to_str().unwrap().to_owned())
    }

    /// AS-038: a connection stays usable if the rest of the body is small, and its end is announced otherwise.
    #[tokio::test]
    async fn as_038_the_end_of_a_connection_is_announced() {
        let plain = |_: &mut http::request::Builder| ();
        for (frames, read, wanted) in
            [(0, 0, ""), (3, 0, ""), (3, 2, ""), (3, 4, ""), (8, 0, ""), (9, 0, "close"), (9, 2, "")]
        {
            assert_eq!(answered(frames, read, plain).await, wanted, "{read} of {frames}");
        }
        let second = |builder: &mut http::request::Builder| {
            *builder = std::mem::take(builder).version(Version::HTTP_2);
        };
        assert_eq!(answered(9, 0, second).await, "");
        let waiting = |builder: &mut http::request::Builder| {
            *builder = std::mem::take(builder).header(EXPECT, "100-continue");
        };
        assert_eq!(answered(1, 0, waiting).await, "close");
    }

    /// AS-038: a body that does not come is not waited for without end.
    #[tokio::test(start_paused = true)]
    async fn as_038_a_slow_body_ends_its_connection() {
        let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
        let (request, unread) = Unread::lend(Request::post("/").body(body).unwrap());
        drop(request);
        let mut response = Response::new(());
        unread.settle(&mut response).await;
        assert_eq!(response.headers()[CONNECTION], "close");
    }

    /// AS-038: a body that broke has no rest.
    #[tokio::test]
    async fn as_038_a_broken_body_has_no_rest() {
        let broken = stream::iter([Err::<Frame<Bytes>, _>(std::io::Error::other("gone"))]);
        let (request, unread) = Unread::lend(Request::post("/").body(StreamBody::new(broken)).unwrap());
        assert!(request.into_body().frame().await.unwrap().is_err());
        assert!(unread.rest.unwrap().lock().is_none());
    }

    /// AS-038: a request without a body costs nothing here, nor does one over HTTP/2.
    #[test]
    fn as_038_no_body_has_no_rest() {
        let (request, unread) =
            Unread::lend(Request::get("/").body(http_body_util::Empty::<Bytes>::new()).unwrap());
        assert!(request.body().is_end_stream() && unread.rest.is_none());
        let full = http_body_util::Full::new(Bytes::from_static(b"{}"));
        let second = Request::post("/").version(Version::HTTP_2).body(full.clone()).unwrap();
        assert!(Unread::lend(second).1.rest.is_none());
        assert!(Unread::lend(Request::post("/").body(full).unwrap()).1.rest.is_some());
    }
}
