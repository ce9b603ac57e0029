//! A watch, line by line.

use std::{collections::BTreeMap, error::Error, io};

use futures::{AsyncBufReadExt, Stream};
use http::{HeaderValue, Request, header::ACCEPT_ENCODING};
use kube::{Client, core::Status};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Begins a watch; its lines are one event each. The object of an event stays text, so that one that can't be read is
/// known for what it is.
pub(crate) async fn lines(
    client: &Client,
    mut request: Request<Vec<u8>>,
) -> Result<impl Stream<Item = io::Result<String>> + use<>, kube::Error> {
    // Servers may compress each event for itself, of which the client would see the first only.
    request.headers_mut().entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
    Ok(client.request_stream(request).await?.lines())
}

/// The connection has come to an end, as connections do after a while: what follows is for the next.
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
    // As hyper says it, of a body that ends within a chunk.
    error.to_string().contains("unexpected EOF during chunk")
}

/// One event.
#[derive(Debug, Deserialize)]
pub(crate) struct Line<'l> {
    #[serde(rename = "type")]
    pub(crate) what: What,
    /// The object, or a [`Mark`], or a status.
    #[serde(borrow)]
    pub(crate) object: &'l RawValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum What {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// What a bookmark says.
#[derive(Debug, Deserialize)]
pub(crate) struct Mark {
    pub(crate) metadata: MarkMeta,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MarkMeta {
    pub(crate) resource_version: String,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl<'l> Line<'l> {
    /// None if it was cut off, by which the end of the watch shows.
    pub(crate) fn read(text: &'l str) -> Result<Option<Self>, kube::Error> {
        match serde_json::from_str(text) {
            Ok(line) => Ok(Some(line)),
            Err(error) if error.is_eof() => Ok(None),
            // Some servers send the status of a failure as it is.
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
            let line = Line::read(text).unwrap().unwrap();
            assert_eq!((line.what, line.object.get()), (What::Added, r#"{"a":[1]}"#));
        }
        assert!(Line::read(r#"{"type":"ADDED","obj"#).unwrap().is_none());
        let status = r#"{"kind":"Status","status":"Failure","message":"no","reason":"x","code":410}"#;
        assert!(matches!(Line::read(status), Err(kube::Error::Api(status)) if status.code == 410));
        assert!(matches!(Line::read("<html>"), Err(kube::Error::SerdeError(_))));
    }
}
