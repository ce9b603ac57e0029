//! Plans a pass over a work: what to do about each manifest, what to list before anything is created, and what to remove
//! afterwards (OCM-074 … OCM-076, OCM-093). Pure; in debug builds every plan is checked ([`super::check`]).

use std::collections::BTreeSet;

use apis::ocm::work::AppliedResource;
use serde_json::Value;

use super::{
    check,
    conditions::Available,
    merge::text,
    outcome::Done,
    records::Meaning,
    removal,
    rules::{self, Target},
    state::State,
    steps::{Job, Pass, Plan, Removals, Resource, Step, is_of},
};

/// Plans a pass. `listed` is what the AppliedManifestWork lists.
pub(super) fn plan(state: &State, pass: &Pass<'_>, jobs: &[Job<'_>], listed: &[AppliedResource]) -> Plan {
    let has_executor = pass.work.spec.executor.is_some();
    let have: BTreeSet<Target> = listed.iter().map(removal::target_of).collect();
    let mut plan = Plan::default();
    for job in jobs {
        let step = step(state, pass, job);
        let creates = match &job.resource {
            Resource::Known(resolved) if !have.contains(&resolved.target) && job.pending.is_none() => {
                resolved.entry()
            }
            _ => None,
        };
        plan.list_first.extend(creates);
        plan.steps.insert(job.ordinal, step);
        plan.turns.entry(rules::turn(&job.header.kind, has_executor)).or_default().push(job.ordinal);
    }
    if cfg!(debug_assertions) {
        check::assert_none(&check::plan(&plan, jobs, listed));
    }
    plan
}

fn step(state: &State, pass: &Pass<'_>, job: &Job<'_>) -> Step {
    let resolved = match &job.resource {
        Resource::Known(resolved) => resolved,
        Resource::Settled(done) => return Step::Report(done.clone()),
    };
    let attention = pass.todo.attention(&resolved.target);
    match &job.pending {
        Some(done) if attention == Meaning::Nothing => return Step::Report(Box::new(done.clone())),
        Some(done) => return Step::LookAgain(Box::new(done.clone())),
        None => {}
    }
    let record = state.tracker.get(pass.name, &resolved.target).filter(|r| r.digest == resolved.digest);
    let Some(record) = record else { return Step::Apply };
    let followed = !resolved.treatment.observes() || state.follows(&resolved.mapped.gvr);
    match attention {
        Meaning::Drift => Step::Apply,
        Meaning::Nothing if followed => {
            let mut done = record.done.clone();
            done.meta.ordinal = resolved.meta.ordinal;
            done.rivals = state.tracker.rivals(pass.name, &resolved.target);
            let recheck = pass.todo.changed && pass.work.spec.executor.is_some();
            if recheck { Step::Recheck(Box::new(done)) } else { Step::Report(Box::new(done)) }
        }
        Meaning::Nothing | Meaning::Look => Step::Look,
    }
}

/// Returns group and kind of what the definitions among the manifests define.
pub(super) fn kinds_defined_by(manifests: &[Value]) -> BTreeSet<(String, String)> {
    manifests
        .iter()
        .filter(|m| text(m, "kind") == "CustomResourceDefinition")
        .map(|crd| {
            let text =
                |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            (text("/spec/group"), text("/spec/names/kind"))
        })
        .collect()
}

/// Plans what to remove. `before` is what the AppliedManifestWork lists, `done` the outcomes of all manifests.
pub(super) fn removals(before: &[AppliedResource], done: &[Done]) -> Removals {
    let exist: Vec<AppliedResource> = done.iter().filter_map(|d| d.resource.clone()).collect();
    let removals = if done.iter().any(|d| d.uncertain) {
        let mut list = removal::untracked(before, &exist);
        list.extend(exist);
        Removals::Postponed(list)
    } else {
        // Listed before its creation, which then did not happen.
        let never_made = |resource: &AppliedResource| {
            let absent = |d: &Done| d.available == Available::No && is_of(&d.meta, resource);
            resource.uid.is_empty() && done.iter().any(absent)
        };
        let mut released = removal::untracked(before, &exist);
        released.retain(|resource| !never_made(resource));
        Removals::Now { exist, released }
    };
    if cfg!(debug_assertions) {
        check::assert_none(&check::removals(&removals, before, done));
    }
    removals
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
