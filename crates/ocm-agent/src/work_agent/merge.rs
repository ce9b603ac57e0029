//! Compares and merges a required and a live object for the Update strategy (OCM-078, OCM-079). Pure.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

/// The annotation that shows a change of a Service's spec (OCM-078).
pub const SPEC_HASH: &str = "operator.openshift.io/spec-hash";

/// What to do with an existing object.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing: it is as required.
    Equal,
    /// Replace it with this (PUT).
    Replace(Value),
    /// Delete and recreate it, because an immutable field differs.
    Recreate,
}

/// Returns the object to create; keys that request a removal are dropped.
pub fn to_create(required: &Value) -> Value {
    let mut object = required.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["labels", "annotations"] {
            if let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) {
                map.retain(|key, _| !key.ends_with('-'));
            }
        }
        if let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
            owners.retain(|owner| !text(owner, "uid").ends_with('-'));
        }
        for stale in ["resourceVersion", "uid", "creationTimestamp", "managedFields", "selfLink"] {
            metadata.remove(stale);
        }
    }
    if is(&object, "v1", "Service") {
        annotate_spec_hash(&mut object);
    }
    if is(&object, "v1", "Secret") {
        fold_string_data(&mut object);
    }
    object
}

/// Compares a live object with the required one, according to its kind.
pub fn update(required: &Value, live: &Value) -> Verdict {
    let types = (text(required, "apiVersion"), text(required, "kind"));
    let mut required = required.clone();
    let mut merged = live.clone();
    match types {
        ("v1", "Namespace" | "ServiceAccount" | "Pod") => {
            settle(merge_metadata(&mut merged, &required), merged)
        }
        ("v1", "Service") => {
            annotate_spec_hash(&mut required);
            let mut changed = merge_metadata(&mut merged, &required);
            let differs = |key: &str| part(&required, "spec", key) != part(live, "spec", key);
            // A live Service always has a type; an absent one means ClusterIP.
            let type_of =
                |o: &Value| part(o, "spec", "type").and_then(Value::as_str).unwrap_or("ClusterIP").to_owned();
            changed |= differs("selector") || type_of(&required) != type_of(live);
            if changed {
                take(&mut merged, &required, "spec");
            }
            settle(changed, merged)
        }
        ("v1", "ConfigMap") => update_config_map(&required, merged),
        ("v1", "Secret") => update_secret(&mut required, merged),
        ("rbac.authorization.k8s.io/v1", "ClusterRole" | "Role") => {
            let aggregated = required.get("aggregationRule").is_some_and(|v| !v.is_null());
            let parts: &[&str] =
                if aggregated { &["aggregationRule"] } else { &["rules", "aggregationRule"] };
            replace_parts(&required, merged, parts)
        }
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding" | "RoleBinding") => {
            replace_parts(&required, merged, &["subjects", "roleRef"])
        }
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            default_crd(&mut required);
            replace_parts(&required, merged, &["spec"])
        }
        ("policy/v1", "PodDisruptionBudget")
        | ("networking.k8s.io/v1", "NetworkPolicy")
        | (
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding",
        ) => replace_parts(&required, merged, &["spec"]),
        (
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => {
            keep_ca_bundles(&mut required, live);
            replace_parts(&required, merged, &["webhooks"])
        }
        ("storage.k8s.io/v1", "StorageClass" | "CSIDriver") => update_storage(&required, live),
        _ => generic(&required, live),
    }
}

/// OCM-079: an object of any other kind is replaced as a whole when anything but metadata and status differs.
fn generic(required: &Value, live: &Value) -> Verdict {
    let mut metadata = live.clone();
    let mut changed = merge_metadata(&mut metadata, required);
    changed |= !same_content(required, live);
    if !changed {
        return Verdict::Equal;
    }
    let mut object = required.clone();
    take(&mut object, &metadata, "metadata");
    // Without this, a custom resource without a status subresource would lose its status.
    if object.get("status").is_none_or(Value::is_null) {
        take(&mut object, live, "status");
    }
    Verdict::Replace(object)
}

