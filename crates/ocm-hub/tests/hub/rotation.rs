//! Certificates that are renewed while works are delivered.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use kube::{Client, client::Body};
use ocm_agent::{
    registration::{Endpoint, Timers, over_tls},
    work_agent,
};
use ocm_shared::rbac::Subject;
use parking_lot::Mutex;
use runtime::rest::{Removal, Rest};
use serde_json::{Value, json};
use space::{
    Identity,
    listener::{Certificate, Listener, Router},
    pki,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::world::*;

/// The lifetime of a certificate, and its backdating, in seconds. A fifth to a quarter of both is 18 to 22.5
/// s: so a certificate is renewed after 7.5 to 12 s, and 18 s are left for that.
const LIFE: (u64, u64) = (30, 60);

/// The hub on a socket, with TLS.
struct Front {
    endpoint: Endpoint,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    _data: tempfile::TempDir,
}

impl Front {
    async fn open(w: &World) -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let serving = pki::serving(data.path(), &[], SystemTime::now()).expect("a certificate");
        let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
        let endpoint = Endpoint::new(&format!("https://{}/spaces/its1", listener.address()), &serving.ca_pem);
        let router = Arc::new(Router::default());
        router.add("its1", w.spaces[0].server().service());
        let certificate = Arc::new(Certificate::new(&serving).expect("a certificate"));
        let stop = CancellationToken::new();
        let token = stop.clone();
        let serving = tokio::spawn(async move {
            listener.serve(certificate, router, token.clone(), token).await.expect("served");
        });
        Self { endpoint, stop, serving, _data: data }
    }

    async fn close(self) {
        self.stop.cancel();
        self.serving.await.expect("no panic");
    }
}

/// A client that records the requests refused because of its identity.
fn noting(inner: Client, refused: Arc<Mutex<Vec<String>>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (inner, refused) = (inner.clone(), refused.clone());
        async move {
            let line = format!("{} {}", request.method(), request.uri());
            let answer = inner.send(request).await;
            match &answer {
                Ok(answer) if matches!(answer.status().as_u16(), 401 | 403) => {
                    refused.lock().push(format!("{}: {line}", answer.status()));
                }
                Ok(_) => {}
                Err(error) => refused.lock().push(format!("{error}: {line}")),
            }
            answer.map_err(tower::BoxError::from)
        }
    });
    Client::new(service, "default")
}

/// The certificate that the cluster's agents use.
async fn certificate(w: &World) -> String {
    w.secret(1).await.expect("a secret")["data"]["tls.crt"].to_string()
}

/// The requests to join.
async fn to_join(w: &World) -> Vec<Value> {
    let requests = w.requests("c1").await;
    requests
        .into_iter()
        .filter(|r| r["spec"]["username"] == BOOTSTRAP)
        .map(|r| r["metadata"]["uid"].clone())
        .collect()
}

/// Creates, changes and deletes works, one after the other, and waits for the effect of each.
struct Load<'a> {
    w: &'a World,
    changes: usize,
    there: BTreeSet<String>,
}

impl Load<'_> {
    async fn change(&mut self) {
        let (hub, works) = (self.w.hub(), gvr("manifestworks"));
        let (name, value) = (format!("w{}", self.changes % 3), self.changes.to_string());
        self.changes += 1;
        let maps = gvr("configmaps");
        if self.changes.is_multiple_of(7) && self.there.remove(&name) {
            hub.delete(&works, "c1", &name, &Removal::default()).await.expect("deleted");
            until("the end of a work", || async { !self.w.exists("manifestworks", "c1", &name).await }).await;
            let left: Option<Value> = self.w.admin(1).find(&maps, "default", &name).await.expect("an answer");
            assert_eq!(left, None, "it ends after what it delivered");
            return;
        }
        let manifests = json!([map(&name, &value)]);
        if self.there.insert(name.clone()) {
            create(&hub, &works, "c1", holding(&name, &[map(&name, &value)])).await.expect("a work");
        } else {
            let patch = json!({"spec": {"workload": {"manifests": manifests}}});
            hub.merge::<Value>(&works, "c1", &name, &patch).await.expect("changed");
        }
        until("the report", || async {
            let work: Value = hub.get(&works, "c1", &name).await.expect("a work");
            let applied = condition(&work, "Applied");
            assert_ne!(applied["status"], "False", "{work:#}");
            applied["observedGeneration"] == work["metadata"]["generation"]
        })
        .await;
        let live: Value = self.w.admin(1).get(&maps, "default", &name).await.expect("delivered");
        assert_eq!(live["data"]["a"], value);
    }
}

