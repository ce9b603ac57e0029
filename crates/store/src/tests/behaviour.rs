use std::time::Duration;

use super::*;
use crate::historical_read::HistoricalRead;

/// AS-020, AS-031: every write has a revision; a write based on an old version is a conflict.
#[test]
fn writes_are_conditional_and_numbered() {
    run(async {
        let space = Engine::in_memory().space("a").unwrap();
        let k = key("configmaps", "n", "x");
        let first = space.commit(put(k.clone(), Expect::Absent, "one")).await.unwrap();
        assert_eq!(first.revision, Revision(1));
        assert_eq!(first.value, value("one", Revision(1)));
        for expect in [Expect::Absent, Expect::At(Revision(7))] {
            match space.commit(put(k.clone(), expect, "two")).await {
                Err(StoreError::Conflict { key, actual: Some(actual) }) => {
                    assert_eq!((key, actual.revision), (k.clone(), Revision(1)));
                }
                other => panic!("{other:?}"),
            }
        }
        let second = space.commit(put(k.clone(), Expect::At(Revision(1)), "two")).await.unwrap();
        assert_eq!((second.revision, space.revision()), (Revision(2), Revision(2)));
        let gone = space.commit(delete(k.clone(), Revision(2), "last")).await.unwrap();
        assert_eq!(gone.value, value("last", Revision(3)));
        assert!(space.snapshot().get(&k).is_none());
        for write in [delete(k.clone(), Revision(2), ""), put(k.clone(), Expect::At(Revision(2)), "")] {
            let refused = space.commit(write).await;
            assert!(matches!(refused, Err(StoreError::Conflict { actual: None, .. })), "{refused:?}");
        }
        assert_eq!(space.revision(), Revision(3));
    });
}

#[test]
fn snapshots_do_not_change_and_lists_are_ordered() {
    run(async {
        let space = Engine::in_memory().space("a").unwrap();
        for (namespace, name) in [("b", "2"), ("a", "9"), ("b", "1"), ("a-b", "1"), ("", "z")] {
            space.commit(put(key("x", namespace, name), Expect::Absent, "v")).await.unwrap();
        }
        let before = space.snapshot();
        space.commit(put(key("y", "", "other"), Expect::Absent, "v")).await.unwrap();
        space.commit(delete(key("x", "a", "9"), Revision(2), "v")).await.unwrap();
        let names = |view: &View, namespace: Option<&str>, after: Option<(&str, &str)>| -> Vec<String> {
            view.iter(namespace, after).map(|e| format!("{}/{}", e.key.namespace, e.key.name)).collect()
        };
        let view = before.view(&collection("x"));
        assert_eq!(names(&view, None, None), ["/z", "a/9", "a-b/1", "b/1", "b/2"]);
        assert_eq!(names(&view, Some("b"), Some(("b", "1"))), ["b/2"]);
        assert_eq!((view.revision(), view.len(None), view.len(Some("b"))), (Revision(5), 5, 2));
        let now = space.snapshot();
        assert_eq!(now.view(&collection("x")).len(None), 4);
        assert_eq!(now.collections().cloned().collect::<Vec<_>>(), [collection("x"), collection("y")]);
        let past = space.collection_at(&collection("x"), Revision(2)).unwrap();
        assert_eq!(names(&past, None, None), ["a/9", "b/2"]);
        let future = space.collection_at(&collection("x"), Revision(8));
        assert!(matches!(future, Err(StoreError::Future { current: Revision(7), .. })), "{future:?}");
    });
}

/// AS-023: an old page is restored while writers continue: the hub is locked for one stride at a time.
#[test]
fn the_past_is_restored_between_writes() {
    run(async {
        let limits = Limits { events: 4000, ..Limits::default() };
        let space = Engine::in_memory_with(limits).space("a").unwrap();
        churn(&space, 2000).await;
        let x = collection("x");
        let mut past = HistoricalRead::begin(&space.shared.durable, &x, Revision(100)).unwrap();
        let mut steps = 1;
        while !past.step().unwrap() {
            // The hub is free for writers, and their writes do no harm.
            churn(&space, 10).await;
            space.commit(put(key("y", "n", &steps.to_string()), Expect::Absent, "v")).await.unwrap();
            steps += 1;
        }
        assert!(steps >= 4, "{steps} steps for 1900 events");
        let view = past.finish().unwrap();
        let found: Vec<_> = view.iter(None, None).map(|entry| entry.revision).collect();
        assert_eq!((view.revision(), found), (Revision(100), vec![Revision(100)]));
        // A history that is dropped meanwhile is reported.
        let mut past = HistoricalRead::begin(&space.shared.durable, &x, Revision(100)).unwrap();
        assert!(!past.step().unwrap());
        churn(&space, 4000).await;
        let gone = past.finish();
        assert!(matches!(gone, Err(StoreError::Compacted { asked: Revision(100), .. })), "{gone:?}");
    });
}

