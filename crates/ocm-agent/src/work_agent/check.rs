//! What holds for every plan of a pass. Pure. Tests and debug builds check each plan that is made.

use std::collections::BTreeSet;

use apis::ocm::work::AppliedResource;

use super::{
    conditions::Available,
    outcome::Done,
    removal,
    rules::Target,
    steps::{Job, Plan, Removals, Resource, Step, is_of},
};

/// Returns what is wrong with the plan of a pass; `listed` is what the AppliedManifestWork lists.
///
/// * Each manifest has exactly one step, in exactly one turn.
/// * No object is touched by two steps.
/// * Nothing is done about a manifest whose resource is not known.
/// * What may be created and is owned is listed before, so that it is found again whenever the agent dies.
pub(super) fn plan(plan: &Plan, jobs: &[Job<'_>], listed: &[AppliedResource]) -> Vec<String> {
    let mut wrong = Vec::new();
    let ordinals: Vec<usize> = jobs.iter().map(|job| job.ordinal).collect();
    let mut turns: Vec<usize> = plan.turns.values().flatten().copied().collect();
    turns.sort_unstable();
    if !plan.steps.keys().copied().eq(ordinals.iter().copied()) || turns != ordinals {
        wrong.push(format!("not one step and one turn for each manifest: {plan:?}"));
    }
    let known: BTreeSet<Target> = listed.iter().chain(&plan.list_first).map(removal::target_of).collect();
    let mut touched = BTreeSet::new();
    for job in jobs {
        let Some(step) = plan.steps.get(&job.ordinal) else { continue };
        let resolved = match &job.resource {
            Resource::Known(resolved) => resolved,
            Resource::Settled(_) if matches!(step, Step::Report(_)) => continue,
            Resource::Settled(_) => {
                wrong.push(format!("manifest {} is touched without a known resource", job.ordinal));
                continue;
            }
        };
        if !matches!(step, Step::Report(_)) && !touched.insert(&resolved.target) {
            wrong.push(format!("{:?} is touched twice", resolved.target));
        }
        let may_create = matches!(step, Step::Apply | Step::Look);
        if may_create && resolved.entry().is_some() && !known.contains(&resolved.target) {
            wrong.push(format!("{:?} would be created before it is listed", resolved.target));
        }
        if let Step::Report(done) = step
            && done.meta.ordinal != resolved.meta.ordinal
        {
            wrong.push(format!("manifest {} gets the outcome of another", job.ordinal));
        }
    }
    wrong
}

/// Returns what is wrong with the removals after a pass; `before` is what the AppliedManifestWork lists.
///
/// * Nothing is released while the outcome of a manifest is uncertain, nor what a manifest wants and what may exist.
/// * What was listed stays listed, is released, or was never created: nothing is forgotten.
/// * What exists is listed.
pub(super) fn removals(removals: &Removals, before: &[AppliedResource], done: &[Done]) -> Vec<String> {
    let targets =
        |list: &[AppliedResource]| list.iter().map(removal::target_of).collect::<BTreeSet<Target>>();
    let (listed, released) = match removals {
        Removals::Postponed(list) => (list.as_slice(), &[][..]),
        Removals::Now { exist, released } => (exist.as_slice(), released.as_slice()),
    };
    let mut wrong = Vec::new();
    if !released.is_empty() && done.iter().any(|d| d.uncertain) {
        wrong.push("objects are released although an outcome is uncertain".to_owned());
    }
    for resource in released {
        let may_exist =
            |d: &Done| d.resource.is_some() || matches!(d.available, Available::Yes | Available::Unknown(_));
        if done.iter().any(|d| is_of(&d.meta, resource) && may_exist(d)) {
            wrong.push(format!("{resource:?} is released and wanted"));
        }
    }
    let (listed, released) = (targets(listed), targets(released));
    for resource in before {
        let target = removal::target_of(resource);
        let never_made = resource.uid.is_empty()
            && done.iter().any(|d| is_of(&d.meta, resource) && d.available == Available::No);
        if !listed.contains(&target) && !released.contains(&target) && !never_made {
            wrong.push(format!("{target:?} is forgotten"));
        }
    }
    for resource in done.iter().filter_map(|d| d.resource.as_ref()) {
        if !listed.contains(&removal::target_of(resource)) {
            wrong.push(format!("{resource:?} exists and is not listed"));
        }
    }
    wrong
}

/// Stops the agent if a plan is wrong.
pub(super) fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "a wrong plan: {}", wrong.join("; "));
}
