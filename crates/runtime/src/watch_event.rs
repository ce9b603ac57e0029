//! Decodes a watch, line by line.

use std::{collections::BTreeMap, error::Error, io};

use futures::{AsyncBufReadExt, Stream};
use http::{HeaderValue, Request, header::ACCEPT_ENCODING};
use kube::{Client, core::Status};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Starts a watch and returns its lines, one per event. The object of an event stays encoded, so that an
/// object that cannot be decoded can be reported by name.
pub(crate) async fn lines(
    client: &Client,
    mut request: Request<Vec<u8>>,
) -> Result<impl Stream<Item = io::Result<String>> + use<>, kube::Error> {
    // Some servers compress each event by itself, and the client would then see only the first event.
    request.headers_mut().entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
    Ok(client.request_stream(request).await?.lines())
}

/// Returns whether the connection ended as connections normally do after some time. The next watch then
/// continues.
pub(crate) fn is_end(error: &io::Error) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| matches!(io.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::TimedOut)) {
            return true;
        }
        next = match io.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    // hyper reports a body that ends within a chunk with this text.
    error.to_string().contains("unexpected EOF during chunk")
}

/// One event of a watch.
#[derive(Debug, Deserialize)]
pub(crate) struct WatchEvent<'l> {
    #[serde(rename = "type")]
    pub(crate) what: EventType,
    /// The object, or a [`Bookmark`], or a `Status`.
    #[serde(borrow)]
    pub(crate) object: &'l RawValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// The object of a bookmark event.
#[derive(Debug, Deserialize)]
pub(crate) struct Bookmark {
    pub(crate) metadata: BookmarkMeta,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BookmarkMeta {
    pub(crate) resource_version: String,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl<'l> WatchEvent<'l> {
    /// Decodes a line. Returns `None` if the line is truncated, which happens when the watch ends.
    pub(crate) fn read(text: &'l str) -> Result<Option<Self>, kube::Error> {
        match serde_json::from_str(text) {
            Ok(watch_event) => Ok(Some(watch_event)),
            Err(error) if error.is_eof() => Ok(None),
            // Some servers send the `Status` of a failure instead of an event.
            Err(error) => Err(match serde_json::from_str::<Status>(text) {
                Ok(status) => kube::Error::Api(Box::new(status)),
                Err(_) => kube::Error::SerdeError(error),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_connections_are_told_from_failures() {
        let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let failure = || io::Error::from(io::ErrorKind::ConnectionReset);
        for (error, expected) in [
            (end(), true),
            (io::Error::other(end()), true),
            (io::Error::other(kube::Error::ReadEvents(end())), true),
            (io::Error::other("unexpected EOF during chunk size line"), true),
            (failure(), false),
            (io::Error::other(failure()), false),
        ] {
            assert_eq!(is_end(&error), expected, "{error:?}");
        }
    }

    #[test]
    fn members_of_an_event_come_in_any_order() {
        for text in [r#"{"type":"ADDED","object":{"a":[1]}}"#, r#"{"object":{"a":[1]},"type":"ADDED"}"#] {
            let watch_event = WatchEvent::read(text).unwrap().unwrap();
            assert_eq!((watch_event.what, watch_event.object.get()), (EventType::Added, r#"{"a":[1]}"#));
        }
        assert!(WatchEvent::read(r#"{"type":"ADDED","obj"#).unwrap().is_none());
        let status = r#"{"kind":"Status","status":"Failure","message":"no","reason":"x","code":410}"#;
        assert!(matches!(WatchEvent::read(status), Err(kube::Error::Api(status)) if status.code == 410));
        assert!(matches!(WatchEvent::read("<html>"), Err(kube::Error::SerdeError(_))));
    }
}