#[test]
fn a_watch_replays_then_follows_its_scope_only() {
    run(async {
        let space = Engine::in_memory().space("a").unwrap();
        let first = space.commit(put(key("x", "n", "1"), Expect::Absent, "v")).await.unwrap();
        space.commit(put(key("x", "m", "1"), Expect::Absent, "v")).await.unwrap();
        let mut all = space.watch(scope("x", None), Revision(0)).unwrap();
        let mut local = space.watch(scope("x", Some("n")), Revision(1)).unwrap();
        let mut future = space.watch(scope("x", None), Revision(4)).unwrap();
        assert_eq!(local.progress(), Some(Revision(2)));
        assert_eq!(all.progress(), None);
        assert_eq!(drain(&mut all), ["Created n/1 1 was 0", "Created m/1 2 was 0"]);
        assert_eq!(all.progress(), Some(Revision(2)));
        space.commit(put(key("y", "n", "1"), Expect::Absent, "v")).await.unwrap();
        assert_eq!(all.progress(), Some(Revision(3)));
        space.commit(put(key("x", "n", "1"), Expect::At(first.revision), "w")).await.unwrap();
        assert_eq!((local.progress(), future.progress()), (None, Some(Revision(4))));
        space.commit(delete(key("x", "n", "1"), Revision(4), "w")).await.unwrap();
        let seen = ["Updated n/1 4 was 1", "Deleted n/1 5 was 4"];
        assert_eq!(
            (drain(&mut all), drain(&mut local)),
            (seen.map(String::from).into(), seen.map(String::from).into())
        );
        assert_eq!(drain(&mut future), ["Deleted n/1 5 was 4"]);
    });
}

/// AS-023: old events are dropped, except for a last few, and what is young stays; readers of what is dropped must list again.
#[test]
fn old_events_are_dropped() {
    use std::time::Instant;

    use crate::aging::Aging;
    run(async {
        let limits = Limits { young_bytes: 10_000, ..Limits::default() };
        let space = Engine::in_memory_with(limits.clone()).space("a").unwrap();
        let (begun, minute) = (Instant::now(), Duration::from_secs(60));
        let mut aging = Aging::new(begun);
        let kept = || space.shared.durable.hub.lock().ring.bytes;
        let mut look = |minutes: u32| {
            let now = begun + minutes * minute;
            assert!(aging.is_due(now));
            aging.drop_old(now, &limits, std::iter::once(&space.shared))
        };
        churn(&space, 1000).await;
        let before = kept();
        assert_eq!((look(0), look(4)), (0, 0));
        churn(&space, 100).await;
        let young = kept() - before;
        assert_eq!(look(5), before, "all that was there 5 minutes ago");
        assert_eq!(kept(), young);
        assert!(matches!(space.watch(scope("x", None), Revision(999)), Err(StoreError::Compacted { .. })));
        assert_eq!(drain(&mut space.watch(scope("x", None), Revision(1000)).unwrap()).len(), 100);
        assert_eq!(look(8), 0);
        assert!(look(60) > 0);
        assert!((10_000..10_500).contains(&kept()), "{}", kept());
        let ahead = space.shared.ahead.hub.lock().ring.bytes;
        assert_eq!(ahead, kept());
        assert_eq!(look(120), 0, "a last few stay");
    });
}

