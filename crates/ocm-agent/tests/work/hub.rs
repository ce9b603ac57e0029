//! Hubs that are unreachable, come back, are rebuilt or replaced.

use std::time::Duration;

use kubestellar_ocm_agent::work_agent::{Config, hub_hash};
use serde_json::{Value, json};

use crate::world::*;

/// Removes the finalizer of a work while no agent runs, so that the work disappears without a trace.
async fn force_remove(w: &World, name: &str) {
    w.hub.merge(WORKS, CLUSTER, name, json!({"metadata": {"finalizers": null}})).await;
    w.hub.delete(WORKS, CLUSTER, name).await;
}

fn evicting(a: Option<&Value>) -> Option<()> {
    a?["status"]["evictionStartTime"].is_string().then_some(())
}

/// OCM-A-63; OCM-096: objects of a work that no longer exists are removed after the grace period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_096_eviction() {
    let w = World::start().await;
    let config = || Config { eviction_grace: Duration::from_secs(1), ..World::config() };
    let agent = w.agent(config()).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    agent.end().await;
    force_remove(&w, "reef").await;
    let agent = w.agent(config()).await;
    w.cluster.until_gone(APPLIED, "", &applied_name("reef")).await;
    assert!(w.cluster.get(MAPS, "sea", "cm").await.is_none());
    agent.end().await;
    w.end().await;
}

/// OCM-A-63, OCM-A-65; OCM-096: a work that is recreated in time, without its status, keeps its objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_096_a_work_that_comes_back() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    let before = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    agent.end().await;
    force_remove(&w, "reef").await;
    let agent = w.agent(World::config()).await;
    w.cluster.until(APPLIED, "", &applied_name("reef"), "its eviction begins", evicting).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    let kept = |a: Option<&Value>| (a.is_some() && evicting(a).is_none()).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "its eviction is off", kept).await;
    assert_eq!(w.cluster.get(MAPS, "sea", "cm").await, Some(before));
    agent.end().await;
    w.end().await;
}

/// OCM-096, OCM-015: a hub that lost most of its works is treated as an accident: nothing is evicted, unless
/// that is requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_096_a_hub_that_was_put_back() {
    let w = World::start().await;
    let config = |mass| Config {
        eviction_grace: Duration::from_millis(100),
        allow_mass_eviction: mass,
        ..World::config()
    };
    let agent = w.agent(config(false)).await;
    let names: Vec<String> = (0..6).map(|i| format!("reef{i}")).collect();
    for name in &names {
        w.work(name, holding(&[map(name, "1")])).await;
        w.settled(name).await;
    }
    agent.end().await;
    for name in &names {
        force_remove(&w, name).await;
    }
    let agent = w.agent(config(false)).await;
    let all = |all: &Objects| all.values().all(|a| evicting(Some(a)).is_some()).then_some(all.len());
    assert_eq!(w.cluster.until_all(APPLIED, "", "all evictions begin", all).await, 6);
    w.work("new", holding(&[map("new", "1")])).await;
    w.settled("new").await;
    agent.end().await;
    let left = w.cluster.until_all(MAPS, "sea", "a list", |all| Some(all.len())).await;
    assert!(left >= 7, "{left}");
    let agent = w.agent(config(true)).await;
    let gone = |all: &Objects| all.keys().all(|key| !key.name.starts_with("reef")).then_some(());
    w.cluster.until_all(MAPS, "sea", "all evicted", gone).await;
    assert!(w.cluster.get(MAPS, "sea", "new").await.is_some());
    agent.end().await;
    w.end().await;
}

/// OCM-A-64; OCM-071, OCM-096: a new hub takes over without the deletion of an object; an agent with another
/// ID leaves everything as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_096_a_switch_of_hubs() {
    const NEW: &str = "https://other.example:6443";
    let w = World::start().await;
    let of = |url: &str, id: &str| Config {
        agent_id: id.into(),
        hub_url: url.into(),
        eviction_grace: Duration::from_millis(500),
        ..World::config()
    };
    let agent = w.agent(of(HUB, "ship")).await;
    w.work("reef", holding(&[map("cm", "1"), map("old", "1")])).await;
    w.settled("reef").await;
    let before = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    agent.end().await;
    let new = format!("{}-reef", hub_hash(NEW));

    let stranger = w.agent(of(NEW, "another")).await;
    let two = |m: Option<&Value>| (owners(m?).len() == 2).then_some(());
    w.cluster.until(MAPS, "sea", "cm", "two owners", two).await;
    stranger.end().await;

    w.edit("reef", holding(&[map("cm", "1")])).await;
    let agent = w.agent(of(NEW, "ship")).await;
    w.cluster.until_gone(APPLIED, "", &applied_name("reef")).await;
    let after = w.cluster.get(MAPS, "sea", "cm").await.expect("never deleted");
    assert_eq!((uid(&after), owners(&after)), (uid(&before), vec![new.as_str()]));
    w.cluster.until_gone(MAPS, "sea", "old").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-66; OCM-099: without its hub the agent continues to correct drift and removes nothing; when the hub
