//! Validation of containers (spec 2.5).

use std::collections::BTreeSet;

use machinery::field::{Error, Path};
use machinery::names;
use serde_json::Value;

use super::check::{Errs, is_negative, quantity};
use super::pod_mounts;
use super::pod_volumes::Volumes;
use super::value::{at, entries, has, int, list, text};
use super::{pod_env, pod_handlers, pod_security};

const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const MESSAGE_POLICIES: &[&str] = &["File", "FallbackToLogsOnError"];
const RESTART_POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const HUGE_PAGES: &str = "hugepages-";
/// Resources of containers without a domain.
const OF_CONTAINERS: &[&str] = &["cpu", "memory", "ephemeral-storage"];
/// All resources without a domain.
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
/// Fields that an ephemeral container cannot have.
const NOT_EPHEMERAL: &[&str] = &[
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Validates all containers of a pod's spec.
pub(super) fn check(pod: &Value, volumes: &Volumes<'_>, place: &Path, errs: &mut Errs) {
    let cx = Context {
        pod,
        volumes,
        host_users: at(pod, "hostUsers").as_bool().unwrap_or(true),
        claims: list(pod, "resourceClaims").iter().map(|c| text(c, "name")).collect(),
    };
    main(&cx, &place.child("containers"), errs);
    init(&cx, &place.child("initContainers"), errs);
    ephemeral(&cx, &place.child("ephemeralContainers"), errs);
}

/// What containers share.
struct Context<'a> {
    pod: &'a Value,
    volumes: &'a Volumes<'a>,
    host_users: bool,
    claims: BTreeSet<&'a str>,
}

fn main(cx: &Context<'_>, place: &Path, errs: &mut Errs) {
    let containers = list(cx.pod, "containers");
    if containers.is_empty() {
        errs.required(place, "");
    }
    let mut seen = BTreeSet::new();
    for (i, c) in containers.iter().enumerate() {
        let here = place.index(i);
        common(cx, c, &here, errs);
        if !seen.insert(text(c, "name")) {
            errs.duplicate(&here.child("name"), at(c, "name"));
        }
        pod_handlers::running(c, cx.pod, &here, errs);
        restart_policy(c, &here, errs);
    }
    host_ports(containers, place, errs);
}

fn init(cx: &Context<'_>, place: &Path, errs: &mut Errs) {
    let mut seen: BTreeSet<&str> = list(cx.pod, "containers").iter().map(|c| text(c, "name")).collect();
    for (i, c) in list(cx.pod, "initContainers").iter().enumerate() {
        let here = place.index(i);
        common(cx, c, &here, errs);
        restart_policy(c, &here, errs);
        if !seen.insert(text(c, "name")) {
            errs.duplicate(&here.child("name"), at(c, "name"));
        }
        host_ports(std::slice::from_ref(c), place, errs);
        let sidecar = text(c, "restartPolicy") == "Always";
        if sidecar {
            pod_handlers::running(c, cx.pod, &here, errs);
            continue;
        }
        pod_handlers::none_allowed(c, &here, errs);
        for (j, policy) in list(c, "resizePolicy").iter().enumerate() {
            if text(policy, "restartPolicy") == "RestartContainer" {
                errs.invalid_str(
                    &here.child("resizePolicy").index(j).child("restartPolicy"),
                    "RestartContainer",
                    "must not be set to 'RestartContainer' for non-sidecar initContainers",
                );
            }
        }
    }
}

fn ephemeral(cx: &Context<'_>, place: &Path, errs: &mut Errs) {
    let others: BTreeSet<&str> = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|key| list(cx.pod, key))
        .map(|c| text(c, "name"))
        .collect();
    let mut seen = others.clone();
    for (i, c) in list(cx.pod, "ephemeralContainers").iter().enumerate() {
        let here = place.index(i);
        common(cx, c, &here, errs);
        image_padding(c, &here, errs);
        if !seen.insert(text(c, "name")) {
            errs.duplicate(&here.child("name"), at(c, "name"));
        }
        let target = text(c, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errs.not_found(&here.child("targetContainerName"), &target.into());
        }
        for key in NOT_EPHEMERAL {
            let empty = at(c, key).as_object().is_some_and(serde_json::Map::is_empty);
            if has(c, key) && !empty {
                errs.forbidden(&here.child(key), "cannot be set for an Ephemeral Container");
            }
        }
        for (j, mount) in list(c, "volumeMounts").iter().enumerate() {
            for key in ["subPath", "subPathExpr"] {
                if !text(mount, key).is_empty() {
                    errs.forbidden(
                        &here.child("volumeMounts").index(j).child(key),
                        "cannot be set for an Ephemeral Container",
                    );
                }
            }
        }
    }
}

