//! Volumes, claims, storage classes and CSI objects.

use machinery::field::Path;
use serde_json::{Value, json};

use super::check::{Errs, IMMUTABLE};
use super::spec::{BASE, Facts, GenerationRule, Spec, StatusMeta, WITH_STATUS};
use super::value::{at, fill, fill_at, has, list, object_mut, path, put, text};
use crate::strategy::WriteContext;

const CSI_TOKENS: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";

pub(super) const CLAIM: Spec = Spec {
    facts: Facts { returns_deleted: true, ..WITH_STATUS.facts },
    status: Some(|| json!({"phase": "Pending"})),
    generation: GenerationRule::FromClient,
    default: |obj| {
        object_mut(obj, "spec.resources");
        fill_at(obj, "spec", "volumeMode", "Filesystem");
        for place in ["spec.resources.requests", "spec.resources.limits", "status.capacity"] {
            super::amounts::round(obj, place);
        }
    },
    admit: super::limits::claim,
    update: |_, obj, _| data_sources(obj),
    create: |cx, obj| {
        protect(obj, "kubernetes.io/pvc-protection");
        data_sources(obj);
        default_class(cx, obj);
    },
    validate: |_, obj, errs| super::claim_validation::claim(at(obj, "spec"), &Path::field("spec"), errs),
    validate_update: claim_fixed,
    warnings: super::warnings::claim,
    ..WITH_STATUS
};

pub(super) const VOLUME: Spec = Spec {
    facts: Facts { returns_deleted: true, ..WITH_STATUS.facts },
    status: Some(|| json!({"phase": "Pending"})),
    generation: GenerationRule::FromClient,
    default: |obj| {
        super::amounts::round(obj, "spec.capacity");
        fill_at(obj, "spec", "persistentVolumeReclaimPolicy", "Retain");
        fill_at(obj, "spec", "volumeMode", "Filesystem");
        if has(obj, "spec.hostPath") {
            fill_at(obj, "spec.hostPath", "type", "");
        }
    },
    create: |cx, obj| {
        protect(obj, "kubernetes.io/pv-protection");
        super::value::set_at(obj, "status", "lastPhaseTransitionTime", cx.now);
    },
    subresource: phase_time,
    validate: |_, obj, errs| super::volume_validation::volume(obj, errs),
    validate_update: |_, obj, old, errs| super::volume_validation::update(obj, old, errs),
    ..WITH_STATUS
};

pub(super) const STORAGE_CLASS: Spec = Spec {
    facts: Facts { returns_deleted: true, ..BASE.facts },
    default: |obj| {
        if let Some(map) = obj.as_object_mut() {
            fill(map, "reclaimPolicy", "Delete");
            fill(map, "volumeBindingMode", "Immediate");
        }
    },
    validate: |_, obj, errs| {
        if text(obj, "provisioner").is_empty() {
            errs.required(&Path::field("provisioner"), "");
        }
        errs.one_of(&Path::field("reclaimPolicy"), text(obj, "reclaimPolicy"), &["Delete", "Retain"]);
        errs.one_of(
            &Path::field("volumeBindingMode"),
            text(obj, "volumeBindingMode"),
            &["Immediate", "WaitForFirstConsumer"],
        );
    },
    validate_update: |_, obj, old, errs| {
        for key in ["parameters", "provisioner", "reclaimPolicy"] {
            if at(obj, key) != at(old, key) {
                errs.forbidden(&Path::field(key), &format!("updates to {key} are forbidden."));
            }
        }
    },
    ..BASE
};

pub(super) const CSI_DRIVER: Spec = Spec {
    facts: Facts { unconditional_update: false, returns_deleted: true, ..BASE.facts },
    default: |obj| {
        let Some(spec) = object_mut(obj, "spec") else { return };
        fill(spec, "attachRequired", true);
        fill(spec, "podInfoOnMount", false);
        fill(spec, "storageCapacity", false);
        fill(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        fill(spec, "requiresRepublish", false);
        fill(spec, "seLinuxMount", false);
        if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
        }
    },
    warnings: |obj, _| {
        if list(obj, "spec.tokenRequests").is_empty() || has(obj, "spec.serviceAccountTokenInSecrets") {
            return Vec::new();
        }
        vec![CSI_TOKENS.to_owned()]
    },
    validate_update: |_, obj, old, errs| {
        for key in ["attachRequired", "fsGroupPolicy", "volumeLifecycleModes"] {
            errs.immutable(&format!("spec.{key}"), obj, old);
        }
    },
    ..BASE
};

pub(super) const CSI_NODE: Spec = Spec {
    facts: Facts { unconditional_update: false, returns_deleted: true, ..BASE.facts },
    default: |obj| {
        if let Some(spec) = object_mut(obj, "spec")
            && spec.get("drivers").and_then(Value::as_array).is_none_or(Vec::is_empty)
        {
            spec.insert("drivers".into(), Value::Null);
        }
    },
    ..BASE
};

