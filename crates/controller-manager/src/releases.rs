//! Labels the Secrets of Helm's releases, so that policies for charts select them (KS-A-12). Optional.
//!
//! Helm stores each revision of a release in a Secret with labels of Helm's own, while policies select charts
//! by the labels of their objects. So `helm list` shows nothing in a cluster that has all other objects of a
//! chart. This controller gives the Secrets the two labels that a chart's objects have by convention; the
//! binding controller does the rest. Helm writes such a Secret again when another revision supersedes it, and
//! may remove the labels; then they are added again.
//!
//! Costs one watch of the metadata of the Secrets, and one write for each Secret that lacks a label. Needs
//! permission to list, watch and patch Secrets, and reads no contents.

use std::fmt;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use runtime::{
    Event, Next, ObjectKey, PartialObject, Queue, Ready, Source, Store, TaskError, Tasks, failure, informer,
    informer::PartialMeta,
    metrics::Metrics,
    rest::{Gvr, Rest},
    work,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::shared::RETRIES;

/// Field manager of these writes.
const MANAGER: &str = "kubestellar-helm-releases";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const INSTANCE: &str = "app.kubernetes.io/instance";
const WORKERS: usize = 2;

/// The Secrets in which Helm stores releases. The type of a Secret is not metadata, so the server filters by
/// it.
fn secrets() -> Source {
    Source::of::<Secret>().labels("owner=helm").fields("type=helm.sh/release.v1").metadata()
}

/// Returns the release whose revision the Secret stores. Returns `None` unless labels and name agree, which
/// shows that Helm created it.
fn release(secret: &PartialMeta) -> Option<&str> {
    let label = |key: &str| secret.labels.get(key).map(|value| &**value);
    let release = label("name").filter(|_| label("owner") == Some("helm"))?;
    let revision =
        secret.name.strip_prefix("sh.helm.release.v1.")?.strip_prefix(release)?.strip_prefix(".v")?;
    let is_number = !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_digit());
    (!release.is_empty() && is_number).then_some(release)
}

/// Returns the merge patch that adds the labels to a release's Secret. Returns `None` if it has them, is
/// being deleted, or is not one of Helm's.
///
/// The patch names the UID, so that another Secret that takes the name in between is not changed.
pub fn labels_for(secret: &PartialMeta) -> Option<Value> {
    let release = release(secret).filter(|_| secret.deletion_timestamp.is_none())?;
    let has = |key: &str, value: &str| secret.labels.get(key).is_some_and(|it| **it == *value);
    if has(MANAGED_BY, "Helm") && has(INSTANCE, release) {
        return None;
    }
    Some(json!({"metadata": {"uid": secret.uid, "labels": {MANAGED_BY: "Helm", INSTANCE: release}}}))
}

/// Labels the releases of the space behind `wds` until `stop` is cancelled. Sets `ready` to true once every
/// Secret that existed at the start is known. The work queue is counted as `Releases-<WDS>`.
///
/// # Errors
///
/// If a task panics. Requests that fail are retried.
pub fn run(
    wds: Client,
    name: impl fmt::Display,
    metrics: Metrics,
    ready: Ready,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), TaskError>> {
    Box::pin(drive(wds, name.to_string(), metrics, ready, stop))
}

async fn drive(
    wds: Client,
    name: String,
    metrics: Metrics,
    ready: Ready,
    stop: CancellationToken,
) -> Result<(), TaskError> {
    let mut tasks = Tasks::new(&stop);
    let token = tasks.token().clone();
    let counted = metrics.queue(&format!("Releases-{name}"));
    let (known, queue) =
        (Store::<PartialObject>::default(), Queue::default().limited(RETRIES).observed(counted));
    let (adding, telling) = (queue.clone(), ready.clone());
    let handler = move |event: Event<PartialObject>| match event {
        Event::Added(secret) | Event::Updated { new: secret, .. } => {
            if labels_for(&secret.metadata).is_some() {
                adding.add(ObjectKey::new(&secret.metadata.namespace, &secret.metadata.name));
            }
        }
        Event::Deleted(_) => {}
        Event::Synced => {
            telling.send_replace(true);
        }
    };
    let follow = informer::run(wds.clone(), secrets(), known.clone(), handler, token.clone());
    tasks.spawn_endless("informer of releases", follow);
    let labeller = Labeller { rest: Rest::with_manager(wds, MANAGER), gvr: Gvr::of::<Secret>(), known };
    let worker = async move {
        work("releases", &queue, WORKERS, &token, move |key| {
            let labeller = labeller.clone();
            async move { labeller.label(&key).await }
        })
        .await;
    };
    tasks.spawn_endless("workers of releases", worker);
    let outcome = tasks.finish().await;
    ready.send_replace(false);
    outcome
}

