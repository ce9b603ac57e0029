//! `kubestellar demo`: the main job, from nothing (SP-129).

use std::path::Path;
use std::time::Duration;

use crate::support::{Installation, Random, any_seed, when, within};

/// SP-129: exit 0 only after everything was read back; nothing is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_verifies_and_leaves_nothing() {
    let ks = Installation::new();
    let demo = ks.must(&["demo", "--timeout", "80"]).await;
    for line in
        ["Deployment shop/web", "ConfigMap shop/settings", "Service shop/web", "Everything was verified"]
    {
        assert!(demo.stdout.contains(line), "no {line:?} in\n{}", demo.stdout);
    }
    assert!(demo.stdout.contains("simulated"), "says what the clusters are:\n{}", demo.stdout);
    let left: Vec<_> = std::fs::read_dir(ks.path("tmp")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty() && !ks.kubeconfig().exists(), "left behind: {left:?}");
}

/// SP-129: the user's own manifests, a kind of their own included.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_delivers_own_manifests() {
    let ks = Installation::new();
    std::fs::create_dir(ks.path("manifests")).unwrap();
    std::fs::write(ks.path("manifests/1-policy.yaml"), POLICY).unwrap();
    std::fs::write(ks.path("manifests/2-boats.yaml"), BOATS).unwrap();
    let demo = ks.must(&["demo", "--timeout", "80", "-f", "manifests"]).await;
    for cluster in ["cluster1", "cluster2"] {
        for object in
            ["Boat harbour/skiff", "CustomResourceDefinition boats.example.org", "Namespace harbour"]
        {
            let found = demo.stdout.lines().any(|l| l.starts_with(object) && l.contains(cluster));
            assert!(found, "{object} is not said to be in {cluster}:\n{}", demo.stdout);
        }
    }
}

/// SP-129, SP-088: what is not delivered is a failure that says what was missing, and leaves nothing either.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_fails_when_the_policy_selects_nothing() {
    let ks = Installation::new();
    let nothing = POLICY.replace("location-group: edge", "location-group: moon");
    std::fs::write(ks.path("all.yaml"), format!("{nothing}---{BOATS}")).unwrap();
    let demo = ks.run(&["demo", "--timeout", "30", "-f", "all.yaml", "--clusters", "1"]).await;
    assert!([5, 9].contains(&demo.code), "exit {}\n{}", demo.code, demo.stderr);
    let error = demo.stderr.lines().find(|l| l.starts_with("error: ")).unwrap();
    assert!(error.contains("harbour"), "does not name the policy: {error}");
    assert!(!demo.stdout.contains("verified"), "{}", demo.stdout);
    assert_eq!(std::fs::read_dir(ks.path("tmp")).unwrap().count(), 0);
}

/// Names in a directory, in order; none where there is no directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// SP-129, SP-086: the directory of an installation is nothing to a demo, whether the environment or a flag names it; a kept demo's
/// commands name its own directory, and a purge that could mean either of them removes none.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_leaves_installations_alone() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    ks.must(&["down"]).await;
    let installation = ks.data().display().to_string();
    let shape = std::fs::read(ks.data().join("installation.json")).unwrap();
    let before = names(&ks.data());

    ks.run(&["demo", "--data-dir", &installation]).await.fails(4, &[&installation, "an installation"]);
    std::fs::create_dir(ks.path("project")).unwrap();
    std::fs::write(ks.path("project/notes.txt"), "mine").unwrap();
    ks.run(&["demo", "--data-dir", "project"]).await.fails(4, &["notes.txt"]);
    ks.run(&["up", "--data-dir", "project"]).await.fails(4, &["notes.txt"]);
    ks.run(&["down", "--data-dir", "project", "--purge", "--yes"]).await.fails(4, &["notes.txt"]);
    assert_eq!(names(&ks.path("project")), ["notes.txt"]);

    let demo = ks.must(&["demo", "--clusters", "1", "--keep", "--timeout", "80s"]).await;
    assert_eq!(names(&ks.data()), before, "the demo used the installation");
    let [kept] = &names(&ks.path("tmp"))[..] else { panic!("one directory in {}", ks.path("tmp").display()) };
    let kept = ks.path("tmp").join(kept).display().to_string();
    let status = format!("kubestellar --data-dir {kept} status");
    let purge = format!("kubestellar --data-dir {kept} down --purge --yes");
    for line in [&status, &purge] {
        assert!(demo.stdout.lines().any(|it| it.trim() == line), "no {line:?} in\n{}", demo.stdout);
    }
    // Commands that are given no directory find the demo while nothing else runs, and do not guess what is to be purged.
    let unnamed = async |arguments: &[&str]| {
        let mut command = ks.command(arguments);
        command.env_remove("KUBESTELLAR_DATA_DIR").env("XDG_DATA_HOME", ks.path("share"));
        within("a command", command.output()).await.unwrap()
    };
    std::fs::create_dir(ks.path("share")).unwrap();
    std::os::unix::fs::symlink(ks.data(), ks.path("share/kubestellar")).unwrap();
    assert!(unnamed(&["status"]).await.status.success());
    let refused = unnamed(&["down", "--purge", "--yes"]).await;
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&kept) && said.contains("share/kubestellar"), "{said}");
    assert!(unnamed(&["status"]).await.status.success(), "the demo was stopped");
    // The printed command, as it stands.
    let words: Vec<&str> = purge.split(' ').skip(1).collect();
    ks.must(&words).await;
    assert_eq!(names(&ks.path("tmp")), [""; 0]);
    assert_eq!(names(&ks.path("home/.local/state/kubestellar")), [""; 0], "it is still remembered");
    assert_eq!(std::fs::read(ks.data().join("installation.json")).unwrap(), shape);
    ks.must(&["up"]).await;
}

