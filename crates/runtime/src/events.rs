//! Events on objects, as users see them with `kubectl describe`. A repeated Event increases a count, also
//! when the next process repeats it, and the Events of each object are rate-limited.
//!
//! ```
//! # use kubestellar_runtime::events::{InvolvedObject, NewEvent};
//! let object = serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u"}});
//! let event = NewEvent::warning(InvolvedObject::object(&object), "TooHot", "it glows");
//! # let _ = event;
//! ```
//!
//! A [`Recorder`] writes an Event and waits for the server. [`Events`] queues Events for a task ([`write`]),
//! for callers that must not wait.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use futures::future::BoxFuture;
use kube::Error;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    failure::{is_already_exists, is_forbidden, is_not_found},
    limiter::{Rate, TokenBucket},
    rest::{Gvr, Rest},
};

/// Most Events that wait to be written; further ones are dropped.
const WAITING: usize = 1024;
/// Most objects, and most Events, that are remembered.
const REMEMBERED: usize = 4096;
/// Longest message that the API accepts, in bytes.
const MESSAGE: usize = 1024;
/// How many bytes of an object's name go into the name of the Event; the rest of the name is a suffix.
const NAME: usize = 200;

/// The object that an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvolvedObject {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace. Empty for cluster-scoped objects, whose Events are written to `default`.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The resourceVersion that was observed.
    pub version: String,
}

impl InvolvedObject {
    /// Reads the fields from an object.
    pub fn object(object: &Value) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let meta = |field: &str| text(object.get("metadata").and_then(|meta| meta.get(field)));
        Self {
            api_version: text(object.get("apiVersion")),
            kind: text(object.get("kind")),
            namespace: meta("namespace"),
            name: meta("name"),
            uid: meta("uid"),
            version: meta("resourceVersion"),
        }
    }

    fn place(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

/// An Event that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    about: InvolvedObject,
    warning: bool,
    reason: &'static str,
    message: String,
    /// The component and the host that report it, if not the recorder's.
    source: Option<(&'static str, String)>,
    /// The part of the object that it is about.
    field: String,
}

impl NewEvent {
    /// A normal Event.
    pub fn normal(about: InvolvedObject, reason: &'static str, message: impl Into<String>) -> Self {
        let message = cut(message.into());
        Self { about, warning: false, reason, message, source: None, field: String::new() }
    }

    /// A warning.
    pub fn warning(about: InvolvedObject, reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(about, reason, message) }
    }

    /// Reports the Event in the name of another component than the recorder's; `host` may be empty.
    #[must_use]
    pub fn by(self, component: &'static str, host: &str) -> Self {
        Self { source: Some((component, host.to_owned())), ..self }
    }

    /// Names the part of the object that the Event is about, as in `spec.containers{main}`.
    #[must_use]
    pub fn in_field(self, field: String) -> Self {
        Self { field, ..self }
    }

    /// Kind of the object.
    pub fn kind(&self) -> &str {
        &self.about.kind
    }

    /// Why the Event was written, in one word.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Name of the Event object. It is the same for the same message about the same object, so a repeated
    /// Event increases a count.
    fn name(&self, component: &str) -> String {
        // Not for security: different messages must get different names with high probability, and the same
        // message must get the same name in the next process.
        let mut hasher = DefaultHasher::new();
        (component, &self.about.uid, self.reason, &self.message).hash(&mut hasher);
        let end = self.about.name.floor_char_boundary(NAME);
        let name = self.about.name.get(..end).unwrap_or_default().trim_end_matches(['-', '.']);
        format!("{name}.{:016x}", hasher.finish())
    }

    fn object(&self, component: &str, name: &str, now: &str) -> Value {
        let about = &self.about;
        let mut involved = json!({
            "apiVersion": about.api_version, "kind": about.kind, "name": about.name,
            "uid": about.uid, "resourceVersion": about.version,
        });
        if !about.namespace.is_empty() {
            involved["namespace"] = about.namespace.as_str().into();
        }
        if !self.field.is_empty() {
            involved["fieldPath"] = self.field.as_str().into();
        }
        let (component, host) =
            self.source.as_ref().map_or((component, ""), |(component, host)| (*component, host.as_str()));
        let mut source = json!({"component": component});
        if !host.is_empty() {
            source["host"] = host.into();
        }
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": about.place()},
            "involvedObject": involved,
            "reason": self.reason,
            "message": self.message,
            "type": if self.warning { "Warning" } else { "Normal" },
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": source,
            "reportingComponent": component,
            "reportingInstance": host,
        })
    }
}

