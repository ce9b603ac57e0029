use std::sync::OnceLock;

use serde_json::{Value, json};

use super::*;

fn definitions() -> &'static Definitions {
    static TABLE: OnceLock<Definitions> = OnceLock::new();
    TABLE.get_or_init(|| {
        let table: Value = serde_json::from_str(include_str!("../../testdata/definitions.json")).unwrap();
        Definitions::parse(&table).unwrap()
    })
}

pub(crate) fn builtin(kind: &str) -> Schema {
    definitions().schema(&format!("io.k8s.api.{kind}")).unwrap()
}

fn decode_error(kind: &str, value: Value) -> String {
    let mut value = value;
    builtin(kind).decode(&mut value).unwrap_err().to_string()
}

fn decoded(kind: &str, value: Value) -> (Value, Vec<String>) {
    let mut value = value;
    let unknown = builtin(kind).decode(&mut value).unwrap();
    (value, unknown.into_iter().map(|u| u.path).collect())
}

fn widget(spec: Value) -> Schema {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap()
}

fn faults(spec_schema: Value, spec: Value) -> Vec<String> {
    let schema = widget(spec_schema);
    let mut object =
        json!({"apiVersion": "golden.test/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec});
    schema.prune(&mut object);
    schema.default(&mut object).expect("few defaults");
    schema.validate(&object).iter().map(ToString::to_string).collect()
}

#[test]
fn as_002_type_errors_have_go_texts() {
    let text = decode_error("core.v1.ConfigMap", json!({"data": {"n": 5}}));
    assert_eq!(text, "json: cannot unmarshal number into Go struct field ConfigMap.data of type string");
    let text = decode_error("core.v1.ConfigMap", json!({"metadata": {"name": true}}));
    assert_eq!(
        text,
        "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string"
    );
    for (replicas, got) in [
        (json!("3"), "string"),
        (json!(true), "bool"),
        (json!([1]), "array"),
        (json!(1.5), "number 1.5"),
        (json!(2_147_483_648_i64), "number 2147483648"),
    ] {
        let text = decode_error("apps.v1.Deployment", json!({"spec": {"replicas": replicas}}));
        assert_eq!(
            text,
            format!(
                "json: cannot unmarshal {got} into Go struct field DeploymentSpec.spec.replicas of type int32"
            )
        );
    }
    let text =
        decode_error("core.v1.Service", json!({"spec": {"ports": [{"port": 80, "targetPort": true}]}}));
    assert_eq!(
        text,
        "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type int32"
    );
    let text = decode_error("core.v1.Secret", json!({"data": {"a": "!"}}));
    assert_eq!(text, "illegal base64 data at input byte 0");
    let text = decode_error("coordination.v1.Lease", json!({"spec": {"renewTime": 5}}));
    assert_eq!(
        text,
        "json: cannot unmarshal number into Go struct field LeaseSpec.spec.renewTime of type string"
    );
}

#[test]
fn as_002_times() {
    let lease = |text: &str| json!({"spec": {"renewTime": text}});
    for (text, wants) in [
        ("2020-01-02T03:04:05.123456Z", "2020-01-02T03:04:05.123456Z"),
        ("2020-01-02T03:04:05.000000+02:00", "2020-01-02T01:04:05.000000Z"),
    ] {
        assert_eq!(decoded("coordination.v1.Lease", lease(text)).0, lease(wants));
    }
    for (text, rest, wants) in [
        ("2020-01-02T03:04:05Z", "Z", ".000000"),
        ("2020-01-02T03:04:05.1Z", ".1Z", ".000000"),
        ("2020-01-02T03:04:05.123456789Z", "789Z", "Z07:00"),
        ("2020-01-02", "", "T"),
        ("now", "now", "2006"),
    ] {
        assert_eq!(
            decode_error("coordination.v1.Lease", lease(text)),
            format!(
                "parsing time \"{text}\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"{rest}\" as \"{wants}\""
            )
        );
    }
    let deletion = json!({"metadata": {"deletionTimestamp": "2020-01-02T03:04:05.999+01:00"}});
    let (value, _) = decoded("core.v1.ConfigMap", deletion);
    assert_eq!(value["metadata"]["deletionTimestamp"], "2020-01-02T02:04:05Z");
}

#[test]
fn as_037_unknown_fields_are_dropped_and_told() {
    let (value, unknown) = decoded(
        "apps.v1.Deployment",
        json!({"Spec": {}, "spec": {"replicas": null, "template": {"spec": {"containers": [
            {"name": "a", "imagee": "x", "ports": [{"containerPort": 1, "hst": 2}]}]}}}}),
    );
    assert_eq!(
        unknown,
        ["Spec", "spec.template.spec.containers[0].imagee", "spec.template.spec.containers[0].ports[0].hst"]
    );
    assert_eq!(
        value,
        json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 1}]}]}}}})
    );
}