/// is back, it processes everything it missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_099_a_hub_that_goes_and_returns() {
    let mut w = World::start().await;
    let config = Config {
        eviction_grace: Duration::from_millis(100),
        reapply: Duration::from_millis(200),
        ..World::config()
    };
    let agent = w.agent(config).await;
    let rules = json!({"feedbackRules": [{"type": "WellKnownStatus"}]});
    let spec = configured(&[map("cm", "1"), deployment("web", 2)], "apps/deployments", "web", rules);
    w.work("reef", spec).await;
    w.work("gone", holding(&[map("other", "1")])).await;
    w.settled("reef").await;
    w.settled("gone").await;
    let before = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");

    w.hub_goes().await;
    w.at_hub.more(2, |_| true).await;
    for value in ["by hand", "again"] {
        w.cluster.merge(MAPS, "sea", "cm", json!({"data": {"a": value}})).await;
        w.cluster.until(MAPS, "sea", "cm", "put right", |m| (m?["data"]["a"] == "1").then_some(())).await;
    }
    let status = json!({"status": {"replicas": 2, "readyReplicas": 1}});
    w.cluster.merge_status(DEPLOYMENTS, "sea", "web", status).await;
    let applied = w.cluster.get(APPLIED, "", &applied_name("reef")).await;
    assert_eq!(evicting(applied.as_ref()), None);

    w.hub = w.hub_returns().await;
    let ready = |w: &Value| {
        let values = &w["status"]["resourceStatus"]["manifests"][1]["statusFeedback"]["values"];
        values.as_array().is_some_and(|v| v.iter().any(|v| v["name"] == "ReadyReplicas"))
    };
    w.reported("reef", "what was missed", ready).await;
    w.hub.delete(WORKS, CLUSTER, "gone").await;
    w.hub.until_gone(WORKS, CLUSTER, "gone").await;
    w.cluster.until_gone(MAPS, "sea", "other").await;
    let after = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    assert_eq!(uid(&after), uid(&before));
    agent.end().await;
    w.end().await;
}

/// OCM-096: an agent that never evicts forgets when an eviction began, so that a later setting does not count from then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_096_an_eviction_that_is_called_off() {
    let w = World::start().await;
    let never = Duration::from_secs(100 * 365 * 24 * 3600);
    let config = |grace| Config { eviction_grace: grace, ..World::config() };
    let agent = w.agent(config(Duration::from_secs(3600))).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    agent.end().await;
    force_remove(&w, "reef").await;
    let agent = w.agent(config(Duration::from_secs(3600))).await;
    w.cluster.until(APPLIED, "", &applied_name("reef"), "its eviction begins", evicting).await;
    agent.end().await;
    let agent = w.agent(config(never)).await;
    let kept = |a: Option<&Value>| (a.is_some() && evicting(a).is_none()).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "its eviction is off", kept).await;
    agent.end().await;
    w.end().await;
}

/// OCM-071: an agent whose kubeconfig spells the hub's address with a slash at the end, or without, goes on with what it finds
/// under either name: nothing gets a second owner, and a deleted work leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_071_either_spelling_of_the_hub_continues() {
    let w = World::start().await;
    let slash = format!("{HUB}/");
    let of = |url: &str| Config { hub_url: url.into(), ..World::config() };
    let agent = w.agent(of(HUB)).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    let before = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    agent.end().await;

    let agent = w.agent(of(&slash)).await;
    w.edit("reef", holding(&[map("cm", "2")])).await;
    w.settled("reef").await;
    w.work("new", holding(&[map("other", "1")])).await;
    w.settled("new").await;
    let after = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    assert_eq!((uid(&after), owners(&after)), (uid(&before), vec![applied_name("reef").as_str()]));
    let fresh = w.cluster.get(MAPS, "sea", "other").await.expect("other");
    assert_eq!(owners(&fresh), [format!("{}-new", hub_hash(&slash))]);
    agent.end().await;

    let agent = w.agent(of(HUB)).await;
    for name in ["reef", "new"] {
        w.hub.delete(WORKS, CLUSTER, name).await;
        w.hub.until_gone(WORKS, CLUSTER, name).await;
    }
    w.cluster.until_gone(MAPS, "sea", "cm").await;
    w.cluster.until_gone(MAPS, "sea", "other").await;
    let left = w.cluster.until_all(APPLIED, "", "a list", |all| Some(all.len())).await;
    assert_eq!(left, 0);
    agent.end().await;
    w.end().await;
}
