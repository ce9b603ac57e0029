//! Pure parts of pod binding and eviction.

use serde_json::{Value, json};

use super::check::selects;
use super::pods::append;
use super::value::{at, ensure, has, int, list, put, set_at, text};
use crate::error::{ApiError, Cause, Details, Reason};

/// Assigns the pod to the node of the `Binding`, and sets the condition that a scheduler sets.
///
/// # Errors
/// 422 without a node, 409 if the pod is being deleted, has a node already, or has another uid.
pub fn bind(pod: &mut Value, binding: &Value, now: &str) -> Result<(), ApiError> {
    let name = text(pod, "metadata.name").to_owned();
    let node = text(binding, "target.name");
    let kind = text(binding, "target.kind");
    if node.is_empty() {
        return Err(invalid(binding, "target.name", "Required value"));
    }
    if !kind.is_empty() && kind != "Node" {
        let body = format!("Unsupported value: \"{kind}\": supported values: \"Node\", \"<empty>\"");
        return Err(invalid(binding, "target.kind", &body));
    }
    let uid = text(binding, "metadata.uid");
    if !uid.is_empty() && uid != text(pod, "metadata.uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            text(pod, "metadata.uid")
        );
        return Err(ApiError::conflict("", "pods/binding", &name, &why));
    }
    if has(pod, "metadata.deletionTimestamp") {
        let why = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(ApiError::conflict("", "pods/binding", &name, &why));
    }
    let current = text(pod, "spec.nodeName");
    if !current.is_empty() {
        let why = format!("pod {name} is already assigned to node \"{current}\"");
        return Err(ApiError::conflict("", "pods/binding", &name, &why));
    }
    set_at(pod, "spec", "nodeName", node);
    if has(binding, "metadata.annotations") {
        ensure(pod, "metadata.annotations");
    }
    for (key, value) in super::value::entries(binding, "metadata.annotations") {
        set_at(pod, "metadata.annotations", key, value.clone());
    }
    let mut conditions = list(pod, "status.conditions").to_vec();
    conditions.retain(|c| text(c, "type") != "PodScheduled");
    let mut status = at(pod, "status").clone();
    put(&mut status, "conditions", &Value::from(conditions));
    append(
        &mut status,
        "conditions",
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}),
    );
    put(pod, "status", &status);
    Ok(())
}

fn invalid(binding: &Value, field: &str, body: &str) -> ApiError {
    let reason = if body.starts_with("Required") { "FieldValueRequired" } else { "FieldValueNotSupported" };
    let error = machinery::field::Error { field: field.into(), body: body.into(), reason };
    ApiError::invalid("", "Binding", text(binding, "metadata.name"), &[error])
}

/// Checks that the Eviction names the pod `name` or none. Called before the pod is read.
///
/// # Errors
/// 400 if it names another pod.
pub fn check_eviction(name: &str, eviction: &Value) -> Result<(), ApiError> {
    let wanted = text(eviction, "metadata.name");
    if wanted.is_empty() || wanted == name {
        return Ok(());
    }
    Err(ApiError::bad_request("name in URL does not match name in Eviction object"))
}

/// The disruption budget that an eviction of the pod must decrement; `None` if no budget covers the pod. `budgets` are
/// all budgets of the pod's namespace.
///
/// # Errors
/// 429 if the budget allows no disruption, 500 if several budgets cover the pod.
pub fn covering_budget<'a>(pod: &Value, budgets: &'a [Value]) -> Result<Option<&'a Value>, ApiError> {
    // Pods that do not run, have terminated or are being deleted need no budget.
    let free = matches!(text(pod, "status.phase"), "Succeeded" | "Failed" | "Pending")
        || has(pod, "metadata.deletionTimestamp");
    if free {
        return Ok(None);
    }
    let labels = at(pod, "metadata.labels");
    let covers = |budget: &&Value| {
        let selector = at(budget, "spec.selector");
        !selector.is_null()
            && machinery::selector::LabelSelector::from_object(selector).is_ok_and(|s| selects(&s, labels))
    };
    let mut covering = budgets.iter().filter(covers);
    let Some(budget) = covering.next() else { return Ok(None) };
    if covering.next().is_some() {
        return Err(ApiError::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    if int(budget, "status.disruptionsAllowed").unwrap_or_default() > 0 {
        return Ok(Some(budget));
    }
    Err(too_many(budget))
}

/// The budget after an eviction of the pod: one disruption less is allowed.
pub fn budget_after_eviction(budget: &Value, pod: &str, now: &str) -> Value {
    let mut spent = budget.clone();
    let left = int(budget, "status.disruptionsAllowed").unwrap_or_default() - 1;
    set_at(&mut spent, "status", "disruptionsAllowed", left);
    ensure(&mut spent, "status.disruptedPods");
    set_at(&mut spent, "status.disruptedPods", pod, now);
    spent
}

fn too_many(budget: &Value) -> ApiError {
    let message = format!(
        "The disruption budget {} needs {} healthy pods and has {} currently",
        text(budget, "metadata.name"),
        int(budget, "status.desiredHealthy").unwrap_or_default(),
        int(budget, "status.currentHealthy").unwrap_or_default()
    );
    let cause = Cause { reason: "DisruptionBudget".into(), message, field: String::new() };
    ApiError::new(
        429,
        Reason::TooManyRequests,
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )
    .with_details(Details { causes: vec![cause], retry_after_seconds: Some(0), ..Details::default() })
}
