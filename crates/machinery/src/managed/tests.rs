use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema::{Definitions, Schema};

fn builtin(name: &str) -> Schema {
    let table: Value = serde_json::from_str(include_str!("../../testdata/definitions.json")).unwrap();
    Definitions::parse(&table).unwrap().schema(name).unwrap()
}

fn config_map() -> Schema {
    builtin("io.k8s.api.core.v1.ConfigMap")
}

fn deployment() -> Schema {
    builtin("io.k8s.api.apps.v1.Deployment")
}

const NOW: &str = "2026-01-01T00:00:00Z";

fn writer(manager: &str, operation: Operation, api_version: &str) -> Writer {
    Writer {
        manager: manager.to_owned(),
        operation,
        api_version: api_version.to_owned(),
        subresource: String::new(),
        now: NOW.to_owned(),
        reset: Vec::new(),
    }
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn apply_as(
    schema: &Schema,
    live: Option<&Value>,
    config: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    let version = config["apiVersion"].as_str().unwrap();
    apply(schema, live, config, &writer(manager, Operation::Apply, version), force).map(|mut merged| {
        schema.normalise(&mut merged);
        merged
    })
}

fn owners(object: &Value) -> Value {
    let mut list = Vec::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        list.push(json!([
            entry["manager"],
            entry["operation"],
            entry["fieldsV1"],
            entry.get("time").is_some()
        ]));
    }
    Value::Array(list)
}

fn deployment_with(containers: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": containers}}}})
}

fn conflict(result: Result<Value, ApplyError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn as_034_create_owns_what_was_sent() {
    let mut object = map(json!({"x": "1"}));
    track_update(&config_map(), None, &mut object, &writer("golden", Operation::Update, "v1"));
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {".": {}, "f:x": {}}},
            "manager": "golden", "operation": "Update", "time": NOW}])
    );
    let mut named = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    track_update(&config_map(), None, &mut named, &writer("golden", Operation::Update, "v1"));
    assert_eq!(named["metadata"], json!({"name": "a"}));
}

