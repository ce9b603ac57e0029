//! POST of review kinds: the answer is computed and not stored.

use http::{Response, StatusCode};

use super::{RequestContext, StoreLookup, create, output};
use crate::codec::negotiate::Endpoint;
use crate::error::ApiError;
use crate::response::Body;
use crate::reviews::{self, ReviewContext};
use crate::strategy::Review;

/// Answers a review.
pub(crate) fn answer(
    cx: &mut RequestContext<'_>,
    kind: Review,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Plain)?;
    let object = create::decode_review(cx, body)?;
    let lookup = StoreLookup::new(cx.store);
    let review = ReviewContext {
        user: cx.user,
        authorizer: &cx.state.config.authorizer,
        authenticator: &cx.state.config.authenticator,
        lookup: &lookup,
        namespace: cx.namespace(),
        now: &cx.now,
    };
    let answer = reviews::answer(&review, kind, object)?;
    output::value(StatusCode::CREATED, media, &answer)
}
