use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SPACES: [&str; 2] = ["one", "two"];

#[derive(Clone, Debug)]
enum Op {
    /// Puts or deletes a key of a space, with the right precondition.
    Put {
        space: usize,
        key: u8,
    },
    Delete {
        space: usize,
        key: u8,
    },
    /// Several pending writes, some of them for the same key and version, of which exactly one succeeds.
    Race {
        space: usize,
        key: u8,
        writers: u8,
    },
    /// A watcher disconnects, and resumes from the last revision that it saw.
    Disconnect {
        watcher: usize,
    },
    /// A watcher reads everything that is queued.
    Read {
        watcher: usize,
    },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let space = 0..SPACES.len();
    prop_oneof![
        8 => (space.clone(), 0..12_u8).prop_map(|(space, key)| Op::Put { space, key }),
        4 => (space.clone(), 0..12_u8).prop_map(|(space, key)| Op::Delete { space, key }),
        2 => (space, 0..12_u8, 2..5_u8).prop_map(|(space, key, writers)| Op::Race { space, key, writers }),
        2 => (0..6_usize).prop_map(|watcher| Op::Disconnect { watcher }),
        3 => (0..6_usize).prop_map(|watcher| Op::Read { watcher }),
        1 => Just(Op::Reopen),
    ]
}

/// The expected content of a space.
#[derive(Default)]
struct Model {
    /// State after each revision; index 0 is the empty space.
    states: Vec<BTreeMap<(String, String), u64>>,
    /// Event of each revision, from 1.
    events: Vec<(String, String)>,
}

struct Follower {
    space: usize,
    namespace: Option<&'static str>,
    watch: Option<Watch>,
    seen: u64,
}

struct Run {
    dir: tempfile::TempDir,
    engine: Option<Engine>,
    limits: Limits,
    models: Vec<Model>,
    followers: Vec<Follower>,
    counter: u64,
}

fn place(number: u8) -> Key {
    key("x", ["m", "n"][usize::from(number % 2)], &number.to_string())
}

impl Run {
    fn new(events: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { events, queue: 5, ..Limits::default() };
        let engine = Engine::open_with(dir.path(), limits.clone()).unwrap();
        let model = || Model { states: vec![BTreeMap::new()], events: Vec::new() };
        let followers = (0..6)
            .map(|index| Follower {
                space: index % 2,
                namespace: [None, Some("m"), Some("n")][index / 2],
                watch: None,
                seen: 0,
            })
            .collect();
        Self { dir, engine: Some(engine), limits, models: vec![model(), model()], followers, counter: 0 }
    }

    fn store(&self, space: usize) -> SpaceStore {
        self.engine.as_ref().unwrap().space(SPACES[space]).unwrap()
    }