#[test]
fn as_034_create_of_a_deployment() {
    let mut object = deployment_with(
        json!([{"name": "a", "image": "i", "ports": [{"containerPort": 1, "protocol": "TCP"}]}]),
    );
    object["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}});
    let schema = deployment();
    schema.normalise(&mut object);
    track_update(&schema, None, &mut object, &writer("golden", Operation::Update, "apps/v1"));
    assert_eq!(
        object["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:selector": {}, "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
            "f:template": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {
                "k:{\"name\":\"a\"}": {".": {}, "f:image": {}, "f:name": {}, "f:ports": {".": {},
                    "k:{\"containerPort\":1,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    "f:resources": {}}}}}}})
    );
}

#[test]
fn as_034_an_update_takes_what_it_changes() {
    let schema = config_map();
    let mut live = map(json!({"x": "1"}));
    track_update(&schema, None, &mut live, &writer("maker", Operation::Update, "v1"));
    let mut new = map(json!({"x": "2"}));
    track_update(&schema, Some(&live), &mut new, &writer("changer", Operation::Update, "v1"));
    assert_eq!(
        owners(&new),
        json!([["changer", "Update", {"f:data": {"f:x": {}}}, true], ["maker", "Update", {"f:data": {}}, true]])
    );
    // A write without a change keeps everything.
    let mut same = new.clone();
    let later =
        Writer { now: "2027-01-01T00:00:00Z".to_owned(), ..writer("changer", Operation::Update, "v1") };
    track_update(&schema, Some(&new), &mut same, &later);
    assert_eq!(same, new);
    // Clearing the list removes all owners, and a later update adds none.
    let mut cleared = new.clone();
    cleared["metadata"]["managedFields"] = json!([{}]);
    track_update(&schema, Some(&new), &mut cleared, &later);
    assert_eq!(owners(&cleared), json!([]));
    let mut after = map(json!({"x": "3"}));
    track_update(&schema, Some(&cleared), &mut after, &later);
    assert_eq!(after["metadata"], json!({"name": "a"}));
}

#[test]
fn as_034_only_ten_updaters_are_kept() {
    let schema = config_map();
    let mut live = map(json!({"x": "0"}));
    track_update(&schema, None, &mut live, &writer("golden", Operation::Update, "v1"));
    for at in 0..12 {
        let mut new = live.clone();
        new["data"][format!("k{at}")] = json!("1");
        let mut by = writer(&format!("m{at:02}"), Operation::Update, "v1");
        by.now = format!("2026-01-01T00:01:{at:02}Z");
        track_update(&schema, Some(&live), &mut new, &by);
        live = new;
    }
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 10);
    assert_eq!(entries[0]["manager"], "ancient-changes");
    assert_eq!(
        entries[0]["fieldsV1"],
        json!({"f:data": {".": {}, "f:k0": {}, "f:k1": {}, "f:k2": {}, "f:x": {}}})
    );
    assert_eq!(entries[9]["manager"], "m11");
}

#[test]
fn as_035_create_apply_conflict_force_share() {
    let schema = config_map();
    let one = map(json!({"x": "1"}));
    let live = apply_as(&schema, None, &one, "one", false).unwrap();
    assert_eq!(owners(&live), json!([["one", "Apply", {"f:data": {"f:x": {}}}, true]]));
    assert_eq!(apply_as(&schema, Some(&live), &one, "one", false).unwrap(), live);
    let two = map(json!({"x": "2"}));
    assert_eq!(
        apply_as(&schema, Some(&live), &two, "two", false),
        Err(ApplyError::Conflict {
            message: "Apply failed with 1 conflict: conflict with \"one\": .data.x".to_owned(),
            causes: vec![Conflict {
                message: "conflict with \"one\"".to_owned(),
                field: ".data.x".to_owned()
            }],
        })
    );
    let forced = apply_as(&schema, Some(&live), &two, "two", true).unwrap();
    assert_eq!(forced["data"], json!({"x": "2"}));
    assert_eq!(owners(&forced), json!([["two", "Apply", {"f:data": {"f:x": {}}}, true]]));
    // An apply of the present values adds a co-owner; because nothing changed, without a time.
    let shared = apply_as(&schema, Some(&forced), &two, "three", false).unwrap();
    assert_eq!(
        owners(&shared),
        json!([["three", "Apply", {"f:data": {"f:x": {}}}, false], ["two", "Apply", {"f:data": {"f:x": {}}}, true]])
    );
}

#[test]
fn as_035_fields_go_with_their_last_owner() {
    let schema = config_map();
    let both = map(json!({"x": "1"}));
    let live = apply_as(&schema, None, &both, "one", false).unwrap();
    let live = apply_as(&schema, Some(&live), &both, "two", false).unwrap();
    let live = apply_as(&schema, Some(&live), &map(json!({})), "one", false).unwrap();
    assert_eq!(live["data"], json!({"x": "1"}));
    assert_eq!(
        owners(&live),
        json!([["two", "Apply", {"f:data": {"f:x": {}}}, false], ["one", "Apply", {"f:data": {}}, true]])
    );
    let live = apply_as(&schema, Some(&live), &map(json!({})), "two", false).unwrap();
    assert_eq!(live.get("data"), None);
    assert_eq!(
        owners(&live),
        json!([["one", "Apply", {"f:data": {}}, true], ["two", "Apply", {"f:data": {}}, true]])
    );
}

#[test]
fn as_035_keyed_lists() {
    let schema = deployment();
    let image = |name: &str, image: &str| json!({"name": name, "image": image});
    let live =
        apply_as(&schema, None, &deployment_with(json!([image("b", "i"), image("d", "i")])), "one", false)
            .unwrap();
    let live = apply_as(
        &schema,
        Some(&live),
        &deployment_with(json!([image("a", "i"), image("c", "i")])),
        "two",
        false,
    )
    .unwrap();
    let names = |object: &Value| -> Vec<String> {
        let list = object["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        list.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&live), ["b", "d", "a", "c"]);
    let config = deployment_with(json!([image("d", "i"), image("x", "i"), image("b", "i")]));
    let live = apply_as(&schema, Some(&live), &config, "one", false).unwrap();
    assert_eq!(names(&live), ["d", "a", "c", "x", "b"]);
    let live =
        apply_as(&schema, Some(&live), &deployment_with(json!([image("a", "i")])), "two", false).unwrap();
    assert_eq!(names(&live), ["d", "a", "x", "b"]);
    let text = conflict(apply_as(
        &schema,
        Some(&live),
        &deployment_with(json!([image("d", "other")])),
        "two",
        false,
    ));
    let wants = "Apply failed with 1 conflict: conflict with \"one\": .spec.template.spec.containers[name=\"d\"].image";
    assert_eq!(text, wants);
}

#[test]
fn as_035_what_does_not_fit_the_type() {
    let schema = deployment();
    let text = |config: Value| conflict(apply_as(&schema, None, &config, "one", false));
    let base = "failed to create typed patch object (/d; apps/v1, Kind=Deployment): ";
    assert_eq!(
        text(deployment_with(json!([{"name": "a", "nonsense": true}]))),
        format!("{base}.spec.template.spec.containers[name=\"a\"].nonsense: field not declared in schema")
    );
    assert_eq!(
        text(deployment_with(json!([{"name": "a"}, {"name": "a", "image": "x"}]))),
        format!("{base}.spec.template.spec.containers: duplicate entries for key [name=\"a\"]")
    );
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": "three"}});
    assert_eq!(text(config), format!("{base}.spec.replicas: expected numeric (int or float), got string"));
    let mut extra = map(json!({}));
    extra["extra"] = json!(1);
    assert_eq!(
        conflict(apply_as(&config_map(), None, &extra, "one", false)),
        "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .extra: field not declared in schema"
    );
}

#[test]
fn as_035_nulls_and_empty_values() {
    let live = apply_as(&config_map(), None, &map(json!({"x": null})), "one", false).unwrap();
    assert_eq!(live["data"], json!({"x": ""}));
    assert_eq!(owners(&live), json!([["one", "Apply", {"f:data": {"f:x": {}}}, true]]));
    let live = apply_as(&config_map(), None, &map(json!({})), "one", false).unwrap();
    assert_eq!(live.get("data"), None);
    assert_eq!(owners(&live), json!([["one", "Apply", {"f:data": {}}, true]]));
    let live =
        apply_as(&deployment(), None, &deployment_with(json!([{"name": "a", "env": []}])), "one", false)
            .unwrap();
    assert_eq!(
        live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"],
        json!({"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}})
    );
}

#[test]
fn as_035_objects_without_owners_belong_to_before_first_apply() {
    let live = map(json!({"x": "1", "y": "1"}));
    let text = conflict(apply_as(&config_map(), Some(&live), &map(json!({"x": "2"})), "one", false));
    assert_eq!(text, "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.x");
    let forced = apply_as(&config_map(), Some(&live), &map(json!({"x": "2"})), "one", true).unwrap();
    assert_eq!(
        owners(&forced),
        json!([["one", "Apply", {"f:data": {"f:x": {}}}, true],
            ["before-first-apply", "Update", {"f:data": {".": {}, "f:y": {}}}, true]])
    );
}

#[test]
fn as_035_kubectl_continues_client_side_apply() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let schema = config_map();
    let mut live = map(json!({"x": "1", "y": "1"}));
    live["metadata"]["annotations"] = json!({LAST: r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"x":"1","y":"1"}}"#});
    track_update(&schema, None, &mut live, &writer("kubectl-client-side-apply", Operation::Update, "v1"));
    let live = apply_as(&schema, Some(&live), &map(json!({"x": "1"})), "kubectl", false).unwrap();
    let annotation = "{\"apiVersion\":\"v1\",\"data\":{\"x\":\"1\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}\n";
    assert_eq!(live["metadata"]["annotations"][LAST], annotation);
    let client = "kubectl-client-side-apply";
    let annotated =
        json!({"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}}});
    assert_eq!(
        owners(&live),
        json!([["kubectl", "Apply", {"f:data": {"f:x": {}}}, false],
            [client, "Update", {"f:data": {".": {}, "f:x": {}, "f:y": {}}, "f:metadata": annotated}, true]])
    );
    let live = apply_as(&schema, Some(&live), &map(json!({"x": "2", "z": "3"})), "kubectl", false).unwrap();
    assert_eq!(live["data"], json!({"x": "2", "y": "1", "z": "3"}));
    assert_eq!(
        owners(&live),
        json!([["kubectl", "Apply", {"f:data": {"f:x": {}, "f:z": {}}}, true],
            [client, "Update", {"f:data": {".": {}, "f:y": {}}, "f:metadata": annotated}, true]])
    );
}

fn widget() -> Schema {
    let spec = json!({"type": "object", "properties": {
        "size": {"type": "integer"},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}},
        "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "at": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        "plain": {"type": "array", "items": {"type": "string"}}}});
    let status = json!({"type": "object", "properties": {"phase": {"type": "string"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap()
}

fn widget_with(spec: Value) -> Value {
    json!({"apiVersion": "golden.test/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec})
}

#[test]
fn as_035_custom_kinds() {
    let schema = widget();
    let go = |live: Option<&Value>, spec: Value, by: &str, force: bool| {
        apply_as(&schema, live, &widget_with(spec), by, force)
    };
    let spec = json!({"size": 1, "m": [{"k": "x", "v": "1"}], "s": ["p"], "at": {"a": "1"}, "plain": ["q"]});
    let live = go(None, spec, "one", false).unwrap();
    assert_eq!(
        owners(&live),
        json!([["one", "Apply", {"f:spec": {"f:at": {}, "f:m": {"k:{\"k\":\"x\"}": {".": {}, "f:k": {}, "f:v": {}}},
            "f:plain": {}, "f:s": {"v:\"p\"": {}}, "f:size": {}}}, true]])
    );
    let live = go(Some(&live), json!({"m": [{"k": "y", "v": "2"}], "s": ["r"]}), "two", false).unwrap();
    assert_eq!(live["spec"]["s"], json!(["p", "r"]));
    let text = conflict(go(Some(&live), json!({"at": {"b": "2"}}), "two", false));
    assert_eq!(text, "Apply failed with 1 conflict: conflict with \"one\": .spec.at");
    let live = go(Some(&live), json!({"plain": ["q", "z"]}), "three", true).unwrap();
    let live = go(Some(&live), json!({"m": [{"k": "x", "v": "1"}]}), "one", false).unwrap();
    assert_eq!(
        live["spec"],
        json!({"m": [{"k": "x", "v": "1"}, {"k": "y", "v": "2"}], "plain": ["q", "z"], "s": ["r"]})
    );
}

#[test]
fn as_034_custom_kinds_and_status() {
    let schema = widget();
    let mut live = widget_with(json!({}));
    track_update(&schema, None, &mut live, &writer("golden", Operation::Update, "golden.test/v1"));
    assert_eq!(owners(&live), json!([["golden", "Update", {"f:spec": {}}, true]]));
    let mut new = live.clone();
    new["status"] = json!({"phase": "Ready"});
    let mut by = writer("golden", Operation::Update, "golden.test/v1");
    by.subresource = "status".to_owned();
    by.reset = vec!["spec".to_owned()];
    new["spec"] = json!({"size": 1});
    track_update(&schema, Some(&live), &mut new, &by);
    assert_eq!(new["metadata"]["managedFields"][1]["subresource"], "status");
    assert_eq!(
        owners(&new),
        json!([["golden", "Update", {"f:spec": {}}, true],
            ["golden", "Update", {"f:status": {".": {}, "f:phase": {}}}, true]])
    );
}

#[test]
fn as_035_schemaless_kinds() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap();
    let mut live = widget_with(json!({"x": [1, {"y": null}]}));
    live["top"] = json!("kept");
    track_update(&schema, None, &mut live, &writer("golden", Operation::Update, "golden.test/v1"));
    assert_eq!(
        owners(&live),
        json!([["golden", "Update", {"f:spec": {".": {}, "f:x": {}}, "f:top": {}}, true]])
    );
    let live = apply_as(&schema, Some(&live), &widget_with(json!({"z": 1})), "one", false).unwrap();
    assert_eq!(owners(&live)[0], json!(["one", "Apply", {"f:spec": {".": {}, "f:z": {}}}, true]));
    assert_eq!(live["spec"], json!({"x": [1, {"y": null}], "z": 1}));
}

#[test]
fn as_034_times_alone_are_no_change() {
    let live = apply_as(&config_map(), None, &map(json!({"x": "1"})), "one", false).unwrap();
    let mut new = live.clone();
    new["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    keep_times(&live, &mut new);
    assert_eq!(new, live);
    new["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    new["data"]["x"] = json!("2");
    keep_times(&live, &mut new);
    assert_eq!(new["metadata"]["managedFields"][0]["time"], "2030-01-01T00:00:00Z");
}

#[test]
fn hostile_managed_fields_are_ignored() {
    let live = apply_as(&config_map(), None, &map(json!({"x": "1"})), "one", false).unwrap();
    for bad in [
        json!([{"manager": "x"}]),
        json!("x"),
        json!([{"operation": "Apply", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"q:x": {}}}]),
        json!([5]),
    ] {
        let mut new = map(json!({"x": "1"}));
        new["metadata"]["managedFields"] = bad;
        track_update(&config_map(), Some(&live), &mut new, &writer("two", Operation::Update, "v1"));
        assert_eq!(owners(&new), owners(&live));
    }
}

fn specs() -> impl Strategy<Value = Value> {
    let data = proptest::collection::btree_map("[ab]", "[xy]", 0..3);
    let keyed = proptest::collection::btree_map("[a-d]", "[xy]", 0..4);
    let set = proptest::collection::btree_set("[a-d]", 0..4);
    (proptest::option::of(0..3), keyed, set, data).prop_map(|(size, keyed, set, at)| {
        let list: Vec<Value> = keyed.iter().map(|(k, v)| json!({"k": k, "v": v})).collect();
        let mut spec = json!({"m": list, "s": set, "at": at});
        if let Some(size) = size {
            spec["size"] = json!(size);
        }
        spec
    })
}

proptest! {
    #[test]
    fn as_035_applying_twice_changes_nothing(first in specs(), second in specs()) {
        let schema = widget();
        let live = apply_as(&schema, None, &widget_with(first), "one", false).unwrap();
        let config = widget_with(second);
        let once = apply_as(&schema, Some(&live), &config, "two", true).unwrap();
        let twice = apply_as(&schema, Some(&once), &config, "two", false).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn as_035_the_forced_off_sees_a_conflict(size in 0..5) {
        let schema = widget();
        let one = widget_with(json!({"size": size}));
        let live = apply_as(&schema, None, &one, "one", false).unwrap();
        let live = apply_as(&schema, Some(&live), &widget_with(json!({"size": size + 1})), "two", true).unwrap();
        let text = conflict(apply_as(&schema, Some(&live), &one, "one", false));
        prop_assert_eq!(text, "Apply failed with 1 conflict: conflict with \"two\": .spec.size");
    }

    #[test]
    fn as_035_a_sole_owner_replaces_its_configuration(first in specs(), second in specs()) {
        let schema = widget();
        let live = apply_as(&schema, None, &widget_with(first), "one", false).unwrap();
        let next = apply_as(&schema, Some(&live), &widget_with(second.clone()), "one", false).unwrap();
        // The result has exactly what was applied the second time, except for empty lists.
        let fresh = apply_as(&schema, None, &widget_with(second), "one", false).unwrap();
        let clean = |object: &Value| {
            let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
            spec.retain(|_, v| !matches!(v, Value::Array(a) if a.is_empty()) && !matches!(v, Value::Object(o) if o.is_empty()));
            spec
        };
        prop_assert_eq!(clean(&next), clean(&fresh));
        prop_assert_eq!(&next["metadata"]["managedFields"][0]["fieldsV1"], &fresh["metadata"]["managedFields"][0]["fieldsV1"]);
    }

    #[test]
    fn as_035_shared_fields_stay_when_one_owner_leaves(spec in specs()) {
        let schema = widget();
        let config = widget_with(spec);
        let live = apply_as(&schema, None, &config, "one", false).unwrap();
        let live = apply_as(&schema, Some(&live), &config, "two", false).unwrap();
        let left = apply_as(&schema, Some(&live), &widget_with(json!({})), "two", false).unwrap();
        prop_assert_eq!(&left["spec"], &live["spec"]);
    }
}

/// Deployments with a few variations: containers in some order (sometimes with a duplicate name), their images and
/// ports, labels.
fn any_deployment() -> impl Strategy<Value = Value> {
    let port = (1_u8..4, prop::bool::ANY).prop_map(|(number, udp)| {
        let mut port = json!({"containerPort": number});
        if udp {
            port["protocol"] = "UDP".into();
        }
        port
    });
    let container = (0_u8..6, 0_u8..3, prop::collection::vec(port, 0..3)).prop_map(|(name, image, ports)| {
        let mut container = json!({"name": format!("c{name}"), "image": format!("i{image}")});
        if !ports.is_empty() {
            container["ports"] = ports.into();
        }
        container
    });
    let labels = prop::collection::btree_map("[ab]", "[xy]", 0..3);
    let finalizers = prop::collection::vec("[fgh]", 0..4);
    (prop::collection::vec(container, 0..8), labels, finalizers).prop_map(
        |(containers, labels, finalizers)| {
            let mut object = deployment_with(containers.into());
            object["metadata"]["labels"] = json!(labels);
            object["metadata"]["finalizers"] = json!(finalizers);
            object
        },
    )
}

proptest! {
    /// Changing entries in place gives the same result as changing sets; comparing lists without their common ends
    /// gives the same difference.
    #[test]
    fn as_034_entries_in_place_are_those_of_sets(
        writes in prop::collection::vec((any_deployment(), 0_u8..14, 0_u8..3, prop::bool::ANY), 1..24)
    ) {
        let schema = deployment();
        let mut live: Option<Value> = None;
        for (turn, (mut new, manager, version, echo)) in writes.into_iter().enumerate() {
            let mut writer = writer(&format!("m{}", manager % 12), Operation::Update, &format!("apps/v{version}"));
            writer.now = format!("2026-01-01T00:00:{:02}Z", turn / 2);
            match manager {
                12 => writer.subresource = "scale".into(),
                13 => writer.now = String::new(),
                _ => {}
            }
            let stored = live.as_ref().and_then(|live| live.pointer("/metadata/managedFields")).cloned();
            if echo && let Some(stored) = &stored {
                new["metadata"]["managedFields"] = stored.clone();
            }
            let mut by_sets = new.clone();
            let sent = take_managed_fields(&mut by_sets);
            track_by_sets(&schema, live.as_ref(), &mut by_sets, sent, &writer);
            track_update(&schema, live.as_ref(), &mut new, &writer);
            prop_assert_eq!(&new, &by_sets);
            live = Some(new);
        }
    }

    #[test]
    fn as_034_lists_differ_as_their_parts_do(old in any_deployment(), new in any_deployment(), cut in 0_usize..8) {
        let schema = deployment();
        let list = |object: &Value| {
            object.pointer("/spec/template/spec/containers").and_then(Value::as_array).cloned().unwrap_or_default()
        };
        // Unchanged, and with one changed element in the middle of many.
        let mut olds = list(&old);
        let mut mixed = olds.clone();
        mixed.splice(cut.min(olds.len())..(cut + 1).min(olds.len()), list(&new).into_iter().take(2));
        let whole = |a: &[Value], b: &[Value]| {
            let (a, b) = (deployment_with(a.to_vec().into()), deployment_with(b.to_vec().into()));
            compare(&schema, &a, &b, &PathSet::default())
        };
        // With more than a few unknown elements on both sides, the ends are not skipped.
        let narrow = whole(&olds, &mixed);
        for n in 0..20 {
            let stranger = json!({"name": format!("s{n}"), "image": "same"});
            olds.insert(0, stranger.clone());
            mixed.push(stranger);
        }
        let wide = whole(&olds, &mixed);
        prop_assert_eq!(
            (narrow.added.paths(&mut { usize::MAX }), narrow.modified.paths(&mut { usize::MAX }), narrow.removed.paths(&mut { usize::MAX })),
            (wide.added.paths(&mut { usize::MAX }), wide.modified.paths(&mut { usize::MAX }), wide.removed.paths(&mut { usize::MAX }))
        );
    }
}
