//! Components as drop-in processes: beside an installation that leaves them to others, with the flags, endpoints and
//! manners of the Go programs.

use std::net::SocketAddr;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::components::Bare;
use crate::support::{
    Installation, Server, config_map, create, deployment, dynamic, namespace, policy, until, until_one,
    within,
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
    fn manager(ks: &Installation, name: &str, more: &[&str]) -> Self {
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
    async fn address(&self, what: &str) -> SocketAddr {
        let mark = format!("what=\"{what}\" address=");
        let found = async {
            loop {
                let log = self.server.log();
                let text = log.split_once(&mark).and_then(|(_, rest)| rest.split_once('\n'));
                if let Some((address, _)) = text {
                    return address.trim().parse().expect("an address");
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        within(&format!("the address of {what} in\n{}", self.server.log()), found).await
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
        let found = async {
            loop {
                let (code, text) = self.get("metrics", "/metrics").await;
                assert_eq!(code, 200);
                let value =
                    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
                if value.is_some_and(&enough) {
                    return text;
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        };
        within(&format!("a value of {name}"), found).await
    }
}

const LEADS: &str = "leader_election_master_status{name=\"controller-manager-wds1\"}";

async fn leaders(of: &Api<Lease>, enough: impl Fn(&str) -> bool) -> String {
    let holder =
        |lease: &Lease| lease.spec.as_ref().and_then(|it| it.holder_identity.clone()).unwrap_or_default();
    let name = "controller-manager-wds1";
    holder(&until_one(of, name, "the Lease", |lease| enough(&holder(lease))).await)
}

/// KS-211: of two controller managers one works; when it is killed the other takes over and
/// delivers what was changed meanwhile, and what was delivered stays; told to stop, it gives the Lease back.
#[tokio::test(flavor = "multi_thread")]
async fn ks_211_the_other_takes_over() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "1", "--without", "controller-manager"];
    let server = ks.serve(&serve).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    let leases: Api<Lease> = Api::namespaced(wds.clone(), "kube-system");
    create(&wds, namespace("harbour")).await;
    create(&wds, config_map("harbour", "first", "1")).await;
    create(&wds, policy("harbour", ("location-group", "edge"), false)).await;

    let elect = ["--leader-elect", "--wds-qps=-1", "--its-qps=-1"];
    let one = Component::manager(&ks, "one", &elect);
    let first = leaders(&leases, |holder| !holder.is_empty()).await;
    one.metric(LEADS, |value| value > 0.5).await;
    let two = Component::manager(&ks, "two", &elect);
    two.metric(LEADS, |value| value < 0.5).await;
    // One that waits is well.
    assert_eq!(two.get("probes", "/readyz").await, (200, "ok\r\n".to_owned()));
    assert!(two.get("probes", "/readyz?verbose").await.1.contains("not working yet"));

    let there = dynamic(&wec, "v1", "ConfigMap", Some("harbour"));
    let delivered = until_one(&there, "first", "the first delivery", |_| true).await;
    assert_eq!(leaders(&leases, |_| true).await, first, "nobody else came between");
    one.server.kill().await;
    create(&wds, config_map("harbour", "second", "2")).await;
    until_one(&there, "second", "the delivery after the take-over", |_| true).await;
    two.metric(LEADS, |value| value > 0.5).await;
    let second = leaders(&leases, |holder| holder != first).await;
    assert_ne!(second, "");
    let still = until_one(&there, "first", "what was there", |_| true).await;
    assert_eq!(still.metadata.uid, delivered.metadata.uid, "what was delivered was left alone");

    two.server.stop().await;
    assert_eq!(leaders(&leases, str::is_empty).await, "", "given back");
    server.stop().await;
}

/// KS-211: a Lease that somebody else took ends the process, as the original's libraries end theirs.
#[tokio::test(flavor = "multi_thread")]
async fn ks_211_a_lost_lease_ends_the_process() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "0", "--without=controller-manager"];
    let server = ks.serve(&serve).await;
    let leases: Api<Lease> = Api::namespaced(ks.client("wds1").await, "kube-system");
    let mut one = Component::manager(&ks, "one", &["-leader-elect=true"]);
    leaders(&leases, |holder| !holder.is_empty()).await;
    one.metric(LEADS, |value| value > 0.5).await;
    // As somebody with the right to do so may. Its term is long, so that it is not taken back at once.
    let theirs = json!({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}});
    let patch = Patch::Merge(theirs);
    leases.patch("controller-manager-wds1", &PatchParams::default(), &patch).await.unwrap();
    let status = one.server.ended().await;
    assert_eq!(status.code(), Some(1), "{}", one.server.log());
    assert!(one.server.log().contains("leader election lost"), "{}", one.server.log());
    assert_eq!(leaders(&leases, |_| true).await, "somebody");
    server.stop().await;
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

/// The kubeconfig of one space, as a Secret of a ControlPlane holds it.
fn only(ks: &Installation, space: &str) -> String {
    let text = std::fs::read_to_string(ks.data().join("kubeconfig")).unwrap();
    let mut document: Value = serde_saphyr::from_str(&text).unwrap();
    document["current-context"] = json!(space);
    document.to_string()
}

async fn control_plane(hosting: &Bare, ks: &Installation, space: &str, role: &str) {
    let place = format!("{space}-system");
    create(&hosting.client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}}))
        .await;
    create(
        &hosting.client,
        json!({
            "apiVersion": TENANCY, "kind": "ControlPlane",
            "metadata": {"name": space, "labels": {"kflex.kubestellar.io/cptype": role}},
            "spec": {"type": "k8s", "backend": "shared"},
        }),
    )
    .await;
    provision(hosting, ks, space).await;
}

