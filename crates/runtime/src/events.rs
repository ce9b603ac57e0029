//! Events on objects, for users who look at them (`kubectl describe`): what is said again is counted up instead of
//! repeated, also by the next process, and no object gets more than its share.
//!
//! ```
//! # use kubestellar_runtime::events::{About, Said};
//! let object = serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u"}});
//! let said = Said::warning(About::object(&object), "TooHot", "it glows");
//! # let _ = said;
//! ```
//!
//! A [`Recorder`] writes one when asked to; [`Events`] hands them to a task of their own ([`write`]), for those who
//! don't want to wait.

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
    limiter::{Bucket, Rate},
    rest::{Gvr, Rest},
};

/// Events that wait for the task; more are dropped.
const WAITING: usize = 1024;
/// Objects and Events that are remembered.
const REMEMBERED: usize = 4096;
/// What the API takes of a message, in bytes.
const MESSAGE: usize = 1024;
/// What of an object's name goes into the Event's, so that there is room for the rest.
const NAME: usize = 200;

/// The object that an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Empty for cluster-scoped objects, whose Events are in `default`.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
}

impl About {
    /// Reads what is needed from an object.
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

/// One thing to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    about: About,
    warning: bool,
    reason: &'static str,
    message: String,
}

impl Said {
    /// Something is as it should be.
    pub fn normal(about: About, reason: &'static str, message: impl Into<String>) -> Self {
        Self { about, warning: false, reason, message: cut(message.into()) }
    }

    /// Something is wrong.
    pub fn warning(about: About, reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(about, reason, message) }
    }

    /// The same for the same message about the same object, so that it is counted instead of repeated.
    fn name(&self, component: &str) -> String {
        // Not for security: different messages must have different names with good odds, here and in the next process.
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
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": "",
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

/// Writes Events of one component.
pub struct Recorder {
    rest: Rest,
    component: &'static str,
    events: Gvr,
    state: Mutex<State>,
}

struct State {
    rate: Rate,
    /// By UID of the object.
    budgets: HashMap<String, Bucket>,
    /// How often an Event was said, and when last, by its name.
    counts: HashMap<String, (i64, Instant)>,
}

impl Recorder {
    /// Writes in the name of `component`, at this rate for each object.
    pub fn new(rest: Rest, component: &'static str, rate: Rate) -> Self {
        let state = State { rate, budgets: HashMap::new(), counts: HashMap::new() };
        Self { rest, component, events: Gvr::new("", "v1", "events"), state: Mutex::new(state) }
    }

    /// Writes an Event, unless its object has had its share. One request, three where another process said the same.
    pub fn record<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.send(said))
    }

    async fn send(&self, said: &Said) -> Result<(), Error> {
        let now = Instant::now();
        if !self.state.lock().may(&said.about.uid, now) {
            return Ok(());
        }
        let name = said.name(self.component);
        let known = self.state.lock().counts.get(&name).map(|(count, _)| *count);
        let counted = match known {
            Some(count) => self.count(said, &name, count).await?,
            None => None,
        };
        let count = match counted {
            Some(count) => count,
            None => self.create(said, &name).await?,
        };
        self.state.lock().remember(name, count, now);
        Ok(())
    }

    async fn create(&self, said: &Said, name: &str) -> Result<i64, Error> {
        let place = said.about.place();
        let body = said.object(self.component, name, &stamp()).to_string().into_bytes();
        match self.rest.create::<IgnoredAny>(&self.events, place, body).await {
            Ok(_) => return Ok(1),
            Err(error) if is_already_exists(&error) => {}
            Err(error) => return Err(error),
        }
        let there: Option<Value> = match self.rest.find(&self.events, place, name).await {
            Ok(there) => there,
            // Who may only create and patch, as the customary roles say, counts from one.
            Err(error) if is_forbidden(&error) => None,
            Err(error) => return Err(error),
        };
        let count = there.as_ref().and_then(|it| it.get("count")).and_then(Value::as_i64).unwrap_or(1);
        // One that expired between the two requests is not worth a third.
        Ok(self.count(said, name, count).await?.unwrap_or(1))
    }

    /// Counts up; none if the Event has expired.
    async fn count(&self, said: &Said, name: &str, count: i64) -> Result<Option<i64>, Error> {
        let count = count.saturating_add(1);
        let patch = json!({"count": count, "lastTimestamp": stamp()});
        match self.rest.merge::<IgnoredAny>(&self.events, said.about.place(), name, &patch).await {
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
            // As many objects in trouble at once: whoever was refused for long may speak again.
            self.budgets.clear();
        }
        let rate = self.rate;
        self.budgets.entry(uid.to_owned()).or_insert_with(|| Bucket::new(rate, now)).take(now)
    }

    fn remember(&mut self, name: String, count: i64, now: Instant) {
        if self.counts.len() >= REMEMBERED {
            // The older half goes.
            let by_use: BTreeSet<Instant> = self.counts.values().map(|(_, at)| *at).collect();
            if let Some(middle) = by_use.iter().nth(by_use.len() / 2).copied() {
                self.counts.retain(|_, (_, at)| *at > middle);
            }
        }
        self.counts.insert(name, (count, now));
    }
}

