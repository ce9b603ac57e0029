use super::*;
use crate::builtin;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn table(group: &str, plural: &str, object: Value) -> Value {
    let version = if (group, plural) == ("autoscaling", "horizontalpodautoscalers") { "v2" } else { "v1" };
    let catalog = builtin::catalog();
    let d = catalog.resource(group, version, plural).unwrap();
    render(d, &[object], &json!({}), IncludeObject::None, true, now())
}

/// The cells of an object that was created an hour ago, compared with what Kubernetes prints.
fn cells(group: &str, plural: &str, mut object: Value) -> Value {
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let table = table(group, plural, object);
    let cells = table["rows"][0]["cells"].clone();
    assert_eq!(cells.as_array().unwrap().len(), table["columnDefinitions"].as_array().unwrap().len());
    cells
}

#[test]
fn as_018_ages_are_short() {
    for (seconds, wanted) in [
        (-5, "<invalid>"),
        (-1, "0s"),
        (66, "66s"),
        (140, "2m20s"),
        (180, "3m"),
        (17 * 60, "17m"),
        (18_600, "5h10m"),
        (29 * 3600, "29h"),
        (76 * 3600, "3d4h"),
        (200 * 86_400, "200d"),
        (760 * 86_400, "2y30d"),
        (10 * 365 * 86_400, "10y"),
    ] {
        assert_eq!(fields::human_seconds(seconds), wanted);
    }
}

#[test]
fn as_018_built_in_cells_follow_kind() {
    let template =
        json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}});
    let selector = json!({"matchLabels": {"app": "d"}});
    assert_eq!(
        cells("", "configmaps", json!({"data": {"a": "1"}, "binaryData": {"b": ""}})),
        json!(["x", 2, "60m"])
    );
    assert_eq!(cells("", "secrets", json!({"type": "Opaque"})), json!(["x", "Opaque", 0, "60m"]));
    assert_eq!(
        cells("", "namespaces", json!({"status": {"phase": "Active"}})),
        json!(["x", "Active", "60m"])
    );
    assert_eq!(cells("rbac.authorization.k8s.io", "roles", json!({})), json!(["x", "2026-01-01T00:00:00Z"]));
    assert_eq!(
        cells(
            "apps",
            "deployments",
            json!({
                "spec": {"replicas": 3, "selector": selector, "template": template}, "status": {"readyReplicas": 1, "updatedReplicas": 2},
            })
        ),
        json!(["x", "1/3", 2, 0, "60m", "a,b", "i,j", "app=d"])
    );
    assert_eq!(
        cells("apps", "daemonsets", json!({"spec": {"selector": selector, "template": template}})),
        json!(["x", 0, 0, 0, 0, 0, "<none>", "60m", "a,b", "i,j", "app=d"])
    );
    assert_eq!(
        cells(
            "batch",
            "jobs",
            json!({
                "spec": {"completions": 2, "selector": selector, "template": template},
                "status": {"succeeded": 2, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:30Z", "conditions": [{"type": "Complete", "status": "True"}]},
            })
        ),
        json!(["x", "Complete", "2/2", "30s", "60m", "a,b", "i,j", "app=d"])
    );
    assert_eq!(
        cells(
            "batch",
            "cronjobs",
            json!({"spec": {"schedule": "* * * * *", "suspend": false, "jobTemplate": {"spec": {"template": template}}}})
        ),
        json!(["x", "* * * * *", "<none>", "False", 0, "<none>", "60m", "a,b", "i,j", "<none>"])
    );
    assert_eq!(
        cells(
            "",
            "services",
            json!({"spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "selector": {"b": "2", "a": "1"}, "ports": [
                {"port": 80, "protocol": "TCP", "nodePort": 30000}, {"port": 53, "protocol": "UDP"},
            ]}})
        ),
        json!(["x", "NodePort", "10.0.0.1", "<none>", "80:30000/TCP,53/UDP", "60m", "a=1,b=2"])
    );
    assert_eq!(
        cells(
            "",
            "persistentvolumeclaims",
            json!({"spec": {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}})
        ),
        json!(["x", "Pending", "", "", "", "", "<unset>", "60m", "Filesystem"])
    );
    assert_eq!(
        cells(
            "rbac.authorization.k8s.io",
            "rolebindings",
            json!({
                "roleRef": {"kind": "Role", "name": "r"},
                "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}],
            })
        ),
        json!(["x", "Role/r", "60m", "u", "", "n/s"])
    );
    assert_eq!(
        cells(
            "",
            "resourcequotas",
            json!({"status": {"hard": {"pods": "2", "limits.cpu": "1"}, "used": {"pods": "1"}}})
        ),
        json!(["x", "pods: 1/2", "limits.cpu: 0/1", "60m"])
    );
    assert_eq!(
        cells(
            "",
            "nodes",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}, "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}}})
        ),
        json!([
            "x",
            "Ready,SchedulingDisabled",
            "worker",
            "60m",
            "v1",
            "<none>",
            "<none>",
            "<unknown>",
            "<unknown>",
            "<unknown>"
        ])
    );
    assert_eq!(
        cells(
            "certificates.k8s.io",
            "certificatesigningrequests",
            json!({
                "spec": {"signerName": "s", "username": "u", "expirationSeconds": 3600}, "status": {"conditions": [{"type": "Approved", "status": "True"}], "certificate": "AA=="},
            })
        ),
        json!(["x", "60m", "s", "u", "60m", "Approved,Issued"])
    );
    assert_eq!(
        cells(
            "",
            "events",
            json!({"type": "Normal", "reason": "R", "message": " m\n", "involvedObject": {"kind": "Pod", "name": "p"}, "source": {"component": "c"}, "lastTimestamp": "2026-01-01T00:59:50Z"})
        ),
        json!(["10s", "Normal", "R", "pod/p", "", "c", "m", "<unknown>", 1, "x"])
    );
    assert_eq!(
        cells("networking.k8s.io", "ingresses", json!({"spec": {"rules": [{"host": "a"}], "tls": [{}]}})),
        json!(["x", "<none>", "a", "", "80, 443", "60m"])
    );
    assert_eq!(
        cells(
            "autoscaling",
            "horizontalpodautoscalers",
            json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 3, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
            ]}})
        ),
        json!(["x", "Deployment/d", "cpu: <unknown>/50%", "1", 3, 0, "60m"])
    );
    assert_eq!(
        cells("policy", "poddisruptionbudgets", json!({"spec": {"minAvailable": "50%"}})),
        json!(["x", "50%", "N/A", 0, "60m"])
    );
}

