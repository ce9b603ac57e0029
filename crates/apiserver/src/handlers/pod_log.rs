//! GET `pods/{name}/log`. A space runs no containers. The log of a simulated container has one line, which says so; where
//! nothing simulates, there is no log.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, StatusCode};
use jiff::Timestamp;
use machinery::field::{self, Path};
use serde_json::Value;
use store::{Only, Scope, Watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connect::{container_of, is_simulated, stored_object};
use super::object::meta_str;
use super::{Presenter, RequestContext};
use crate::error::ApiError;
use crate::request::Query;
use crate::response::{self, Body};

/// Longest life of a log that is followed, as kubelets end idle streams.
const LIFETIME: Duration = Duration::from_secs(4 * 60 * 60);

/// The log of one container.
pub(crate) fn get(cx: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let options = LogOptions::parse(cx.query, cx.info.path_name())?;
    // Before the pod is read, so that a follower misses no change.
    let revision = cx.store.revision();
    let pod = stored_object(cx)?;
    let container = container_of(cx.query, &pod)?;
    let scheduled = !text(&pod, "/spec/nodeName").is_empty();
    if !scheduled || !is_simulated(&pod) {
        return Ok(no_log());
    }
    let state = ContainerState::of(&pod, &container).map_err(ApiError::bad_request)?;
    if options.previous {
        let name = meta_str(&pod, "name");
        let why = format!("previous terminated container {container:?} in pod {name:?} not found");
        return Err(ApiError::bad_request(why));
    }
    let line = Bytes::from(options.cut(&line(&pod, &container), &state.started, &cx.now));
    if !options.follow || !state.running {
        return Ok(response::new(StatusCode::OK, "text/plain", Body::from(line)));
    }
    let only = Some(Only::Name(meta_str(&pod, "name").into()));
    let namespace = Some(cx.namespace().into());
    let scope = Scope { collection: cx.descriptor.collection.clone(), namespace, only };
    let Ok(watch) = cx.store.watch(scope, revision) else {
        return Ok(response::new(StatusCode::OK, "text/plain", Body::from(line)));
    };
    let follower = Follower {
        watch,
        uid: meta_str(&pod, "uid").to_owned(),
        container,
        presenter: Presenter::new(cx.descriptor),
        deadline: Instant::now() + LIFETIME,
        stop: cx.state.stop.clone(),
    };
    let rest = futures::stream::once(follower.end()).filter_map(|()| async { None });
    let first = futures::stream::iter((!line.is_empty()).then_some(line));
    Ok(response::new(StatusCode::OK, "text/plain", Body::stream(first.chain(rest))))
}

/// What API servers answer for a pod without a node.
fn no_log() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn line(pod: &Value, container: &str) -> String {
    let name = meta_str(pod, "name");
    format!(
        "This cluster is simulated: container {container} of pod {name} does not run and writes no log.\n"
    )
}

/// Whether a container runs, and since when.
#[derive(Debug, PartialEq, Eq)]
struct ContainerState {
    running: bool,
    started: String,
}

impl ContainerState {
    /// # Errors
    /// Why the container has no log yet.
    fn of(pod: &Value, container: &str) -> Result<Self, String> {
        let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
        let statuses = lists.iter().filter_map(|list| pod.get("status")?.get(*list)?.as_array()).flatten();
        let mut statuses = statuses.filter(|status| text(status, "/name") == container);
        let pod = meta_str(pod, "name");
        let Some(status) = statuses.next() else {
            return Err(format!("container {container:?} in pod {pod:?} is not available"));
        };
        let started = |state: &str| status.pointer(&format!("/state/{state}/startedAt"))?.as_str();
        match (started("running"), started("terminated")) {
            (Some(since), _) => Ok(Self { running: true, started: since.to_owned() }),
            (_, Some(since)) => Ok(Self { running: false, started: since.to_owned() }),
            _ => {
                let why = text(status, "/state/waiting/reason");
                Err(format!("container {container:?} in pod {pod:?} is waiting to start: {why}"))
            }
        }
    }
}

/// `PodLogOptions`.
#[derive(Debug, Default, PartialEq)]
struct LogOptions {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<i64>,
    limit_bytes: Option<i64>,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
}

impl LogOptions {
    /// # Errors
    /// 400 for what cannot be read, 422 for what makes no sense.
    fn parse(query: &Query, pod: &str) -> Result<Self, ApiError> {
        let since_time = match query.get("sinceTime").filter(|time| !time.is_empty()) {
            None => None,
            Some(time) => {
                Some(machinery::time::parse(time).map_err(|error| ApiError::bad_request(error.to_string()))?)
            }
        };
        let options = Self {
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            timestamps: query.flag("timestamps"),
            tail_lines: query.integer("tailLines")?,
            limit_bytes: query.integer("limitBytes")?,
            since_seconds: query.integer("sinceSeconds")?,
            since_time,
        };
        let errors = options.errors();
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(ApiError::invalid("", "PodLogOptions", pod, &errors))
        }
    }

    fn errors(&self) -> Vec<field::Error> {
        const POSITIVE: &str = "must be greater than 0";
        let mut errors = Vec::new();
        if self.since_seconds.is_some() && self.since_time.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            errors.push(field::Error::forbidden(&Path::field(""), why));
        }
        for (name, value, least, why) in [
            ("tailLines", self.tail_lines, 0, "must be greater than or equal to 0"),
            ("limitBytes", self.limit_bytes, 1, POSITIVE),
            ("sinceSeconds", self.since_seconds.filter(|_| self.since_time.is_none()), 1, POSITIVE),
        ] {
            if let Some(value) = value.filter(|value| *value < least) {
                errors.push(field::Error::invalid(&Path::field(name), &value.into(), why));
            }
        }
        errors
    }

    /// The part of a log of one line, written at `at`, that was asked for.
    fn cut(&self, line: &str, at: &str, now: &str) -> String {
        let since = match (self.since_time, self.since_seconds) {
            (Some(time), _) => Some(time.as_second()),
            (None, Some(seconds)) => second(now).map(|now| now.saturating_sub(seconds)),
            (None, None) => None,
        };
        let is_older = since.zip(second(at)).is_some_and(|(since, at)| at < since);
        if is_older || self.tail_lines == Some(0) {
            return String::new();
        }
        let mut out = if self.timestamps {
            format!("{}.000000000Z {line}", at.trim_end_matches('Z'))
        } else {
            line.to_owned()
        };
        if let Some(limit) = self.limit_bytes {
            out.truncate(out.floor_char_boundary(usize::try_from(limit).unwrap_or(usize::MAX)));
        }
        out
    }
}

