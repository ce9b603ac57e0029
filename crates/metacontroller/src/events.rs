//! Events on objects (MC-074, MC-207): said again they count up, and no object gets more than its share.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use runtime::rest::{Gvr, Rest, is_not_found};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::object;

/// Events that wait to be written; more are dropped.
const WAITING: usize = 1024;
/// Objects and texts that are remembered.
const REMEMBERED: usize = 4096;
/// Longest message, in bytes.
const MESSAGE: usize = 1024;

/// How many events an object may get.
#[derive(Clone, Copy, Debug)]
pub struct EventRate {
    /// Events a second in the long run.
    pub qps: f64,
    /// Events at once.
    pub burst: u32,
}

impl Default for EventRate {
    /// One in five minutes, 25 at once.
    fn default() -> Self {
        Self { qps: 1.0 / 300.0, burst: 25 }
    }
}

/// Takes events to be written; a clone is the same.
#[derive(Clone)]
pub struct Events(mpsc::Sender<Said>);

struct Said {
    about: Value,
    warning: bool,
    reason: &'static str,
    message: String,
}

impl Events {
    /// And what writes them, to be given to [`write`].
    pub fn new() -> (Self, Inbox) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), Inbox(receiver))
    }

    /// Something normal happened to `object`.
    pub fn normal(&self, object: &Value, reason: &'static str, message: impl Into<String>) {
        self.say(object, false, reason, message.into());
    }

    /// Something is wrong with `object`.
    pub fn warning(&self, object: &Value, reason: &'static str, message: impl Into<String>) {
        self.say(object, true, reason, message.into());
    }

    fn say(&self, object: &Value, warning: bool, reason: &'static str, mut message: String) {
        let name = object::display(object::namespace(object), object::name(object));
        if warning {
            tracing::warn!(object = name, kind = object::kind(object), reason, message);
        } else {
            tracing::info!(object = name, kind = object::kind(object), reason, message);
        }
        if message.len() > MESSAGE {
            let end = (0..=MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
            message.truncate(end);
        }
        let about = json!({
            "apiVersion": object::api_version(object),
            "kind": object::kind(object),
            "namespace": object::namespace(object),
            "name": object::name(object),
            "uid": object::uid(object),
            "resourceVersion": object::resource_version(object),
        });
        // A full queue means that the server doesn't keep up; more events would not help it.
        let _ = self.0.try_send(Said { about, warning, reason, message });
    }
}

/// Events that wait.
pub struct Inbox(mpsc::Receiver<Said>);

struct Known {
    name: String,
    namespace: String,
    count: u64,
    used: Instant,
}

struct Budget {
    tokens: f64,
    at: Instant,
}

/// Writes events until `stop`, then those that wait already, for two seconds at most. One request for an event.
pub async fn write(rest: Rest, mut inbox: Inbox, rate: EventRate, stop: CancellationToken) {
    let mut writer = Writer { rest, rate, known: HashMap::new(), budgets: HashMap::new() };
    loop {
        tokio::select! {
            said = inbox.0.recv() => match said {
                Some(said) => writer.write(said).await,
                None => return,
            },
            () = stop.cancelled() => break,
        }
    }
    inbox.0.close();
    let rest = async {
        while let Some(said) = inbox.0.recv().await {
            writer.write(said).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), rest).await;
}

struct Writer {
    rest: Rest,
    rate: EventRate,
    known: HashMap<(String, &'static str, String), Known>,
    budgets: HashMap<String, Budget>,
}

impl Writer {
    async fn write(&mut self, said: Said) {
        let uid = said.about["uid"].as_str().unwrap_or_default().to_owned();
        if !self.may(&uid) {
            return;
        }
        let gvr = Gvr::new("", "v1", "events");
        let key = (uid, said.reason, said.message.clone());
        let now = machinery::time::now();
        if let Some(known) = self.known.get_mut(&key) {
            known.count += 1;
            known.used = Instant::now();
            let patch = json!({"count": known.count, "lastTimestamp": now});
            match self.rest.merge::<Value>(&gvr, &known.namespace, &known.name, &patch).await {
                Ok(_) => return,
                Err(error) if is_not_found(&error) => {}
                Err(error) => return tracing::debug!(%error, "an event was not written"),
            }
        }
        let text = |field: &str| said.about[field].as_str().unwrap_or_default();
        let namespace = if text("namespace").is_empty() { "default" } else { text("namespace") };
        let unique = jiff::Timestamp::now().as_nanosecond();
        let name = format!("{}.{unique:x}", text("name"));
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": said.about,
            "type": if said.warning { "Warning" } else { "Normal" },
            "reason": said.reason,
            "message": said.message,
            "source": {"component": "metacontroller"},
            "reportingComponent": "metacontroller",
            "reportingInstance": "",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        if let Err(error) = self.rest.create::<Value>(&gvr, namespace, event.to_string().into_bytes()).await {
            return tracing::debug!(%error, "an event was not written");
        }
        if self.known.len() >= REMEMBERED {
            forget_oldest(&mut self.known);
        }
        let known = Known { name, namespace: namespace.to_owned(), count: 1, used: Instant::now() };
        self.known.insert(key, known);
    }

    fn may(&mut self, uid: &str) -> bool {
        let (now, burst) = (Instant::now(), f64::from(self.rate.burst));
        if self.budgets.len() >= REMEMBERED {
            let qps = self.rate.qps;
            self.budgets.retain(|_, b| b.tokens + now.duration_since(b.at).as_secs_f64() * qps < burst);
        }
        let budget = self.budgets.entry(uid.to_owned()).or_insert(Budget { tokens: burst, at: now });
        budget.tokens =
            (budget.tokens + now.duration_since(budget.at).as_secs_f64() * self.rate.qps).min(burst);
        budget.at = now;
        let may = budget.tokens >= 1.0;
        if may {
            budget.tokens -= 1.0;
        }
        may
    }
}

/// Drops the older half.
fn forget_oldest(known: &mut HashMap<(String, &'static str, String), Known>) {
    let by_use: BTreeSet<Instant> = known.values().map(|one| one.used).collect();
    if let Some(middle) = by_use.iter().nth(by_use.len() / 2) {
        let middle = *middle;
        known.retain(|_, one| one.used > middle);
    }
}
