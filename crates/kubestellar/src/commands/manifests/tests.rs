use serde_json::{Value, json};

use super::hosting::{Wrong, manifests};
use super::values::Values;

fn read(text: &str) -> Values {
    serde_saphyr::from_str(text).expect("values")
}

fn made(text: &str) -> Vec<Value> {
    manifests(&read(text), "image:1").expect("manifests")
}

fn one<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found: Vec<&Value> =
        all.iter().filter(|it| it["kind"] == kind && it["metadata"]["name"] == name).collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0]
}

const SMALL: &str = "ITSes: [{name: its1}]\nWDSes: [{name: wds1}]\n";

/// KS-219: names, places, containers and ports as charts and tests of the original expect them.
#[test]
fn ks_219_names_of_deployments_containers_and_services() {
    let all = made(SMALL);
    let manager = one(&all, "Deployment", "kubestellar-controller-manager");
    let transport = one(&all, "Deployment", "transport-controller");
    for (deployment, container) in [(manager, "manager"), (transport, "transport-controller")] {
        assert_eq!(deployment["metadata"]["namespace"], "wds1-system");
        let spec = &deployment["spec"];
        assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
        assert_eq!(spec["template"]["spec"]["containers"][0]["name"], container);
        assert_eq!(spec["template"]["spec"]["serviceAccountName"], deployment["metadata"]["name"]);
        one(&all, "ServiceAccount", deployment["metadata"]["name"].as_str().unwrap());
    }
    let service = one(&all, "Service", "kubestellar-controller-manager-metrics-service");
    assert_eq!(
        (&service["metadata"]["namespace"], &service["spec"]["ports"][0]["port"]),
        (&json!("wds1-system"), &json!(8443))
    );
    assert_eq!(service["spec"]["selector"], manager["spec"]["selector"]["matchLabels"]);
    let init = transport["spec"]["template"]["spec"]["initContainers"].as_array().unwrap();
    assert_eq!(init.len(), 2, "the kubeconfigs of the WDS and the ITS");
}