/// Takes Events to be written by a task; a clone is the same. Also logs them.
#[derive(Clone)]
pub struct Events(mpsc::Sender<Said>);

/// Events that wait.
pub struct Inbox(mpsc::Receiver<Said>);

impl Events {
    /// And what writes them, to be given to [`write`].
    pub fn new() -> (Self, Inbox) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), Inbox(receiver))
    }

    /// Something normal happened to `object`.
    pub fn normal(&self, object: &Value, reason: &'static str, message: impl Into<String>) {
        self.say(Said::normal(About::object(object), reason, message));
    }

    /// Something is wrong with `object`.
    pub fn warning(&self, object: &Value, reason: &'static str, message: impl Into<String>) {
        self.say(Said::warning(About::object(object), reason, message));
    }

    fn say(&self, said: Said) {
        let Said { about: About { kind, namespace, name, .. }, reason, message, .. } = &said;
        if said.warning {
            tracing::warn!(kind, namespace, name, reason, message);
        } else {
            tracing::info!(kind, namespace, name, reason, message);
        }
        // A full queue means that the server doesn't keep up; more events would not help it.
        let _ = self.0.try_send(said);
    }
}

/// Writes Events until `stop`, then those that wait already, for two seconds at most.
pub fn write(recorder: Recorder, inbox: Inbox, stop: CancellationToken) -> BoxFuture<'static, ()> {
    Box::pin(drain(recorder, inbox, stop))
}

async fn drain(recorder: Recorder, mut inbox: Inbox, stop: CancellationToken) {
    let record = async |said: Said| {
        if let Err(error) = recorder.record(&said).await {
            // One that gets lost is no reason to do anything again.
            tracing::debug!(%error, reason = said.reason, "an event was not written");
        }
    };
    loop {
        tokio::select! {
            said = inbox.0.recv() => match said {
                Some(said) => record(said).await,
                None => return,
            },
            () = stop.cancelled() => break,
        }
    }
    inbox.0.close();
    let rest = async {
        while let Some(said) = inbox.0.recv().await {
            record(said).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), rest).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, message: &str) -> Said {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": "u"}});
        Said::warning(About::object(&object), "R", message)
    }

    #[test]
    fn names_and_messages_are_as_the_api_takes_them() {
        let long = said(&"x".repeat(253), &"ä".repeat(2000));
        let name = long.name("c");
        assert!(name.len() <= 253 && long.message.len() <= MESSAGE && long.message.ends_with('…'), "{name}");
        assert_eq!(name, said(&"x".repeat(253), &"ä".repeat(2000)).name("c"), "said again it is the same");
        assert_ne!(said("n", "a").name("c"), said("n", "b").name("c"));
        assert_ne!(said("n", "a").name("c"), said("n", "a").name("d"));
        let cut_at_a_dot = said(&format!("{}.y", "x".repeat(199)), "m").name("c");
        assert!(!cut_at_a_dot.contains(".."), "{cut_at_a_dot}");
        let object = said("n", "a").object("c", "e", "t");
        assert_eq!(
            (&object["metadata"]["namespace"], &object["involvedObject"]["name"]),
            (&json!("default"), &json!("n"))
        );
    }

    /// MC-074, MC-207: an object gets its burst, then at the rate; others are not concerned.
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
