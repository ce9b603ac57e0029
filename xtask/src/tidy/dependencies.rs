//! Which crate may use which: the layers of ARCHITECTURE.md, held against each `Cargo.toml`.

use super::source::Crate;

/// Of each crate: our crates that it may use. Tests may reach further.
const LAYERS: &[(&str, &[&str])] = &[
    ("apis", &[]),
    ("machinery", &[]),
    ("store", &[]),
    ("runtime", &[]),
    ("apiserver", &["store", "machinery"]),
    ("space", &["apiserver", "store", "machinery", "runtime"]),
    ("controller-manager", &["runtime", "machinery", "apis"]),
    ("transport", &["runtime", "machinery", "apis"]),
    ("ocm-shared", &["runtime", "machinery", "apis"]),
    ("ocm-hub", &["ocm-shared", "runtime", "machinery", "apis"]),
    ("ocm-agent", &["ocm-shared", "runtime", "machinery", "apis"]),
    ("ocm-addon", &["ocm-shared", "runtime", "machinery", "apis"]),
    ("status-addon", &["runtime", "apis"]),
    ("metacontroller", &["runtime", "machinery", "apis"]),
    ("space-manager", &["runtime", "machinery", "apis"]),
];

/// Crates with everything below them.
const TOP: &[&str] = &["kubestellar", "bench", "testkit"];

/// Other people's crates that a crate of ours must do without, with the reason.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("apis", "tokio", "types send no request"),
    ("machinery", "tokio", "pure functions"),
    ("machinery", "kube", "pure functions know no client"),
    ("machinery", "hyper", "pure functions"),
    ("store", "kube", "the store knows bytes, not Kubernetes"),
    ("store", "hyper", "the store knows bytes, not HTTP"),
    ("store", "serde_json", "the store knows bytes, not their format"),
    ("apiserver", "kube", "a server is no client"),
];

/// One line for each dependency that the layers do not allow.
pub(crate) fn check(one: &Crate) -> Vec<String> {
    let used = dependencies(&one.manifest);
    let ours = LAYERS.iter().map(|(name, _)| *name).chain(TOP.iter().copied());
    let ours: Vec<&str> = ours.filter(|name| used.contains(name)).collect();
    let mut found = Vec::new();
    match LAYERS.iter().find(|(name, _)| *name == one.name) {
        Some((_, allowed)) => {
            let above = ours.into_iter().filter(|name| !allowed.contains(name));
            found.extend(
                above.map(|name| format!("crates/{} must not use {name}: it lies above or beside", one.name)),
            );
        }
        None if TOP.contains(&one.name.as_str()) => {}
        None => {
            found.push(format!("crates/{} has no layer: add it to xtask/src/tidy/dependencies.rs", one.name));
        }
    }
    let forbidden = FORBIDDEN.iter().filter(|(name, other, _)| *name == one.name && used.contains(other));
    found.extend(forbidden.map(|(name, other, why)| format!("crates/{name} must not use {other}: {why}")));
    found
}

/// Names in `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && !line.starts_with('#') {
            found.extend(line.split(['.', '=', ' ']).next().filter(|name| !name.is_empty()));
        }
    }
    found
}