const TENANCY: &str = "tenancy.kflex.kubestellar.org/v1alpha1";

/// What KubeFlex does for a ControlPlane: its credentials, and the status that refers to them.
async fn provision(hosting: &Bare, ks: &Installation, space: &str) {
    let place = format!("{space}-system");
    create(
        &hosting.client,
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "admin-kubeconfig", "namespace": place},
            "stringData": {"kubeconfig": only(ks, space), "kubeconfig-incluster": "not: this one\n"},
        }),
    )
    .await;
    let long_ago = "2026-01-01T00:00:00Z";
    let status = json!({"status": {
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Available", "message": "",
            "lastUpdateTime": long_ago, "lastTransitionTime": long_ago,
        }],
        "observedGeneration": 1,
        "secretRef": {"namespace": place, "name": "admin-kubeconfig", "key": "kubeconfig", "inClusterKey": "kubeconfig-incluster"},
    }});
    let planes = dynamic(&hosting.client, TENANCY, "ControlPlane", None);
    planes.patch_status(space, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// KS-214, KS-228: told nothing but the hosting cluster, the controller manager waits for the ControlPlanes and their
/// credentials, finds the only WDS and the only ITS, has its Lease beside its Deployment, and delivers.
#[tokio::test(flavor = "multi_thread")]
async fn ks_214_spaces_by_their_control_planes() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "1", "--without", "controller-manager"];
    let server = ks.serve(&serve).await;
    let hosting = Bare::start(&ks, "hosting").await;
    // Started first of all: not even the kind is there.
    let arguments = ["--kubeconfig", hosting.file(), "controller-manager", "--leader-elect", "--wds-qps=-1"];
    let manager = Component::start(&ks, "manager", &arguments);
    assert_eq!(manager.get("probes", "/healthz").await.0, 200);
    hosting.define(apis::crds::tenancy()).await;
    control_plane(&hosting, &ks, "its1", "its").await;
    control_plane(&hosting, &ks, "wds1", "wds").await;

    let leases: Api<Lease> = Api::namespaced(hosting.client.clone(), "wds1-system");
    leaders(&leases, |holder| !holder.is_empty()).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    create(&wds, namespace("pier")).await;
    create(&wds, config_map("pier", "a", "1")).await;
    create(&wds, policy("pier", ("location-group", "edge"), false)).await;
    until_one(&dynamic(&wec, "v1", "ConfigMap", Some("pier")), "a", "the delivery", |_| true).await;
    manager.server.stop().await;

    // A second WDS, and it is no longer clear which is meant.
    control_plane(&hosting, &ks, "cluster1", "wds").await;
    let off = ["--metrics-bind-address=0", "--pprof-bind-address=0", "--health-probe-bind-address="];
    let unclear = ks
        .run(&[&["--quiet", "--kubeconfig", hosting.file(), "controller-manager"], &off[..]].concat())
        .await;
    unclear.fails(1, &["more than one control plane of type wds was found and no name was specified"]);
    hosting.server.stop().await;
    server.stop().await;
}