    async fn write(&mut self, space: usize, key: Key, delete_it: bool, writers: u8) {
        let store = self.store(space);
        let place = (key.namespace.to_string(), key.name.to_string());
        let model = &mut self.models[space];
        let mut state = model.states.last().unwrap().clone();
        let current = state.get(&place).copied();
        let expect = current.map_or(Expect::Absent, |revision| Expect::At(Revision(revision)));
        self.counter += 1;
        let text = format!("v{}", self.counter);
        let write = match (delete_it, current) {
            (true, None) => return,
            (true, Some(at)) => delete(key.clone(), Revision(at), &text),
            (false, _) => put(key.clone(), expect, &text),
        };
        let next = model.states.len() as u64;
        let answers = futures::future::join_all((0..writers).map(|_| store.commit(write.clone()))).await;
        let (done, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!(done.len(), 1);
        for refused in refused {
            let Err(StoreError::Conflict { actual, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(actual.map(|entry| entry.revision.0), (!delete_it).then_some(next));
        }
        let kind = match (delete_it, current) {
            (true, _) => EventKind::Deleted,
            (false, Some(_)) => EventKind::Updated,
            (false, None) => EventKind::Created,
        };
        if delete_it {
            state.remove(&place);
        } else {
            state.insert(place.clone(), next);
        }
        let line = format!("{kind:?} {}/{} {next} was {}", place.0, place.1, current.unwrap_or(0));
        model.states.push(state);
        model.events.push((place.0, line));
    }

    /// The events that the follower must see next.
    fn due(&self, follower: &Follower) -> Vec<String> {
        let events = self.models[follower.space].events.iter().skip(follower.seen as usize);
        let wanted =
            events.filter(|(namespace, _)| follower.namespace.is_none_or(|wanted| wanted == namespace));
        wanted.map(|(_, line)| line.clone()).collect()
    }

    fn oldest(&self, space: usize) -> u64 {
        match self.store(space).watch(scope("x", None), Revision(0)) {
            Ok(_) => 0,
            Err(StoreError::Compacted { oldest, .. }) => oldest.0,
            Err(other) => panic!("{other}"),
        }
    }

    fn read(&mut self, index: usize) {
        let mut follower = std::mem::replace(
            &mut self.followers[index],
            Follower { space: 0, namespace: None, watch: None, seen: 0 },
        );
        let due = self.due(&follower);
        let now = self.models[follower.space].events.len() as u64;
        let store = self.store(follower.space);
        if follower.watch.is_none() {
            let started = store.watch(scope("x", follower.namespace), Revision(follower.seen));
            match started {
                Ok(watch) => follower.watch = Some(watch),
                Err(StoreError::Compacted { oldest, .. }) => {
                    assert!(oldest.0 > follower.seen, "compacted although kept");
                    assert!(now > self.limits.events as u64, "compacted without need");
                }
                Err(other) => panic!("{other}"),
            }
        }
        let mut seen = Vec::new();
        if let Some(watch) = &mut follower.watch {
            let mut cut = false;
            loop {
                match watch.try_next() {
                    Ok(Some(event)) => seen.push(show(&event)),
                    Ok(None) => break,
                    Err(StoreError::Compacted { .. }) => {
                        cut = true;
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(seen, due[..seen.len()], "no gap, no duplicate, in order");
            if cut {
                assert!(self.oldest(follower.space) > follower.seen);
                follower.watch = None;
            } else {
                assert_eq!(seen.len(), due.len(), "nothing missing");
                assert_eq!(watch.progress(), Some(Revision(now)));
            }
        }
        // A follower that was cut lists, and continues from there.
        follower.seen = now;
        self.followers[index] = follower;
    }

    fn check(&self) {
        for (space, model) in self.models.iter().enumerate() {
            let store = self.store(space);
            let now = model.events.len() as u64;
            assert_eq!(store.revision(), Revision(now));
            let oldest = self.oldest(space);
            assert!(now - oldest <= now.min(self.limits.events as u64 * 17 / 16 + 1));
            assert!(oldest == 0 || now - oldest >= self.limits.events as u64, "{oldest}..{now}");
            for (revision, expected) in model.states.iter().enumerate() {
                match store.collection_at(&collection("x"), Revision(revision as u64)) {
                    Ok(view) => {
                        let found = view.iter(None, None).map(|entry| {
                            let key = (entry.key.namespace.to_string(), entry.key.name.to_string());
                            (key, entry.revision.0)
                        });
                        assert_eq!(found.collect::<BTreeMap<_, _>>(), *expected, "at {revision}");
                    }
                    Err(StoreError::Compacted { .. }) => assert!((revision as u64) < oldest),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }

    async fn step(&mut self, op: &Op) {
        match *op {
            Op::Put { space, key } => self.write(space, place(key), false, 1).await,
            Op::Delete { space, key } => self.write(space, place(key), true, 1).await,
            Op::Race { space, key, writers } => self.write(space, place(key), false, writers).await,
            Op::Disconnect { watcher } => self.followers[watcher].watch = None,
            Op::Read { watcher } => self.read(watcher),
            Op::Reopen => {
                for follower in &mut self.followers {
                    follower.watch = None;
                }
                self.engine = None;
                self.engine = Some(Engine::open_with(self.dir.path(), self.limits.clone()).unwrap());
                self.check();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]
    /// State at every kept revision, events of every watcher and all conflicts equal those of the model, whatever
    /// happens in between.
    #[test]
    fn behaves_like_its_history(ops in prop::collection::vec(op(), 1..150), events in 4..60_usize) {
        run(async {
            let mut run = Run::new(events);
            for op in &ops {
                run.step(op).await;
            }
            for watcher in 0..run.followers.len() {
                run.read(watcher);
            }
            run.check();
        });
    }
}
