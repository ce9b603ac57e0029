//! What a pass over a work is about: its manifests with their resources, and the steps that [`super::plan`] decides for them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use apis::ocm::{
    AppliedManifestWork, ManifestWork,
    work::{
        AppliedResource, ManifestResourceMeta, ManifestWorkStatus, STRATEGY_CREATE_ONLY, STRATEGY_READ_ONLY,
        STRATEGY_SERVER_SIDE_APPLY,
    },
};
use runtime::mapper::Mapped;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    conditions::Available,
    merge::text,
    objects::{listed, owner_reference},
    outcome::Done,
    records::{Hold, Todo},
    removal,
    rules::{self, Header, Target, Treatment},
};

/// What a pass is about.
pub(super) struct Pass<'a> {
    pub(super) name: &'a str,
    pub(super) work: &'a ManifestWork,
    /// The owner reference that applied objects get.
    pub(super) owner: Value,
    /// The resources that the AppliedManifestWork listed before.
    pub(super) known: BTreeSet<Target>,
    pub(super) todo: &'a Todo,
    /// The status of the work before.
    pub(super) before: ManifestWorkStatus,
    /// The work holds roles or bindings, so what the executor may do can change with the work itself.
    pub(super) grants: bool,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        name: &'a str,
        work: &'a ManifestWork,
        applied: &AppliedManifestWork,
        todo: &'a Todo,
        before: ManifestWorkStatus,
    ) -> Self {
        let manifests = &work.spec.workload.manifests;
        Self {
            name,
            work,
            owner: owner_reference(applied),
            known: listed(applied).iter().map(removal::target_of).collect(),
            todo,
            before,
            grants: manifests.iter().any(|manifest| rules::may_grant(&Header::of(manifest).kind)),
        }
    }
}

/// What is known of the resource of a manifest.
pub(super) enum Resource {
    /// The resource is served.
    Known(Box<Resolved>),
    /// It is not served, or the manifest is invalid: this is the outcome.
    Settled(Box<Done>),
}

/// A manifest whose resource is known.
pub(super) struct Resolved {
    pub(super) meta: ManifestResourceMeta,
    pub(super) mapped: Mapped,
    pub(super) target: Target,
    pub(super) treatment: Treatment,
    /// The work owns the object, so that it is deleted with the work.
    pub(super) owned: bool,
    /// Digest of everything that is required of the object: manifest, treatment and owner.
    pub(super) digest: [u8; 32],
    /// Digest of the manifest alone.
    pub(super) content: [u8; 32],
}

impl Resolved {
    /// What the work enforces about the object.
    pub(super) fn hold(&self) -> Hold {
        match self.treatment.strategy.type_.as_str() {
            STRATEGY_READ_ONLY => Hold::Nothing,
            STRATEGY_CREATE_ONLY => Hold::Existence,
            STRATEGY_SERVER_SIDE_APPLY => Hold::Fields,
            _ => Hold::Content,
        }
    }

    /// Returns the entry that the AppliedManifestWork must list before the object is created, so that it can be removed again;
    /// `None` for an object that the work does not own.
    pub(super) fn entry(&self) -> Option<AppliedResource> {
        (self.owned && self.hold() != Hold::Nothing).then(|| AppliedResource {
            group: self.mapped.gvr.group.clone(),
            version: self.mapped.gvr.version.clone(),
            resource: self.mapped.gvr.plural.clone(),
            namespace: self.target.namespace.clone(),
            name: self.target.name.clone(),
            uid: String::new(),
        })
    }
}

/// One manifest of a pass.
pub(super) struct Job<'a> {
    pub(super) ordinal: usize,
    pub(super) header: Header,
    pub(super) manifest: &'a Value,
    pub(super) resource: Resource,
    /// The reported outcome of an earlier failure, if the manifest is not to be retried in this pass.
    pub(super) pending: Option<Done>,
}

impl<'a> Job<'a> {
    /// A manifest whose resource is still to be found; see [`Job::settled_without_resource`].
    pub(super) fn new(ordinal: usize, manifest: &'a Value, pending: Option<Done>) -> Self {
        let header = Header::of(manifest);
        Self { ordinal, header, manifest, resource: Resource::Settled(Box::default()), pending }
    }

    /// Settles a manifest that needs no look for its resource: without kind or API version, or not found a moment ago.
    pub(super) fn settled_without_resource(&mut self) -> bool {
        let header = &self.header;
        let missing = [("Kind", &header.kind), ("apiVersion", &header.api_version)];
        let done = if let Some((field, _)) = missing.into_iter().find(|(_, value)| value.is_empty()) {
            let shown: String = self.manifest.to_string().chars().take(256).collect();
            let message = format!("Object '{field}' is missing in '{shown}'");
            let done = Done::refused(header.meta(self.ordinal), &message, Available::Incomplete);
            Some(Done { uncertain: true, ..done })
        } else {
            self.pending.clone().filter(Done::is_unresolved)
        };
        let Some(done) = done else { return false };
        self.resource = Resource::Settled(Box::new(done));
        true
    }