fn cut(mut text: String) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() > MESSAGE {
        text.truncate(text.floor_char_boundary(MESSAGE - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
    text
}

/// Writes the Events of one component.
pub struct Recorder {
    rest: Rest,
    component: &'static str,
    events: Gvr,
    state: Mutex<State>,
}

struct State {
    rate: Rate,
    /// Rate limit of each object, by UID.
    budgets: HashMap<String, TokenBucket>,
    /// Count and time of the last occurrence of each Event, by the Event's name.
    counts: HashMap<String, (i64, Instant)>,
}

impl Recorder {
    /// Creates a recorder that writes in the name of `component`, at most at this rate for each object.
    pub fn new(rest: Rest, component: &'static str, rate: Rate) -> Self {
        let state = State { rate, budgets: HashMap::new(), counts: HashMap::new() };
        Self { rest, component, events: Gvr::new("", "v1", "events"), state: Mutex::new(state) }
    }

    /// Writes an Event, unless the rate limit of its object is exhausted.
    ///
    /// Cost: one request; three if another process wrote the same Event before.
    ///
    /// # Errors
    ///
    /// The error of the API server. An Event over the rate limit is dropped without an error.
    pub fn record<'a>(&'a self, event: &'a NewEvent) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.send(event))
    }

    async fn send(&self, event: &NewEvent) -> Result<(), Error> {
        let now = Instant::now();
        if !self.state.lock().may(&event.about.uid, now) {
            return Ok(());
        }
        let name = event.name(self.component);
        let known = self.state.lock().counts.get(&name).map(|(count, _)| *count);
        let counted = match known {
            Some(count) => self.count(event, &name, count).await?,
            None => None,
        };
        let count = match counted {
            Some(count) => count,
            None => self.create(event, &name).await?,
        };
        self.state.lock().remember(name, count, now);
        Ok(())
    }

    async fn create(&self, event: &NewEvent, name: &str) -> Result<i64, Error> {
        let place = event.about.place();
        let body = event.object(self.component, name, &stamp()).to_string().into_bytes();
        match self.rest.create::<IgnoredAny>(&self.events, place, body).await {
            Ok(_) => return Ok(1),
            Err(error) if is_already_exists(&error) => {}
            Err(error) => return Err(error),
        }
        let there: Option<Value> = match self.rest.find(&self.events, place, name).await {
            Ok(there) => there,
            // The usual roles allow only create and patch. A component with such a role counts from one.
            Err(error) if is_forbidden(&error) => None,
            Err(error) => return Err(error),
        };
        let count = there.as_ref().and_then(|it| it.get("count")).and_then(Value::as_i64).unwrap_or(1);
        // If the Event expired between the two requests, a third request is not worth its cost.
        Ok(self.count(event, name, count).await?.unwrap_or(1))
    }

    /// Increases the count of an Event. Returns `None` if the Event has expired.
    async fn count(&self, event: &NewEvent, name: &str, count: i64) -> Result<Option<i64>, Error> {
        let count = count.saturating_add(1);
        let patch = json!({"count": count, "lastTimestamp": stamp()});
        match self.rest.merge::<IgnoredAny>(&self.events, event.about.place(), name, &patch).await {
            Ok(_) => Ok(Some(count)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn stamp() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl State {
    fn may(&mut self, uid: &str, now: Instant) -> bool {
        if self.budgets.len() >= REMEMBERED {
            self.budgets.retain(|_, budget| !budget.is_full(now));
        }
        if self.budgets.len() >= REMEMBERED {
            // This many objects have problems at the same time: reset all limits, so that objects over their
            // limit get Events again.
            self.budgets.clear();
        }
        let rate = self.rate;
        self.budgets.entry(uid.to_owned()).or_insert_with(|| TokenBucket::new(rate, now)).take(now)
    }

    fn remember(&mut self, name: String, count: i64, now: Instant) {
        if self.counts.len() >= REMEMBERED {
            // Forget the older half.
            let by_use: BTreeSet<Instant> = self.counts.values().map(|(_, at)| *at).collect();
            if let Some(middle) = by_use.iter().nth(by_use.len() / 2).copied() {
                self.counts.retain(|_, (_, at)| *at > middle);
            }
        }
        self.counts.insert(name, (count, now));
    }
}

/// Logs Events and queues them for the task that writes them ([`write`]). Clones share the queue.
#[derive(Clone)]
pub struct Events(mpsc::Sender<NewEvent>);

/// The queued Events.
pub struct EventQueue(mpsc::Receiver<NewEvent>);

impl Events {
    /// Creates the handle and the queue; pass the queue to [`write`].
    pub fn new() -> (Self, EventQueue) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), EventQueue(receiver))
    }

    /// Emits a normal Event about `object`.
    pub fn normal(&self, object: &Value, reason: &'static str, message: impl Into<String>) {
        self.say(NewEvent::normal(InvolvedObject::object(object), reason, message));
    }

    /// Emits a warning about `object`.
    pub fn warning(&self, object: &Value, reason: &'static str, message: impl Into<String>) {
        self.say(NewEvent::warning(InvolvedObject::object(object), reason, message));
    }

    /// Queues an Event without logging it. Returns false if too many wait; the Event is then dropped.
    pub fn queue(&self, event: NewEvent) -> bool {
        self.0.try_send(event).is_ok()
    }

    fn say(&self, event: NewEvent) {
        let NewEvent { about: InvolvedObject { kind, namespace, name, .. }, reason, message, .. } = &event;
        if event.warning {
            tracing::warn!(kind, namespace, name, reason, message);
        } else {
            tracing::info!(kind, namespace, name, reason, message);
        }
        // A full queue means that the server is too slow; more Events would make that worse.
        self.queue(event);
    }
}

impl EventQueue {
    /// Number of Events that wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no Event waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes Events until `stop` is cancelled, then spends at most two seconds on those still queued.
pub fn write(recorder: Recorder, inbox: EventQueue, stop: CancellationToken) -> BoxFuture<'static, ()> {
    Box::pin(drain(recorder, inbox, stop))
}

async fn drain(recorder: Recorder, mut inbox: EventQueue, stop: CancellationToken) {
    let record = async |event: NewEvent| {
        if let Err(error) = recorder.record(&event).await {
            // One that gets lost is no reason to do anything again.
            tracing::debug!(%error, reason = event.reason, "an event was not written");
        }
    };
    loop {
        tokio::select! {
            event = inbox.0.recv() => match event {
                Some(event) => record(event).await,
                None => return,
            },
            () = stop.cancelled() => break,
        }
    }
    inbox.0.close();
    let rest = async {
        while let Some(event) = inbox.0.recv().await {
            record(event).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), rest).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, message: &str) -> NewEvent {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": "u"}});
        NewEvent::warning(InvolvedObject::object(&object), "R", message)
    }

    #[test]
    fn names_and_messages_are_as_the_api_takes_them() {
        let long = event(&"x".repeat(253), &"ä".repeat(2000));
        let name = long.name("c");
        assert!(name.len() <= 253 && long.message.len() <= MESSAGE && long.message.ends_with('…'), "{name}");
        assert_eq!(name, event(&"x".repeat(253), &"ä".repeat(2000)).name("c"), "said again it is the same");
        assert_ne!(event("n", "a").name("c"), event("n", "b").name("c"));
        assert_ne!(event("n", "a").name("c"), event("n", "a").name("d"));
        let cut_at_a_dot = event(&format!("{}.y", "x".repeat(199)), "m").name("c");
        assert!(!cut_at_a_dot.contains(".."), "{cut_at_a_dot}");
        let object = event("n", "a").object("c", "e", "t");
        assert_eq!(
            (&object["metadata"]["namespace"], &object["involvedObject"]["name"]),
            (&json!("default"), &json!("n"))
        );
    }

    /// MC-074, MC-208: names and messages fit the limits of the API.
    #[tokio::test(start_paused = true)]
    async fn mc_207_no_object_gets_more_than_its_share() {
        let rate = Rate { qps: 1.0 / 60.0, burst: 3 };
        let mut state = State { rate, budgets: HashMap::new(), counts: HashMap::new() };
        let mut granted = |uid: &str| (0..10).filter(|_| state.may(uid, Instant::now())).count();
        assert_eq!((granted("a"), granted("a"), granted("b")), (3, 0, 3));
        tokio::time::advance(Duration::from_secs(121)).await;
        assert_eq!(granted("a"), 2);
        for i in 0..2 * REMEMBERED {
            state.may(&i.to_string(), Instant::now());
            state.remember(i.to_string(), 1, Instant::now());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(state.budgets.len() <= REMEMBERED && state.counts.len() <= REMEMBERED);
    }
}
