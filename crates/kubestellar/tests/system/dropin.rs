//! Components as drop-in processes: beside an installation that leaves them to others, with the flags, endpoints and
//! manners of the Go programs.

use std::net::SocketAddr;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    Installation, Server, config_map, create, deployment, dynamic, found, namespace, policy, until,
    until_one, within,
};

/// Endpoints at free ports, and no limit that would slow a test down.
const ENDPOINTS: [&str; 3] = [
    "--metrics-bind-address=127.0.0.1:0",
    "--pprof-bind-address=127.0.0.1:0",
    "--health-probe-bind-address=127.0.0.1:0",
];

/// A component whose endpoints can be asked.
pub(crate) struct Component {
    pub(crate) server: Server,
}

impl Component {
    pub(crate) fn start(ks: &Installation, name: &str, arguments: &[&str]) -> Self {
        Self { server: ks.spawn(name, &[arguments, &ENDPOINTS[..]].concat()) }
    }

    /// The controller manager of the embedded WDS.
    pub(crate) fn manager(ks: &Installation, name: &str, more: &[&str]) -> Self {
        let kubeconfig = ks.data().join("kubeconfig").display().to_string();
        let arguments = [
            "controller-manager",
            "--wds-name=wds1",
            "--wds-context=wds1",
            "--its-name=its1",
            "--its-context=its1",
            "--wds-kubeconfig",
            &kubeconfig,
            "--its-kubeconfig",
            &kubeconfig,
        ];
        Self::start(ks, name, &[&arguments[..], more].concat())
    }

    /// Where something is served, as the log says.
    pub(crate) async fn address(&self, what: &str) -> SocketAddr {
        let mark = format!("what=\"{what}\" address=");
        found(&format!("the address of {what}"), async || {
            let log = self.server.log();
            let (address, _) = log.split_once(&mark)?.1.split_once('\n')?;
            Some(address.trim().parse().expect("an address"))
        })
        .await
    }

    /// Code and body of an answer.
    pub(crate) async fn get(&self, what: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address(what).await).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
        (code, body.to_owned())
    }

    /// Waits until a metric has a value that will do, and gives all metrics of that moment.
    pub(crate) async fn metric(&self, name: &str, enough: impl Fn(f64) -> bool) -> String {
        found(&format!("a value of {name}"), async || {
            let (code, text) = self.get("metrics", "/metrics").await;
            assert_eq!(code, 200);
            let value =
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
            value.is_some_and(&enough).then_some(text)
        })
        .await
    }
}

