//! Hooks of a ControlPlane: which run, with which variables, and what becomes of them.

pub(crate) mod apply;
pub(crate) mod builtin;
pub(crate) mod check;
pub(crate) mod readiness;
pub(crate) mod render;

use std::collections::{BTreeMap, BTreeSet};

use apis::tenancy::{ControlPlane, ControlPlaneSpec, PostCreateHook};

use crate::names::namespace_of;

/// Variables of a hook.
pub(crate) type Vars = BTreeMap<String, String>;

/// One hook of a ControlPlane and the variables that the ControlPlane gives to it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use<'a> {
    pub(crate) hook: &'a str,
    vars: &'a Vars,
}

/// The hooks in the order in which they run: the deprecated field first, each name once, with the variables of its first
/// entry.
pub(crate) fn uses(spec: &ControlPlaneSpec) -> Vec<Use<'_>> {
    let first = spec.post_create_hook.as_deref().map(|hook| Use { hook, vars: &spec.post_create_hook_vars });
    let list = spec.post_create_hooks.iter().map(|entry| Use { hook: &entry.hook_name, vars: &entry.vars });
    let mut seen = BTreeSet::new();
    first.into_iter().chain(list).filter(|one| !one.hook.is_empty() && seen.insert(one.hook)).collect()
}

/// The variables of one hook, in the order of precedence of SP-014. Without a hook object there are no defaults.
pub(crate) fn vars(plane: &ControlPlane, one: &Use<'_>, hook: Option<&PostCreateHook>) -> Vars {
    let name = plane.metadata.name.as_deref().unwrap_or_default();
    let defaults = hook.into_iter().flat_map(|hook| &hook.spec.default_vars);
    let mut vars: Vars = defaults.map(|var| (var.name.clone(), var.value.clone())).collect();
    vars.extend(plane.spec.global_vars.clone());
    vars.extend(one.vars.clone());
    vars.extend(system_vars(name, one.hook));
    vars
}

/// The variables that nobody can override.
pub(crate) fn system_vars(control_plane: &str, hook: &str) -> [(String, String); 3] {
    [
        ("Namespace".to_owned(), namespace_of(control_plane)),
        ("ControlPlaneName".to_owned(), control_plane.to_owned()),
        ("HookName".to_owned(), hook.to_owned()),
    ]
}

/// What became of one hook in a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Applied, and ready if anybody waits for that. The text is a remark for users, or empty.
    Done { remark: String },
    /// Applied; its objects or components are not ready, for this reason.
    NotReady { why: String },
    /// Not applied, for lack of something that may come.
    Missing { why: String },
    /// Not applied.
    Failed { why: String },
    /// Not applied to the end, because the ControlPlane is being deleted. The hooks after it do not run.
    Interrupted,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plane(spec: serde_json::Value) -> ControlPlane {
        serde_json::from_value(json!({"metadata": {"name": "wds1"}, "spec": spec})).unwrap()
    }

    /// SP-014: order and repetition of hooks.
    #[test]
    fn sp_014_each_hook_runs_once_with_its_first_variables() {
        let plane = plane(json!({"type": "k8s", "postCreateHook": "b", "postCreateHookVars": {"x": "old"},
            "postCreateHooks": [{"hookName": "a"}, {"hookName": "b", "vars": {"x": "new"}}, {"hookName": ""}]}));
        let found = uses(&plane.spec);
        assert_eq!(found.iter().map(|one| one.hook).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(found[0].vars["x"], "old");
    }

    /// SP-014: defaults, global variables, variables of the use, system variables; later wins.
    #[test]
    fn sp_014_precedence_of_variables() {
        let plane =
            plane(json!({"type": "k8s", "globalVars": {"b": "global", "c": "global", "Namespace": "mine"},
            "postCreateHooks": [{"hookName": "h", "vars": {"c": "use", "HookName": "mine"}}]}));
        let hook: PostCreateHook = serde_json::from_value(json!({"metadata": {"name": "h"},
            "spec": {"defaultVars": [{"name": "a", "value": "default"}, {"name": "b", "value": "default"},
                {"name": "c", "value": "default"}]}}))
        .unwrap();
        let found = vars(&plane, &uses(&plane.spec)[0], Some(&hook));
        let expected = [
            ("ControlPlaneName", "wds1"),
            ("HookName", "h"),
            ("Namespace", "wds1-system"),
            ("a", "default"),
            ("b", "global"),
            ("c", "use"),
        ];
        assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }
}
