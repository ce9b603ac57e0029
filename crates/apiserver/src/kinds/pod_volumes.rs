//! Validation of the volumes of pods (spec 2.5).

use std::collections::{BTreeMap, BTreeSet};

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::{Errs, is_negative};
use super::inner_paths::{descending, no_backsteps};
use super::pod_env::{self, Target};
use super::value::{at, entries, has, int, list, text};

/// The valid volumes of a pod by name.
pub(super) type Volumes<'a> = BTreeMap<&'a str, &'a Value>;

const ONE_SOURCE: &str = "may not specify more than 1 volume type";
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;

/// A kind of volume: its key, the name that errors about a second kind have, and its required strings.
struct Source {
    key: &'static str,
    shown: &'static str,
    required: &'static [&'static str],
}

const fn source(key: &'static str, required: &'static [&'static str]) -> Source {
    Source { key, shown: key, required }
}

/// In the order in which they are checked: the first is validated, others are refused.
const SOURCES: &[Source] = &[
    source("emptyDir", &[]),
    source("hostPath", &["path"]),
    source("gitRepo", &["repository"]),
    source("gcePersistentDisk", &["pdName"]),
    source("awsElasticBlockStore", &["volumeID"]),
    source("secret", &["secretName"]),
    source("nfs", &["server", "path"]),
    source("iscsi", &["targetPortal", "iqn"]),
    source("glusterfs", &["endpoints", "path"]),
    source("flocker", &[]),
    source("persistentVolumeClaim", &["claimName"]),
    source("rbd", &["monitors", "image"]),
    source("cinder", &["volumeID"]),
    Source { key: "cephfs", shown: "cephFS", required: &["monitors"] },
    source("quobyte", &[]),
    Source { key: "downwardAPI", shown: "downwarAPI", required: &[] },
    source("fc", &[]),
    source("flexVolume", &["driver"]),
    source("configMap", &["name"]),
    source("azureFile", &["secretName", "shareName"]),
    source("vsphereVolume", &["volumePath"]),
    source("photonPersistentDisk", &["pdID"]),
    source("portworxVolume", &["volumeID"]),
    source("azureDisk", &["diskName", "diskURI"]),
    source("storageos", &[]),
    source("projected", &[]),
    source("scaleIO", &["gateway", "system", "volumeName"]),
    source("csi", &[]),
    source("ephemeral", &[]),
    source("image", &[]),
];

/// Whose volumes are validated.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    /// The name of the pod; empty for a template.
    pub(super) name: &'a str,
    pub(super) is_pod: bool,
}