/// Refuses an image name with blanks around it. Templates may have them.
pub(super) fn image_padding(c: &Value, place: &Path, errs: &mut Errs) {
    let image = text(c, "image");
    if image.trim().len() != image.len() {
        errs.invalid_str(&place.child("image"), image, "must not have leading or trailing whitespace");
    }
}

fn common(cx: &Context<'_>, c: &Value, place: &Path, errs: &mut Errs) {
    errs.required_name(&place.child("name"), text(c, "name"), names::dns1123_label);
    if text(c, "image").is_empty() {
        errs.required(&place.child("image"), "");
    }
    errs.required_enum(
        &place.child("terminationMessagePolicy"),
        text(c, "terminationMessagePolicy"),
        MESSAGE_POLICIES,
    );
    ports(list(c, "ports"), &place.child("ports"), errs);
    pod_env::variables(list(c, "env"), &place.child("env"), errs);
    pod_env::sources(list(c, "envFrom"), &place.child("envFrom"), errs);
    pod_mounts::check(c, cx.volumes, place, errs);
    errs.required_enum(&place.child("imagePullPolicy"), text(c, "imagePullPolicy"), PULL_POLICIES);
    let here = place.child("resources");
    resources(at(c, "resources"), container_resource, &here, errs);
    claims(list(c, "resources.claims"), &cx.claims, &here.child("claims"), errs);
    resize_policies(c, text(cx.pod, "restartPolicy"), &place.child("resizePolicy"), errs);
    pod_security::container(at(c, "securityContext"), cx.host_users, &place.child("securityContext"), errs);
}

fn ports(ports: &[Value], place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let here = place.index(i);
        let name = text(port, "name");
        if !name.is_empty() {
            let faults = names::port_name(name);
            if faults.is_empty() && !seen.insert(name) {
                errs.duplicate(&here.child("name"), at(port, "name"));
            }
            errs.names(&here.child("name"), name, faults);
        }
        match int(port, "containerPort").unwrap_or_default() {
            0 => errs.required(&here.child("containerPort"), ""),
            number => errs.port(&here.child("containerPort"), number),
        }
        if let Some(number) = int(port, "hostPort").filter(|n| *n != 0) {
            errs.port(&here.child("hostPort"), number);
        }
        errs.required_enum(&here.child("protocol"), text(port, "protocol"), PROTOCOLS);
    }
}

/// Checks that no two ports need the same port of the host.
fn host_ports(containers: &[Value], place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, c) in containers.iter().enumerate() {
        for (j, port) in list(c, "ports").iter().enumerate() {
            let Some(number) = int(port, "hostPort").filter(|n| *n != 0) else { continue };
            let shown = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            if !seen.insert(shown.clone()) {
                let here = place.index(i).child("ports").index(j).child("hostPort");
                errs.duplicate(&here, &shown.into());
            }
        }
    }
}

fn restart_policy(c: &Value, place: &Path, errs: &mut Errs) {
    let rules = list(c, "restartPolicyRules");
    let here = place.child("restartPolicy");
    if has(c, "restartPolicy") {
        errs.one_of(&here, text(c, "restartPolicy"), RESTART_POLICIES);
    } else if !rules.is_empty() {
        errs.required(&here, "must specify restartPolicy when restart rules are used");
    }
    let here = place.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        errs.0.push(Error::too_many(&here, rules.len(), RESTART_RULES_MAX));
    }
    for (i, rule) in rules.iter().enumerate() {
        let here = here.index(i);
        errs.one_of(&here.child("action"), text(rule, "action"), &["Restart", "RestartAllContainers"]);
        let codes = at(rule, "exitCodes");
        let here = here.child("exitCodes");
        if codes.is_null() {
            errs.required(&here, "must be specified");
            continue;
        }
        errs.one_of(&here.child("operator"), text(codes, "operator"), &["In", "NotIn"]);
        let values = list(codes, "values").len();
        if values > EXIT_CODES_MAX {
            errs.0.push(Error::too_many(&here.child("values"), values, EXIT_CODES_MAX));
        }
    }
}

/// Most errors name the list, not the entry.
fn resize_policies(c: &Value, pod_restart: &str, place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, policy) in list(c, "resizePolicy").iter().enumerate() {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errs.duplicate(&place.index(i), &resource.into());
        }
        errs.required_enum(place, resource, &["cpu", "memory"]);
        errs.required_enum(place, restart, &["NotRequired", "RestartContainer"]);
        if pod_restart == "Never" && restart != "NotRequired" {
            errs.invalid_str(place, restart, "must be 'NotRequired' when pod `restartPolicy` is 'Never'");
        }
    }
}

/// Checks the name of a resource.
type NameRule = fn(&str, &Path, &mut Errs);

