//! What can be said about a PostCreateHook before a ControlPlane uses it (SP-024).

use std::{collections::BTreeSet, sync::Arc};

use apis::condition::{REASON_AVAILABLE, REASON_UNAVAILABLE};
use apis::tenancy::PostCreateHook;

use super::builtin;
use super::render::{Budget, RenderError, render};
use super::system_vars;

/// Reason and message of the condition `Ready`; its status is true if the reason is `Available`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ready: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Most variables that a hook may leave to its users.
const MOST: usize = 100;

/// Fills in all templates with the defaults and the system variables. Variables that are missing are listed: a
/// ControlPlane must supply them. Cost: at most [`MOST`] times what it costs to fill them in.
pub(crate) fn check(hook: &PostCreateHook) -> Verdict {
    let name = hook.metadata.name.as_deref().unwrap_or_default();
    let not_ready = |message: String| Verdict { ready: false, reason: REASON_UNAVAILABLE, message };
    match builtin::of(hook.metadata.annotations.as_ref(), name, false) {
        Err(error) => return not_ready(error.to_string()),
        Ok(Some(_)) => return Verdict { ready: true, reason: REASON_AVAILABLE, message: String::new() },
        Ok(None) => {}
    }
    let defaults = hook.spec.default_vars.iter().map(|var| (var.name.clone(), var.value.clone()));
    let mut vars: super::Vars = defaults.chain(system_vars("control-plane", name)).collect();
    let mut missing = BTreeSet::new();
    let mut budget = Budget::of_a_hook();
    for (index, template) in hook.spec.templates.iter().enumerate() {
        loop {
            // An attempt that ends at a variable costs the hook nothing.
            let before = budget.clone();
            match render(index, template, &Arc::new(vars.clone()), &mut budget) {
                Ok(_) => break,
                Err(RenderError::Undefined { name, .. }) if missing.len() < MOST => {
                    vars.insert(name.clone(), "value".to_owned());
                    missing.insert(name);
                    budget = before;
                }
                Err(error) => return not_ready(error.to_string()),
            }
        }
    }
    let list: Vec<String> = missing.into_iter().collect();
    let message = if list.is_empty() {
        String::new()
    } else {
        format!("a ControlPlane must supply: {}", list.join(", "))
    };
    Verdict { ready: true, reason: REASON_AVAILABLE, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn checked(annotations: Value, texts: &[&str]) -> (bool, String) {
        let templates: Vec<Value> = texts
            .iter()
            .map(|text| {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{.ControlPlaneName}}"},
                    "data": {"a": text}})
            })
            .collect();
        let hook = json!({"metadata": {"name": "h", "annotations": annotations},
            "spec": {"templates": templates, "defaultVars": [{"name": "d", "value": "1"}]}});
        let verdict = check(&serde_json::from_value(hook).unwrap());
        (verdict.ready, verdict.message)
    }

    /// SP-024: a broken hook is seen when it is made, and what its users must supply is listed.
    #[test]
    fn sp_024_hooks_are_checked_before_they_are_used() {
        assert_eq!(checked(json!({}), &["{{.d}} {{.Namespace}}"]), (true, String::new()));
        let (ready, message) = checked(json!({}), &["{{.b}} {{.a}}", "{{.a}}"]);
        assert_eq!((ready, message.as_str()), (true, "a ControlPlane must supply: a, b"));
        let (ready, message) = checked(json!({}), &["x", "{{.d"]);
        assert!(!ready && message.starts_with("template 1: "), "{message}");
        assert!(checked(json!({"space.kubestellar.io/component": "ocm-hub"}), &["{{.d"]).0);
        let (ready, message) = checked(json!({"space.kubestellar.io/component": "ocm-hub,nonsense"}), &[]);
        assert!(!ready && message.contains("\"nonsense\""), "{message}");
    }
}
