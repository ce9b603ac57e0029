//! An agent that is killed at any moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use runtime::{
    ObjectKey, Source,
    feed::{Change, follow},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use testkit::killing::{Rng, contents, setting, standing};

use crate::world::*;

/// Number of changes of works; `WORK_AGENT_CHANGES` overrides it.
const CHANGES: usize = 60;
const NAMES: [&str; 6] = ["w0", "w1", "w2", "w3", "w4", "w5"];
/// Objects that move from work to work.
const MOVING: u64 = 8;

/// The expected state: works with their objects and the values of these.
#[derive(Default)]
struct ExpectedState {
    works: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// How often each work was created.
    lives: BTreeMap<&'static str, usize>,
}

impl ExpectedState {
    fn spec(&self, name: &str) -> Value {
        let objects = self.works.get(name).into_iter().flatten();
        holding(&objects.map(|(name, value)| map(name, &value.to_string())).collect::<Vec<_>>())
    }

    /// Makes one change, in the expected state and on the hub.
    async fn change(&mut self, w: &World, rng: &mut Rng) {
        let name = NAMES[rng.roll(NAMES.len() as u64) as usize];
        if !self.works.contains_key(name) {
            // A work of that name may still be in deletion.
            if w.hub.get(WORKS, CLUSTER, name).await.is_none() {
                // An object that exists as long as the work.
                self.works.insert(name, BTreeMap::from([(format!("{name}-keep"), 0)]));
                *self.lives.entry(name).or_default() += 1;
                self.shuffle(name, rng);
                w.work(name, self.spec(name)).await;
            }
        } else if rng.roll(6) == 0 {
            self.works.remove(name);
            w.hub.delete(WORKS, CLUSTER, name).await;
        } else {
            self.shuffle(name, rng);
            w.edit(name, self.spec(name)).await;
        }
    }

    fn shuffle(&mut self, name: &'static str, rng: &mut Rng) {
        let value = rng.roll(1000);
        let own = format!("{name}-{}", rng.roll(6));
        let moving = format!("moving-{}", rng.roll(MOVING));
        let moves = rng.roll(3) == 0;
        if moves {
            // From the work that has it, which is edited with its own next change or at the end.
            for objects in self.works.values_mut() {
                objects.remove(&moving);
            }
        }
        let Some(objects) = self.works.get_mut(name) else { return };
        if moves {
            objects.insert(moving, value);
        }
        if objects.remove(&own).is_none() {
            objects.insert(own, value);
        }
        objects.insert(format!("{name}-keep"), value);
    }
}

/// Every object that an AppliedManifestWork owns is listed there, and a deleted one owns nothing.
async fn check(w: &World) {
    let objects = w.cluster.until_all(MAPS, "sea", "a list", |all| Some(all.clone())).await;
    let applied = w.cluster.until_all(APPLIED, "", "a list", |all| Some(all.clone())).await;
    let after = w.cluster.until_all(MAPS, "sea", "a list", |all| Some(all.clone())).await;
    for (key, object) in &objects {
        // An object that exists before and after existed, with its owner, when the owners were listed.
        let name = &key.name;
        if !after.get(key).is_some_and(|later| standing(object, later)) {
            continue;
        }
        for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let found = applied.values().find(|a| a["metadata"]["uid"] == owner["uid"]);
            let Some(found) = found else {
                panic!("{name} belongs to what is gone: {object:#} {applied:#?}")
            };
            assert!(listed(found).contains(&name.as_ref()), "{name} is not listed: {found:#}");
        }
    }
}

/// OCM-093, OCM-094, OCM-095, OCM-015: killed at random points of many changes, the agent leaves nothing
/// behind, removes no wanted object, and lists everything it created at every moment. There is no garbage
/// collector.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_093_a_killed_agent_orphans_nothing() {
    let w = World::bare().await;
    let seed = setting("WORK_AGENT_SEED", 20_261_121) as u64;
    let (mut rng, mut wanted) = (Rng(seed | 1), ExpectedState::default());
    let incarnations: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>> = Arc::default();
    let (stop, seen, client) = (CancellationToken::new(), incarnations.clone(), w.cluster.0.client().clone());
    let token = stop.clone();
    let observer = tokio::spawn(async move {
        let source = Source::all(gvr(MAPS)).namespaced("sea").metadata();
        follow(&client, &source, &token, |change: Change<PartialObjectMeta>| {
            if let Change::Put(PartialObjectMeta { metadata, .. }) = change {
                let (name, uid) = (metadata.name.unwrap_or_default(), metadata.uid.unwrap_or_default());
                seen.lock().entry(name).or_default().insert(uid);
            }
        })
        .await;
    });
    let changes = setting("WORK_AGENT_CHANGES", CHANGES);
    let (mut done, mut kills) = (0, 0);
    while done < changes {
        let agent = w.agent_unready(&space::Identity::admin(), World::config());
        let here = (1 + rng.roll(9) as usize).min(changes - done);
        for _ in 0..here {
            wanted.change(&w, &mut rng).await;
        }
        done += here;
        // At a random moment: after some requests, or in the pause after the last.
        let requests = rng.roll(40) as usize;
        let moment = w.at_cluster.more(requests, |_| true);
        let _ = tokio::time::timeout(Duration::from_millis(100), moment).await;
        agent.kill().await;
        kills += 1;
        check(&w).await;
    }
    // Moves are written to the old works, too.
    for name in wanted.works.keys() {
        w.edit(name, wanted.spec(name)).await;
    }
    let agent = w.agent(World::config()).await;
    for name in wanted.works.keys() {
        w.settled(name).await;
    }
    let expected = contents(&wanted.works);
    let same = |all: &Objects| {
        let have: BTreeMap<String, Value> =
            all.iter().map(|(key, object)| (key.name.to_string(), object["data"].clone())).collect();
        (have == expected).then_some(())
    };
    w.cluster.until_all(MAPS, "sea", "what is wanted and nothing else", same).await;
    let accounted = |all: &Objects| {
        let names = wanted.works.iter().all(|(name, objects)| {
            let listed = all.get(&ObjectKey::new("", &applied_name(name))).map(|a| listed(a));
            listed.is_some_and(|l| l.iter().copied().eq(objects.keys().map(String::as_str)))
        });
        (names && all.len() == wanted.works.len()).then_some(())
    };
    w.cluster.until_all(APPLIED, "", "what is wanted is listed, and nothing else", accounted).await;
    agent.end().await;
    check(&w).await;
    stop.cancel();
    observer.await.expect("no panic");
    for (name, lives) in &wanted.lives {
        let uids = incarnations.lock().get(&format!("{name}-keep")).map_or(0, BTreeSet::len);
        assert!(
            uids <= *lives,
            "{name}-keep was made {uids} times in {lives} lives (seed {seed}, {kills} kills)"
        );
    }
    w.end().await;
}