/// KS-219: of a component that holds no Lease there is one at a time; each may read its two ControlPlanes and their kubeconfigs, and
/// keep its own Lease.
#[test]
fn ks_219_one_transport_at_a_time_and_no_right_too_many() {
    let all = made("ITSes: [{name: its1}, {name: its2}]\nWDSes: [{name: wds1, ITSName: its1}]\n");
    let strategy = |name: &str| one(&all, "Deployment", name)["spec"]["strategy"]["type"].clone();
    assert_eq!(strategy("transport-controller"), "Recreate");
    assert_eq!(strategy("kubestellar-controller-manager"), Value::Null, "the next one waits for the Lease");
    let rights = |name: &str| -> Vec<String> {
        let roles = all.iter().filter(|it| {
            let named = it["metadata"]["name"].as_str().is_some_and(|it| it.ends_with(&format!(":{name}")));
            named && ["Role", "ClusterRole"].iter().any(|kind| it["kind"] == *kind)
        });
        let rule = |role: &Value, rule: &Value| {
            let place = role["metadata"]["namespace"].as_str().unwrap_or("everywhere");
            let names = rule.get("resourceNames").unwrap_or(&Value::Null);
            format!("{place}: {} {} {names}", rule["verbs"], rule["resources"])
        };
        roles
            .flat_map(|role| role["rules"].as_array().unwrap().iter().map(move |it| rule(role, it)))
            .collect()
    };
    let planes = r#"everywhere: ["get"] ["controlplanes"] ["wds1","its1"]"#;
    let secrets = |place: &str| format!(r#"{place}: ["get"] ["secrets"] ["admin-kubeconfig","vc-vcluster"]"#);
    assert_eq!(
        rights("transport-controller"),
        [planes.to_owned(), secrets("wds1-system"), secrets("its1-system")]
    );
    assert_eq!(
        rights("kubestellar-controller-manager"),
        [
            planes.to_owned(),
            secrets("wds1-system"),
            r#"wds1-system: ["create"] ["leases"] null"#.to_owned(),
            r#"wds1-system: ["get","update"] ["leases"] ["controller-manager-wds1"]"#.to_owned(),
            secrets("its1-system"),
        ]
    );
}

/// KS-227: what users write into the values of the core chart arrives where it did.
#[test]
fn ks_227_values_of_the_core_chart() {
    let all = made(
        "KUBESTELLAR_VERSION: 0.29.0\n\
         InstallPCHs: true\n\
         kubeflex-operator: {install: false}\n\
         status_agent: {hub_qps: 7}\n\
         verbosity: {default: 3, transport: 5}\n\
         transport_controller: {max_num_wrapped: 7, wds_qps: 50, metrics_bind_addr: ':9090'}\n\
         ITSes:\n\
         - {name: its1, type: host, install_clusteradm: true}\n\
         - {name: far, type: external, bootstrapSecret: {name: creds, namespace: safe, key: config}}\n\
         WDSes:\n\
         - {name: wds1, type: host, APIGroups: ',apps', ITSName: its1}\n\
         - {name: wds2, ITSName: far}\n",
    );
    let args = |place: &str, name: &str| -> Vec<String> {
        let it = all.iter().find(|it| {
            it["kind"] == "Deployment"
                && it["metadata"]["namespace"] == place
                && it["metadata"]["name"] == name
        });
        serde_json::from_value(it.unwrap()["spec"]["template"]["spec"]["containers"][0]["args"].clone())
            .unwrap()
    };
    let has = |args: &[String], wanted: &[&str]| {
        assert!(wanted.iter().all(|it| args.iter().any(|arg| arg == it)), "{args:?}: {wanted:?}");
    };
    has(
        &args("wds1-system", "kubestellar-controller-manager"),
        &["--wds-name=wds1", "--its-name=its1", "--api-groups=,apps", "-v=3"],
    );
    has(
        &args("wds2-system", "kubestellar-controller-manager"),
        &["--wds-name=wds2", "--its-name=far", "--api-groups="],
    );
    has(
        &args("wds2-system", "transport-controller"),
        &[
            "--max-num-wrapped=7",
            "--max-size-wrapped=512000",
            "--wds-qps=50",
            "--transport-qps=5",
            "--transport-burst=10",
            "--metrics-bind-address=:9090",
            "-v=5",
        ],
    );
    has(&made_args(SMALL, "transport-controller"), &["--max-num-wrapped=1", "-v=2"]);
    let plane = |name: &str| one(&all, "ControlPlane", name);
    assert_eq!(plane("wds2")["spec"]["type"], "k8s");
    assert_eq!(plane("wds1")["metadata"]["labels"], json!({"kflex.kubestellar.io/cptype": "wds"}));
    assert_eq!(
        plane("far")["spec"]["bootstrapSecretRef"],
        json!({"name": "creds", "namespace": "safe", "inClusterKey": "config"})
    );
}

fn made_args(text: &str, name: &str) -> Vec<String> {
    let all = made(text);
    serde_json::from_value(
        one(&all, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"].clone(),
    )
    .unwrap()
}

/// KS-227: values that can't be meant are refused, with what is wrong.
#[test]
fn ks_227_wrong_values_are_refused() {
    for (text, wrong) in [
        ("ITSes:\nWDSes:\n", "there are no WDSes"),
        ("WDSes: [{name: a}]", "WDS a needs an ITSName: there are 0 ITSes"),
        ("ITSes: [{name: i}, {name: j}]\nWDSes: [{name: a}]", "WDS a needs an ITSName: there are 2 ITSes"),
        (
            "ITSes: [{name: i}]\nWDSes: [{name: a, ITSName: j}]",
            "WDS a wants ITS j, which is not among the ITSes",
        ),
        ("ITSes: [{name: i}]\nWDSes: [{name: i}]", "two spaces are called i"),
        (
            "ITSes: [{name: i, type: kind}]\nWDSes: [{name: a}]",
            "ITS i has type kind; possible are vcluster, host, external",
        ),
    ] {
        assert_eq!(manifests(&read(text), "x").map_err(|e| e.to_string()), Err(wrong.to_owned()), "{text}");
    }
    assert!(matches!(
        manifests(&read("ITSes: [{name: i}]\nWDSes: [{name: A_b}]"), "x"),
        Err(Wrong::Name(..))
    ));
}

/// KS-200: the kinds of a hub include the one that the agents of the status add-on write.
#[test]
fn ks_200_the_kinds_of_a_hub_can_be_printed() {
    let kinds = |side: super::Side| -> Vec<String> {
        side.kinds().iter().map(|crd| crd["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let hub = kinds(super::Side::Its);
    for name in ["workstatuses.control.kubestellar.io", "manifestworks.work.open-cluster-management.io"] {
        assert!(hub.iter().any(|found| found == name), "{name} in {hub:?}");
    }
    assert!(kinds(super::Side::Wds).iter().any(|name| name == "bindings.control.kubestellar.io"));
    assert!(kinds(super::Side::Wec).iter().any(|name| name.starts_with("appliedmanifestworks.")));
}
