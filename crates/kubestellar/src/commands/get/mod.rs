//! `kubestellar get` (SP-119).

pub(crate) mod hindrance;
pub(crate) mod matrix;
pub(crate) mod picture;
pub(crate) mod spaces;

use std::collections::{BTreeMap, BTreeSet};

use apis::control::{Binding, BindingPolicy, WorkStatus};
use apis::ocm::ManifestWork;
use clap::Subcommand;
use futures::future::try_join_all;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use runtime::mapper::Mapper;
use runtime::rest::Gvr;
use serde_json::{Value, json};

use self::matrix::{Delivery, Row};
use self::picture::{Object, Picture, labels, objects};
use self::spaces::{SpaceArgs, Spaces};
use crate::contexts::Sources;
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::{Format, Printer};

/// Show what is where.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar get status my-policy\n  kubestellar get status my-policy -o wide"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    view: View,
}

#[derive(Debug, Subcommand)]
enum View {
    Status(StatusArgs),
}

/// Show each object of a policy in each of its clusters.
///
/// Read from the policy's Binding, and from the ManifestWorks and WorkStatuses of its clusters.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar get status my-policy                objects by clusters\n  kubestellar get status my-policy -o wide        a line for each, with messages\n  kubestellar get status -o json                  all policies\n  kubestellar get status my-policy --exit-code && echo delivered\n\nExit codes: 0 done, 3 no such policy or context, 6 a space can't be reached, 7 not allowed, 9 not all applied (--exit-code)"
)]
struct StatusArgs {
    /// Policies to show [default: all]
    #[arg(value_name = "POLICY")]
    policies: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Exit with 9 unless the policy is ready, every object is applied in every cluster and there are no errors
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    spaces: SpaceArgs,
}

pub(crate) async fn run(args: &Args, sources: &Sources, out: &Printer) -> Result<Exit, Failure> {
    let View::Status(args) = &args.view;
    let spaces = Spaces::open(&args.spaces, sources).await?;
    let names = if args.policies.is_empty() { all_policies(&spaces).await? } else { args.policies.clone() };
    let deliveries = try_join_all(names.iter().map(|name| delivery(&spaces, name))).await?;
    print(args, &deliveries, out)?;
    let done = deliveries.iter().all(Delivery::is_done);
    Ok(if args.exit_code && !done { Exit::NotInState } else { Exit::Done })
}

async fn all_policies(spaces: &Spaces) -> Result<Vec<String>, Failure> {
    let policies: Api<BindingPolicy> = Api::all(spaces.wds.clone());
    let list =
        policies.list(&ListParams::default()).await.map_err(|e| from_kube("listing the policies", &e))?;
    Ok(list.iter().map(ResourceExt::name_any).collect())
}

fn print(args: &StatusArgs, all: &[Delivery], out: &Printer) -> Result<(), Failure> {
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    match args.output {
        Format::Json | Format::Yaml => {
            let mut items = all.iter().map(document);
            let document = match args.policies.len() {
                1 => items.next().unwrap_or_default(),
                _ => json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()}),
            };
            out.document(&document, args.output)?;
        }
        Format::Name => {
            let names: Vec<_> = all.iter().map(Delivery::names).filter(|names| !names.is_empty()).collect();
            if !names.is_empty() {
                out.result(&names.join("\n"));
            }
        }
        Format::Table | Format::Wide => {
            let texts = all.iter().map(|it| {
                let text = if args.output == Format::Wide { it.wide(now) } else { it.matrix() };
                if all.len() == 1 { text } else { format!("POLICY {}\n{text}", it.policy) }
            });
            let text = texts.collect::<Vec<_>>().join("\n\n");
            if text.is_empty() {
                out.note("no policies found");
            } else {
                out.result(&text);
            }
            all.iter().flat_map(Delivery::remarks).for_each(|remark| out.note(&remark));
        }
    }
    Ok(())
}

fn document(delivery: &Delivery) -> Value {
    let mut document = json!({"apiVersion": "cli.kubestellar.io/v1alpha1", "kind": "DeliveryStatus"});
    if let (Some(document), Ok(Value::Object(facts))) =
        (document.as_object_mut(), serde_json::to_value(delivery))
    {
        document.extend(facts);
    }
    document
}

