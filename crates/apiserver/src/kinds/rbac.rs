//! Roles and bindings.

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::spec::{BASE, Facts, Spec};
use super::value::{at, fill, fill_at, list, list_mut, text};
use crate::authz::check_escalation;
use crate::strategy::{NameRule, WriteContext};

const GROUP: &str = "rbac.authorization.k8s.io";

const RBAC: Spec =
    Spec { facts: Facts { name: NameRule::PathSegment, create_on_update: true, ..BASE.facts }, ..BASE };

pub(super) const ROLE: Spec = Spec {
    validate: |_, obj, errs| rules(obj, true, errs),
    escalation: |authorizer, user, new, old| check_escalation(authorizer, user, "roles", new, old),
    ..RBAC
};

pub(super) const CLUSTER_ROLE: Spec = Spec {
    validate: |_, obj, errs| {
        rules(obj, false, errs);
        let aggregation = at(obj, "aggregationRule");
        let here = Path::field("aggregationRule").child("clusterRoleSelectors");
        if !aggregation.is_null() && list(aggregation, "clusterRoleSelectors").is_empty() {
            errs.required(&here, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (i, selector) in list(aggregation, "clusterRoleSelectors").iter().enumerate() {
            errs.selector(&here.index(i), selector);
        }
    },
    escalation: |authorizer, user, new, old| check_escalation(authorizer, user, "clusterroles", new, old),
    ..RBAC
};

pub(super) const ROLE_BINDING: Spec = Spec {
    default: default_binding,
    validate: |_, obj, errs| binding(obj, true, errs),
    validate_update: role_ref_fixed,
    escalation: |authorizer, user, new, old| check_escalation(authorizer, user, "rolebindings", new, old),
    ..RBAC
};

pub(super) const CLUSTER_ROLE_BINDING: Spec = Spec {
    default: default_binding,
    validate: |_, obj, errs| binding(obj, false, errs),
    validate_update: role_ref_fixed,
    escalation: |authorizer, user, new, old| {
        check_escalation(authorizer, user, "clusterrolebindings", new, old)
    },
    ..RBAC
};

fn default_binding(obj: &mut Value) {
    fill_at(obj, "roleRef", "apiGroup", GROUP);
    for subject in list_mut(obj, "subjects") {
        let person = matches!(text(subject, "kind"), "User" | "Group");
        if let Some(map) = subject.as_object_mut().filter(|_| person) {
            fill(map, "apiGroup", GROUP);
        }
    }
}

fn rules(obj: &Value, namespaced: bool, errs: &mut Errs) {
    for (i, rule) in list(obj, "rules").iter().enumerate() {
        let here = Path::field("rules").index(i);
        if list(rule, "verbs").is_empty() {
            errs.required(&here.child("verbs"), "verbs must contain at least one value");
        }
        if !list(rule, "nonResourceURLs").is_empty() {
            let at_urls = here.child("nonResourceURLs");
            let urls = at(rule, "nonResourceURLs");
            if namespaced {
                errs.invalid(&at_urls, urls, "namespaced rules cannot apply to non-resource URLs");
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|key| !list(rule, key).is_empty()) {
                errs.invalid(
                    &at_urls,
                    urls,
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if list(rule, "apiGroups").is_empty() {
            errs.required(&here.child("apiGroups"), "resource rules must supply at least one api group");
        }
        if list(rule, "resources").is_empty() {
            errs.required(&here.child("resources"), "resource rules must supply at least one resource");
        }
    }
}

fn binding(obj: &Value, namespaced: bool, errs: &mut Errs) {
    let here = Path::field("roleRef");
    let reference = at(obj, "roleRef");
    if text(reference, "apiGroup") != GROUP {
        errs.unsupported(&here.child("apiGroup"), text(reference, "apiGroup"), &[GROUP]);
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    errs.one_of(&here.child("kind"), text(reference, "kind"), kinds);
    errs.required_name(&here.child("name"), text(reference, "name"), names::path_segment);
    for (i, subject) in list(obj, "subjects").iter().enumerate() {
        self::subject(subject, &Path::field("subjects").index(i), namespaced, errs);
    }
}

fn subject(subject: &Value, place: &Path, namespaced: bool, errs: &mut Errs) {
    let name = text(subject, "name");
    if name.is_empty() {
        errs.required(&place.child("name"), "");
    }
    let group = text(subject, "apiGroup");
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errs.names(&place.child("name"), name, names::dns1123_subdomain(name));
            }
            if !group.is_empty() {
                errs.unsupported(&place.child("apiGroup"), group, &[""]);
            }
            if !namespaced && text(subject, "namespace").is_empty() {
                errs.required(&place.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errs.unsupported(&place.child("apiGroup"), group, &[GROUP]);
            }
        }
        other => errs.unsupported(&place.child("kind"), other, &["ServiceAccount", "User", "Group"]),
    }
}

fn role_ref_fixed(_: &WriteContext<'_>, obj: &Value, old: &Value, errs: &mut Errs) {
    let reference = at(obj, "roleRef");
    if reference != at(old, "roleRef") {
        let shown = format!(
            "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
            at(reference, "apiGroup"),
            at(reference, "kind"),
            at(reference, "name")
        );
        errs.invalid_text(&Path::field("roleRef"), &shown, "cannot change roleRef");
    }
}