/// A watch of one name or label delivers the same as filtering all events, also when it falls behind.
#[test]
fn a_narrow_watch_sees_what_concerns_it() {
    run(async {
        let limits = Limits { queue: 4, ..Limits::default() };
        let space = Engine::in_memory_with(limits).space("a").unwrap();
        let mut narrow = Vec::new();
        for namespace in [None, Some("n"), Some("m")] {
            for only in [
                Only::Name("1".into()),
                Only::Name("2".into()),
                Only::Label { key: "text".into(), value: "v".into() },
                Only::Label { key: "text".into(), value: "w".into() },
                Only::Label { key: "other".into(), value: "v".into() },
            ] {
                let scope = Scope { only: Some(only.clone()), ..scope("x", namespace) };
                let watch = space.watch(scope, Revision(0)).unwrap();
                narrow.push((namespace, only, watch, Vec::new()));
            }
        }
        // The text is the label; it changes, returns, and is deleted with the object.
        let mut all = space.watch(scope("x", None), Revision(0)).unwrap();
        let mut events = Vec::new();
        for round in 0..3 {
            for (namespace, name) in [("n", "1"), ("n", "2"), ("m", "1"), ("", "1")] {
                let mut at = space.commit(put(key("x", namespace, name), Expect::Absent, "v")).await.unwrap();
                for text in ["v", "w", "v", "u"] {
                    let write = put(key("x", namespace, name), Expect::At(at.revision), text);
                    at = space.commit(write).await.unwrap();
                }
                space.commit(delete(key("x", namespace, name), at.revision, "u")).await.unwrap();
                space
                    .commit(put(key("y", namespace, &format!("{name}{round}")), Expect::Absent, "v"))
                    .await
                    .unwrap();
                while let Some(event) = all.try_next().unwrap() {
                    events.push(event);
                }
                // Every second time the queues overflow.
                for (.., watch, seen) in narrow.iter_mut().filter(|_| round % 2 == 0 || name == "2") {
                    seen.extend(drain(watch));
                }
            }
        }
        for (namespace, only, mut watch, mut seen) in narrow {
            seen.extend(drain(&mut watch));
            let wanted = |event: &&Arc<Event>| {
                let text = |entry: &Entry| entry.meta.labels.get("text").map(ToString::to_string);
                let of = |value: &str| Some(value.to_owned());
                let concerned = match &only {
                    Only::Name(name) => event.entry.key.name == *name,
                    Only::Label { key, .. } if &**key == "other" => false,
                    Only::Label { value, .. } => {
                        let before = event.previous.as_ref().and_then(|previous| text(previous));
                        text(&event.entry) == of(value) || before == of(value)
                    }
                };
                concerned && namespace.is_none_or(|namespace| *namespace == *event.entry.key.namespace)
            };
            let expected: Vec<_> = events.iter().filter(wanted).map(show).collect();
            assert_eq!(seen, expected, "{namespace:?} {only:?}");
            assert_eq!(watch.progress(), Some(space.revision()));
        }
    });
}

#[test]
fn changes_are_those_of_the_collections_in_the_range() {
    run(async {
        let limits = Limits { events: 32, ..Limits::default() };
        let space = Engine::in_memory_with(limits).space("a").unwrap();
        for (n, plural) in ["x", "y", "z", "x", "y", "x"].into_iter().enumerate() {
            space.commit(put(key(plural, "n", &n.to_string()), Expect::Absent, "v")).await.unwrap();
        }
        let (x, y) = (collection("x"), collection("y"));
        let found = |collections: &[&Collection], after, until| {
            space
                .changes(collections, Revision(after), Revision(until))
                .map(|events| events.iter().map(|event| event.entry.revision.0).collect::<Vec<_>>())
        };
        assert_eq!(found(&[&x, &y], 0, 6).unwrap(), [1, 2, 4, 5, 6]);
        assert_eq!(found(&[&x], 1, 5).unwrap(), [4]);
        assert!(found(&[&y], 5, 6).unwrap().is_empty());
        for n in 10..60 {
            space.commit(put(key("x", "n", &n.to_string()), Expect::Absent, "v")).await.unwrap();
        }
        assert!(matches!(found(&[&y], 2, 6), Err(StoreError::Compacted { .. })));
    });
}

#[test]
fn a_watch_of_the_whole_space_sees_every_collection() {
    run(async {
        let limits = Limits { queue: 2, ..Limits::default() };
        let space = Engine::in_memory_with(limits).space("a").unwrap();
        let mut early = space.watch_all(Revision(0)).unwrap();
        for plural in ["x", "y", "z", "x"] {
            let name = space.revision().to_string();
            space.commit(put(key(plural, "n", &name), Expect::Absent, "v")).await.unwrap();
        }
        let seen: Vec<_> = (1..=4).map(|r| format!("Created n/{} {r} was 0", r - 1)).collect();
        assert_eq!(drain(&mut early), seen);
        assert_eq!(drain(&mut space.watch_all(Revision(1)).unwrap()), seen[1..]);
        assert_eq!(early.progress(), Some(Revision(4)));
    });
}