#[test]
fn as_002_nulls_in_maps_and_lists_are_zero_values() {
    let (value, _) =
        decoded("core.v1.ConfigMap", json!({"data": {"x": null}, "metadata": {"finalizers": [null]}}));
    assert_eq!(value, json!({"data": {"x": ""}, "metadata": {"finalizers": [""]}}));
}

#[test]
fn as_002_integers() {
    let (value, _) = decoded("apps.v1.Deployment", json!({"spec": {"replicas": -0.0}}));
    assert_eq!(value["spec"]["replicas"], json!(0));
    assert!(
        decode_error("apps.v1.Deployment", json!({"spec": {"replicas": 100.0}})).contains("of type int32")
    );
}

#[test]
fn as_037_crd_schemas_are_decoded_deep() {
    let schema = definitions()
        .schema("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition")
        .unwrap();
    let mut crd = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object",
        "properties": {"l": {"type": "array", "items": {"type": "string", "foo": 1}},
            "m": {"additionalProperties": {"bar": 2, "minimum": 1.0}}, "d": {"default": {"any": null}}}}}}]}});
    let unknown: Vec<String> = schema.decode(&mut crd).unwrap().into_iter().map(|u| u.path).collect();
    let base = "spec.versions[0].schema.openAPIV3Schema.properties";
    assert_eq!(unknown, [format!("{base}.l.items.foo"), format!("{base}.m.additionalProperties.bar")]);
    let properties = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(properties["m"], json!({"additionalProperties": {"minimum": 1}}));
    assert_eq!(properties["d"], json!({"default": {"any": null}}));
}

#[test]
fn as_016_empty_values_are_printed_like_go_prints_them() {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {}, "binaryData": {},
        "metadata": {"name": "a", "labels": {}, "annotations": {"a": ""}, "generateName": ""}});
    builtin("core.v1.ConfigMap").normalise(&mut object);
    assert_eq!(
        object,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": {"a": ""}}})
    );

    let mut object = json!({"spec": {"paused": false, "minReadySeconds": 0, "replicas": 0,
        "template": {"spec": {"containers": [{"name": "a", "env": []}], "securityContext": {}, "hostNetwork": false}}}});
    builtin("apps.v1.Deployment").normalise(&mut object);
    assert_eq!(
        object,
        json!({"metadata": {}, "status": {}, "spec": {"replicas": 0, "selector": null, "strategy": {},
            "template": {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {}}], "securityContext": {}}}}})
    );

    let mut object = json!({"spec": {"maxReplicas": 1, "scaleTargetRef": {"kind": "D", "name": "d"}}});
    builtin("autoscaling.v2.HorizontalPodAutoscaler").normalise(&mut object);
    assert_eq!(object["status"], json!({"currentMetrics": null, "desiredReplicas": 0}));
}

#[test]
fn as_034_an_emptied_list_of_owners_survives() {
    let mut object = json!({"metadata": {"managedFields": []}});
    let schema = builtin("core.v1.ConfigMap");
    schema.decode(&mut object).unwrap();
    schema.normalise(&mut object);
    assert_eq!(object, json!({"metadata": {"managedFields": []}}));
}

#[test]
fn patch_marks_of_built_ins() {
    let pod = builtin("apps.v1.Deployment")
        .field("spec")
        .and_then(|s| s.field("template"))
        .and_then(|t| t.field("spec"));
    let containers = pod.and_then(|p| p.field("containers")).unwrap();
    assert_eq!(containers.patch_strategy(), Some("merge"));
    assert_eq!(containers.patch_merge_key(), Some("name"));
    assert_eq!(containers.list_type(), ListType::Map);
    assert_eq!(containers.list_keys(), ["name"]);
    let strategy = builtin("apps.v1.Deployment").field("spec").and_then(|s| s.field("strategy")).unwrap();
    assert_eq!(strategy.patch_strategy(), Some("retainKeys"));
    assert!(strategy.field("rollingUpdate").is_some());
    let selector = builtin("apps.v1.Deployment").field("spec").and_then(|s| s.field("selector")).unwrap();
    assert_eq!(selector.map_type(), MapType::Atomic);
}