#[derive(Clone)]
struct Labeller {
    rest: Rest,
    gvr: Gvr,
    known: Store<PartialObject>,
}

impl Labeller {
    async fn label(&self, key: &ObjectKey) -> Result<Next, kube::Error> {
        let Some(secret) = self.known.get_key(key) else { return Ok(Next::OnChange) };
        let Some(patch) = labels_for(&secret.metadata) else { return Ok(Next::OnChange) };
        match self.rest.merge_metadata::<PartialObject>(&self.gvr, &key.namespace, &key.name, &patch).await {
            Ok(_) => {
                tracing::info!(target: "lifecycle", secret = %key, "labelled a Helm release");
                Ok(Next::OnChange)
            }
            Err(error) if failure::is_not_found(&error) => Ok(Next::OnChange),
            // Another Secret has the name by now (Kubernetes reports that as invalid), or another client
            // wrote first.
            Err(error) if failure::is_conflict(&error) || self.is_another(key, &secret.metadata) => {
                tracing::debug!(secret = %key, %error, "labelling a Helm release");
                Ok(Next::Retry)
            }
            Err(error) => Err(error),
        }
    }

    fn is_another(&self, key: &ObjectKey, secret: &PartialMeta) -> bool {
        self.known.get_key(key).is_none_or(|now| now.metadata.uid != secret.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, labels: &str, going: bool) -> PartialMeta {
        let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
        PartialMeta {
            name: name.into(),
            namespace: "ledger".into(),
            uid: "u-1".into(),
            labels: pairs.map(|(key, value)| (key.into(), value.into())).collect(),
            deletion_timestamp: going.then(|| "2026-01-01T00:00:00Z".into()),
            ..PartialMeta::default()
        }
    }

    /// KS-A-12: which Secrets are labelled, and with which labels.
    #[test]
    fn ks_a_12_what_becomes_of_a_secret() {
        const V1: &str = "sh.helm.release.v1.ledger.v1";
        let helm = "owner=helm,name=ledger,status=deployed,version=1,modifiedAt=1767225600";
        let done = "app.kubernetes.io/managed-by=Helm,app.kubernetes.io/instance=ledger";
        let with = |more: &str| format!("{helm},{more}");
        let cases = [
            ("as Helm writes it", V1, helm.to_owned(), Some("ledger")),
            ("labelled already", V1, with(done), None),
            ("one is missing", V1, with("app.kubernetes.io/managed-by=Helm"), Some("ledger")),
            ("the other is missing", V1, with("app.kubernetes.io/instance=ledger"), Some("ledger")),
            ("one differs", V1, with(&done.replace("=Helm", "=helm")), Some("ledger")),
            ("another release's", V1, with(&done.replace("ledger", "other")), Some("ledger")),
            ("superseded", V1, helm.replace("deployed", "superseded"), Some("ledger")),
            ("a later revision", "sh.helm.release.v1.ledger.v12", helm.to_owned(), Some("ledger")),
            (
                "a name with dots",
                "sh.helm.release.v1.a.v2.v3",
                "owner=helm,name=a.v2".to_owned(),
                Some("a.v2"),
            ),
            ("not Helm's", V1, "owner=me,name=ledger".to_owned(), None),
            ("no owner", V1, "name=ledger".to_owned(), None),
            ("no release", V1, "owner=helm".to_owned(), None),
            ("an empty release", "sh.helm.release.v1..v1", "owner=helm,name=".to_owned(), None),
            ("another name", "ledger", helm.to_owned(), None),
            ("of another release", "sh.helm.release.v1.ledger2.v1", helm.to_owned(), None),
            ("no revision", "sh.helm.release.v1.ledger.v", helm.to_owned(), None),
            ("no number", "sh.helm.release.v1.ledger.v1a", helm.to_owned(), None),
        ];
        for (why, name, labels, release) in cases {
            let patch = release.map(|release| {
                json!({"metadata": {"uid": "u-1", "labels": {
                    "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": release}}})
            });
            assert_eq!(labels_for(&secret(name, &labels, false)), patch, "{why}");
            assert_eq!(labels_for(&secret(name, &labels, true)), None, "{why}, on its way out");
        }
    }
}
