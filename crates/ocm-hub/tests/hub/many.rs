//! The cost of many clusters for a hub, in requests.

use std::collections::BTreeMap;

use ocm_agent::registration;
use serde_json::{Value, json};

use crate::world::{ACCEPTED, AVAILABLE, CLOCK, World, gvr, taints, trusting};

const CLUSTERS: usize = 24;

fn lease(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    let (_, verb, uri) = (words.next()?, words.next()?, words.next()?);
    let rest = uri.strip_prefix("/apis/coordination.k8s.io/v1/namespaces/")?;
    let (cluster, name) = rest.split_once("/leases/")?;
    name.starts_with("managed-cluster-lease").then_some((verb, cluster))
}

/// Lets every agent renew its lease twice more. Returns how often leases were read and written since `mark`,
/// and the other requests, except reopened watches.
async fn window(w: &World, mark: usize) -> (usize, usize, Vec<String>) {
    let from = w.requests.mark();
    crate::world::until("two renewals of everyone", || async {
        let mut renewed: BTreeMap<String, usize> = BTreeMap::new();
        for line in w.requests.since(from) {
            if let Some(("PUT", cluster)) = lease(&line) {
                *renewed.entry(cluster.to_owned()).or_default() += 1;
            }
        }
        renewed.len() == CLUSTERS && renewed.values().all(|count| *count >= 2)
    })
    .await;
    let all = w.requests.since(mark);
    let count = |verb: &str| all.iter().filter(|l| lease(l).is_some_and(|(v, _)| v == verb)).count();
    let (reads, writes) = (count("GET"), count("PUT"));
    let others = all.into_iter().filter(|l| lease(l).is_none() && !l.contains("watch=true")).collect();
    (reads, writes, others)
}

/// OCM-160, OCM-049, OCM-052: idle clusters cost a hub their leases, two requests for each renewal, and four
/// watches for each agent. A change costs the affected cluster only, for any number of others. (BENCHMARKS.md
/// has the duration of a renewal among thousands.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_160_idle_clusters_cost_their_leases_and_a_change_its_own() {
    let w = World::start(|config| {
        trusting(config);
        // However slow the machine is, no cluster counts as unreachable.
        config.timers.grace_factor = 600;
        config.timers.sets = std::time::Duration::from_secs(600);
    })
    .await;
    let names: Vec<String> = (0..CLUSTERS).map(|n| format!("many-{n:02}-x")).collect();
    let agents: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            w.agent(1 + n % 2, name, |config| {
                config.secret = format!("{name}-credential");
                config.timers = registration::Timers::default();
            })
        })
        .collect();
    for name in &names {
        w.until_condition(name, AVAILABLE, "True").await;
        let short = json!({"spec": {"leaseDurationSeconds": 1}});
        w.hub().merge::<Value>(&gvr("managedclusters"), "", name, &short).await.expect("shorter");
    }
    for name in &names {
        w.until_condition(name, CLOCK, "True").await;
        crate::world::until("no taint", || async { taints(&w.cluster(name).await.expect("it")).is_empty() })
            .await;
    }

    // After joining, the activity ends; from then on there are only leases.
    let (mut reads, mut writes, mut others) = window(&w, w.requests.mark()).await;
    for _ in 0..10 {
        if others.is_empty() {
            break;
        }
        (reads, writes, others) = window(&w, w.requests.mark()).await;
    }
    assert_eq!(others, Vec::<String>::new(), "idle");
    assert!(writes <= reads + CLUSTERS && reads <= writes + CLUSTERS, "{reads} reads, {writes} writes");
    for name in &names {
        let own = format!("{name} GET ");
        let all = w.requests.since(0);
        let opened = all.iter().filter(|l| l.starts_with(&own) && l.contains("watch=true"));
        let watched: std::collections::BTreeSet<&str> = opened.filter_map(|l| l.split('?').next()).collect();
        assert!(watched.len() <= 4, "{watched:?}");
    }

    // A changed label of one cluster: nothing is written, and no other cluster is processed.
    let changed = &names[7];
    let mark = w.requests.mark();
    let label = json!({"metadata": {"labels": {"where": "far"}}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", changed, &label).await.expect("labelled");
    let (.., others) = window(&w, mark).await;
    assert_eq!(others, Vec::<String>::new(), "a label");

    // The denial of one cluster affects its own permissions, status and agent.
    let mark = w.requests.mark();
    w.accept(changed, false).await;
    w.until_condition(changed, ACCEPTED, "False").await;
    let cost = w.requests.since(mark);
    let cost: Vec<&String> =
        cost.iter().filter(|l| lease(l).is_none() && !l.contains("watch=true")).collect();
    assert!(cost.iter().all(|line| line.contains(changed.as_str())), "{cost:#?}");
    assert!(!cost.is_empty() && cost.len() <= 60, "{} requests: {cost:#?}", cost.len());
    for agent in agents {
        agent.end().await;
    }
    w.end().await;
}
