//! The fixtures were written by the serializers of Kubernetes: the bytes, and the JSON of the decoded object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::table::{Repeat, Type};
use super::*;

macro_rules! fixtures {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../testdata/protobuf/", $name, ".json")))),*]
    };
}

const FIXTURES: [(&str, &str); 22] = fixtures![
    "apiservice",
    "certificatesigningrequest",
    "clusterrole",
    "configmap",
    "configmaplist",
    "controllerrevision",
    "customresourcedefinition",
    "deleteoptions",
    "deployment",
    "event",
    "lease",
    "partialobjectmetadata",
    "resourcequota",
    "role",
    "secret",
    "selfsubjectaccessreview",
    "selfsubjectreview",
    "service",
    "status",
    "subjectaccessreview",
    "tokenrequest",
    "validatingwebhookconfiguration",
];

fn fixture(text: &str) -> (Vec<u8>, Value) {
    let mut value: Value = serde_json::from_str(text).expect("a fixture");
    let bytes = STANDARD.decode(value["protobuf"].as_str().expect("bytes")).expect("base64");
    (bytes, value["json"].take())
}

fn decode(bytes: &[u8]) -> Result<Value, ProtobufError> {
    Envelope::open(bytes)?.decode("", "")
}

/// Removes nulls that Go prints for absent lists; our objects lack these fields.
fn forget_nulls(expected: &mut Value, actual: &Value) {
    match expected {
        Value::Object(map) => {
            map.retain(|key, value| !value.is_null() || actual.get(key).is_some());
            for (key, value) in map {
                forget_nulls(value, &actual[key.as_str()]);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                forget_nulls(item, &actual[at]);
            }
        }
        _ => {}
    }
}

#[test]
fn as_030_messages_of_go_are_the_json_of_go() {
    for (name, text) in FIXTURES {
        let (bytes, mut expected) = fixture(text);
        let actual = decode(&bytes).expect(name);
        forget_nulls(&mut expected, &actual);
        assert_eq!(actual, expected, "{name}");
    }
}

#[test]
fn as_030_json_of_go_makes_the_bytes_of_go() {
    for (name, text) in FIXTURES {
        let (bytes, expected) = fixture(text);
        let from_json = encode(&expected).expect(name);
        assert_eq!(decode(&from_json), decode(&bytes), "{name}");
        assert_eq!(from_json, bytes, "{name}");
        assert_eq!(encode(&decode(&bytes).expect(name)).expect(name), bytes, "{name}");
    }
}

#[test]
fn as_030_every_served_kind_has_a_message() {
    let table = Table::get();
    for d in crate::builtin::catalog().all() {
        let version = d.api_version();
        assert!(table.kind(&version, &d.kind).is_some(), "{version} {}", d.kind);
        let list = table.kind(&version, &d.list_kind);
        assert_eq!(list.is_some(), d.has_verb("list"), "{version} {}", d.list_kind);
        for sub in d.subresources.values().filter(|s| !s.kind.ends_with("Options")) {
            let version = crate::descriptor::api_version(&sub.group, &sub.version);
            assert!(table.kind(&version, &sub.kind).is_some(), "{version} {}", sub.kind);
        }
    }
    assert!(table.kind("apps/v1", "DeleteOptions").is_some());
}