#[test]
fn as_042_type_errors() {
    let schema = json!({"type": "object", "properties": {"s": {"type": "string"}, "i": {"type": "integer"},
        "l": {"type": "array", "items": {"type": "integer"}}, "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "o": {"type": "object", "properties": {"x": {"type": "string"}}}}});
    let one = |spec: Value| faults(schema.clone(), spec).join(", ");
    let text = r#"spec.s: Invalid value: "integer": spec.s in body must be of type string: "integer""#;
    assert_eq!(one(json!({"s": 1})), text);
    assert_eq!(
        one(json!({"i": 1.5})),
        concat!(
            r#"spec.i: Invalid value: "number": spec.i in body must be of type integer: "number", "#,
            r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.i"#
        )
    );
    assert_eq!(
        one(json!({"l": ["x", 1, null]})),
        concat!(
            r#"spec.l[0]: Invalid value: "string": spec.l[0] in body must be of type integer: "string", "#,
            r#"spec.l[2]: Invalid value: "null": spec.l[2] in body must be of type integer: "null""#
        )
    );
    let text = r#"spec.m.k: Invalid value: "integer": spec.m.k in body must be of type string: "integer""#;
    assert_eq!(one(json!({"m": {"k": 1}})), text);
    let text = r#"spec.o: Invalid value: "array": spec.o in body must be of type object: "array""#;
    assert_eq!(one(json!({"o": []})), text);
    let text = r#"spec: Invalid value: "string": spec in body must be of type object: "string""#;
    assert_eq!(one(json!("text")), text);
    assert_eq!(one(json!({"i": 3.0, "s": null})), "");
}

#[test]
fn as_042_required_and_junctors() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    assert_eq!(faults(schema.clone(), json!({"a": null})), ["spec.a: Required value"]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "not": {"required": ["c"], "properties": {"c": {"enum": [13]}}}});
    assert_eq!(
        faults(schema.clone(), json!({})),
        [
            r#"<nil>: Invalid value: "": "spec" must validate at least one schema (anyOf)"#,
            "spec.a: Required value"
        ]
    );
    assert_eq!(
        faults(schema.clone(), json!({"a": 1, "c": 13})),
        [r#"<nil>: Invalid value: "": "spec" must not validate the schema (not)"#]
    );
    assert!(faults(schema, json!({"b": 1})).is_empty());
}

#[test]
fn as_042_value_checks() {
    let schema = json!({"type": "object", "properties": {
        "color": {"type": "string", "enum": ["red", "blue"]},
        "pat": {"type": "string", "pattern": "^a+$"},
        "long": {"type": "string", "maxLength": 3, "minLength": 2},
        "n": {"type": "integer", "minimum": 0, "maximum": 5, "exclusiveMaximum": true},
        "l": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "minItems": 1},
        "d": {"type": "string", "format": "date-time"},
        "s": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
        "p": {"x-kubernetes-int-or-string": true}}});
    let one = |spec: Value| faults(schema.clone(), spec).join(", ");
    assert_eq!(
        one(json!({"color": "green"})),
        r#"spec.color: Unsupported value: "green": supported values: "red", "blue""#
    );
    assert_eq!(
        one(json!({"pat": "b"})),
        r#"spec.pat: Invalid value: "b": spec.pat in body should match '^a+$'"#
    );
    assert_eq!(one(json!({"long": "abcd"})), "spec.long: Too long: may not be more than 3 bytes");
    let text = r#"spec.long: Invalid value: "a": spec.long in body should be at least 2 chars long"#;
    assert_eq!(one(json!({"long": "a"})), text);
    let text = "spec.n: Invalid value: -1: spec.n in body should be greater than or equal to 0";
    assert_eq!(one(json!({"n": -1})), text);
    assert_eq!(one(json!({"n": 5})), "spec.n: Invalid value: 5: spec.n in body should be less than 5");
    assert_eq!(one(json!({"l": ["a", "b", "c"]})), "spec.l: Too many: 3: must have at most 2 items");
    let text = "spec.l: Invalid value: 0: spec.l in body should have at least 1 items";
    assert_eq!(one(json!({"l": []})), text);
    let text = r#"spec.d: Invalid value: "zz": spec.d in body must be of type date-time: "zz""#;
    assert_eq!(one(json!({"d": "zz"})), text);
    assert_eq!(one(json!({"s": ["a", "a"]})), r#"spec.s[1]: Duplicate value: "a""#);
    assert_eq!(one(json!({"m": [{"k": "a"}, {"k": "a"}]})), r#"spec.m[1]: Duplicate value: {"k":"a"}"#);
    let text = r#"spec.p: Invalid value: "number": spec.p in body must be of type integer,string: "number""#;
    assert_eq!(one(json!({"p": 1.5})), text);
    assert_eq!(one(json!({"p": "x", "color": "red", "d": "2020-01-01T00:00:00Z"})), "");
}

/// AS-042, AS-045: the status alone; errors of unchanged values are dropped.
#[test]
fn as_045_parts_and_ratcheting() {
    let status =
        json!({"type": "object", "properties": {"phase": {"type": "string"}, "n": {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"status": status}});
    let schema = Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap();
    let part = schema.field("status").unwrap();
    let found = part.validate_part(&json!({"phase": 5}), None, "status");
    let text = r#"status.phase: Invalid value: "integer": phase in body must be of type string: "integer""#;
    assert_eq!(found[0].to_string(), text);
    let old = json!({"status": {"phase": 5, "n": 1}});
    assert!(schema.validate_update(&json!({"status": {"phase": 5, "n": 2}}), &old).is_empty());
    assert_eq!(schema.validate_update(&json!({"status": {"phase": 6, "n": 2}}), &old).len(), 1);
}

#[test]
fn as_041_pruning_and_defaulting() {
    let schema = widget(json!({"type": "object", "properties": {
        "replicas": {"type": "integer", "default": 1},
        "nn": {"type": "string", "nullable": true, "default": "x"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"strict": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"v": {"type": "string", "default": "d"}}}},
        "emb": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}));
    let mut object = json!({"apiVersion": "golden.test/v1", "kind": "Widget", "junk": 1,
        "metadata": {"name": "a", "junk": 1},
        "spec": {"replicas": null, "nn": null, "free": {"x": 1.0, "strict": {"a": "", "b": 1}}, "list": [{}, {"v": "1"}],
            "emb": {"apiVersion": "v1", "kind": "X", "metadata": {"foo": 1, "name": "n"}, "more": 1}}});
    let unknown: Vec<String> = schema.prune(&mut object).into_iter().map(|u| u.path).collect();
    assert_eq!(unknown, ["junk", "metadata.junk", "spec.emb.metadata.foo", "spec.free.strict.b"]);
    schema.default(&mut object).expect("few defaults");
    assert_eq!(
        object["spec"],
        json!({"replicas": 1, "nn": null, "free": {"x": 1, "strict": {"a": ""}}, "list": [{"v": "d"}, {"v": "1"}],
            "emb": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "more": 1}})
    );
}

#[test]
fn as_041_numbers_print_like_go() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap();
    let text = r#"{"big":9007199254740993,"neg":-9223372036854775808,"f":1.10,"e":1e3,"z":1.0,"huge":12345678901234567890}"#;
    let mut object: Value = serde_json::from_str(text).unwrap();
    schema.prune(&mut object);
    let wants = r#"{"big":9007199254740993,"e":1000,"f":1.1,"huge":12345678901234567000,"neg":-9223372036854775808,"z":1}"#;
    assert_eq!(object.to_string(), wants);
}

#[test]
fn as_039_schemas_that_are_refused() {
    let one = |schema: Value| -> String {
        let path = field::Path::field("spec").child("validation").child("openAPIV3Schema");
        let found: Vec<String> = structural_errors(&schema, &path, &mut Patterns::default())
            .iter()
            .map(ToString::to_string)
            .collect();
        found.join(", ").replace("spec.validation.openAPIV3Schema", "S")
    };
    let spec = |spec: Value| one(json!({"type": "object", "properties": {"spec": spec}}));
    let a = |a: Value| spec(json!({"type": "object", "properties": {"a": a}}));
    assert_eq!(
        one(json!({"type": "string"})),
        "S.type: Invalid value: \"string\": must be object at the root"
    );
    assert_eq!(one(json!({})), "S.type: Required value: must not be empty at the root");
    assert_eq!(one(json!({"x-kubernetes-preserve-unknown-fields": true})), "", "as many definitions have it");
    assert_eq!(
        spec(json!({})),
        "S.properties[spec].type: Required value: must not be empty for specified object fields"
    );
    assert_eq!(
        a(json!({"type": "array"})),
        "S.properties[spec].properties[a].items: Required value: must be specified"
    );
    assert_eq!(
        a(
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}})
        ),
        "S.properties[spec].properties[a].additionalProperties: Forbidden: \
         additionalProperties and properties are mutual exclusive"
    );
    assert_eq!(
        a(json!({"type": "fruit"})),
        "S.properties[spec].properties[a].type: Unsupported value: \"fruit\": supported values: \
         \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
    );
    assert_eq!(
        one(json!({"type": "object", "properties": {"metadata": {"type": "object",
            "properties": {"labels": {"type": "object", "properties": {}}}}}})),
        "S.properties[metadata]: Forbidden: \
         must not specify anything other than name and generateName, but metadata is implicitly specified"
    );
    assert_eq!(
        a(json!({"type": "string", "default": 5})),
        "S.properties[spec].properties[a].default: Invalid value: \"integer\":  in body must be of type string: \"integer\""
    );
    assert_eq!(
        spec(json!({"type": "object", "properties": {}, "anyOf": [{"type": "object"}]})),
        "S.properties[spec].anyOf[0].type: Forbidden: must be empty to be structural"
    );
    assert_eq!(spec(json!({"$ref": "#/x"})), "S.properties[spec].$ref: Forbidden: $ref is not supported");
    assert_eq!(
        a(json!({"type": "string", "pattern": "["})),
        "S.properties[spec].properties[a].pattern: Invalid value: \"[\": must be a valid regular expression, \
         but isn't: error parsing regexp: missing closing ]: `[`"
    );
    assert_eq!(
        a(json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            "x-kubernetes-list-type": "map"})),
        "S.properties[spec].properties[a].x-kubernetes-list-map-keys: Required value: \
         must not be empty if x-kubernetes-list-type is map"
    );
    assert_eq!(
        spec(json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}]}}, "anyOf": [{"required": ["p"]}]})),
        ""
    );
}

