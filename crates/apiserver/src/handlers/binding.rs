//! POST `pods/{name}/binding`.

use http::{Response, StatusCode};
use store::Expect;

use super::read::to_storage;
use super::store_access::{CommitError, WRITE_ATTEMPTS, put};
use super::{Presenter, RequestContext, output};
use crate::codec::decode::parse_as;
use crate::codec::negotiate::Endpoint;
use crate::encode;
use crate::error::ApiError;
use crate::kinds;
use crate::request::WriteOptions;
use crate::response::Body;

/// Assigns the pod to the node that the `Binding` names.
pub(crate) async fn bind(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Plain)?;
    let binding = parse_as(cx.headers, body, "Binding")?;
    let options = WriteOptions::parse(cx.query, cx.user_agent, "CreateOptions", false)?;
    let d = cx.descriptor.clone();
    let name = cx.info.path_name().to_owned();
    for _ in 0..WRITE_ATTEMPTS {
        let store = cx.store;
        let entry = cx.stored(&name)?;
        let mut pod = Presenter::new(&d).value(&entry)?;
        kinds::bind(&mut pod, &binding, &cx.now)?;
        if options.dry_run {
            return output::value(StatusCode::CREATED, media, &output::success(201));
        }
        let encoded = encode::encode(&to_storage(&d, &pod), &d.storage_api_version, &d.kind);
        match put(store, entry.key.clone(), Expect::At(entry.revision), encoded).await {
            Ok(_) => return output::value(StatusCode::CREATED, media, &output::success(201)),
            Err(CommitError::Conflict(_)) => {}
            Err(CommitError::Other(error)) => return Err(error),
        }
    }
    Err(cx.modified(&name))
}
