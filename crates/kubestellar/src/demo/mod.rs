//! The steps of a demo: applies objects, waits until they arrive, reads them back.

pub(crate) mod manifests;
mod verify;
mod watch;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, ApiResource, Scope};
use kube::{Api, Client, Discovery};
use runtime::Source;
use serde_json::Value;

use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

use self::manifests::{CONTROL_GROUP, Manifests, kind};
pub(crate) use self::verify::Target;
use self::watch::find;

/// Field manager of the demo's writes.
const MANAGER: &str = "kubestellar-demo";

/// The spaces a demo works with.
pub(crate) struct Stage {
    pub(crate) wds: Client,
    pub(crate) its: Client,
    pub(crate) clusters: BTreeMap<String, Client>,
    /// Longest wait for one step.
    pub(crate) timeout: Duration,
    /// Whether the clusters simulate workloads, so that these get a status.
    pub(crate) simulated: bool,
}

/// The measured times.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// `(what, cluster, since it was applied)`
    pub(crate) delivered: Vec<(String, String, Duration)>,
    pub(crate) statuses: Vec<(String, String, Duration)>,
}

impl Stage {
    /// Applies the manifests to the WDS and verifies each delivery by reading it back from its cluster.
    pub(crate) async fn play(&self, manifests: &Manifests, out: &Printer) -> Result<Report, Failure> {
        let started = Instant::now();
        let mut discovery = discover(&self.wds).await?;
        let mut rules = Vec::new();
        for rule in &manifests.rules {
            rules.push(self.apply(rule, &mut discovery, out).await?);
        }
        let mut targets = Vec::new();
        for object in &manifests.workload {
            let mut target = self.apply(object, &mut discovery, out).await?;
            target.changes_on_the_way = verify::changes_on_the_way(&target, &rules);
            targets.push(target);
        }
        let mut policies = Vec::new();
        for policy in &manifests.policies {
            policies.push(self.apply(policy, &mut discovery, out).await?);
        }
        out.step(
            &format!("{} objects and {} policies created in the WDS", targets.len(), policies.len()),
            Some(started.elapsed()),
        );
        self.verify(&targets, &policies, Instant::now(), out).await
    }

    async fn apply(
        &self,
        object: &DynamicObject,
        discovery: &mut Discovery,
        out: &Printer,
    ) -> Result<Target, Failure> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let what = format!("creating {} {name} in the WDS", kind(object));
        let (resource, capabilities) = self.resolve(object, discovery, &what).await?;
        let namespace = (capabilities.scope == Scope::Namespaced)
            .then(|| object.metadata.namespace.clone().unwrap_or_else(|| "default".into()));
        let (wanted, applied) = (object.clone(), Instant::now());
        let target = Target { resource, namespace, name, wanted, applied, changes_on_the_way: false };
        let api = target.api(self.wds.clone());
        let params = PatchParams::apply(MANAGER).force();
        let spinner = out.spinner(&what);
        let applied = api.patch(&target.name, &params, &Patch::Apply(object)).await;
        if let Some(bar) = spinner {
            bar.finish_and_clear();
        }
        applied.map_err(|error| from_kube(&what, &error))?;
        Ok(target)
    }

    /// Returns the resource of an object's kind. A kind that a CRD has just defined needs a new discovery.
    async fn resolve(
        &self,
        object: &DynamicObject,
        discovery: &mut Discovery,
        what: &str,
    ) -> Result<(ApiResource, ApiCapabilities), Failure> {
        let types = object.types.clone().unwrap_or_default();
        let gvk = GroupVersionKind::try_from(&types).map_err(|e| Failure::new(Exit::Usage, what, e))?;
        if let Some(found) = discovery.resolve_gvk(&gvk) {
            return Ok(found);
        }
        self.wait_established(&gvk).await?;
        *discovery = discover(&self.wds).await?;
        discovery.resolve_gvk(&gvk).ok_or_else(|| {
            Failure::new(
                Exit::NotFound,
                what,
                format!("the WDS does not serve {} {}", types.api_version, types.kind),
            )
            .hint("add its CustomResourceDefinition to the manifests")
        })
    }

    /// Waits for the CRDs of a group to be established, if there are any.
    async fn wait_established(&self, gvk: &GroupVersionKind) -> Result<(), Failure> {
        use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
        let crds: Api<CustomResourceDefinition> = Api::all(self.wds.clone());
        let what = format!("waiting for the definition of {}", gvk.kind);
        let all = crds.list(&kube::api::ListParams::default()).await.map_err(|e| from_kube(&what, &e))?;
        for crd in all.items.iter().filter(|c| c.spec.group == gvk.group && c.spec.names.kind == gvk.kind) {
            let name = crd.metadata.name.clone().unwrap_or_default();
            let source = Source::of::<CustomResourceDefinition>().named(&name);
            let wait = find(&self.wds, &source, |crd| is_established(&crd).then_some(()));
            if tokio::time::timeout(self.timeout, wait).await.is_err() {
                return Err(Failure::new(Exit::TimedOut, what, "it is not established"));
            }
        }
        Ok(())
    }
}

fn is_established(crd: &DynamicObject) -> bool {
    let conditions = crd.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| one["type"] == "Established" && one["status"] == "True")
}

async fn discover(client: &Client) -> Result<Discovery, Failure> {
    Discovery::new(client.clone())
        .run_aggregated()
        .await
        .map_err(|error| from_kube("asking the WDS what it serves", &error))
}

/// The Binding of a policy, as a dynamic resource.
fn bindings() -> ApiResource {
    ApiResource {
        group: CONTROL_GROUP.into(),
        version: "v1alpha1".into(),
        api_version: format!("{CONTROL_GROUP}/v1alpha1"),
        kind: "Binding".into(),
        plural: "bindings".into(),
    }
}
