//! `kubestellar space`.

use kube::config::Kubeconfig;
use serde_json::Value;

use crate::support::{Installation, config_map, create, dynamic, uid};

/// The names of the contexts in the user's kubeconfig.
fn contexts(ks: &Installation) -> Vec<String> {
    let text = std::fs::read_to_string(ks.kubeconfig()).unwrap_or_default();
    let config = Kubeconfig::from_yaml(&text).unwrap_or_default();
    config.contexts.into_iter().map(|context| context.name).collect()
}

/// SP-050, SP-108, SP-110, SP-111, SP-112 (SP-A-10): a space from its creation to its deletion by our own commands, with the exit
/// codes of scripts.
#[tokio::test(flavor = "multi_thread")]
async fn sp_111_a_space_by_commands() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let made = ks.must(&["space", "create", "team-a", "--role", "wds", "--its", "its1"]).await;
    assert_eq!(made.stdout, "team-a created\n");
    assert!(contexts(&ks).contains(&"team-a".to_owned()));
    ks.run(&["space", "create", "team-a"]).await.fails(4, &["a space of this name exists"]);
    assert_eq!(ks.run(&["space", "create", "Team_A"]).await.code, 2);

    let table = ks.must(&["space", "list", "-o", "wide"]).await.stdout;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let header = ["NAME", "ROLE", "TYPE", "SYNCED", "READY", "AGE", "URL", "OBJECTS", "HOOKS"];
    assert_eq!(lines[0], header, "{table}");
    let row = lines.iter().find(|line| line[0] == "team-a").unwrap();
    assert_eq!((&row[1..5], row[8]), (&["wds", "k8s", "True", "True"][..], "true"), "{table}");
    assert!(row[7].parse::<usize>().unwrap() > 10, "{table}");
    let names = ks.must(&["space", "ls", "-l", "kflex.kubestellar.io/cptype=wds", "-o", "name"]).await.stdout;
    assert_eq!(names, "controlplane/team-a\ncontrolplane/wds1\n");
    let json = ks.must(&["space", "list", "-o", "json"]).await.stdout;
    let list: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&"SpaceList".into(), 3));

    let file = ks.path("team-a.conf");
    ks.must(&["space", "kubeconfig", "team-a", "-o", file.to_str().unwrap()]).await;
    let inside = crate::support::client_of(&file, "team-a").await;
    let map = create(&inside, config_map("default", "a", "1")).await;
    assert_eq!(
        ks.must(&["space", "kubeconfig", "team-a"]).await.stdout,
        std::fs::read_to_string(&file).unwrap()
    );
    ks.run(&["space", "kubeconfig", "nobody"]).await.fails(3, &["there is no space nobody"]);

    ks.must(&["space", "stop", "team-a"]).await;
    let stopped = ks.must(&["space", "list", "-o", "json"]).await.stdout;
    assert!(stopped.contains("\"message\": \"suspended\""), "{stopped}");
    ks.must(&["space", "start", "team-a"]).await;
    let again = dynamic(&inside, "v1", "ConfigMap", Some("default")).get("a").await.unwrap();
    assert_eq!(uid(&again), uid(&map));
    ks.run(&["space", "stop", "nobody"]).await.fails(3, &["there is no space nobody"]);

    ks.run(&["space", "delete", "team-a", "nobody", "--yes"]).await.fails(3, &["deleting nobody"]);
    ks.run(&["space", "delete", "its1"]).await.fails(2, &["affected: team-a: it delivers through its1"]);
    let gone = ks.must(&["space", "delete", "team-a", "--yes"]).await;
    assert_eq!(gone.stdout, "team-a deleted\n");
    assert!(gone.stderr.contains("context team-a is removed"), "{}", gone.stderr);
    assert!(!contexts(&ks).contains(&"team-a".to_owned()));
    assert!(!ks.data().join("spaces/team-a").exists());
    ks.run(&["space", "delete", "team-a", "--yes"]).await.fails(3, &["there is no such space"]);
    server.stop().await;
}