#[test]
fn a_waiting_watch_is_woken() {
    run(async {
        let space = Engine::in_memory().space("a").unwrap();
        let mut watch = space.watch(scope("x", Some("n")), Revision(0)).unwrap();
        let reader = tokio::spawn(async move { show(&watch.next().await.unwrap()) });
        tokio::task::yield_now().await;
        space.commit(put(key("x", "n", "1"), Expect::Absent, "v")).await.unwrap();
        let seen = tokio::time::timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
        assert_eq!(seen, "Created n/1 1 was 0");
    });
}

async fn churn(space: &SpaceStore, times: usize) {
    let k = key("x", "n", "churn");
    for _ in 0..times {
        let expect = space.snapshot().get(&k).map_or(Expect::Absent, |entry| Expect::At(entry.revision));
        space.commit(put(k.clone(), expect, "v")).await.unwrap();
    }
}

/// AS-069: a slow watcher.
#[test]
fn a_slow_watcher_is_served_from_the_ring_and_cut_beyond_it() {
    run(async {
        let limits = Limits { queue: 4, events: 32, ..Limits::default() };
        let space = Engine::in_memory_with(limits).space("a").unwrap();
        let mut slow = space.watch(scope("x", None), Revision(0)).unwrap();
        let mut other = space.watch(scope("y", None), Revision(0)).unwrap();
        churn(&space, 20).await;
        let seen = drain(&mut slow);
        assert_eq!(seen.len(), 20);
        assert_eq!(seen.last().unwrap(), "Updated n/churn 20 was 19");
        churn(&space, 100).await;
        // Queued events are still delivered, then the watch ends: no gap is hidden.
        for revision in 21..=24 {
            assert_eq!(slow.next().await.unwrap().entry.revision, Revision(revision));
        }
        for _ in 0..2 {
            let end = slow.next().await;
            assert!(matches!(end, Err(StoreError::Compacted { asked: Revision(24), .. })), "{end:?}");
        }
        assert_eq!(slow.progress(), None);
        // Nothing happened in the other's scope, so it has missed nothing, however old its start is.
        assert_eq!((other.try_next().unwrap().is_none(), other.progress()), (true, Some(Revision(120))));
    });
}

#[test]
fn history_is_bounded_by_count_bytes_and_share() {
    let oldest = |limits: Limits| {
        run(async {
            let space = Engine::in_memory_with(limits).space("a").unwrap();
            churn(&space, 1000).await;
            let Err(StoreError::Compacted { oldest, .. }) = space.watch(scope("x", None), Revision(0)) else {
                panic!("kept everything")
            };
            assert!(space.watch(scope("x", None), oldest).is_ok());
            assert!(space.collection_at(&collection("x"), oldest).is_ok());
            let before = Revision(oldest.0 - 1);
            assert!(space.watch(scope("x", None), before).is_err());
            assert!(space.collection_at(&collection("x"), before).is_err());
            oldest.0
        })
    };
    assert!((890..=900).contains(&oldest(Limits { events: 100, ..Limits::default() })));
    assert!(oldest(Limits { event_bytes: 64 << 10, ..Limits::default() }) > 500);
    assert!(oldest(Limits { total_event_bytes: 64 << 10, ..Limits::default() }) > 500);
}

/// AS-071, SP-042: a restart.
#[test]
fn restart_keeps_state_history_and_revisions() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let engine = Engine::open(dir.path()).unwrap();
        let space = engine.space("a").unwrap();
        churn(&space, 3).await;
        space.commit(put(key("x", "n", "gone"), Expect::Absent, "v")).await.unwrap();
        space.commit(delete(key("x", "n", "gone"), Revision(4), "v")).await.unwrap();
        engine.close().await.unwrap();
        let after = space.commit(put(key("x", "n", "late"), Expect::Absent, "v")).await;
        assert!(matches!(after, Err(StoreError::Closed)), "{after:?}");
    });
    run(async {
        let engine = Engine::open(dir.path()).unwrap();
        assert_eq!(engine.spaces(), ["a"]);
        let space = engine.space("a").unwrap();
        assert_eq!(space.revision(), Revision(5));
        let entry = space.snapshot().get(&key("x", "n", "churn")).unwrap();
        assert_eq!((&*entry.value, &entry.meta), (value("v", Revision(3)).as_bytes(), &encoded("v").meta));
        let mut watch = space.watch(scope("x", None), Revision(2)).unwrap();
        churn(&space, 1).await;
        let seen = [
            "Updated n/churn 3 was 2",
            "Created n/gone 4 was 0",
            "Deleted n/gone 5 was 4",
            "Updated n/churn 6 was 3",
        ];
        assert_eq!(drain(&mut watch), seen);
    });
}

