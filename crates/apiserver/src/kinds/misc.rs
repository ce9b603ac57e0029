//! Kinds with few rules of their own.

use machinery::field::Path;
use machinery::names;
use serde_json::{Value, json};

use super::check::{Errs, name};
use super::spec::{BASE, Facts, GenerationRule, Spec, WITH_STATUS};
use super::value::{at, ensure, fill, fill_at, flag, has, int, object_mut, path, text};

pub(super) const LEASE: Spec = Spec {
    facts: Facts { create_on_update: true, unconditional_update: false, ..BASE.facts },
    default: |obj| ensure(obj, "spec"),
    create: |_, obj| drop_election(obj),
    update: |_, obj, _| drop_election(obj),
    validate: |_, obj, errs| {
        let here = Path::field("spec");
        errs.positive(at(obj, "spec"), &here, "leaseDurationSeconds");
        errs.non_negative(at(obj, "spec"), &here, "leaseTransitions");
    },
    ..BASE
};

/// Drops the fields of coordinated leader election, which is off by default.
fn drop_election(obj: &mut Value) {
    for key in ["strategy", "preferredHolder"] {
        drop(super::value::remove_at(obj, "spec", key));
    }
}

pub(super) const DISRUPTION_BUDGET: Spec = Spec {
    facts: Facts { unconditional_update: false, ..WITH_STATUS.facts },
    status: Some(
        || json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
    ),
    default: |obj| ensure(obj, "spec"),
    validate: |_, obj, errs| disruption_budget(at(obj, "spec"), errs),
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            let here = Path::field("status");
            let status = at(obj, "status");
            super::conditions::check(
                super::value::list(status, "conditions"),
                &here.child("conditions"),
                errs,
            );
            for key in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
                errs.non_negative(status, &here, key);
            }
        }
    },
    ..WITH_STATUS
};

pub(super) const PRIORITY_CLASS: Spec = Spec {
    generation: GenerationRule::Content,
    default: |obj| {
        if let Some(map) = obj.as_object_mut() {
            fill(map, "preemptionPolicy", "PreemptLowerPriority");
        }
    },
    validate_create: |_, obj, errs| {
        let value = int(obj, "value").unwrap_or_default();
        let builtin = matches!(name(obj), "system-cluster-critical" | "system-node-critical");
        if name(obj).starts_with("system-") && !builtin {
            errs.forbidden(
                &path("metadata.name"),
                "priority class names with 'system-' prefix are reserved for system use only",
            );
        } else if value > 1_000_000_000 && !builtin {
            errs.forbidden(
                &Path::field("value"),
                "maximum allowed value of a user defined priority is 1000000000",
            );
        }
        errs.one_of(
            &Path::field("preemptionPolicy"),
            text(obj, "preemptionPolicy"),
            &["Never", "PreemptLowerPriority"],
        );
    },
    validate_update: |_, obj, old, errs| {
        if int(obj, "value") != int(old, "value") {
            errs.forbidden(&Path::field("value"), "may not be changed in an update.");
        }
        errs.immutable("preemptionPolicy", obj, old);
    },
    ..BASE
};

pub(super) const RUNTIME_CLASS: Spec = Spec {
    facts: Facts { create_on_update: true, unconditional_update: false, ..BASE.facts },
    validate: |_, obj, errs| {
        errs.required_name(&Path::field("handler"), text(obj, "handler"), names::dns1123_label);
    },
    validate_update: |_, obj, old, errs| errs.immutable("handler", obj, old),
    ..BASE
};

pub(super) const FLOW_SCHEMA: Spec = Spec {
    unenforced: super::unenforced::priorities,
    default: |obj| {
        object_mut(obj, "spec.priorityLevelConfiguration");
        super::pod::fill_zero(obj, "spec", "matchingPrecedence", 1000);
    },
    validate: |_, obj, errs| {
        let precedence = int(obj, "spec.matchingPrecedence").unwrap_or_default();
        if !(1..=10000).contains(&precedence) {
            errs.invalid(
                &path("spec.matchingPrecedence"),
                &Value::from(precedence),
                "must be a positive value and less than or equal to 10000",
            );
        }
        if text(obj, "spec.priorityLevelConfiguration.name").is_empty() {
            errs.required(&path("spec.priorityLevelConfiguration.name"), "must reference a priority level");
        }
    },
    ..WITH_STATUS
};