#[test]
fn as_016_empty_lists_that_are_always_printed_are_stored_as_null() {
    let schema = builtin("apps.v1.Deployment");
    let mut object = json!({"metadata": {}, "spec": {"selector": {}, "template": {"metadata": {}, "spec": {
        "containers": []}}}});
    schema.store_form(&mut object);
    assert_eq!(
        object["spec"],
        json!({"selector": {}, "template": {"metadata": {}, "spec": {"containers": null}}})
    );
}

/// AS-041: the metadata of an embedded object passes through ObjectMeta; that of the outer object does not.
#[test]
fn as_041_embedded_metadata_is_normalised() {
    let schema = Schema::structural(
        &json!({"type": "object", "properties": {"inner": {
            "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}),
        "example.com",
        "v1",
        "Box",
    )
    .unwrap();
    let mut object = json!({
        "metadata": {"name": "outer", "labels": {}},
        "inner": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "in", "labels": {}, "annotations": {"a": "b"}}},
    });
    assert_eq!(schema.prune(&mut object), vec![]);
    assert_eq!(object["inner"]["metadata"], json!({"name": "in", "annotations": {"a": "b"}}));
    assert_eq!(object["metadata"]["labels"], json!({}));
}

/// AS-045: an element of a keyed list is compared with the old element of the same keys at any index, so that old
/// errors are tolerated while other elements are added, removed and moved.
#[test]
fn as_045_moved_elements_keep_their_old_selves() {
    let schema = widget(json!({"type": "object", "properties": {"list": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "n": {"type": "integer", "maximum": 5}}},
    }}}));
    let item = |k: &str, n: i64| json!({"k": k, "n": n});
    let old = json!({"spec": {"list": [item("a", 9), item("b", 1), item("c", 9)]}});
    let moved = json!({"spec": {"list": [item("new", 1), item("c", 9), item("a", 9)]}});
    assert_eq!(schema.validate_update(&moved, &old), vec![]);
    let worse = json!({"spec": {"list": [item("c", 9), item("b", 7)]}});
    assert_eq!(schema.validate_update(&worse, &old).len(), 1);
}

