//! `serviceaccounts/{name}/token`: TokenRequests.

use http::{Response, StatusCode};
use serde_json::Value;

use super::create::{decode_unstored, subresource_descriptor};
use super::object::{meta_str, set_meta};
use super::{RequestContext, StoreLookup, metadata, output};
use crate::codec::negotiate::Endpoint;
use crate::error::ApiError;
use crate::response::Body;

/// POST `serviceaccounts/{name}/token`: a signed token for the account.
pub(crate) fn create(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let Some(issuer) = cx.state.issuer().cloned() else {
        return Err(ApiError::no_such_resource());
    };
    let media = cx.media(Endpoint::Plain)?;
    let object = decode(cx, body)?;
    let lookup = StoreLookup::new(cx.store);
    let answer =
        issuer.request(&lookup, cx.namespace(), cx.info.path_name(), object, jiff::Timestamp::now())?;
    output::value(StatusCode::CREATED, media, &answer)
}

fn decode(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Value, ApiError> {
    let sub = cx.descriptor.subresources.get("token").cloned().ok_or_else(ApiError::no_such_resource)?;
    let d = subresource_descriptor(cx.descriptor, &sub, "io.k8s.api.authentication.v1.TokenRequest")
        .ok_or_else(|| ApiError::internal("the type of TokenRequest is missing"))?;
    let mut object = decode_unstored(cx, &d, body, Some("token"))?;
    metadata::match_namespace(cx, &mut object)?;
    let name = cx.info.path_name().to_owned();
    if meta_str(&object, "name").is_empty() {
        set_meta(&mut object, "name", name.into());
    }
    Ok(object)
}
