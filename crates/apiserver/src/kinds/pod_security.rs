//! Validation of security contexts (spec 2.5).

use std::collections::BTreeSet;

use machinery::field::Path;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, flag, has, list, text};

const PROFILE_TYPES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const SYSCTL_MAX: usize = 253;
const PROFILE_MAX: usize = 4095;

/// Validates the security context of a pod, at `place.securityContext`.
pub(super) fn pod(spec: &Value, place: &Path, errs: &mut Errs) {
    let context = at(spec, "securityContext");
    let here = place.child("securityContext");
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(at(context, key), &here.child(key), errs);
    }
    for (i, group) in list(context, "supplementalGroups").iter().enumerate() {
        id(group, &here.child("supplementalGroups").index(i), errs);
    }
    if flag(spec, "shareProcessNamespace") && flag(spec, "hostPID") {
        errs.invalid(
            &here.child("shareProcessNamespace"),
            &Value::from(true),
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(spec, list(context, "sysctls"), &here.child("sysctls"), errs);
    choice(context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], &here, errs);
    profiles(context, &here, errs);
    choice(context, "supplementalGroupsPolicy", &["Merge", "Strict"], &here, errs);
    choice(context, "seLinuxChangePolicy", &["MountOption", "Recursive"], &here, errs);
}

/// Validates the security context of a container.
pub(super) fn container(context: &Value, host_users: bool, place: &Path, errs: &mut Errs) {
    for key in ["runAsUser", "runAsGroup"] {
        id(at(context, key), &place.child(key), errs);
    }
    choice(context, "procMount", &["Default", "Unmasked"], place, errs);
    if host_users && text(context, "procMount") == "Unmasked" {
        errs.invalid_str(
            &place.child("procMount"),
            "Unmasked",
            "`hostUsers` must be false to use `Unmasked`",
        );
    }
    seccomp(at(context, "seccompProfile"), &place.child("seccompProfile"), errs);
    if has(context, "allowPrivilegeEscalation") && !flag(context, "allowPrivilegeEscalation") {
        if flag(context, "privileged") {
            errs.invalid(
                place,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        if list(context, "capabilities.add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            errs.invalid(
                place,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    app_armor(at(context, "appArmorProfile"), &place.child("appArmorProfile"), errs);
}

fn choice(context: &Value, key: &str, allowed: &[&str], place: &Path, errs: &mut Errs) {
    if has(context, key) {
        errs.one_of(&place.child(key), text(context, key), allowed);
    }
}

fn id(value: &Value, place: &Path, errs: &mut Errs) {
    if value.as_i64().is_some_and(|n| !(0..=i64::from(i32::MAX)).contains(&n)) {
        errs.invalid(place, value, "must be between 0 and 2147483647, inclusive");
    }
}

fn profiles(context: &Value, place: &Path, errs: &mut Errs) {
    seccomp(at(context, "seccompProfile"), &place.child("seccompProfile"), errs);
    app_armor(at(context, "appArmorProfile"), &place.child("appArmorProfile"), errs);
}

fn seccomp(profile: &Value, place: &Path, errs: &mut Errs) {
    if profile.is_null() {
        return;
    }
    let kind = text(profile, "type");
    if kind.is_empty() {
        errs.required(&place.child("type"), "type is required when seccompProfile is set");
    } else {
        errs.one_of(&place.child("type"), kind, PROFILE_TYPES);
    }
    let here = place.child("localhostProfile");
    match (kind, has(profile, "localhostProfile")) {
        ("Localhost", false) => errs.required(&here, "must be set when seccomp type is Localhost"),
        ("Localhost", true) => {
            super::inner_paths::descending(text(profile, "localhostProfile"), &here, errs);
        }
        (_, true) => errs.invalid(&here, profile, "can only be set when seccomp type is Localhost"),
        (_, false) => {}
    }
}

fn app_armor(profile: &Value, place: &Path, errs: &mut Errs) {
    if profile.is_null() {
        return;
    }
    let here = place.child("localhostProfile");
    let file = text(profile, "localhostProfile");
    match text(profile, "type") {
        "Localhost" => {
            if file.trim() != file {
                errs.invalid_str(&here, file, "must not be padded with whitespace");
            } else if file.is_empty() {
                errs.required(&here, "must be set when AppArmor type is Localhost");
            }
            if file.len() > PROFILE_MAX {
                errs.too_long(&here, PROFILE_MAX);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if has(profile, "localhostProfile") {
                errs.invalid_str(&here, file, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => errs.required(&place.child("type"), "type is required when appArmorProfile is set"),
        other => errs.unsupported(&place.child("type"), other, PROFILE_TYPES),
    }
}

fn sysctls(spec: &Value, sysctls: &[Value], place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, sysctl) in sysctls.iter().enumerate() {
        let here = place.index(i).child("name");
        let name = text(sysctl, "name");
        if name.is_empty() {
            errs.required(&here, "");
        } else if name.len() > SYSCTL_MAX || !is_sysctl(name) {
            errs.invalid_str(
                &here,
                name,
                "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            );
        } else if seen.contains(name) {
            errs.duplicate(&here, at(sysctl, "name"));
        }
        seen.insert(name);
        let dotted = name.replace('/', ".");
        let of_network = dotted.starts_with("net.");
        let of_ipc = dotted.starts_with("kernel.shm")
            || dotted.starts_with("kernel.msg")
            || dotted.starts_with("fs.mqueue.")
            || dotted == "kernel.sem";
        if of_network && flag(spec, "hostNetwork") {
            errs.invalid_str(&here, name, "may not be specified when 'hostNetwork' is true");
        } else if of_ipc && flag(spec, "hostIPC") {
            errs.invalid_str(&here, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.split(['.', '/']).all(|part| {
        let bytes = part.as_bytes();
        bytes.first().copied().is_some_and(alnum)
            && bytes.last().copied().is_some_and(alnum)
            && bytes.iter().all(|b| alnum(*b) || matches!(b, b'-' | b'_'))
    })
}