/// KS-210, KS-216, KS-220, KS-223, KS-224, KS-225, KS-226, SP-126: both programs in front of an installation, started
/// as a Deployment of the original starts them; metrics, probes and profiling paths by HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn ks_223_metrics_and_probes_over_http() {
    let ks = Installation::new();
    let without = "--without=controller-manager,transport-controller";
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1", without]).await;
    let status = ks.status().await;
    let running: Vec<&str> = status["server"]["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert!(running.contains(&"work-agent") && !running.contains(&"transport-controller"), "{running:?}");
    let manager =
        Component::manager(&ks, "manager", &["-v=2", "--logtostderr=true", "--log_file=x", "--one_output"]);
    let kubeconfig = ks.data().join("kubeconfig").display().to_string();
    let arguments = [
        "transport-controller",
        "-v",
        "4",
        "--max-num-wrapped=1",
        "--wds-name=wds1",
        "--wds-kubeconfig",
        &kubeconfig,
        "--wds-context=wds1",
        "--transport-kubeconfig",
        &kubeconfig,
        "--transport-context",
        "its1",
        "--concurrency=2",
        "--wds-burst=50",
        "--transport-burst",
        "50",
        // A later one overrides an earlier one.
        "--max-num-wrapped=2",
    ];
    let transport = Component::start(&ks, "transport", &arguments);
    let (wds, its, wec) = (ks.client("wds1").await, ks.client("its1").await, ks.client("cluster1").await);
    create(&wds, namespace("quay")).await;
    create(&wds, config_map("quay", "a", "1")).await;
    create(&wds, config_map("quay", "b", "1")).await;
    create(&wds, policy("quay", ("location-group", "edge"), false)).await;
    let there = dynamic(&wec, "v1", "ConfigMap", Some("quay"));
    until(&there, "the delivery", |all| ["quay/a", "quay/b"].iter().all(|name| all.contains_key(*name)))
        .await;
    let works = dynamic(&its, "work.open-cluster-management.io/v1", "ManifestWork", Some("cluster1"));
    let of = |work: &Value| work["spec"]["workload"]["manifests"].as_array().map_or(0, Vec::len);
    until(&works, "three objects, two in each envelope at most", |all| {
        all.values().all(|w| of(&w.data) <= 2) && all.values().map(|w| of(&w.data)).sum::<usize>() == 3
    })
    .await;

    let text = manager.metric("workqueue_adds_total{name=\"Binding-wds1\"}", |adds| adds >= 1.0).await;
    let starts =
        |text: &str, what: &str| assert!(text.lines().any(|l| l.starts_with(what)), "no {what} in\n{text}");
    for what in [
        "workqueue_depth{name=\"Status-wds1\"}",
        "workqueue_queue_duration_seconds_bucket{le=\"1e-8\",name=\"Binding-wds1\"}",
        "workqueue_work_duration_seconds_count{name=\"Binding-wds1\"}",
        "workqueue_retries_total{name=\"Binding-wds1\"}",
        "workqueue_unfinished_work_seconds{name=\"Binding-wds1\"}",
        "workqueue_longest_running_processor_seconds{name=\"Binding-wds1\"}",
        "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"127.0.0.1:",
        "rest_client_request_duration_seconds_bucket{",
        "kubestellar_apiserver_call_latency_seconds_bucket{",
        "kubestellar_apiserver_call_latency_seconds_count{space=\"wds\",resource=\"bindings.v1alpha1.control.kubestellar.io\",method=\"create\",error=\"\"}",
        "kubestellar_apiserver_call_latency_seconds_count{space=\"its\",resource=\"managedclusters.v1.cluster.open-cluster-management.io\",method=\"watch\",error=\"\"}",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "kubestellar_build_info{version=",
    ] {
        starts(&text, what);
    }
    assert!(manager.server.log().contains("log_file,one_output"), "one warning:\n{}", manager.server.log());

    let text =
        transport.metric("workqueue_adds_total{name=\"transport-controller\"}", |adds| adds >= 1.0).await;
    starts(
        &text,
        "kubestellar_apiserver_call_latency_seconds_count{space=\"its\",resource=\"manifestworks.v1.work.open-cluster-management.io\",method=\"create\",error=\"\"}",
    );
    starts(&text, "rest_client_rate_limiter_duration_seconds_count{");

    for component in [&manager, &transport] {
        for path in ["/healthz", "/readyz", "/any/thing"] {
            assert_eq!(component.get("probes", path).await, (200, "ok\r\n".to_owned()));
        }
        assert_eq!(component.get("profiles", "/debug/pprof/").await.0, 200);
        assert_eq!(component.get("metrics", "/elsewhere").await.0, 404);
    }
    assert!(manager.get("probes", "/readyz?verbose").await.1.starts_with("working"));
    manager.server.stop().await;
    transport.server.stop().await;
    server.stop().await;
}