/// KS-218, SP-127: the kubeconfig of one ControlPlane, by name or labels, to stdout or into a file; the exit codes of the
/// original.
#[tokio::test(flavor = "multi_thread")]
async fn ks_218_kubeconfig_of_a_control_plane() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let hosting = Bare::start(&ks, "hosting").await;
    hosting.define(apis::crds::tenancy()).await;
    control_plane(&hosting, &ks, "its1", "its").await;
    let ask = ["--quiet", "--kubeconfig", hosting.file(), "get-kubeconfig"];
    let by_name = ["-control-plane-name=its1", "-in-cluster=false", "-output-file=-"];
    let shown = ks.must(&[&ask[..], &by_name].concat()).await;
    assert_eq!(shown.stdout.trim_end(), only(&ks, "its1"));
    let file = ks.path("its1.conf").display().to_string();
    let by_label =
        ["--control-plane-label-selector", "kflex.kubestellar.io/cptype=its", "--output-file", &file];
    ks.must(&[&ask[..], &by_label].concat()).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not: this one\n");

    let refused: [(&[&str], i32, &str); 5] = [
        (&["--output-file=-"], 1, "either"),
        (&["--control-plane-name=a", "--control-plane-label-selector=b", "--output-file=-"], 1, "exclude"),
        (&["--control-plane-name=its1"], 1, "--output-file"),
        (&["--control-plane-name=none", "--output-file=-", "--timeout=1s"], 86, "not ready in time"),
        (&["--control-plane-name=its1", "--output-file=/proc/none"], 99, "writing /proc/none"),
    ];
    for (arguments, code, text) in refused {
        ks.run(&[&ask[..], arguments].concat()).await.fails(code, &[text]);
    }
    let nowhere =
        ["--quiet", "--kubeconfig=none.conf", "get-kubeconfig", "--control-plane-name=a", "--output-file=-"];
    ks.run(&nowhere).await.fails(10, &["none.conf"]);
    hosting.server.stop().await;
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

/// What `https://ADDRESS/PATH` answers to whoever holds this token.
async fn over_tls(address: SocketAddr, token: Option<&str>, path: &str) -> Result<String, u16> {
    let url = format!("https://{address}").parse().unwrap();
    let mut config = kube::Config::new(url);
    config.accept_invalid_certs = true;
    config.auth_info = serde_json::from_value(json!({"token": token})).unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    match within("an answer", client.request_text(request)).await {
        Ok(text) => Ok(text),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{path}: {error:?}"),
    }
}