/// Validates the volumes of a pod. Returns the valid ones, which mounts may name.
pub(super) fn check<'a>(
    volumes: &'a [Value],
    owner: Owner<'_>,
    place: &Path,
    errs: &mut Errs,
) -> Volumes<'a> {
    let mut valid = Volumes::new();
    let created: BTreeSet<String> = volumes
        .iter()
        .filter(|v| has(v, "ephemeral") && !owner.name.is_empty())
        .map(|v| format!("{}-{}", owner.name, text(v, "name")))
        .collect();
    for (i, volume) in volumes.iter().enumerate() {
        let here = place.index(i);
        let at_name = here.child("name");
        let name = text(volume, "name");
        let mut found = Errs::default();
        sources(volume, owner, &here, &mut found);
        found.required_name(&at_name, name, names::dns1123_label);
        if valid.contains_key(name) {
            found.duplicate(&at_name, at(volume, "name"));
        }
        if found.0.is_empty() {
            valid.insert(name, volume);
        }
        errs.0.extend(found.0);
        let claim = text(volume, "persistentVolumeClaim.claimName");
        if created.contains(claim) {
            errs.invalid_str(
                &here.child("persistentVolumeClaim").child("claimName"),
                claim,
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    valid
}

fn sources(volume: &Value, owner: Owner<'_>, place: &Path, errs: &mut Errs) {
    let mut given = SOURCES.iter().filter(|source| has(volume, source.key));
    match given.next() {
        None => errs.required(place, "must specify a volume type"),
        Some(first) => {
            let here =
                place.child(if first.key == "gcePersistentDisk" { "persistentDisk" } else { first.key });
            one(first, at(volume, first.key), owner, &here, errs);
            if first.key == "ephemeral" && !owner.name.is_empty() && !text(volume, "name").is_empty() {
                let claim = format!("{}-{}", owner.name, text(volume, "name"));
                for fault in names::dns1123_subdomain(&claim) {
                    let detail = format!("PVC name {claim:?}: {fault}");
                    errs.invalid_str(&here.child("name"), text(volume, "name"), &detail);
                }
            }
        }
    }
    for extra in given {
        errs.forbidden(&place.child(extra.shown), ONE_SOURCE);
    }
}

fn one(source: &Source, value: &Value, owner: Owner<'_>, place: &Path, errs: &mut Errs) {
    let mut complete = true;
    for key in source.required {
        if text(value, key).is_empty() && list(value, key).is_empty() {
            errs.required(&place.child(key), "");
            complete = false;
        }
    }
    match source.key {
        "emptyDir" if is_negative(at(value, "sizeLimit")) => {
            errs.forbidden(&place.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
        }
        "hostPath" if complete => host_path(value, place, errs),
        "gitRepo" => descending(text(value, "directory"), &place.child("directory"), errs),
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            in_range(value, "partition", place, errs);
        }
        "nfs" => {
            let path = text(value, "path");
            if !path.starts_with('/') {
                errs.invalid_str(&place.child("path"), path, "must be an absolute path");
            }
        }
        "secret" | "configMap" => {
            mode(value, "defaultMode", place, errs);
            items(value, &place.child("items"), errs);
        }
        "iscsi" => in_range(value, "lun", place, errs),
        "cinder" if has(value, "secretRef") && text(value, "secretRef.name").is_empty() => {
            errs.required(&place.child("secretRef").child("name"), "");
        }
        "downwardAPI" => {
            mode(value, "defaultMode", place, errs);
            for file in list(value, "items") {
                downward_file(file, place, errs);
            }
        }
        "fc" => fibre_channel(value, place, errs),
        "flexVolume" => flex_options(value, place, errs),
        "azureDisk" => azure_disk(value, place, errs),
        "projected" => {
            mode(value, "defaultMode", place, errs);
            projections(value, place, errs);
        }
        "csi" => csi(value, place, errs),
        "ephemeral" => ephemeral(value, place, errs),
        "image" => {
            if owner.is_pod && text(value, "reference").is_empty() {
                errs.required(&place.child("reference"), "");
            }
            errs.required_enum(&place.child("pullPolicy"), text(value, "pullPolicy"), PULL_POLICIES);
        }
        "flocker" => flocker(value, place, errs),
        _ => {}
    }
}

/// Validates a path of the host; it is not empty.
pub(super) fn host_path(value: &Value, place: &Path, errs: &mut Errs) {
    no_backsteps(text(value, "path"), &place.child("path"), errs);
    if has(value, "type") {
        errs.one_of(&place.child("type"), text(value, "type"), HOST_PATH_TYPES);
    }
}

fn in_range(value: &Value, key: &str, place: &Path, errs: &mut Errs) {
    if let Some(n) = int(value, key).filter(|n| !(0..=255).contains(n)) {
        errs.invalid(&place.child(key), &Value::from(n), "must be between 0 and 255, inclusive");
    }
}

fn mode(value: &Value, key: &str, place: &Path, errs: &mut Errs) {
    if let Some(n) = int(value, key).filter(|n| !(0..=0o777).contains(n)) {
        errs.invalid(&place.child(key), &Value::from(n), MODE);
    }
}

fn items(value: &Value, place: &Path, errs: &mut Errs) {
    for (i, item) in list(value, "items").iter().enumerate() {
        let here = place.index(i);
        for key in ["key", "path"] {
            if text(item, key).is_empty() {
                errs.required(&here.child(key), "");
            }
        }
        local_path(text(item, "path"), &here.child("path"), errs);
        mode(item, "mode", &here, errs);
    }
}

/// Validates a file of the downward API. Most errors name the volume, not the file.
fn downward_file(file: &Value, place: &Path, errs: &mut Errs) {
    let path = text(file, "path");
    if path.is_empty() {
        errs.required(&place.child("path"), "");
    }
    local_path(path, &place.child("path"), errs);
    match (has(file, "fieldRef"), has(file, "resourceFieldRef")) {
        (true, both) => {
            pod_env::field(at(file, "fieldRef"), Target::File, &place.child("fieldRef"), errs);
            if both {
                errs.invalid_str(
                    place,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
        }
        (false, true) => {
            let here = place.child("resourceFieldRef");
            pod_env::resource(at(file, "resourceFieldRef"), Target::File, &here, errs);
        }
        (false, false) => errs.required(place, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(file, "mode", place, errs);
}

fn projections(volume: &Value, place: &Path, errs: &mut Errs) {
    let mut paths = BTreeSet::new();
    for (i, source) in list(volume, "sources").iter().enumerate() {
        let here = place.child("sources").index(i);
        let mut given = 0;
        for key in ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"] {
            let value = at(source, key);
            if value.is_null() {
                continue;
            }
            given += 1;
            let inner = here.child(key);
            match key {
                "downwardAPI" => {
                    for file in list(value, "items") {
                        downward_file(file, &inner, errs);
                        let path = text(file, "path");
                        unique(&mut paths, path, path, place, errs);
                    }
                }
                "serviceAccountToken" => token(value, place, &inner, errs),
                "clusterTrustBundle" => trust_bundle(value, &inner, errs),
                _ => {
                    if text(value, "name").is_empty() {
                        errs.required(&inner.child("name"), "");
                    }
                    items(value, &inner.child("items"), errs);
                    for item in list(value, "items") {
                        unique(&mut paths, text(item, "path"), text(value, "name"), place, errs);
                    }
                }
            }
        }
        if given + usize::from(has(source, "podCertificate")) > 1 {
            errs.forbidden(&here, "may not specify more than 1 volume type per source");
        }
    }
}

fn unique<'a>(paths: &mut BTreeSet<&'a str>, path: &'a str, shown: &str, place: &Path, errs: &mut Errs) {
    if !path.is_empty() && !paths.insert(path) {
        errs.invalid_str(place, shown, "conflicting duplicate paths");
    }
}

/// Errors about the path of a token name the volume.
fn token(token: &Value, volume: &Path, place: &Path, errs: &mut Errs) {
    let seconds = int(token, "expirationSeconds").unwrap_or_default();
    let here = place.child("expirationSeconds");
    if seconds < MIN_TOKEN_SECONDS {
        errs.invalid(&here, &Value::from(seconds), "may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_TOKEN_SECONDS {
        errs.invalid(&here, &Value::from(seconds), "may not specify a duration larger than 2^32 seconds");
    }
    let path = text(token, "path");
    if path.is_empty() {
        errs.required(&volume.child("path"), "");
    } else {
        local_path(path, &volume.child("path"), errs);
    }
}

fn trust_bundle(bundle: &Value, place: &Path, errs: &mut Errs) {
    match (has(bundle, "name"), has(bundle, "signerName")) {
        (true, true) => errs.invalid(place, bundle, "only one of name and signerName may be used"),
        (true, false) => {
            if text(bundle, "name").is_empty() {
                errs.required(&place.child("name"), "must be a valid object name");
            }
            if has(bundle, "labelSelector") {
                errs.invalid(
                    &place.child("labelSelector"),
                    at(bundle, "labelSelector"),
                    "labelSelector must be unset if name is specified",
                );
            }
        }
        (false, true) => {
            errs.selector(&place.child("labelSelector"), at(bundle, "labelSelector"));
        }
        (false, false) => errs.required(place, "either name or signerName must be specified"),
    }
    let path = text(bundle, "path");
    if path.is_empty() {
        errs.required(&place.child("path"), "");
    }
    local_path(path, &place.child("path"), errs);
}

fn fibre_channel(value: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("targetWWNs");
    let (targets, ids) = (list(value, "targetWWNs"), list(value, "wwids"));
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => errs.required(&here, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => errs.invalid(
            &here,
            at(value, "targetWWNs"),
            "targetWWNs and wwids can not be specified simultaneously",
        ),
        _ => {}
    }
    if !targets.is_empty() {
        if has(value, "lun") {
            in_range(value, "lun", place, errs);
        } else {
            errs.required(&place.child("lun"), "lun is required if targetWWNs is specified");
        }
    }
}

fn flex_options(value: &Value, place: &Path, errs: &mut Errs) {
    for (key, _) in entries(value, "options") {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let here = place.child("options").key(key);
            errs.invalid_str(&here, key, "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

fn azure_disk(value: &Value, place: &Path, errs: &mut Errs) {
    if has(value, "cachingMode") {
        errs.one_of(
            &place.child("cachingMode"),
            text(value, "cachingMode"),
            &["None", "ReadOnly", "ReadWrite"],
        );
    }
    if !has(value, "kind") {
        return;
    }
    let (kind, uri) = (text(value, "kind"), text(value, "diskURI"));
    errs.one_of(&place.child("kind"), kind, &["Dedicated", "Managed", "Shared"]);
    let (prefix, example) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    if !uri.starts_with(prefix) {
        errs.unsupported(&place.child("diskURI"), uri, &[example]);
    }
}

fn flocker(value: &Value, place: &Path, errs: &mut Errs) {
    let (name, uuid) = (text(value, "datasetName"), text(value, "datasetUUID"));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => errs.required(place, "one of datasetName and datasetUUID is required"),
        (false, false) => errs.invalid_str(
            place,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        ),
        _ => {}
    }
    if name.contains('/') {
        errs.invalid_str(&place.child("datasetName"), name, "must not contain '/'");
    }
}

fn csi(value: &Value, place: &Path, errs: &mut Errs) {
    driver_name(text(value, "driver"), &place.child("driver"), errs);
    if has(value, "nodePublishSecretRef") {
        let name = text(value, "nodePublishSecretRef.name");
        if name.is_empty() {
            errs.required(&place.child("nodePublishSecretRef").child("name"), "");
        } else {
            errs.names(&place.child("name"), name, names::dns1123_subdomain(name));
        }
    }
}

/// Validates the name of a CSI driver.
pub(super) fn driver_name(name: &str, place: &Path, errs: &mut Errs) {
    if name.is_empty() {
        errs.required(place, "");
        return;
    }
    if name.len() > names::LABEL_MAX {
        errs.too_long(place, names::LABEL_MAX);
    }
    errs.names(place, name, names::dns1123_subdomain(&name.to_lowercase()));
}

fn ephemeral(value: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("volumeClaimTemplate");
    let template = at(value, "volumeClaimTemplate");
    if template.is_null() {
        errs.required(&here, "");
        return;
    }
    let metadata = here.child("metadata");
    for (key, _) in entries(template, "metadata.annotations") {
        errs.names(&metadata.child("annotations"), key, names::qualified_name(&key.to_lowercase()));
    }
    errs.labels(&metadata.child("labels"), at(template, "metadata.labels"));
    for (key, field) in entries(template, "metadata") {
        if key != "annotations" && key != "labels" && !field.is_null() && field.as_str() != Some("") {
            errs.forbidden(&metadata.child(key), "cannot be set");
        }
    }
    super::claim_validation::claim(at(template, "spec"), &here.child("spec"), errs);
}

/// Checks that a path inside a volume is relative, stays inside, and does not begin with `..`.
fn local_path(value: &str, place: &Path, errs: &mut Errs) {
    descending(value, place, errs);
    if value.starts_with("..") && !value.starts_with("../") {
        errs.invalid_str(place, value, "must not start with '..'");
    }
}