pub(super) const PRIORITY_LEVEL: Spec = Spec {
    unenforced: super::unenforced::priorities,
    default: |obj| {
        object_mut(obj, "spec");
        if text(obj, "spec.type") == "Limited" {
            fill_at(obj, "spec.limited", "nominalConcurrencyShares", 30);
            fill_at(obj, "spec.limited", "lendablePercent", 0);
        }
    },
    validate: |_, obj, errs| {
        errs.one_of(&path("spec.type"), text(obj, "spec.type"), &["Exempt", "Limited"]);
    },
    ..WITH_STATUS
};

pub(super) const API_SERVICE: Spec = Spec {
    unenforced: super::unenforced::aggregation,
    generation: GenerationRule::FromClient,
    default: |obj| {
        if has(obj, "spec.service") {
            fill_at(obj, "spec.service", "port", 443);
        }
    },
    validate: |_, obj, errs| api_service(obj, errs),
    ..WITH_STATUS
};

pub(super) const RESOURCE_CLAIM: Spec = Spec {
    facts: Facts { returns_deleted: true, ..WITH_STATUS.facts },
    generation: GenerationRule::FromClient,
    default: |obj| default_requests(obj, "spec.devices.requests"),
    validate_update: |_, obj, old, errs| errs.immutable("spec", obj, old),
    ..WITH_STATUS
};

pub(super) const RESOURCE_CLAIM_TEMPLATE: Spec = Spec {
    facts: Facts { returns_deleted: true, ..BASE.facts },
    default: |obj| default_requests(obj, "spec.spec.devices.requests"),
    validate_update: |_, obj, old, errs| errs.immutable("spec", obj, old),
    ..BASE
};

/// Device classes and slices count changes of their spec.
pub(super) const RESOURCE_SPEC: Spec =
    Spec { facts: Facts { returns_deleted: true, ..BASE.facts }, generation: GenerationRule::Spec, ..BASE };

/// A request is for one device unless it says otherwise.
fn default_requests(obj: &mut Value, place: &str) {
    let fill_one = |request: &mut Value| {
        let Some(map) = request.as_object_mut() else { return };
        fill(map, "allocationMode", "ExactCount");
        let exact = map.get("allocationMode").is_some_and(|mode| mode == "ExactCount");
        if exact && map.get("count").and_then(Value::as_i64).unwrap_or_default() == 0 {
            map.insert("count".into(), 1.into());
        }
    };
    for request in super::value::list_mut(obj, place) {
        if let Some(exactly) = super::value::at_mut(request, "exactly").filter(|e| e.is_object()) {
            fill_one(exactly);
        }
        super::value::list_mut(request, "firstAvailable").for_each(fill_one);
    }
}

fn disruption_budget(spec: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let (min, max) = (at(spec, "minAvailable"), at(spec, "maxUnavailable"));
    if !min.is_null() && !max.is_null() {
        let shown = format!(
            "{{\"MinAvailable\":{min},\"Selector\":{},\"MaxUnavailable\":{max},\"UnhealthyPodEvictionPolicy\":{}}}",
            at(spec, "selector"),
            at(spec, "unhealthyPodEvictionPolicy")
        );
        errs.invalid_text(&place, &shown, "minAvailable and maxUnavailable cannot be both set");
    }
    errs.int_or_percent(&place.child("minAvailable"), min);
    errs.int_or_percent(&place.child("maxUnavailable"), max);
    errs.selector(&place.child("selector"), at(spec, "selector"));
    let policy = text(spec, "unhealthyPodEvictionPolicy");
    if !policy.is_empty() {
        errs.one_of(&place.child("unhealthyPodEvictionPolicy"), policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }
}

fn api_service(obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    let wanted = format!("{}.{}", text(spec, "version"), text(spec, "group"));
    if name(obj) != wanted {
        errs.invalid_str(
            &path("metadata.name"),
            name(obj),
            &format!("must be `spec.version+\".\"+spec.group`: \"{wanted}\""),
        );
    }
    for (key, max) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let value = int(spec, key).unwrap_or_default();
        if !(1..=max).contains(&value) {
            errs.invalid(
                &place.child(key),
                &Value::from(value),
                &format!("must be positive and less than {max}"),
            );
        }
    }
    if has(spec, "service") {
        for key in ["namespace", "name"] {
            if text(at(spec, "service"), key).is_empty() {
                errs.required(&place.child("service").child(key), "");
            }
        }
        if flag(spec, "insecureSkipTLSVerify") && !text(spec, "caBundle").is_empty() {
            errs.invalid_str(
                &place.child("insecureSkipTLSVerify"),
                "true",
                "may not be true if caBundle is present",
            );
        }
    }
}