/// Reads the facts about one policy, with 5 requests and one for each API version of its objects.
async fn delivery(spaces: &Spaces, name: &str) -> Result<Delivery, Failure> {
    let what = || format!("reading policy {name} in {}", spaces.wds_context);
    let policies: Api<BindingPolicy> = Api::all(spaces.wds.clone());
    let bindings: Api<Binding> = Api::all(spaces.wds.clone());
    let policy = policies.get_opt(name).await.map_err(|e| from_kube(what(), &e))?;
    let binding = bindings.get_opt(name).await.map_err(|e| from_kube(what(), &e))?;
    if policy.is_none() && binding.is_none() {
        return Err(Failure::new(Exit::NotFound, what(), "no such BindingPolicy")
            .hint(format!("kubectl --context {} get bindingpolicies", spaces.wds_context)));
    }
    let status = binding.as_ref().and_then(|it| it.status.as_ref());
    let mut delivery = Delivery::of(name, &spaces.wds_name, policy.as_ref(), status);
    let Some(binding) = binding else { return Ok(delivery) };
    let kinds = Kinds::of(&spaces.wds, &binding).await?;
    let (works, reports) = mailboxes(spaces, name).await?;
    let errors = binding.status.as_ref().map(|it| it.errors.as_slice()).unwrap_or_default();
    let picture = Picture::new(&works, &reports, errors);
    delivery.clusters = binding.spec.destinations.iter().map(|it| it.cluster_id.clone()).collect();
    delivery.clusters.sort();
    delivery.objects = objects(&binding.spec, |group, version, resource| kinds.get(group, version, resource))
        .into_iter()
        .map(|object| row(object, &delivery.clusters, &picture))
        .collect();
    Ok(delivery)
}

fn row(object: Object, clusters: &[String], picture: &Picture<'_>) -> Row {
    let cells = clusters.iter().map(|cluster| picture.cell(&object, cluster)).collect();
    Row { object, clusters: cells }
}

/// The ManifestWorks and WorkStatuses of a policy, in all mailboxes.
pub(crate) async fn mailboxes(
    spaces: &Spaces,
    binding: &str,
) -> Result<(Vec<ManifestWork>, Vec<WorkStatus>), Failure> {
    let params = ListParams::default().labels(&labels(binding, &spaces.wds_name));
    let works: Api<ManifestWork> = Api::all(spaces.its.clone());
    let works = works.list(&params).await.map_err(|e| from_kube("listing the ManifestWorks", &e))?;
    let reports: Api<WorkStatus> = Api::all(spaces.its.clone());
    let reports = match reports.list(&params).await {
        Ok(list) => list.items,
        // Without the status add-on nothing is reported.
        Err(error) if runtime::failure::is_not_found(&error) => Vec::new(),
        Err(error) => return Err(from_kube("listing the WorkStatuses", &error)),
    };
    Ok((works.items, reports))
}

/// Kinds of resources.
struct Kinds(BTreeMap<(String, String, String), String>);

impl Kinds {
    async fn of(wds: &Client, binding: &Binding) -> Result<Self, Failure> {
        let listed = objects(&binding.spec, |_, _, _| String::new());
        let resources: BTreeSet<_> =
            listed.into_iter().map(|it| (it.group, it.version, it.resource)).collect();
        let (mapper, mut kinds) = (Mapper::new(wds.clone()), BTreeMap::new());
        for (group, version, resource) in resources {
            let gvr = Gvr::new(&group, &version, &resource);
            let found = mapper.by_resource(&gvr).await.map_err(|e| from_kube("discovering resources", &e))?;
            if let Some(found) = found {
                kinds.insert((group, version, resource), found.kind);
            }
        }
        Ok(Self(kinds))
    }

    fn get(&self, group: &str, version: &str, resource: &str) -> String {
        let key = (group.to_owned(), version.to_owned(), resource.to_owned());
        self.0.get(&key).cloned().unwrap_or_default()
    }
}