/// KS-210, KS-216, KS-217, OCM-151: what is asked for wrongly, or cannot be had, is refused with a line that says what.
#[tokio::test(flavor = "multi_thread")]
async fn ks_210_wrong_flags_are_refused() {
    let ks = Installation::new();
    let manager = |more: &'static str| format!("controller-manager --wds-name=a --wds-context=a {more}");
    let failures = [
        (manager("--controllers=status"), 1, "needs the binding controller"),
        (manager("--controllers=binding,syncer"), 1, "\"syncer\""),
        (manager("--leader-elect-lease-duration=5s"), 2, "greater than the renew deadline"),
        ("controller-manager --wds-context=a".to_owned(), 2, "needs a name"),
        ("work-agent --cluster-name=a --workload-source-driver=mqtt".to_owned(), 2, "workload-source-driver"),
        ("work-agent --cluster-name=a --terminate-on-files=x".to_owned(), 2, "terminate-on-files"),
        ("work-agent --cluster-name=a --tls-min-version=VersionTLS10".to_owned(), 2, "VersionTLS12"),
        ("work-agent --cluster-name=a --feature-gates=Other=true".to_owned(), 2, "no such gate"),
    ];
    for (line, code, text) in failures {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        ks.run(&[&["--quiet"], &arguments[..]].concat()).await.fails(code, &[text]);
    }
    // What the parser itself refuses, with the usage.
    let refused = [
        (manager("--wds-qps=0"), "greater than 0"),
        (manager("--its-burst=0"), "--its-burst"),
        (manager("--leader-elect=maybe"), "neither true nor false"),
        (manager("--metrics-bind-address=8080"), "no port"),
        (manager("--nonsense"), "--nonsense"),
        ("transport-controller --wds-name=a --concurrency=0".to_owned(), "--concurrency"),
        ("status-agent --cluster-name=a --log-flush-frequency=soon".to_owned(), "not a duration"),
    ];
    for (line, text) in refused {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let outcome = ks.run(&arguments).await;
        assert_eq!(outcome.code, 2, "{line}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(text), "{line}: {}", outcome.stderr);
    }
    // A port that somebody has is fatal, as it is for the originals.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = format!("--metrics-bind-address={}", taken.local_addr().unwrap());
    let arguments = ["--quiet", "transport-controller", "--wds-name=a", "--wds-context=a", &bind];
    ks.run(&arguments).await.fails(1, &["serving metrics on 127.0.0.1:"]);
}

const TRANSPORT: [&str; 2] = ["--wds-burst=500", "--transport-burst=500"];

fn transport(ks: &Installation, name: &str) -> Component {
    let kubeconfig = ks.data().join("kubeconfig").display().to_string();
    let arguments = [
        "transport-controller",
        "--wds-name=wds1",
        "--wds-kubeconfig",
        &kubeconfig,
        "--wds-context=wds1",
        "--transport-kubeconfig",
        &kubeconfig,
        "--transport-context=its1",
    ];
    Component::start(ks, name, &[&arguments[..], &TRANSPORT].concat())
}

/// KS-A-24, KS-066: what was changed while both controllers were down is as if they had never been; what should stay is
/// neither deleted nor made anew when they start.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_24_changes_while_down() {
    let ks = Installation::new();
    let without = "--without=controller-manager,transport-controller";
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1", without]).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    let (manager, carrier) =
        (Component::manager(&ks, "manager", &["--wds-qps=-1"]), transport(&ks, "transport"));
    for space in ["cove", "isle"] {
        create(&wds, namespace(space)).await;
        create(&wds, policy(space, ("location-group", "edge"), false)).await;
    }
    for (space, name) in [("cove", "stays"), ("cove", "goes"), ("cove", "relabelled"), ("isle", "x")] {
        create(&wds, config_map(space, name, "1")).await;
    }
    let there = dynamic(&wec, "v1", "ConfigMap", None);
    let all = ["cove/stays", "cove/goes", "cove/relabelled", "isle/x"];
    let before =
        until(&there, "the deliveries", |seen| all.iter().all(|name| seen.contains_key(*name))).await;
    manager.server.stop().await;
    carrier.server.stop().await;

    let maps = dynamic(&wds, "v1", "ConfigMap", Some("cove"));
    maps.delete("goes", &kube::api::DeleteParams::default()).await.unwrap();
    let other = json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "other"}}});
    maps.patch("relabelled", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    let policies = dynamic(&wds, "control.kubestellar.io/v1alpha1", "BindingPolicy", None);
    policies.delete("isle", &kube::api::DeleteParams::default()).await.unwrap();
    create(&wds, namespace("reef")).await;
    create(&wds, config_map("reef", "new", "1")).await;
    create(&wds, policy("reef", ("location-group", "edge"), false)).await;

    let (manager, carrier) =
        (Component::manager(&ks, "manager", &["--wds-qps=-1"]), transport(&ks, "transport"));
    let gone = ["cove/goes", "cove/relabelled", "isle/x"];
    let after = until(&there, "the state as if never down", |seen| {
        seen.contains_key("reef/new") && gone.iter().all(|name| !seen.contains_key(*name))
    })
    .await;
    assert_eq!(after["cove/stays"].metadata.uid, before["cove/stays"].metadata.uid);
    manager.server.stop().await;
    carrier.server.stop().await;
    server.stop().await;
}

/// KS-A-15: returned status survives a crash of the controller manager, and a run without the status controller; the next
/// full run sets right what changed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_15_status_over_a_crash() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "1", "--without=controller-manager"];
    let server = ks.serve(&serve).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    let manager = Component::manager(&ks, "manager", &["--wds-qps=-1"]);
    create(&wds, namespace("solo")).await;
    create(&wds, deployment("solo", "web")).await;
    create(&wds, policy("solo", ("name", "cluster1"), true)).await;
    let here = dynamic(&wds, "apps/v1", "Deployment", Some("solo"));
    let returned = |object: &Value| object["status"]["availableReplicas"] == 2;
    until_one(&here, "web", "the returned status", |web| returned(&web.data)).await;
    manager.server.kill().await;

    let half = Component::manager(&ks, "half", &["--wds-qps=-1", "--controllers=binding"]);
    let policies = dynamic(&wds, "control.kubestellar.io/v1alpha1", "BindingPolicy", None);
    let nowhere = json!({"spec": {"clusterSelectors": [{"matchLabels": {"name": "nowhere"}}]}});
    policies.patch("solo", &PatchParams::default(), &Patch::Merge(nowhere)).await.unwrap();
    let there = dynamic(&wec, "apps/v1", "Deployment", None);
    until(&there, "the removal from the cluster", |all| !all.contains_key("solo/web")).await;
    assert!(returned(&here.get("web").await.unwrap().data), "nobody is there to clear it");
    half.server.stop().await;

    let whole = Component::manager(&ks, "whole", &["--wds-qps=-1"]);
    until_one(&here, "web", "the cleared status", |web| {
        web.data["status"]["availableReplicas"].as_i64().unwrap_or(0) == 0
    })
    .await;
    whole.server.stop().await;
    server.stop().await;
}