/// AS-042: defaults do not turn a small object with many elements into a large one.
#[test]
fn as_042_defaults_are_bounded() {
    let item =
        json!({"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(1000)}}});
    let openapi = json!({"type": "object", "properties": {"l": {"type": "array", "items": item}}});
    let schema = Schema::structural(&openapi, "g", "v1", "K").expect("a schema");
    let with = |count: usize| json!({"l": vec![json!({}); count]});
    let mut few = with(100);
    assert_eq!(schema.default(&mut few), Ok(()));
    assert_eq!(few["l"][99]["a"].as_str().map(str::len), Some(1000));
    assert_eq!(schema.default(&mut with(100_000)), Err(DefaultsError));
}

/// AS-042: the product of schemas and elements is bounded.
#[test]
fn as_042_steps_of_a_validation_are_bounded() {
    let subs = vec![json!({"properties": {"a": {"minLength": 1}}}); 3000];
    let openapi = json!({"type": "object", "properties": {"l": {"type": "array", "items":
        {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": subs}}}});
    let schema = Schema::structural(&openapi, "g", "v1", "K").expect("a schema");
    let object = |count: usize| json!({"l": vec![json!({"a": "x"}); count]});
    assert_eq!(schema.validate(&object(10)), vec![]);
    let errors = schema.validate(&object(20_000));
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].reason(), "FieldValueForbidden");
}

/// AS-039: the number of patterns of a definition is bounded; equal ones count once.
#[test]
fn as_039_patterns_of_a_definition_are_bounded() {
    let schema = |count: usize, distinct: usize| {
        let one = |n: usize| json!({"type": "string", "pattern": format!("^a{}$", n % distinct)});
        let properties: Map<String, Value> = (0..count).map(|n| (format!("p{n}"), one(n))).collect();
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
    };
    let mut patterns = Patterns::default();
    let mut faults =
        |openapi: Value| structural_errors(&openapi, &field::Path::field("s"), &mut patterns).len();
    assert_eq!(faults(schema(PATTERNS_MAX + 10, PATTERNS_MAX)), 0);
    // The next version continues the count.
    assert_eq!(faults(schema(PATTERNS_MAX + 10, PATTERNS_MAX + 3)), 3);
}

/// AS-042: enums compare numbers by value.
#[test]
fn as_042_enums_compare_numbers_by_value() {
    let openapi = json!({"type": "object", "properties": {"n": {"enum": [1, 2.0, 0.5, "x", null, [1]]}}});
    let schema = Schema::structural(&openapi, "g", "v1", "K").expect("a schema");
    for (value, fits) in [
        (json!(1), true),
        (json!(1.0), true),
        (json!(2), true),
        (json!(0.5), true),
        (json!("x"), true),
        (json!([1]), true),
        (json!(3), false),
        (json!(0.25), false),
        (json!("1"), false),
        (json!([2]), false),
    ] {
        assert_eq!(schema.validate(&json!({"n": value})).is_empty(), fits, "{value}");
    }
}

/// AS-042: an element of a keyed list is compared with the old element of the same keys, at any index.
#[test]
fn as_042_elements_are_compared_with_those_of_their_keys() {
    let item = json!({"type": "object", "required": ["k"], "properties": {
        "k": {"type": "string"}, "p": {"type": "string", "default": "TCP"}, "v": {"type": "integer", "maximum": 5}}});
    let openapi = json!({"type": "object", "properties": {"l": {"type": "array", "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "p"]}}});
    let schema = Schema::structural(&openapi, "g", "v1", "K").expect("a schema");
    let list = |keys: &[(&str, i64)]| {
        let items: Vec<Value> = keys.iter().map(|(k, v)| json!({"k": k, "v": v})).collect();
        json!({"l": items})
    };
    let old = list(&[("a", 9), ("b", 8), ("c", 1)]);
    // Old errors may stay, in any order; new values must be valid.
    assert_eq!(schema.validate_update(&list(&[("c", 1), ("b", 8), ("a", 9)]), &old), vec![]);
    let mut explicit = list(&[("x", 1), ("a", 9)]);
    explicit["l"][1]["p"] = "TCP".into();
    assert_eq!(schema.validate_update(&explicit, &old), vec![], "the default of a key is its value");
    let mut other = list(&[("a", 9)]);
    other["l"][0]["p"] = "UDP".into();
    assert_eq!(schema.validate_update(&other, &old).len(), 1);
    assert_eq!(schema.validate_update(&list(&[("a", 8)]), &old).len(), 1);
}
