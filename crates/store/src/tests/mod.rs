//! The store against a model of histories, across restarts, crashes and refusing disks.

mod ahead;
mod behaviour;
mod damage;
mod deciding;
mod device;
mod faults;
mod migration;
mod model;
mod outage;

use std::sync::Arc;

use bytes::Bytes;

use crate::*;

fn collection(plural: &str) -> Collection {
    Collection::new("", plural)
}

fn key(plural: &str, namespace: &str, name: &str) -> Key {
    Key { collection: collection(plural), namespace: namespace.into(), name: name.into() }
}

fn scope(plural: &str, namespace: Option<&str>) -> Scope {
    Scope { namespace: namespace.map(Into::into), ..Scope::all(collection(plural)) }
}

fn encoded(text: &str) -> Encoded {
    let mut meta = Meta { uid: format!("uid-{text}").into(), ..Meta::default() };
    meta.labels.insert("text".into(), text.into());
    Encoded {
        head: Bytes::from(format!("{{\"data\":\"{text}\",\"rv\":\"")),
        tail: Bytes::from_static(b"\"}"),
        meta,
    }
}

fn value(text: &str, revision: Revision) -> String {
    format!("{{\"data\":\"{text}\",\"rv\":\"{revision}\"}}")
}

fn put(key: Key, expect: Expect, text: &str) -> Write {
    Write { key, expect, action: Action::Put(encoded(text)) }
}

fn delete(key: Key, at: Revision, text: &str) -> Write {
    Write { key, expect: Expect::At(at), action: Action::Delete(encoded(text)) }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// An event in one line.
fn show(event: &Arc<Event>) -> String {
    let was = event.previous.as_ref().map_or(0, |previous| previous.revision.0);
    let Key { namespace, name, .. } = &event.entry.key;
    format!("{:?} {namespace}/{name} {} was {was}", event.kind, event.entry.revision)
}

/// Everything the watch has now.
fn drain(watch: &mut Watch) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        seen.push(show(&event));
    }
    seen
}

/// How many random cases a test tries: `PROPTEST_CASES` if it is set.
fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}