/// The plural names of what a Binding selects.
fn selected(binding: &Value) -> std::collections::BTreeSet<String> {
    let scopes = ["clusterScope", "namespaceScope"].map(|scope| &binding["spec"]["workload"][scope]);
    let entries = scopes.into_iter().filter_map(Value::as_array).flatten();
    entries.filter_map(|entry| entry["resource"].as_str().map(str::to_owned)).collect()
}

/// KS-A-27, KS-213: only the groups on the list are looked at, also among those that CRDs bring later; the core group
/// needs an empty element.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_27_api_groups() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "0", "--without=controller-manager"];
    let server = ks.serve(&serve).await;
    let wds = ks.client("wds1").await;
    create(&wds, namespace("gulf")).await;
    create(&wds, config_map("gulf", "a", "1")).await;
    create(&wds, deployment("gulf", "web")).await;
    create(&wds, policy("gulf", ("location-group", "edge"), false)).await;
    let bindings = dynamic(&wds, "control.kubestellar.io/v1alpha1", "Binding", None);

    let few = Component::manager(&ks, "few", &["--wds-qps=-1", "--api-groups=apps,sea.example"]);
    let first =
        until_one(&bindings, "gulf", "the Binding", |b| selected(&b.data).contains("deployments")).await;
    assert_eq!(selected(&first.data).into_iter().collect::<Vec<_>>(), ["deployments"]);
    let open = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    create(
        &wds,
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "waves.sea.example"},
            "spec": {
                "group": "sea.example", "scope": "Namespaced", "names": {"plural": "waves", "kind": "Wave"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": open}],
            },
        }),
    )
    .await;
    let crds = dynamic(&wds, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None);
    until_one(&crds, "waves.sea.example", "the definition", |crd| {
        let conditions = crd.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Established" && it["status"] == "True")
    })
    .await;
    let wave = json!({
        "apiVersion": "sea.example/v1", "kind": "Wave",
        "metadata": {"name": "w", "namespace": "gulf", "labels": {"app.kubernetes.io/part-of": "gulf"}},
    });
    create(&wds, wave).await;
    until_one(&bindings, "gulf", "the custom object", |b| selected(&b.data).contains("waves")).await;
    few.server.stop().await;

    let more = Component::manager(&ks, "more", &["--wds-qps=-1", "--api-groups=,apps"]);
    until_one(&bindings, "gulf", "the core group", |b| {
        let have: Vec<String> = selected(&b.data).into_iter().collect();
        have == ["configmaps", "deployments", "namespaces"]
    })
    .await;
    more.server.stop().await;
    server.stop().await;
}

/// KS-212: level 1 tells what happens once in a run, level 2 also what happens once in the life of an object, level 4 also each
/// look at it.
#[tokio::test(flavor = "multi_thread")]
async fn ks_212_levels_of_the_log() {
    const ONCE: &str = "the binding controller works";
    let ks = Installation::new();
    let without = "--without=controller-manager,transport-controller";
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1", without]).await;
    let wds = ks.client("wds1").await;
    let bindings = dynamic(&wds, "control.kubestellar.io/v1alpha1", "Binding", None);
    let (made, looked) =
        ("making the Binding of a policy policy=", "looking at a policy and its Binding policy=");
    for (level, shown, hidden) in [
        ("-v=1", &[ONCE][..], &[made, looked][..]),
        ("--v=2", &[ONCE, made], &[looked]),
        ("-v=4", &[ONCE, made, looked], &[]),
    ] {
        let name = format!("level{}", &level[level.len() - 1..]);
        let manager = Component::manager(&ks, &name, &[level]);
        create(&wds, policy(&name, ("location-group", "edge"), false)).await;
        until_one(&bindings, &name, "its Binding", |_| true).await;
        // Whatever is logged about the Binding was logged before it was made.
        let log = manager.server.log();
        let told = |what: &str| {
            if what == ONCE { log.contains(what) } else { log.contains(&format!("{what}\"{name}\"")) }
        };
        for what in shown {
            assert!(told(what), "{level}: no {what} in\n{log}");
        }
        for what in hidden {
            assert!(!told(what), "{level}: {what} in\n{log}");
        }
        manager.server.stop().await;
    }
    server.stop().await;
}