fn same_content(required: &Value, live: &Value) -> bool {
    let (Some(required), Some(live)) = (required.as_object(), live.as_object()) else { return false };
    let relevant = |key: &str| key != "metadata" && key != "status";
    required
        .iter()
        .filter(|(k, _)| relevant(k))
        .all(|(k, v)| live.get(k).map_or(empty(v), |l| semantic_eq(v, l)))
        && live.iter().filter(|(k, _)| relevant(k)).all(|(k, v)| required.contains_key(k) || empty(v))
}

fn update_config_map(required: &Value, mut merged: Value) -> Verdict {
    let mut required = required.clone();
    keep_injected(&mut required, &merged);
    let required = &required;
    let mut changed = merge_metadata(&mut merged, required);
    for key in ["data", "binaryData"] {
        let wanted = required.get(key).cloned().unwrap_or(Value::Null);
        let have = merged.get(key).cloned().unwrap_or(Value::Null);
        if !semantic_eq(&wanted, &have) {
            changed = true;
            take(&mut merged, required, key);
        }
    }
    settle(changed, merged)
}

/// CA bundles that a cluster injects into ConfigMaps on request: the mark, and the key it fills.
const INJECTED: [(&str, &str, &str); 2] = [
    ("labels", "config.openshift.io/inject-trusted-cabundle", "ca-bundle.crt"),
    ("annotations", "service.beta.openshift.io/inject-cabundle", "service-ca.crt"),
];

/// Keeps injected values, unless the manifest has a value of its own.
fn keep_injected(required: &mut Value, live: &Value) {
    for (field, mark, key) in INJECTED {
        let asked = required.get("metadata").and_then(|m| m.get(field)).and_then(|f| f.get(mark));
        let Some(injected) = live.get("data").and_then(|data| data.get(key)) else { continue };
        if asked.and_then(Value::as_str) != Some("true") {
            continue;
        }
        let Some(top) = required.as_object_mut() else { return };
        let data = top.entry("data").or_insert_with(|| json!({}));
        if data.is_null() {
            *data = json!({});
        }
        if let Some(data) = data.as_object_mut() {
            data.entry(key).or_insert_with(|| injected.clone());
        }
    }
}

/// Returns an error for a Secret with contradictory values of one key.
pub fn secret_conflict(manifest: &Value) -> Option<String> {
    if !is(manifest, "v1", "Secret") {
        return None;
    }
    let data = manifest.get("data")?.as_object()?;
    let (key, _) = manifest.get("stringData")?.as_object()?.iter().find(|(key, plain)| {
        let encoded = plain.as_str().map(|text| base64(text.as_bytes()));
        data.get(*key).is_some_and(|have| have.as_str() != encoded.as_deref())
    })?;
    Some(format!("Secret.stringData[{key}] conflicts with Secret.data[{key}]"))
}

fn update_secret(required: &mut Value, mut merged: Value) -> Verdict {
    fold_string_data(required);
    let type_of = |o: &Value| {
        o.get("type").and_then(Value::as_str).filter(|t| !t.is_empty()).unwrap_or("Opaque").to_owned()
    };
    if type_of(required) != type_of(&merged) {
        return Verdict::Recreate;
    }
    let mut changed = merge_metadata(&mut merged, required);
    let mut wanted = required.get("data").cloned().unwrap_or(Value::Null);
    if type_of(required) == "kubernetes.io/service-account-token"
        && let Some(live) = merged.get("data").and_then(Value::as_object)
    {
        let mut all = live.clone();
        all.extend(wanted.as_object().cloned().unwrap_or_default());
        wanted = Value::Object(all);
    }
    if !semantic_eq(&wanted, merged.get("data").unwrap_or(&Value::Null)) {
        changed = true;
        if let Some(top) = merged.as_object_mut() {
            top.insert("data".into(), wanted);
        }
    }
    settle(changed, merged)
}

