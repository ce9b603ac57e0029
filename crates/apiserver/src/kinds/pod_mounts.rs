//! Validation of volume mounts and devices of containers (spec 2.5).

use std::collections::{BTreeMap, BTreeSet};

use machinery::field::Path;
use serde_json::Value;

use super::check::Errs;
use super::inner_paths::{descending, no_backsteps};
use super::pod_volumes::Volumes;
use super::value::{flag, has, list, text};

/// Validates `volumeMounts` and `volumeDevices` of a container.
pub(super) fn check(container: &Value, volumes: &Volumes<'_>, place: &Path, errs: &mut Errs) {
    let by_name = |key: &str, path: &str| -> BTreeMap<&str, &str> {
        list(container, key).iter().map(|m| (text(m, "name"), text(m, path))).collect()
    };
    let mounted = by_name("volumeMounts", "mountPath");
    let devices = by_name("volumeDevices", "devicePath");
    mounts(container, volumes, &devices, &place.child("volumeMounts"), errs);
    check_devices(list(container, "volumeDevices"), volumes, &mounted, &place.child("volumeDevices"), errs);
}

fn mounts(
    container: &Value,
    volumes: &Volumes<'_>,
    devices: &BTreeMap<&str, &str>,
    place: &Path,
    errs: &mut Errs,
) {
    let device_paths: BTreeSet<&str> = devices.values().copied().collect();
    let mut seen = BTreeSet::new();
    for (i, mount) in list(container, "volumeMounts").iter().enumerate() {
        let here = place.index(i);
        let (name, target) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errs.required(&here.child("name"), "");
        }
        if !volumes.contains_key(name) {
            errs.not_found(&here.child("name"), &Value::from(name));
        }
        if target.is_empty() {
            errs.required(&here.child("mountPath"), "");
        }
        if !seen.insert(target) {
            errs.invalid_str(&here.child("mountPath"), target, "must be unique");
        }
        if devices.contains_key(name) {
            errs.invalid_str(&here.child("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(target) {
            errs.invalid_str(
                &here.child("mountPath"),
                target,
                "must not already exist as a path in volumeDevices",
            );
        }
        sub_paths(mount, place, &here, errs);
        propagation(mount, container, place, errs);
    }
}

/// Checks `subPath` and `subPathExpr`. Most errors name the list, not the entry.
fn sub_paths(mount: &Value, place: &Path, here: &Path, errs: &mut Errs) {
    let (sub, expr) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    if !sub.is_empty() {
        descending(sub, &place.child("subPath"), errs);
    }
    if !expr.is_empty() {
        if !sub.is_empty() {
            errs.invalid_str(
                &here.child("subPathExpr"),
                expr,
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        descending(expr, &place.child("subPathExpr"), errs);
    }
}

fn propagation(mount: &Value, container: &Value, place: &Path, errs: &mut Errs) {
    let mode = text(mount, "mountPropagation");
    let here = place.child("mountPropagation");
    if has(mount, "mountPropagation") {
        errs.one_of(&here, mode, &["Bidirectional", "HostToContainer", "None"]);
        if mode == "Bidirectional" && !flag(container, "securityContext.privileged") {
            errs.forbidden(
                &here,
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
    }
    let here = place.child("recursiveReadOnly");
    match text(mount, "recursiveReadOnly") {
        "" if !has(mount, "recursiveReadOnly") => {}
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !flag(mount, "readOnly") {
                errs.forbidden(&here, "may only be specified when readOnly is true");
            }
            if has(mount, "mountPropagation") && mode != "None" {
                errs.forbidden(&here, "may only be specified when mountPropagation is None or not specified");
            }
        }
        other => errs.unsupported(&here, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn check_devices(
    devices: &[Value],
    volumes: &Volumes<'_>,
    mounted: &BTreeMap<&str, &str>,
    place: &Path,
    errs: &mut Errs,
) {
    let mount_paths: BTreeSet<&str> = mounted.values().copied().collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in devices.iter().enumerate() {
        let here = place.index(i);
        let (at_name, at_path) = (here.child("name"), here.child("devicePath"));
        let (name, path) = (text(device, "name"), text(device, "devicePath"));
        if name.is_empty() {
            errs.required(&at_name, "");
        }
        if names.contains(name) {
            errs.invalid_str(&at_name, name, "must be unique");
        }
        match volumes.get(name) {
            None => errs.not_found(&at_name, &Value::from(name)),
            Some(volume) if has(volume, "persistentVolumeClaim") || has(volume, "ephemeral") => {}
            Some(_) => errs.invalid_str(
                &at_name,
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
        }
        if path.is_empty() {
            errs.required(&at_path, "");
        }
        if paths.contains(path) {
            errs.invalid_str(&at_path, path, "must be unique");
        }
        let mut backsteps = Errs::default();
        no_backsteps(path, &at_path, &mut backsteps);
        if backsteps.0.is_empty() {
            paths.insert(path);
        } else {
            errs.invalid_str(&at_path, path, "can not contain backsteps ('..')");
        }
        if mounted.contains_key(name) {
            errs.invalid_str(&at_name, name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path) {
            errs.invalid_str(&at_path, path, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