/// SP-086: a lock stops a second user of the directory.
#[test]
fn a_directory_in_use_damaged_or_out_of_reach_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path()).unwrap();
    let second = Engine::open(dir.path()).unwrap_err();
    assert!(matches!(second, StoreError::Locked { .. }), "{second:?}");
    assert!(second.to_string().contains(dir.path().to_str().unwrap()), "{second}");
    // Dropping the last handle releases the directory.
    drop(engine);
    drop(Engine::open(dir.path()).unwrap());

    let file = dir.path().join("MANIFEST");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    let damaged = Engine::open(dir.path()).unwrap_err();
    assert!(matches!(damaged, StoreError::Corrupt { .. }), "{damaged:?}");

    let blocked = Engine::open(&file.join("below-a-file")).unwrap_err();
    assert!(matches!(blocked, StoreError::Access { .. }), "{blocked:?}");
}

#[test]
fn the_database_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let _engine = Engine::open(&dir.path().join("deep/store")).unwrap();
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("deep/store"), mode("deep/store/MANIFEST")), (0o700, 0o600));
}

#[test]
fn a_removed_space_is_gone_and_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let engine = Engine::open(dir.path()).unwrap();
        let (a, b) = (engine.space("a").unwrap(), engine.space("b").unwrap());
        churn(&a, 5).await;
        churn(&b, 7).await;
        let mut watch = a.watch(scope("x", None), Revision(5)).unwrap();
        engine.remove_space("a").await.unwrap();
        engine.remove_space("a").await.unwrap();
        assert!(matches!(watch.next().await, Err(StoreError::Closed)));
        let late = a.commit(put(key("x", "n", "late"), Expect::Absent, "v")).await;
        assert!(matches!(late, Err(StoreError::Closed)), "{late:?}");
        assert_eq!(engine.spaces(), ["b"]);
        assert_eq!(engine.space("a").unwrap().revision(), Revision(0));
        engine.close().await.unwrap();
    });
    let engine = Engine::open(dir.path()).unwrap();
    assert_eq!(engine.spaces(), ["b"]);
    assert_eq!(engine.space("b").unwrap().revision(), Revision(7));
}

#[test]
fn waiting_writes_of_many_spaces_are_all_done() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let engine = Engine::open(dir.path()).unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..300 {
            let space = engine.space(&format!("s{index:03}")).unwrap();
            tasks.spawn(async move { churn(&space, 3).await });
        }
        tasks.join_all().await;
        engine.close().await.unwrap();
    });
    let engine = Engine::open(dir.path()).unwrap();
    assert_eq!(engine.spaces().len(), 300);
    for name in engine.spaces() {
        assert_eq!(engine.space(&name).unwrap().revision(), Revision(3), "{name}");
    }
}

#[test]
fn closing_ends_watches_and_dropping_ends_the_thread() {
    run(async {
        let engine = Engine::in_memory();
        let space = engine.space("a").unwrap();
        let mut watch = space.watch(scope("x", None), Revision(0)).unwrap();
        churn(&space, 1).await;
        engine.close().await.unwrap();
        engine.close().await.unwrap();
        assert_eq!(watch.next().await.unwrap().entry.revision, Revision(1));
        assert!(matches!(watch.next().await, Err(StoreError::Closed)));
        assert!(matches!(space.watch(scope("x", None), Revision(0)), Err(StoreError::Closed)));
        assert!(space.snapshot().get(&key("x", "n", "churn")).is_some());
    });
    let engine = Engine::in_memory();
    let mut watch = engine.space("a").unwrap().watch(scope("x", None), Revision(0)).unwrap();
    drop(engine);
    assert!(matches!(watch.try_next(), Err(StoreError::Closed)));
}

#[test]
fn watches_that_ended_leave_nothing_behind() {
    let engine = Engine::in_memory();
    let space = engine.space("a").unwrap();
    let watches: Vec<_> = (0..1000)
        .map(|index| {
            let namespace = format!("n{}", index % 7);
            let only = match index % 3 {
                0 => None,
                1 => Some(Only::Name(namespace.as_str().into())),
                _ => Some(Only::Label { key: "text".into(), value: namespace.as_str().into() }),
            };
            let namespace = (index % 2 == 0).then_some(namespace.as_str());
            space.watch(Scope { only, ..scope("x", namespace) }, Revision(0)).unwrap()
        })
        .collect();
    assert_eq!(space.shared.durable.hub.lock().watchers(), 1000);
    drop(watches);
    assert_eq!(space.shared.durable.hub.lock().watchers(), 0);
}