fn update_storage(required: &Value, live: &Value) -> Verdict {
    const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    let mut required = required.clone();
    let own = live.pointer("/metadata/annotations").and_then(|a| a.get(DEFAULT_CLASS)).cloned();
    if let Some(own) = own
        && let Some(annotations) =
            required.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
        && annotations.contains_key(DEFAULT_CLASS)
    {
        annotations.insert(DEFAULT_CLASS.into(), own);
    }
    let immutable = ["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"];
    let moved =
        |key: &str| required.get(key).is_some_and(|v| !semantic_eq(v, live.get(key).unwrap_or(&Value::Null)));
    if immutable.into_iter().any(moved) {
        return Verdict::Recreate;
    }
    let mut merged = live.clone();
    let mut changed = merge_metadata(&mut merged, &required);
    for (key, value) in required.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata", "status"].contains(&key.as_str())
            && !covers(value, merged.get(key).unwrap_or(&Value::Null))
        {
            changed = true;
            take(&mut merged, &required, key);
        }
    }
    settle(changed, merged)
}

fn replace_parts(required: &Value, mut merged: Value, parts: &[&str]) -> Verdict {
    let mut changed = merge_metadata(&mut merged, required);
    for part in parts {
        let wanted = required.get(*part).unwrap_or(&Value::Null);
        let have = merged.get(*part).unwrap_or(&Value::Null);
        if !semantic_eq(wanted, have) {
            changed = true;
            take(&mut merged, required, part);
        }
    }
    settle(changed, merged)
}

fn settle(changed: bool, merged: Value) -> Verdict {
    if changed { Verdict::Replace(merged) } else { Verdict::Equal }
}

/// Merges labels, annotations and owners of `required` into `into`. Returns true if that changed anything.
/// The other metadata stay.
pub fn merge_metadata(into: &mut Value, required: &Value) -> bool {
    let nothing = Map::new();
    let wanted = required.get("metadata").and_then(Value::as_object).unwrap_or(&nothing);
    let Some(metadata) = into.get_mut("metadata").and_then(Value::as_object_mut) else { return false };
    let mut changed = false;
    for field in ["labels", "annotations"] {
        let Some(entries) = wanted.get(field).and_then(Value::as_object) else { continue };
        changed |= merge_map(metadata, field, entries);
    }
    for owner in wanted.get("ownerReferences").and_then(Value::as_array).into_iter().flatten() {
        changed |= merge_owner(metadata, owner);
    }
    changed
}

/// Merges a map. A key that ends in `-` removes the key without the dash.
fn merge_map(metadata: &mut Map<String, Value>, field: &str, entries: &Map<String, Value>) -> bool {
    let mut changed = false;
    for (key, value) in entries {
        let map = metadata.get_mut(field).and_then(Value::as_object_mut);
        if let Some(removed) = key.strip_suffix('-') {
            changed |= map.is_some_and(|map| map.remove(removed).is_some());
        } else if map.is_none_or(|map| map.get(key) != Some(value)) {
            let map = metadata.entry(field).or_insert_with(|| json!({}));
            if !map.is_object() {
                *map = json!({});
            }
            if let Some(map) = map.as_object_mut() {
                map.insert(key.clone(), value.clone());
            }
            changed = true;
        }
    }
    changed
}

/// Merges an owner reference. Owners are the same if name, kind and API group are; a UID that ends in `-`
/// removes the owner.
pub fn merge_owner(metadata: &mut Map<String, Value>, owner: &Value) -> bool {
    let group = |o: &Value| text(o, "apiVersion").split_once('/').map_or("", |(g, _)| g).to_owned();
    let same = |o: &Value| {
        text(o, "name") == text(owner, "name")
            && text(o, "kind") == text(owner, "kind")
            && group(o) == group(owner)
    };
    let removal = text(owner, "uid").ends_with('-');
    let list = metadata.entry("ownerReferences").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return false };
    let at = list.iter().position(same);
    let changed = match (at, removal) {
        (Some(at), true) => {
            list.remove(at);
            true
        }
        (None, true) => false,
        (Some(at), false) => match list.get_mut(at) {
            Some(have) if semantic_eq(have, owner) => false,
            Some(have) => {
                *have = owner.clone();
                true
            }
            None => false,
        },
        (None, false) => {
            list.push(owner.clone());
            true
        }
    };
    if list.is_empty() {
        metadata.remove("ownerReferences");
    }
    changed
}