pub(super) const CSI_CAPACITY: Spec = Spec {
    facts: Facts { unconditional_update: false, ..BASE.facts },
    validate: |_, obj, errs| {
        if text(obj, "storageClassName").is_empty() {
            errs.required(&Path::field("storageClassName"), "");
        }
    },
    validate_update: |_, obj, old, errs| {
        errs.immutable("nodeTopology", obj, old);
        errs.immutable("storageClassName", obj, old);
    },
    ..BASE
};

pub(super) const ATTACHMENT: Spec = Spec {
    facts: Facts { unconditional_update: false, returns_deleted: true, ..WITH_STATUS.facts },
    status: Some(|| json!({"attached": false})),
    status_meta: StatusMeta::Nothing,
    generation: GenerationRule::FromClient,
    validate: |_, obj, errs| {
        let here = Path::field("spec");
        for key in ["attacher", "nodeName"] {
            if text(at(obj, "spec"), key).is_empty() {
                errs.required(&here.child(key), "");
            }
        }
    },
    validate_update: |_, obj, old, errs| errs.immutable("spec", obj, old),
    ..WITH_STATUS
};

pub(super) const ATTRIBUTES_CLASS: Spec = Spec {
    facts: Facts { returns_deleted: true, ..BASE.facts },
    validate: |_, obj, errs| {
        if text(obj, "driverName").is_empty() {
            errs.required(&Path::field("driverName"), "");
        }
    },
    validate_update: |_, obj, old, errs| {
        for key in ["driverName", "parameters"] {
            if at(obj, key) != at(old, key) {
                errs.forbidden(&Path::field(key), &format!("updates to {key} are forbidden."));
            }
        }
    },
    ..BASE
};

/// Keeps `dataSource` only for claims and snapshots, and makes it and `dataSourceRef` the same where only one is given.
fn data_sources(obj: &mut Value) {
    let known = matches!(
        (text(obj, "spec.dataSource.apiGroup"), text(obj, "spec.dataSource.kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    );
    if has(obj, "spec.dataSource") && !known {
        drop(super::value::remove_at(obj, "spec", "dataSource"));
    }
    let (source, reference) = (at(obj, "spec.dataSource").clone(), at(obj, "spec.dataSourceRef").clone());
    if !source.is_null() && reference.is_null() {
        super::value::set_at(obj, "spec", "dataSourceRef", source);
    } else if source.is_null() && !reference.is_null() && text(&reference, "namespace").is_empty() {
        super::value::set_at(obj, "spec", "dataSource", reference);
    }
}

/// Adds the finalizer that keeps objects in use.
fn protect(obj: &mut Value, finalizer: &str) {
    if list(obj, "metadata.finalizers").iter().all(|f| f != finalizer)
        && let Some(metadata) = super::value::at_mut(obj, "metadata")
    {
        super::pods::append(metadata, "finalizers", finalizer.into());
    }
}

/// Sets the default class on a claim that names none.
fn default_class(cx: &WriteContext<'_>, obj: &mut Value) {
    const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
    if has(obj, "spec.storageClassName") {
        return;
    }
    let is_default = |class: &Value| {
        at(class, "metadata.annotations").get(DEFAULT).and_then(Value::as_str) == Some("true")
    };
    let newest = cx
        .lookup
        .list("storage.k8s.io", "storageclasses", None)
        .into_iter()
        .filter(is_default)
        .max_by_key(|class| text(class, "metadata.creationTimestamp").to_owned());
    if let Some(class) = newest {
        super::value::set_at(obj, "spec", "storageClassName", text(&class, "metadata.name"));
    }
}

fn phase_time(cx: &WriteContext<'_>, sub: &str, obj: &mut Value, old: &Value) {
    if sub != "status" {
        return;
    }
    if text(obj, "status.phase") != text(old, "status.phase") {
        super::value::set_at(obj, "status", "lastPhaseTransitionTime", cx.now);
    } else if !has(obj, "status.lastPhaseTransitionTime") && has(old, "status.lastPhaseTransitionTime") {
        let before = at(old, "status.lastPhaseTransitionTime").clone();
        super::value::set_at(obj, "status", "lastPhaseTransitionTime", before);
    }
}

fn claim_fixed(_: &WriteContext<'_>, obj: &Value, old: &Value, errs: &mut Errs) {
    let mut wanted = at(obj, "spec").clone();
    let before = at(old, "spec");
    // Binding sets the volume. A bound claim may grow and change its attributes class.
    if text(before, "volumeName").is_empty() {
        put(&mut wanted, "volumeName", at(before, "volumeName"));
    }
    if text(old, "status.phase") == "Bound" {
        let requests = at(before, "resources.requests").clone();
        fill_requests(&mut wanted, &requests);
        put(&mut wanted, "volumeAttributesClassName", at(before, "volumeAttributesClassName"));
    }
    if &wanted != before {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let shown = super::godiff::claim_spec(before, &wanted);
        errs.forbidden(&Path::field("spec"), &format!("{why}\n{shown}"));
    }
    if at(obj, "spec.volumeMode") != at(old, "spec.volumeMode") {
        errs.invalid(&path("spec.volumeMode"), at(obj, "spec.volumeMode"), IMMUTABLE);
    }
}

fn fill_requests(spec: &mut Value, requests: &Value) {
    if let Some(map) = object_mut(spec, "resources") {
        map.insert("requests".into(), requests.clone());
    }
}
