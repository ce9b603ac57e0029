//! `kubestellar explain` (SP-120).

mod find;
mod verdict;

use std::sync::Arc;

use apis::control::{Binding, BindingPolicy, BindingSpec};
use apis::ocm::ManagedCluster;
use controller_manager::binding::matching::Labels;
use controller_manager::binding::resources::{AllowedGroups, can_watch, is_watched};
use controller_manager::identity::{GroupResource, ObjectId};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use runtime::PartialObject;
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};

use self::find::{Named, Served, choose, served, unknown};
use self::verdict::{Explanation, Opinion, Subject, labels, opinions};
use super::get::mailboxes;
use super::get::picture::{Object, Picture};
use super::get::spaces::{SpaceArgs, Spaces};
use crate::contexts::Sources;
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::{Format, Printer};

/// Explain why an object is, or is not, on a cluster.
///
/// Tells which policies match it and by which clause, or the first criterion that is not met; which clusters they
/// select; and what transport and cluster said about it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar explain deploy/web -n shop\n  kubestellar explain deploy web -n shop\n  kubestellar explain ns/shop -o json\n  kubestellar explain rockets.space.example/saturn -n shop --wds wds2\n\nExit codes: 0 it is where it should be, 3 no such object, kind or context, 6 a space can't be reached, 7 not allowed, 9 not everywhere it should be"
)]
pub(crate) struct Args {
    /// The object: kind, plural or short name, perhaps with its API group, and name; as one word or as two
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    object: Vec<String>,
    /// Namespace of the object [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    spaces: SpaceArgs,
}

pub(crate) async fn run(args: &Args, sources: &Sources, out: &Printer) -> Result<Exit, Failure> {
    let asked =
        Named::of(&args.object).map_err(|why| Failure::new(Exit::Usage, "reading the arguments", why))?;
    let spaces = Spaces::open(&args.spaces, sources).await?;
    let all = served(&spaces.wds).await?;
    let resource = choose(&all, &asked.kind).ok_or_else(|| unknown(&asked.kind, &spaces.wds_context))?;
    let place = match (&args.namespace, resource.namespaced) {
        (_, false) => "",
        (Some(namespace), true) => namespace,
        (None, true) => "default",
    };
    let object = live(&spaces, resource, place, &asked.name).await?;
    let told = explain(&spaces, resource, &object).await?;
    match args.output {
        Format::Json | Format::Yaml => out.document(&document(&told), args.output)?,
        Format::Name => out.result(&told.subject.object.argument()),
        Format::Table | Format::Wide => {
            out.result(&told.text(k8s_openapi::jiff::Timestamp::now().as_second()));
        }
    }
    Ok(if told.is_delivered() { Exit::Done } else { Exit::NotInState })
}

fn document(told: &Explanation) -> Value {
    let mut document = json!({
        "apiVersion": "cli.kubestellar.io/v1alpha1", "kind": "Explanation",
        "verdict": told.verdict(), "delivered": told.is_delivered(),
    });
    if let (Some(document), Ok(Value::Object(facts))) = (document.as_object_mut(), serde_json::to_value(told))
    {
        document.extend(facts);
    }
    document
}

async fn live(
    spaces: &Spaces,
    resource: &Served,
    namespace: &str,
    name: &str,
) -> Result<PartialObject, Failure> {
    let gvr = Gvr::new(&resource.group, &resource.version, &resource.plural);
    let what = format!("reading {}/{name} in {}", resource.plural, spaces.wds_context);
    let found = Rest::new(spaces.wds.clone()).find(&gvr, namespace, name).await;
    found.map_err(|error| from_kube(what.as_str(), &error))?.ok_or_else(|| {
        let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
        let missing = Failure::new(Exit::NotFound, what, format!("there is no such object{place}"));
        let list = format!("kubectl --context {} get {} -A", spaces.wds_context, resource.plural);
        if resource.namespaced {
            missing.hint(format!("name its namespace with -n; `{list}` lists all"))
        } else {
            missing
                .hint(format!("`kubectl --context {} get {}` lists all", spaces.wds_context, resource.plural))
        }
    })
}