    /// Sets what discovery found. `taken` are the objects of earlier manifests.
    pub(super) fn resolve(
        &mut self,
        pass: &Pass<'_>,
        found: Result<Option<Mapped>, String>,
        taken: &mut BTreeSet<Target>,
    ) {
        self.resource = match self.resolved(pass, found, taken) {
            Ok(resolved) => Resource::Known(Box::new(resolved)),
            Err(done) => Resource::Settled(done),
        };
    }

    fn resolved(
        &self,
        pass: &Pass<'_>,
        found: Result<Option<Mapped>, String>,
        taken: &mut BTreeSet<Target>,
    ) -> Result<Resolved, Box<Done>> {
        let header = &self.header;
        let mut meta = header.meta(self.ordinal);
        let mapped = match found {
            Ok(Some(mapped)) => mapped,
            Ok(None) => {
                let message = format!("the server doesn't have a resource type {:?}", header.kind);
                return Err(Box::new(Done::unresolved(meta, message)));
            }
            Err(message) => return Err(Box::new(Done::unresolved(meta, message))),
        };
        meta.resource.clone_from(&mapped.gvr.plural);
        if !mapped.namespaced {
            meta.namespace.clear();
        }
        let refused = |meta: &ManifestResourceMeta, message: &str, available| {
            Err(Box::new(Done::refused(meta.clone(), message, available)))
        };
        if meta.name.is_empty() {
            return refused(&meta, "resource name may not be empty", Available::Incomplete);
        }
        if mapped.namespaced && meta.namespace.is_empty() {
            let message = "an empty namespace may not be set when a resource name is provided";
            return refused(&meta, message, Available::No);
        }
        let target = Target {
            group: mapped.gvr.group.clone(),
            resource: mapped.gvr.plural.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        if !taken.insert(target.clone()) {
            let message = format!(
                "duplicate manifest for resource {}/{} with resource type {}.{}",
                meta.namespace, meta.name, header.api_version, header.kind
            );
            return refused(&meta, &message, Available::Incomplete);
        }
        let treatment = rules::treatment(&pass.work.spec, &target);
        let owned = rules::owned(&pass.work.spec, &target);
        let content: [u8; 32] = Sha256::digest(self.manifest.to_string()).into();
        let mut digest = Sha256::new();
        digest.update(content);
        digest.update(format!("{treatment:?}{owned}"));
        digest.update(text(&pass.owner, "uid"));
        Ok(Resolved { meta, mapped, target, treatment, owned, digest: digest.finalize().into(), content })
    }

    pub(super) fn resolved_target(&self) -> Option<&Target> {
        match &self.resource {
            Resource::Known(resolved) => Some(&resolved.target),
            Resource::Settled(_) => None,
        }
    }

    /// Returns whether the resource is not served, as far as known, but this work brings the definition.
    pub(super) fn waits_for_own_definition(&self, defined: &BTreeSet<(String, String)>) -> bool {
        matches!(&self.resource, Resource::Settled(done) if done.is_unresolved())
            && defined.contains(&(self.header.group.clone(), self.header.kind.clone()))
    }
}

/// What to do about one manifest.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing: this is its outcome.
    Report(Box<Done>),
    /// The object changed, but the manifest that failed is not retried yet: read the object.
    LookAgain(Box<Done>),
    /// The object is as recorded; check only whether the executor may still apply the manifest (OCM-086).
    Recheck(Box<Done>),
    /// Read the object; apply the manifest only if the object is gone.
    Look,
    /// Apply the manifest.
    Apply,
}

/// What to do in a pass.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The step of each manifest, by ordinal.
    pub(super) steps: BTreeMap<usize, Step>,
    /// The ordinals of each turn; those of one turn are done at the same time.
    pub(super) turns: BTreeMap<u8, Vec<usize>>,
    /// What the AppliedManifestWork must list, besides what it lists, before the first step.
    pub(super) list_first: Vec<AppliedResource>,
}

/// What to do after the steps of a pass (OCM-093).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removals {
    /// Nothing may be removed before every manifest is resolved; what was created is listed nevertheless.
    Postponed(Vec<AppliedResource>),
    /// Remove `released`, then list what exists and what is not gone yet.
    Now { exist: Vec<AppliedResource>, released: Vec<AppliedResource> },
}

/// Returns whether a manifest is about this object.
pub(super) fn is_of(meta: &ManifestResourceMeta, resource: &AppliedResource) -> bool {
    meta.group == resource.group
        && meta.resource == resource.resource
        && meta.namespace == resource.namespace
        && meta.name == resource.name
}