fn second(time: &str) -> Option<i64> {
    machinery::time::parse(time).ok().map(Timestamp::as_second)
}

/// Follows a container that runs.
struct Follower {
    watch: Watch,
    uid: String,
    container: String,
    presenter: Presenter,
    deadline: Instant,
    stop: CancellationToken,
}

impl Follower {
    /// Returns when the container has ended, its pod is gone, the follower has fallen behind, or the server stops.
    async fn end(mut self) {
        loop {
            let event = tokio::select! {
                event = self.watch.next() => event,
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep_until(self.deadline) => return,
            };
            let Ok(event) = event else { return };
            let Ok(pod) = self.presenter.value(&event.entry) else { return };
            let is_gone = event.kind == store::EventKind::Deleted || meta_str(&pod, "uid") != self.uid;
            if is_gone || ContainerState::of(&pod, &self.container).is_ok_and(|state| !state.running) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: &str = "2026-01-01T00:00:10Z";

    fn options(query: &str) -> Result<LogOptions, ApiError> {
        LogOptions::parse(&Query::parse(query), "p")
    }

    /// AS-012: what makes no sense is refused as `PodLogOptions`.
    #[test]
    fn as_012_options_of_logs_are_checked() {
        for (query, code, why) in [
            ("tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "at most one of"),
            ("tailLines=x", 400, "parsing"),
            ("sinceTime=yesterday", 400, "parsing"),
        ] {
            let refused = options(query).expect_err(query);
            assert_eq!(refused.code, code, "{query}");
            assert!(refused.message.contains(why), "{}", refused.message);
        }
    }

    /// AS-012: the line is cut as logs are.
    #[test]
    fn as_012_the_line_is_cut_as_logs_are() {
        for (query, expected) in [
            ("", "line\n"),
            ("tailLines=5", "line\n"),
            ("tailLines=0", ""),
            ("limitBytes=2", "li"),
            ("timestamps=true", "2026-01-01T00:00:10.000000000Z line\n"),
            ("sinceSeconds=5", ""),
            ("sinceSeconds=15", "line\n"),
            ("sinceTime=2026-01-01T00:00:11Z", ""),
            ("sinceTime=2026-01-01T00:00:10Z", "line\n"),
        ] {
            assert_eq!(
                options(query).unwrap().cut("line\n", AT, "2026-01-01T00:00:20Z"),
                expected,
                "{query}"
            );
        }
    }

    /// AS-012: a container that has not started has no log.
    #[test]
    fn as_012_states_of_containers() {
        let pod = json!({"metadata": {"name": "p"}, "status": {
            "containerStatuses": [{"name": "a", "state": {"running": {"startedAt": AT}}},
                {"name": "b", "state": {"waiting": {"reason": "ContainerCreating"}}}],
            "initContainerStatuses": [{"name": "i", "state": {"terminated": {"startedAt": AT}}}]}});
        let started = AT.to_owned();
        assert_eq!(
            ContainerState::of(&pod, "a"),
            Ok(ContainerState { running: true, started: started.clone() })
        );
        assert_eq!(ContainerState::of(&pod, "i"), Ok(ContainerState { running: false, started }));
        let waits = "container \"b\" in pod \"p\" is waiting to start: ContainerCreating";
        assert_eq!(ContainerState::of(&pod, "b"), Err(waits.into()));
        assert_eq!(
            ContainerState::of(&pod, "c"),
            Err("container \"c\" in pod \"p\" is not available".into())
        );
    }
}