#[test]
fn as_018_pods_in_one_word() {
    let pod = |status: Value| {
        let object = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}, "status": status});
        cells("", "pods", object)
    };
    assert_eq!(
        pod(json!({"phase": "Pending"})),
        json!(["x", "0/2", "Pending", "0", "60m", "<none>", "<none>", "<none>", "<none>"])
    );
    let word = |status: Value| pod(status)[2].clone();
    assert_eq!(
        word(json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]})),
        "Init:0/1"
    );
    assert_eq!(
        word(
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2}}}]})
        ),
        "Init:ExitCode:2"
    );
    let running = pod(json!({"phase": "Running", "podIPs": [{"ip": "10.1.1.1"}], "containerStatuses": [
        {"name": "a", "ready": true, "state": {"running": {}}, "restartCount": 2, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:58:00Z"}}},
        {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 1},
    ]}));
    assert_eq!(
        running,
        json!([
            "x",
            "1/2",
            "CrashLoopBackOff",
            "3 (2m ago)",
            "60m",
            "10.1.1.1",
            "<none>",
            "<none>",
            "<none>"
        ])
    );
}

#[test]
fn as_018_every_listed_kind_has_as_many_cells_as_columns() {
    for d in builtin::catalog().all().filter(|d| d.has_verb("list")) {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let table = render(d, &[object], &json!({}), IncludeObject::Metadata, true, now());
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        for (cell, column) in cells.iter().zip(&d.columns) {
            assert!(!cell.is_null(), "{} {}", d.plural, column.name);
        }
        assert!(!cells.is_empty(), "{}", d.plural);
    }
}

#[test]
fn as_028_rows_have_as_much_of_the_object_as_asked_for() {
    let catalog = builtin::catalog();
    let d = catalog.resource("", "v1", "configmaps").unwrap();
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}});
    let row = |text: &str| {
        let include = IncludeObject::parse(text).unwrap();
        render(d, std::slice::from_ref(&object), &json!({}), include, false, now())["rows"][0]["object"]
            .clone()
    };
    let partial =
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "a"}});
    assert_eq!((row(""), row("Object"), row("None")), (partial, object.clone(), Value::Null));
    assert_eq!(
        IncludeObject::parse("Wrong").unwrap_err().message,
        "Unable to convert to Table as requested: includeObject: Invalid value: \"Wrong\": must be 'Metadata', 'Object', 'None', or empty"
    );
    assert!(wants_table("application/json;as=Table;v=v1;g=meta.k8s.io"));
    assert!(!wants_table("application/json"));
}

#[test]
fn as_046_custom_cells_come_from_paths() {
    let column = |name: &str, r#type: &str, path: &str| Column {
        name: name.into(),
        r#type: r#type.into(),
        format: String::new(),
        description: "d".into(),
        priority: 0,
        path: Some(path.into()),
    };
    let columns = [
        column("Size", "integer", ".spec.size"),
        column("Color", "string", ".spec.color"),
        column("First", "string", ".spec.list[0].a"),
        column("Age", "date", ".metadata.creationTimestamp"),
        column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
    ];
    let paths: Vec<_> =
        columns.iter().map(|c| c.path.as_deref().and_then(|p| JsonPath::relaxed(p).ok())).collect();
    let created = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
    let cells = |object: Value| Value::Array(custom_cells(&columns, &paths, &object, now()));
    assert_eq!(
        cells(json!({
            "metadata": created, "spec": {"size": 3, "color": "red", "list": [{"a": "x"}]},
            "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
        })),
        json!([3, "red", "x", "60m", "True"])
    );
    assert_eq!(
        cells(json!({"metadata": created, "spec": {"size": "big", "color": 5}})),
        json!([null, "5", null, "60m", null])
    );
    assert_eq!(custom_cell("date", &json!("soon"), now()), json!("<invalid>"));
    assert_eq!(custom_cell("boolean", &json!("true"), now()), Value::Null);
}