/// Reads the facts: the policies, the clusters, the Namespace, and for each matching policy its Binding and
/// its mailboxes.
async fn explain(spaces: &Spaces, resource: &Served, object: &PartialObject) -> Result<Explanation, Failure> {
    let meta = &object.metadata;
    let policies: Api<BindingPolicy> = Api::all(spaces.wds.clone());
    let policies = policies.list(&ListParams::default()).await;
    let policies = policies.map_err(|e| from_kube("listing the policies", &e))?;
    let clusters: Api<ManagedCluster> = Api::all(spaces.its.clone());
    let clusters = clusters.list_metadata(&ListParams::default()).await;
    let clusters = clusters.map_err(|e| from_kube("listing the clusters", &e))?;
    let namespace = namespace_labels(spaces, &meta.namespace).await?;
    let id = ObjectId::new(
        Arc::new(GroupResource::new(&resource.group, &resource.plural)),
        &meta.namespace,
        &meta.name,
    );
    let about = Object {
        group: resource.group.clone(),
        version: resource.version.clone(),
        resource: resource.plural.clone(),
        kind: resource.kind.clone(),
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
    };
    let mut opinions = opinions(&policies.items, &clusters.items, &id, &meta.labels, namespace.as_ref());
    for opinion in opinions.iter_mut().filter(|it| it.matches) {
        deliveries(spaces, &about, opinion).await?;
    }
    let pairs = meta.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let subject = Subject {
        excluded: excluded(resource),
        deleting: meta.deletion_timestamp.is_some(),
        labels: pairs.collect(),
        object: about,
    };
    Ok(Explanation { subject, policies: opinions })
}

/// Adds the state of the object under a policy that matches it.
async fn deliveries(spaces: &Spaces, object: &Object, opinion: &mut Opinion) -> Result<(), Failure> {
    let bindings: Api<Binding> = Api::all(spaces.wds.clone());
    let binding = bindings.get_opt(&opinion.policy).await;
    let binding = binding.map_err(|e| from_kube(format!("reading the Binding {}", opinion.policy), &e))?;
    opinion.bound = binding.as_ref().is_some_and(|it| lists(&it.spec, object));
    let (works, reports) = mailboxes(spaces, &opinion.policy).await?;
    let status = binding.as_ref().and_then(|it| it.status.as_ref());
    opinion.current = binding
        .as_ref()
        .is_none_or(|binding| status.map(|status| status.observed_generation) == binding.metadata.generation);
    let errors = status.map(|it| it.errors.as_slice()).unwrap_or_default();
    let picture = Picture::new(&works, &reports, errors);
    opinion.deliveries = opinion.clusters.iter().map(|cluster| picture.cell(object, cluster)).collect();
    Ok(())
}

fn lists(spec: &BindingSpec, object: &Object) -> bool {
    let Object { group, resource, namespace, name, .. } = object;
    spec.entries().any(|entry| entry.place() == [group, resource, namespace, name])
}

async fn namespace_labels(spaces: &Spaces, name: &str) -> Result<Option<Labels>, Failure> {
    if name.is_empty() {
        return Ok(None);
    }
    let namespaces: Api<Namespace> = Api::all(spaces.wds.clone());
    let found = namespaces.get_metadata_opt(name).await;
    let found = found.map_err(|e| from_kube(format!("reading the Namespace {name}"), &e))?;
    Ok(found.map(|it| labels(it.labels())))
}

/// KS-031.
fn excluded(resource: &Served) -> Option<String> {
    let id = GroupResource::new(&resource.group, &resource.plural);
    if !can_watch(&resource.verbs) {
        return Some(format!("{id} can't be listed and watched"));
    }
    (!is_watched(&id, &AllowedGroups::default())).then(|| format!("{id} are never delivered"))
}