/// The JSON names of a message's fields, including inlined ones.
fn names(table: &Table, id: table::Id) -> Vec<(&'static str, Type)> {
    let fields = table.fields(id).iter().flat_map(|f| match f.r#type {
        Type::Message(inner) if f.inline => names(table, inner),
        _ => vec![(f.name, f.r#type)],
    });
    fields.collect()
}

#[test]
fn as_030_the_table_agrees_with_the_schemas() {
    fn check(table: &Table, id: table::Id, schema: &machinery::schema::Schema, seen: &mut Vec<table::Id>) {
        if seen.contains(&id) {
            return;
        }
        seen.push(id);
        let own = names(table, id);
        for (name, inner) in schema.fields() {
            if matches!(name.as_str(), "apiVersion" | "kind") && !own.iter().any(|(n, _)| *n == name) {
                continue;
            }
            let found = own.iter().find(|(n, _)| *n == name);
            let (_, r#type) = found.unwrap_or_else(|| panic!("{}.{name}", schema.type_name()));
            let element = inner.items().or_else(|| inner.additional()).unwrap_or(inner);
            if let Type::Message(id) = r#type {
                check(table, *id, &element, seen);
            }
        }
    }
    let table = Table::get();
    let mut seen = Vec::new();
    for d in crate::builtin::catalog().all() {
        let id = table.kind(&d.api_version(), &d.kind).expect("a message");
        check(table, id, &d.schema, &mut seen);
    }
    assert!(seen.len() > 300, "{}", seen.len());
}

#[test]
fn as_030_fields_are_in_order() {
    let table = Table::get();
    for (_, kind, id) in table.all() {
        let fields = table.fields(id);
        assert!(fields.windows(2).all(|pair| pair[0].number < pair[1].number), "{kind}");
        assert!(fields.iter().all(|f| !f.inline || f.repeat == Repeat::One), "{kind}");
    }
}

#[test]
fn as_030_what_is_not_protobuf_is_refused_in_words() {
    let text = |bytes: &[u8]| decode(bytes).expect_err("no object").to_string();
    assert_eq!(text(b""), "empty data");
    assert_eq!(text(b"k8s\0"), "empty body");
    assert_eq!(
        text(b"{}"),
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    );
    assert_eq!(text(b"k8s\0\x0a\x05\x0a"), "unexpected EOF");
    assert_eq!(text(b"k8s\0\x08\x01"), "proto: wrong wireType = 0 for field 1");
    assert_eq!(text(b"k8s\0\x02\x00"), "proto: illegal tag 0 (wire type 2)");
    let wrong = envelope("v1", "ConfigMap", b"\x08\x01");
    assert_eq!(text(&wrong), "proto: wrong wireType = 0 for field 1");
    // ControllerRevision.data
    let raw = envelope("apps/v1", "ControllerRevision", b"\x12\x03\x0a\x01{");
    assert!(text(&raw).starts_with("raw JSON: "), "{}", text(&raw));
}

#[test]
fn as_030_unknown_fields_are_skipped() {
    let mut message = vec![0xfa, 0x3f, 1, b'x'];
    message.extend_from_slice(b"\xf3\x3f\x08\x01\xf4\x3f");
    message.extend_from_slice(b"\x20\x01");
    let object = decode(&envelope("v1", "ConfigMap", &message));
    assert_eq!(object, Ok(json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": true})));
}

#[test]
fn as_030_numbers_may_be_packed() {
    let packed = encode(&json!({
        "apiVersion": "v1", "kind": "Pod", "spec": {"securityContext": {"supplementalGroups": [1, 300]}},
    }));
    let bytes = packed.expect("a pod");
    let one_by_one = b"\x20\x01\x20\xac\x02";
    let at = bytes.windows(5).position(|w| w == one_by_one).expect("two numbers");
    let mut bytes = bytes;
    // Keeps the length: tag, length, three bytes.
    bytes[at..at + 5].copy_from_slice(b"\x22\x03\x01\xac\x02");
    let object = decode(&bytes).expect("a pod");
    assert_eq!(object["spec"]["securityContext"]["supplementalGroups"], json!([1, 300]));
}

#[test]
fn as_030_nesting_is_bounded() {
    let mut schema = json!({"type": "object"});
    for _ in 0..200 {
        schema = json!({"not": schema});
    }
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]},
    });
    assert_eq!(decode(&encode(&definition).expect("bytes")), Err(ProtobufError::Deep));
}

#[test]
fn as_030_lists_are_the_same_as_their_items_together() {
    let (bytes, list) = fixture(FIXTURES[4].1);
    let items: Vec<Bytes> =
        list["items"].as_array().expect("items").iter().map(|i| i.to_string().into()).collect();
    let made = encode_list("v1", "ConfigMapList", &list["metadata"], &items).expect("a list");
    assert_eq!(made, bytes);
}

#[test]
fn as_030_frames_tell_their_length() {
    let frame = watch_frame("ADDED", &json!({"apiVersion": "v1", "kind": "ConfigMap"})).expect("a frame");
    let (length, message) = frame.split_first_chunk::<4>().expect("a length");
    assert_eq!(u32::from_be_bytes(*length) as usize, message.len());
    assert!(message.starts_with(b"\x0a\x05ADDED\x12"));
    assert!(watch_frame("ADDED", &json!({"apiVersion": "a.b/v1", "kind": "X"})).is_err());
}

proptest! {
    #[test]
    fn as_030_any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        for kind in ["Pod", "ConfigMap", "Event"] {
            let _ = decode(&envelope("v1", kind, &bytes));
        }
    }

    /// What can be decoded can be encoded, and then decodes to the same value.
    #[test]
    fn as_030_damaged_messages_are_taken_or_refused(
        which in 0..FIXTURES.len(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut bytes, _) = fixture(FIXTURES[which].1);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode(&bytes[..cut.index(bytes.len())]);
        if let Ok(value) = decode(&bytes)
            && let Ok(again) = encode(&value)
        {
            let again = decode(&again).expect("its own bytes");
            prop_assert_eq!(&again["kind"], &value["kind"]);
        }
    }
}
