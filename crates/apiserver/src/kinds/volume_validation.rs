//! Validation of PersistentVolumes (spec 2.5), in the order of Kubernetes' own checks.

use machinery::field::{Error, Path};
use machinery::names;
use serde_json::{Map, Value};

use super::check::{Errs, IMMUTABLE, quantity};
use super::value::{at, has, int, list, text};
use super::{claim_validation, inner_paths, pod_placement, pod_volumes};

const ONE_SOURCE: &str = "may not specify more than 1 volume type";
/// Kinds of volumes with their required strings, in the order of their checks. Only the first is validated.
const SOURCES: &[(&str, &[&str])] = &[
    ("hostPath", &["path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("nfs", &["server", "path"]),
    ("rbd", &["monitors", "image"]),
    ("quobyte", &["registry", "volume"]),
    ("cephfs", &["monitors"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("cinder", &["volumeID"]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("local", &["path"]),
    ("storageos", &[]),
    ("csi", &[]),
];

/// Validates a volume without its metadata.
pub(super) fn volume(obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    if list(spec, "accessModes").is_empty() {
        errs.required(&place.child("accessModes"), "");
    }
    claim_validation::access_modes(spec, &place, errs);
    capacity(at(spec, "capacity"), &place.child("capacity"), errs);
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    let at_policy = place.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        errs.one_of(&at_policy, policy, &["Delete", "Recycle", "Retain"]);
    }
    if has(spec, "nodeAffinity") {
        let here = place.child("nodeAffinity").child("required");
        if has(spec, "nodeAffinity.required") {
            pod_placement::node_selector(at(spec, "nodeAffinity.required"), &here, errs);
        } else {
            errs.required(&here, "must specify required node constraints");
        }
    }
    sources(spec, &place, errs);
    if policy == "Recycle"
        && text(spec, "hostPath.path").trim_end_matches('/').is_empty()
        && has(spec, "hostPath")
    {
        errs.forbidden(&at_policy, "may not be 'recycle' for a hostPath mount of '/'");
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        errs.names(&place.child("storageClassName"), class, names::dns1123_subdomain(class));
    }
    if has(spec, "volumeMode") {
        errs.one_of(&place.child("volumeMode"), text(spec, "volumeMode"), &["Block", "Filesystem"]);
    }
    attributes_class(spec, &place, errs);
}

fn capacity(capacity: &Value, place: &Path, errs: &mut Errs) {
    let count = capacity.as_object().map_or(0, Map::len);
    if count == 0 {
        errs.required(place, "");
    }
    if capacity.get("storage").is_none() || count > 1 {
        errs.0.push(Error::not_supported(place, capacity, &["storage"]));
    }
    for (name, amount) in capacity.as_object().into_iter().flatten() {
        let Some(parsed) = quantity(amount) else { continue };
        if parsed.is_negative() {
            errs.invalid(&place.key(name), &parsed.value().into(), "must be a valid resource quantity");
        }
        if parsed.is_negative() || parsed.is_zero() {
            errs.invalid(&place.key(name), amount, "must be greater than zero");
        }
    }
}

fn sources(spec: &Value, place: &Path, errs: &mut Errs) {
    let mut given = SOURCES.iter().filter(|(key, _)| has(spec, key));
    match given.next() {
        None => errs.required(place, "must specify a volume type"),
        Some((key, required)) => {
            let here = place.child(if *key == "gcePersistentDisk" { "persistentDisk" } else { key });
            source(key, required, at(spec, key), &here, errs);
        }
    }
    for (extra, _) in given {
        errs.forbidden(&place.child(extra), ONE_SOURCE);
    }
}

fn source(kind: &str, required: &[&str], value: &Value, place: &Path, errs: &mut Errs) {
    let mut complete = true;
    for key in required {
        if text(value, key).is_empty() && list(value, key).is_empty() {
            errs.required(&place.child(key), "");
            complete = false;
        }
    }
    match kind {
        "hostPath" if complete => pod_volumes::host_path(value, place, errs),
        "local" if complete => {
            inner_paths::no_backsteps(text(value, "path"), &place.child("path"), errs);
        }
        "nfs" => {
            let path = text(value, "path");
            if !path.starts_with('/') {
                errs.invalid_str(&place.child("path"), path, "must be an absolute path");
            }
        }
        "gcePersistentDisk" | "awsElasticBlockStore" | "iscsi" => {
            let key = if kind == "iscsi" { "lun" } else { "partition" };
            if let Some(n) = int(value, key).filter(|n| !(0..=255).contains(n)) {
                errs.invalid(&place.child(key), &Value::from(n), "must be between 0 and 255, inclusive");
            }
        }
        "csi" => {
            pod_volumes::driver_name(text(value, "driver"), &place.child("driver"), errs);
            if text(value, "volumeHandle").is_empty() {
                errs.required(&place.child("volumeHandle"), "");
            }
            for key in [
                "controllerPublishSecretRef",
                "controllerExpandSecretRef",
                "nodePublishSecretRef",
                "nodeExpandSecretRef",
            ] {
                if has(value, key) {
                    secret(at(value, key), &place.child(key), errs);
                }
            }
        }
        _ => {}
    }
}

fn secret(reference: &Value, place: &Path, errs: &mut Errs) {
    for key in ["name", "namespace"] {
        let rule = if key == "name" { names::dns1123_subdomain } else { names::dns1123_label };
        errs.required_name(&place.child(key), text(reference, key), rule);
    }
}

fn attributes_class(spec: &Value, place: &Path, errs: &mut Errs) {
    if !has(spec, "volumeAttributesClassName") {
        return;
    }
    let here = place.child("volumeAttributesClassName");
    let class = text(spec, "volumeAttributesClassName");
    if class.is_empty() {
        errs.required(&here, "an empty string is disallowed");
    } else {
        errs.names(&here, class, names::dns1123_subdomain(class));
    }
    if !has(spec, "csi") {
        errs.required(&place.child("csi"), "has to be specified when using volumeAttributesClassName");
    }
}

/// Validates what may not change. Kubernetes validates the whole volume once more here, so causes repeat.
pub(super) fn update(obj: &Value, old: &Value, errs: &mut Errs) {
    volume(obj, errs);
    let (spec, before) = (at(obj, "spec"), at(old, "spec"));
    if SOURCES.iter().any(|(key, _)| at(spec, key) != at(before, key)) {
        errs.forbidden(
            &Path::field("spec").child("persistentvolumesource"),
            "spec.persistentvolumesource is immutable after creation",
        );
    }
    if at(spec, "volumeMode") != at(before, "volumeMode") {
        errs.invalid(&Path::field("volumeMode"), at(spec, "volumeMode"), IMMUTABLE);
    }
    if has(before, "nodeAffinity") && at(spec, "nodeAffinity") != at(before, "nodeAffinity") {
        errs.invalid(&Path::field("nodeAffinity"), at(spec, "nodeAffinity"), IMMUTABLE);
    }
    if has(before, "volumeAttributesClassName") && !has(spec, "volumeAttributesClassName") {
        errs.forbidden(
            &Path::field("spec").child("volumeAttributesClassName"),
            "update from non-nil value to nil is forbidden",
        );
    }
}