fn annotate_spec_hash(object: &mut Value) {
    let spec = object.get("spec").map(Value::to_string).unwrap_or_default();
    let hash: String = hex(&Sha256::digest(spec.as_bytes()));
    let Some(top) = object.as_object_mut() else { return };
    let metadata = top.entry("metadata").or_insert_with(|| json!({}));
    let Some(metadata) = metadata.as_object_mut() else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(SPEC_HASH.into(), hash.into());
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `stringData` wins over `data`, as in the API server.
fn fold_string_data(object: &mut Value) {
    let Some(top) = object.as_object_mut() else { return };
    let Some(Value::Object(plain)) = top.remove("stringData") else { return };
    let data = top.entry("data").or_insert_with(|| json!({}));
    if let Some(data) = data.as_object_mut() {
        for (key, value) in plain {
            if let Some(text) = value.as_str() {
                data.insert(key, base64(text.as_bytes()).into());
            }
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |n: u32| DIGITS.get((n & 63) as usize).map_or('=', |d| char::from(*d));
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let n = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.push(digit(n >> 18));
        text.push(digit(n >> 12));
        text.push(if chunk.len() > 1 { digit(n >> 6) } else { '=' });
        text.push(if chunk.len() > 2 { digit(n) } else { '=' });
    }
    text
}

fn default_crd(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let absent = |names: &Map<String, Value>, key: &str| {
            names.get(key).and_then(Value::as_str).unwrap_or_default().is_empty()
        };
        if absent(names, "singular") {
            names.insert("singular".into(), kind.to_lowercase().into());
        }
        if absent(names, "listKind") {
            names.insert("listKind".into(), format!("{kind}List").into());
        }
    }
    spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    if let Some(service) = spec
        .get_mut("conversion")
        .and_then(|c| c.pointer_mut("/webhook/clientConfig/service"))
        .and_then(Value::as_object_mut)
    {
        service.entry("port").or_insert_with(|| json!(443));
    }
}

fn keep_ca_bundles(required: &mut Value, live: &Value) {
    let Some(webhooks) = required.get_mut("webhooks").and_then(Value::as_array_mut) else { return };
    for webhook in webhooks {
        let name = text(webhook, "name").to_owned();
        let bundle = live
            .get("webhooks")
            .and_then(Value::as_array)
            .and_then(|all| all.iter().find(|w| text(w, "name") == name))
            .and_then(|w| w.pointer("/clientConfig/caBundle"))
            .cloned();
        if let (Some(bundle), Some(config)) =
            (bundle, webhook.get_mut("clientConfig").and_then(Value::as_object_mut))
            && config.get("caBundle").is_none_or(|b| b.as_str().is_none_or(str::is_empty))
        {
            config.insert("caBundle".into(), bundle);
        }
    }
}

/// Kubernetes' semantic equality: absent, null and empty are equal.
pub fn semantic_eq(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| y.get(k).map_or(empty(v), |w| semantic_eq(v, w)))
                && y.iter().all(|(k, v)| x.contains_key(k) || empty(v))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(v, w)| semantic_eq(v, w))
        }
        _ => a == b || (empty(a) && empty(b)),
    }
}

/// Returns whether `have` contains everything in `wanted`.
fn covers(wanted: &Value, have: &Value) -> bool {
    match (wanted, have) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| y.get(k).map_or(empty(v), |w| covers(v, w)))
        }
        _ => semantic_eq(wanted, have),
    }
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn take(into: &mut Value, from: &Value, key: &str) {
    let Some(top) = into.as_object_mut() else { return };
    match from.get(key) {
        Some(value) => top.insert(key.to_owned(), value.clone()),
        None => top.remove(key),
    };
}

fn part<'a>(object: &'a Value, key: &str, below: &str) -> Option<&'a Value> {
    object.get(key)?.get(below).filter(|v| !empty(v))
}

fn is(object: &Value, api_version: &str, kind: &str) -> bool {
    text(object, "apiVersion") == api_version && text(object, "kind") == kind
}

/// Returns a text field, empty if absent.
pub fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}
