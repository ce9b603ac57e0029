//! Computes the status of a policy.

use apis::{
    Condition, condition,
    control::{BindingPolicyStatus, BindingStatus, bounded_errors},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use super::world::World;
use crate::identity::ObjectId;

/// The state of a policy's Binding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Progress {
    /// The Binding equals the resolution of the policy.
    pub(super) synced: bool,
    /// Generation of the Binding.
    pub(super) generation: i64,
    /// Status of the Binding as written by transport and status controller.
    pub(super) status: BindingStatus,
    /// Why the Binding could not be written.
    pub(super) failure: Option<String>,
}

/// Returns the status that a policy should have (KS-008, KS-064, KS-065). `old` is its present status.
pub(super) fn policy_status(
    world: &World,
    policy: &str,
    generation: i64,
    progress: &Progress,
    old: Option<&BindingPolicyStatus>,
    now: &Time,
) -> BindingPolicyStatus {
    let mut errors = own_errors(world, policy);
    errors.extend(progress.failure.clone());
    errors = bounded_errors(errors);
    // A transport may report more errors than a status can hold.
    errors.extend(bounded_errors(progress.status.errors.clone()));
    let mut conditions = old.map(|old| old.conditions.clone()).unwrap_or_default();
    conditions.retain(|old| {
        let ours = [condition::SYNCED, condition::READY].contains(&old.type_.as_str());
        ours || progress.status.conditions.iter().any(|new| new.type_ == old.type_)
    });
    for copied in &progress.status.conditions {
        condition::set(&mut conditions, copied.clone());
    }
    for own in own_conditions(progress, &errors, now) {
        condition::set(&mut conditions, own);
    }
    BindingPolicyStatus { conditions, observed_generation: generation, errors }
}

fn own_conditions(progress: &Progress, errors: &[String], now: &Time) -> [Condition; 2] {
    let first = errors.first().cloned();
    let synced = progress.synced && errors.is_empty();
    let ready =
        synced && progress.generation != 0 && progress.status.observed_generation == progress.generation;
    let reason = |yes, good, bad| if yes { good } else { bad };
    [
        Condition::new(
            condition::SYNCED,
            synced,
            reason(synced, condition::REASON_SUCCESS, condition::REASON_ERROR),
            first.clone().unwrap_or_else(|| unless(synced, "the Binding is being written")),
            now.clone(),
        ),
        Condition::new(
            condition::READY,
            ready,
            reason(ready, condition::REASON_AVAILABLE, condition::REASON_UNAVAILABLE),
            first.unwrap_or_else(|| unless(ready, "the transport has not acted on the Binding yet")),
            now.clone(),
        ),
    ]
}

fn unless(done: bool, text: &str) -> String {
    if done { String::new() } else { text.to_owned() }
}

/// Compares two statuses without the times of conditions; an equal status is not written again.
pub(super) fn same_status(left: &BindingPolicyStatus, right: &BindingPolicyStatus) -> bool {
    left.observed_generation == right.observed_generation
        && left.errors == right.errors
        && condition::same(&left.conditions, &right.conditions)
}

fn own_errors(world: &World, policy: &str) -> Vec<String> {
    let mut errors = world.policy(policy).map(|policy| policy.errors.clone()).unwrap_or_default();
    errors.extend(singleton_error(world, policy));
    errors.extend(refusals(world, policy));
    errors
}

/// Most objects that a message names; of further ones it gives only the number.
const NAMED: usize = 4;

/// Returns errors about reported statuses that the WDS refuses.
fn refusals(world: &World, policy: &str) -> Vec<String> {
    let mut all = world.refusals_of(policy);
    let line =
        |(id, why): (&ObjectId, &str)| format!("{id}: the status that is reported for it is refused: {why}");
    let mut lines: Vec<String> = all.by_ref().take(NAMED).map(line).collect();
    let more = all.count();
    if more > 0 {
        lines.push(format!("the statuses that are reported for {more} more objects are refused"));
    }
    lines
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Gvk<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ObjectName<'a> {
    namespace: &'a str,
    name: &'a str,
}

#[derive(Serialize)]
struct ObjectIdentifier<'a> {
    #[serde(rename = "GVK")]
    gvk: Gvk<'a>,
    #[serde(rename = "Resource")]
    resource: &'a str,
    #[serde(rename = "ObjectName")]
    object_name: ObjectName<'a>,
}

#[derive(Serialize)]
struct BadObject<'a> {
    #[serde(rename = "ObjectID")]
    object_id: ObjectIdentifier<'a>,
    #[serde(rename = "NumWECs")]
    clusters: usize,
}

/// Returns an error about objects of the policy whose singleton status is requested although there is no
/// cluster or more than one (KS-064). Cost: if any policy requests singleton status, a look at each object of
/// the policy and at the policies that match it. Clusters are looked at only for objects for which two
/// policies or more request it.
fn singleton_error(world: &World, policy: &str) -> Option<String> {
    let resolution = world.resolution(policy).filter(|_| world.wants_singletons())?;
    let mut bad: Vec<(String, usize, &ObjectId)> = Vec::new();
    for id in resolution.objects().keys() {
        let Some(n) = world.singletons(id) else { continue };
        if n != 1 && !(n > 1 && world.wants_multi(id)) {
            let order = format!("{}/{}", id.resource().group, world.version(id.resource()));
            bad.push((order, n, id));
        }
    }
    bad.sort_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
    if bad.is_empty() {
        return None;
    }
    let examples: Vec<_> = bad.iter().take(4).map(|(_, n, id)| bad_object(world, id, *n)).collect();
    Some(format!(
        "Singleton reported status return is requested but some objects have the wrong number of associated WECs, for example: {}",
        serde_json::to_string(&examples).unwrap_or_default()
    ))
}

fn bad_object<'a>(world: &'a World, id: &'a ObjectId, clusters: usize) -> BadObject<'a> {
    let resource = id.resource();
    let kind = world.served(resource).map_or("", |served| &served.kind);
    let gvk = Gvk { group: &resource.group, version: world.version(resource), kind };
    let object_name = ObjectName { namespace: id.namespace(), name: id.name() };
    BadObject { object_id: ObjectIdentifier { gvk, resource: &resource.plural, object_name }, clusters }
}