/// OCM-150, OCM-151, OCM-164: the work agent as OCM's Deployment starts it: it holds `work-agent-lock` unless told not to, and its
/// TLS port has probes for everybody and metrics for whom the cluster lets see them.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_150_work_agent_lock_probes_and_metrics() {
    let ks = Installation::new();
    let edge = Bare::start(&ks, "edge").await;
    let arguments = [
        "work-agent",
        "--spoke-cluster-name=edge",
        "--hub-kubeconfig",
        edge.file(),
        "--spoke-kubeconfig",
        edge.file(),
        "--listen=127.0.0.1:0",
        "--kube-api-qps=80",
        "--hub-kube-api-burst=200",
        "--leader-election-lease-duration=20s",
        "--disable-leader-election=false",
        "--workload-source-driver=kube",
    ];
    let agent = Component::start(&ks, "agent", &arguments);
    let leases: Api<Lease> = Api::namespaced(edge.client.clone(), "default");
    let held = until_one(&leases, "work-agent-lock", "the Lease", |lease| {
        lease.spec.as_ref().is_some_and(|it| it.holder_identity.as_ref().is_some_and(|it| !it.is_empty()))
    })
    .await;
    let spec = held.spec.unwrap();
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(20), Some(0)));
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());
    agent.metric("leader_election_master_status{name=\"work-agent-lock\"}", |value| value > 0.5).await;

    let secure = agent.address("secure").await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(over_tls(secure, None, path).await, Ok("ok".to_owned()));
    }
    assert_eq!(over_tls(secure, None, "/metrics").await, Err(401));
    assert_eq!(over_tls(secure, Some("guessed"), "/metrics").await, Err(401));
    let text = over_tls(secure, Some("secret"), "/metrics").await.unwrap();
    // OCM-164: what the agent counts is there before there is anything to count.
    for name in [
        "workqueue_depth{name=\"ManifestWorkAgent\"}",
        "ocm_manifests{state=\"failed\"} 0",
        "ocm_eviction_pending 0",
        "ocm_manifestwork_status_lag_seconds_count 0",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
    agent.server.stop().await;
    let given_back = until_one(&leases, "work-agent-lock", "the Lease given back", |lease| {
        lease.spec.as_ref().is_some_and(|it| it.holder_identity.as_deref().unwrap_or_default().is_empty())
    })
    .await;
    assert_eq!(given_back.spec.and_then(|it| it.lease_transitions), Some(0));
    edge.server.stop().await;
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

/// The kubeconfig of a service account, for the cluster that another is for.
async fn account(hosting: &Bare, ks: &Installation, place: &str, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{place}/serviceaccounts/{name}/token");
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let request = http::Request::post(path).header("content-type", "application/json");
    let answer: Value =
        hosting.client.request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    let text = std::fs::read_to_string(hosting.file()).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    document["users"][0]["user"] = json!({"token": answer["status"]["token"]});
    let file = ks.path(&format!("{name}.conf"));
    std::fs::write(&file, document.to_string()).unwrap();
    file.display().to_string()
}

/// KS-219, KS-227: the manifests that the values of the core chart amount to, applied to a hosting cluster; what they start, started
/// as they say, under the service accounts that they make: these rights are enough to deliver, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn ks_219_manifests_and_their_rights_are_enough() {
    let ks = Installation::new();
    let without = "--without=controller-manager,transport-controller";
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1", without]).await;
    let hosting = Bare::start(&ks, "hosting").await;
    hosting.define(apis::crds::tenancy()).await;
    let values = ks.path("values.yaml");
    let text =
        "verbosity: {default: 2}\nITSes: [{name: its1, type: vcluster}]\nWDSes: [{name: wds1, type: k8s}]\n";
    std::fs::write(&values, text).unwrap();
    let ask = ["manifests", "--values", values.to_str().unwrap(), "-o", "json"];
    let printed: Value = serde_json::from_str(&ks.must(&ask).await.stdout).unwrap();
    let items = printed["items"].as_array().unwrap();
    for item in items {
        let text = |path: &str| item.pointer(path).and_then(Value::as_str);
        let api = dynamic(
            &hosting.client,
            text("/apiVersion").unwrap(),
            text("/kind").unwrap(),
            text("/metadata/namespace"),
        );
        let applied = api
            .patch(text("/metadata/name").unwrap(), &PatchParams::apply("test"), &Patch::Apply(item))
            .await;
        applied.unwrap_or_else(|error| panic!("{item}: {error}"));
    }
    for space in ["its1", "wds1"] {
        provision(&hosting, &ks, space).await;
    }
    let yaml = ks.must(&ask[..3]).await.stdout;
    assert_eq!(yaml.matches("\n---\n").count() + 1, items.len(), "{yaml}");

    let arguments = |container: &Value| -> Vec<String> {
        let all = container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
        let place = format!("={}/", ks.path("").display().to_string().trim_end_matches('/'));
        all.map(|it| it.replace("=/kubeconfig/", &place)).collect()
    };
    let pod = |name: &str| {
        let found = items.iter().find(|it| it["kind"] == "Deployment" && it["metadata"]["name"] == name);
        found.unwrap()["spec"]["template"]["spec"].clone()
    };
    let (manager_file, transport_file) = (
        account(&hosting, &ks, "wds1-system", "kubestellar-controller-manager").await,
        account(&hosting, &ks, "wds1-system", "transport-controller").await,
    );
    for init in pod("transport-controller")["initContainers"].as_array().unwrap() {
        let mut line = vec!["--kubeconfig".to_owned(), transport_file.clone()];
        line.extend(arguments(init));
        line.push("--in-cluster=false".to_owned());
        ks.must(&line.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let start = |name: &str, file: &str| {
        let container = pod(name)["containers"][0].clone();
        let mut line = vec!["--kubeconfig".to_owned(), file.to_owned()];
        line.extend(arguments(&container));
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        Component::start(&ks, name, &line)
    };
    let transport = start("transport-controller", &transport_file);
    let manager = start("kubestellar-controller-manager", &manager_file);
    let leases: Api<Lease> = Api::namespaced(hosting.client.clone(), "wds1-system");
    leaders(&leases, |holder| !holder.is_empty()).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    create(&wds, namespace("jetty")).await;
    create(&wds, config_map("jetty", "a", "1")).await;
    create(&wds, policy("jetty", ("location-group", "edge"), false)).await;
    until_one(&dynamic(&wec, "v1", "ConfigMap", Some("jetty")), "a", "the delivery", |_| true).await;

    // And no more.
    for file in [&manager_file, &transport_file] {
        let client = crate::support::client_of(std::path::Path::new(file), "hosting").await;
        let refused = |answer: Result<(), kube::Error>| {
            assert!(
                matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403),
                "{file}: {answer:?}"
            );
        };
        let secrets = dynamic(&client, "v1", "Secret", Some("wds1-system"));
        secrets.get("admin-kubeconfig").await.unwrap();
        refused(secrets.get("another").await.map(drop));
        refused(secrets.list(&kube::api::ListParams::default()).await.map(drop));
        refused(
            dynamic(&client, "v1", "Secret", Some("kube-system")).get("admin-kubeconfig").await.map(drop),
        );
        refused(
            dynamic(&client, "apps/v1", "Deployment", Some("wds1-system")).get("manager").await.map(drop),
        );
        let planes = dynamic(&client, TENANCY, "ControlPlane", None);
        planes.get("wds1").await.unwrap();
        refused(planes.delete("wds1", &kube::api::DeleteParams::default()).await.map(drop));
    }
    for component in [manager, transport] {
        component.server.stop().await;
    }
    hosting.server.stop().await;
    server.stop().await;
}