/// Validates `limits` and `requests`.
pub(super) fn resources(resources: &Value, name_rule: NameRule, place: &Path, errs: &mut Errs) {
    let (limits, requests) = (place.child("limits"), place.child("requests"));
    for (name, amount) in entries(resources, "limits") {
        one_amount(name, amount, name_rule, &limits.key(name), errs);
    }
    for (name, amount) in entries(resources, "requests") {
        one_amount(name, amount, name_rule, &requests.key(name), errs);
        let limit = at(resources, "limits").get(name);
        match limit.and_then(|limit| Some((limit, quantity(amount)?, quantity(limit)?))) {
            Some((limit, request, bound)) if request != bound && !may_overcommit(name) => {
                let detail = format!("must be equal to {name} limit of {}", shown(limit));
                errs.invalid_str(&requests, &shown(amount), &detail);
            }
            Some((limit, request, bound)) if request > bound => {
                let detail = format!("must be less than or equal to {name} limit of {}", shown(limit));
                errs.invalid_str(&requests, &shown(amount), &detail);
            }
            None if !may_overcommit(name) => {
                errs.required(&limits, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let any = |test: fn(&str) -> bool| {
        ["limits", "requests"].iter().any(|key| entries(resources, key).any(|(name, _)| test(name)))
    };
    if any(|name| name.starts_with(HUGE_PAGES)) && !any(|name| matches!(name, "cpu" | "memory")) {
        errs.forbidden(place, "HugePages require cpu or memory");
    }
}

fn shown(amount: &Value) -> String {
    amount.as_str().map_or_else(|| amount.to_string(), str::to_owned)
}

fn one_amount(name: &str, amount: &Value, rule: NameRule, place: &Path, errs: &mut Errs) {
    rule(name, place, errs);
    if is_negative(amount) {
        errs.invalid_str(place, &shown(amount), super::check::NOT_NEGATIVE);
    }
    let size = name.strip_prefix(HUGE_PAGES).and_then(|size| quantity(&size.into()));
    if let (Some(size), Some(parsed)) = (size, quantity(amount))
        && (size.value() <= 0 || parsed.milli_value() % 1000 != 0 || parsed.value() % size.value() != 0)
    {
        let shown = shown(amount);
        errs.invalid_str(place, &shown, &format!("{shown} is not positive integer multiple of {name}"));
    }
}

/// Whether requests may differ from limits: not for huge pages and resources of other domains.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with(HUGE_PAGES)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Checks the name of any resource.
fn resource(name: &str, place: &Path, errs: &mut Errs) -> bool {
    let faults = names::qualified_name(name);
    let valid = faults.is_empty();
    errs.names(place, name, faults);
    let known = || {
        STANDARD.contains(&name) || name.starts_with(HUGE_PAGES) || name.starts_with("requests.hugepages-")
    };
    if valid && !name.contains('/') && !known() {
        errs.invalid_str(place, name, "must be a standard resource type or fully qualified");
    }
    valid
}

/// Checks the name of a resource of a container.
pub(super) fn container_resource(name: &str, place: &Path, errs: &mut Errs) {
    resource(name, place, errs);
    if !name.contains('/') {
        if !OF_CONTAINERS.contains(&name) && !name.starts_with(HUGE_PAGES) {
            errs.invalid_str(place, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) {
        let quota_name = format!("requests.{name}");
        if name.starts_with("requests.") || !names::qualified_name(&quota_name).is_empty() {
            errs.invalid_str(place, name, "doesn't follow extended resource name standard");
        }
    }
}

/// Checks the name of a resource of a whole pod.
pub(super) fn pod_resource(name: &str, place: &Path, errs: &mut Errs) {
    let before = errs.0.len();
    resource(name, place, errs);
    if errs.0.len() == before && !matches!(name, "cpu" | "memory") && !name.starts_with(HUGE_PAGES) {
        errs.unsupported(place, name, &["cpu", HUGE_PAGES, "memory"]);
    }
}

fn claims(claims: &[Value], of_pod: &BTreeSet<&str>, place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let here = place.index(i);
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            errs.required(&here, "");
            continue;
        }
        if !request.is_empty() {
            errs.names(&here.child("request"), request, names::dns1123_label(request));
        }
        let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
        if seen.contains(name) || !seen.insert(key.clone()) {
            errs.duplicate(&here, &if seen.contains(name) { name.into() } else { Value::from(key) });
        }
        if !of_pod.contains(name) {
            let known = if of_pod.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", of_pod.iter().copied().collect::<Vec<_>>().join(", "))
            };
            let mut error = Error::not_found(&here, &name.into());
            error.body.push_str(&format!(": must be one of the names in pod.spec.resourceClaims{known}"));
            errs.0.push(error);
        }
    }
}