/// How often a demo is interrupted, unless KUBESTELLAR_TEST_ROUNDS says otherwise.
const ROUNDS: u64 = 5;

/// SP-129, SP-087: whenever a demo is interrupted, by whatever signal and however often, nothing stays: no process, no directory, no
/// context. A kill -9 of the demo itself is survived by its server, which tidies up.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_an_interrupted_demo_leaves_nothing() {
    let rounds =
        std::env::var("KUBESTELLAR_TEST_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(ROUNDS);
    let mut random = Random(any_seed());
    for round in 0..rounds {
        let ks = Installation::new();
        let mut demo = ks.spawn("demo", &["demo", "--clusters", "1"]);
        let signals = [("INT", 130), ("TERM", 143), ("HUP", 129), ("KILL", -1)];
        let (signal, code) = signals[random.below(4) as usize];
        let (first, second) =
            (Duration::from_millis(random.below(2500)), Duration::from_millis(random.below(300)));
        println!("round {round}: {signal} after {first:?}, and again {second:?} later");
        let ended = tokio::time::timeout(first, demo.wait()).await;
        let status = match ended {
            Ok(status) => status,
            Err(_) => {
                demo.signal(signal).await;
                match tokio::time::timeout(second, demo.wait()).await {
                    Ok(status) => status,
                    Err(_) => {
                        demo.signal("INT").await;
                        demo.ended().await
                    }
                }
            }
        };
        if code == -1 {
            // A demo that was killed before it had a server leaves the directory it had just made.
            when("the end of the server", || processes(&ks.path("tmp")).is_empty()).await;
        } else {
            // Before anything is made a signal ends the program at once, without a code.
            let is_expected = [Some(0), Some(code), None].contains(&status.code());
            assert!(is_expected, "{status:?}\n{}", demo.log());
            let left = (processes(&ks.path("tmp")), names(&ks.path("tmp")));
            assert!(left.0.is_empty() && left.1.is_empty(), "left: {left:?}\n{}", demo.log());
        }
        assert!(!ks.kubeconfig().exists() && !ks.data().exists());
    }
}

/// Command lines of the processes that name something under a directory.
fn processes(dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|it| std::fs::read(it.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&dir)).collect()
}

const POLICY: &str = "
apiVersion: control.kubestellar.io/v1alpha1
kind: BindingPolicy
metadata: {name: harbour}
spec:
  clusterSelectors:
  - matchLabels: {location-group: edge}
  downsync:
  - objectSelectors:
    - matchLabels: {fleet: north}
";

const BOATS: &str = "
apiVersion: example.org/v1
kind: Boat
metadata: {name: skiff, namespace: harbour, labels: {fleet: north}}
spec: {oars: 2}
---
apiVersion: v1
kind: Namespace
metadata: {name: harbour, labels: {fleet: north}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.org, labels: {fleet: north}}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              oars: {type: integer, minimum: 1}
";