/// OCM-A-07, OCM-037, OCM-057: certificates with a lifetime of half a minute are renewed three times and
/// more, and the first of them expires, while works are created, changed and deleted all the time, over TLS.
/// No request of the agents is refused or aborted, every delivery arrives, and the agent joins once. OCM-058:
/// when denied, it has no access, although its certificate is still valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_057_rotation_under_load() {
    let setting = Setting { certificates: Some(LIFE), bare: false };
    let w = World::start_as(setting, trusting).await;
    let front = Front::open(&w).await;
    let refused: Arc<Mutex<Vec<String>>> = Arc::default();
    let (noted, connect) = (refused.clone(), over_tls(front.endpoint.clone()));
    let agent = w.agent(1, "c1", |config| {
        config.endpoint = front.endpoint.clone();
        config.connect = Arc::new(move |credential| {
            let (connected, refused) = (connect(credential), noted.clone());
            Box::pin(async move { connected.await.map(|client| noting(client, refused)) })
        });
        // The default interval: a due certificate is noticed in time nevertheless.
        config.timers.secret = Timers::default().secret;
    });
    w.until_condition("c1", AVAILABLE, "True").await;
    // The agent may have sent requests before it was accepted.
    refused.lock().clear();
    let since = condition(&w.cluster("c1").await.expect("c1"), AVAILABLE)["lastTransitionTime"].clone();
    let who = Subject::work_agent_account();
    let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
    let cluster = w.spaces[1].client(&Identity::component(&who.user, &groups));
    let config = work_agent::Config::new("c1", HUB);
    let (mut ready, stop) = (config.ready.subscribe(), CancellationToken::new());
    let (hub, token) = (agent.rest().client().clone(), stop.clone());
    let delivering =
        tokio::spawn(async move { work_agent::run(hub, cluster, config, token).await.expect("work agent") });
    ready.wait_for(|yes| *yes).await.expect("it works");

    let joined = to_join(&w).await;
    assert_eq!(joined.len(), 1);
    let first_ends = tokio::time::Instant::now() + Duration::from_secs(LIFE.0);
    let mut certificates = vec![certificate(&w).await];
    let mut load = Load { w: &w, changes: 0, there: BTreeSet::new() };
    let all = async {
        while certificates.len() < 4 || tokio::time::Instant::now() < first_ends {
            load.change().await;
            let now = certificate(&w).await;
            if certificates.last() != Some(&now) {
                certificates.push(now);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(300), all).await.expect("three rotations");
    assert_eq!(*refused.lock(), Vec::<String>::new());
    assert!(load.changes > certificates.len(), "{} changes", load.changes);
    // Requests are deleted when their certificate has expired; a second request to join would be new.
    assert!(to_join(&w).await.iter().all(|uid| *uid == joined[0]), "it joined once");
    let member = w.cluster("c1").await.expect("c1");
    assert_eq!(condition(&member, AVAILABLE)["lastTransitionTime"], since, "available all the time");
    assert_eq!(condition(&member, "ClusterCertificateRotated")["status"], "True");
    let secret = w.secret(1).await.expect("a secret");
    let keys: Vec<&String> = secret["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["agent-name", "cluster-name", "kubeconfig", "tls.crt", "tls.key"]);

    for name in load.there {
        w.hub().delete(&gvr("manifestworks"), "c1", &name, &Removal::default()).await.expect("deleted");
        until("the end of a work", || async { !w.exists("manifestworks", "c1", &name).await }).await;
    }
    let held = Rest::new(agent.rest().client().clone());
    held.list::<Value>(&gvr("manifestworks"), "c1", "").await.expect("it has access");
    w.accept("c1", false).await;
    w.until_condition("c1", ACCEPTED, "False").await;
    let answer = held.list::<Value>(&gvr("manifestworks"), "c1", "").await;
    assert_eq!(answer.as_ref().err().map(runtime::failure::code_of), Some(403));
    stop.cancel();
    delivering.await.expect("no panic");
    agent.end().await;
    front.close().await;
    w.end().await;
}
