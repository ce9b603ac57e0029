//! Validates a MapController (MC-003) and builds its parts.

use std::{collections::HashSet, sync::Arc, time::Duration};

use apis::metacontroller::{MapController, MapControllerSpec};
use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    group::Method,
    mapping::{Exists, InputRule, Mapping, OutputRule},
    run::{Periods, Running},
    work::Worker,
};
use crate::{
    hooks::{HookClient, HookKind, Settings},
    object,
    resource::{Served, group_resource, gvr},
    shared::{Shared, StartError},
};

/// The result of the validation.
struct Plan {
    parent: Served,
    inputs: Vec<Served>,
    outputs: Vec<Served>,
}

/// The hooks of a running MapController.
pub struct Hooks {
    /// Returns the desired outputs of an input.
    pub map: Arc<HookClient>,
    /// Returns the outputs to keep when the input is gone.
    pub tombstone: Option<Arc<HookClient>>,
}

/// Builds a MapController. Cost: some discovery requests, and one read for each Secret.
///
/// # Errors
///
/// Why the controller cannot be started.
pub async fn prepare(
    shared: &Arc<Shared>,
    object: &Value,
    exists: Exists,
    shown: Arc<Mutex<Arc<Value>>>,
    stop: CancellationToken,
) -> Result<(Arc<Running>, Periods, Hooks), StartError> {
    let controller: MapController = serde_json::from_value(object.clone())
        .map_err(|error| StartError::spec(format!("the object can't be read: {error}")))?;
    let spec = &controller.spec;
    check_duplicates(spec)?;
    let selector = label_selector(&spec.parent_resource.label_selector)?;
    let map = hook(spec, HookKind::Map)?.ok_or_else(|| StartError::hook("hooks.map is missing".into()))?;
    let tombstone = hook(spec, HookKind::Tombstone)?;
    let plan = resources(shared, spec).await?;
    check_scope(&plan)?;
    let name = object::name(object);
    let client = async |settings: Settings| -> Result<Arc<HookClient>, StartError> {
        let fields = settings.kind.answer_fields(false);
        shared.hook_client(("MapController", name), settings, fields).await
    };
    let hooks = Hooks {
        map: client(map).await?,
        tombstone: match tombstone {
            Some(settings) => Some(client(settings).await?),
            None => None,
        },
    };
    let ignores =
        |index: usize| spec.input_resources.get(index).is_some_and(|rule| rule.ignore_status_changes);
    let method = |index: usize| {
        let rule = spec.output_resources.get(index).and_then(|rule| rule.update_strategy.as_ref());
        Method::parse(rule.and_then(|strategy| strategy.method.as_deref()))
    };
    let mapping = Mapping {
        name: name.into(),
        object: shown,
        parent_cache: shared.caches.get(&plan.parent),
        parent: plan.parent,
        parent_selector: selector,
        inputs: plan
            .inputs
            .into_iter()
            .enumerate()
            .map(|(index, served)| InputRule {
                cache: shared.caches.get(&served),
                served,
                ignore_status: ignores(index),
            })
            .collect(),
        outputs: plan
            .outputs
            .iter()
            .enumerate()
            .map(|(index, served)| OutputRule { cache: shared.caches.get(served), method: method(index) })
            .collect(),
        output_resources: plan.outputs,
        parents: Mutex::default(),
        exists,
    };
    let worker = Worker {
        mapping: Arc::new(mapping),
        map: hooks.map.clone(),
        tombstone: hooks.tombstone.clone(),
        writer: shared.writer.clone(),
        events: shared.events.clone(),
        board: shared.board.clone(),
        stop,
    };
    let parallelism =
        spec.parallelism.and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=256).contains(n));
    let queue = shared.metrics.queue(("MapController", name));
    let running = Running::new(worker, parallelism.unwrap_or(shared.workers), queue);
    let periods = Periods { resync: spec.resync_period_seconds.map(resync_period), flush: shared.flush };
    Ok((running, periods, hooks))
}

/// Durations below a second count as a second.
pub fn resync_period(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(1).max(1))
}

/// Parses a label selector of a spec; an absent one selects all.
pub fn label_selector(selector: &Value) -> Result<LabelSelector, StartError> {
    if selector.is_null() {
        return Ok(LabelSelector::everything());
    }
    LabelSelector::from_object(selector).map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        StartError::spec(format!("labelSelector: {}", errors.join(", ")))
    })
}

fn hook(spec: &MapControllerSpec, kind: HookKind) -> Result<Option<Settings>, StartError> {
    let hook = if kind == HookKind::Map { &spec.hooks.map } else { &spec.hooks.tombstone };
    hook.as_ref()
        .map(|hook| Settings::read(kind, hook, &spec.endpoint_configs).map_err(StartError::hook))
        .transpose()
}

/// MC-003.2, MC-003.3.
fn check_duplicates(spec: &MapControllerSpec) -> Result<(), StartError> {
    let id = |api_version: &str, resource: &str| {
        let gvr = gvr(api_version, resource);
        group_resource(&gvr.group, &gvr.plural)
    };
    if spec.input_resources.is_empty() || spec.output_resources.is_empty() {
        return Err(StartError::spec("inputResources and outputResources must not be empty".into()));
    }
    let mut seen = HashSet::new();
    for rule in &spec.input_resources {
        let id = id(&rule.api_version, &rule.resource);
        if !seen.insert(id.clone()) {
            return Err(StartError::spec(format!("inputResources has {id} twice")));
        }
    }
    let parent = id(&spec.parent_resource.api_version, &spec.parent_resource.resource);
    let mut seen = HashSet::new();
    for rule in &spec.output_resources {
        let id = id(&rule.api_version, &rule.resource);
        if id == parent {
            return Err(StartError::spec(format!("outputResources has {id}, the resource of the parents")));
        }
        if !seen.insert(id.clone()) {
            return Err(StartError::spec(format!("outputResources has {id} twice")));
        }
    }
    Ok(())
}

/// MC-003.1, MC-003.5.
async fn resources(shared: &Shared, spec: &MapControllerSpec) -> Result<Plan, StartError> {
    let parent = shared.served(&spec.parent_resource.api_version, &spec.parent_resource.resource).await?;
    if !parent.has_status {
        return Err(StartError::status(&parent));
    }
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for rule in &spec.input_resources {
        inputs.push(shared.served(&rule.api_version, &rule.resource).await?);
    }
    for rule in &spec.output_resources {
        outputs.push(shared.served(&rule.api_version, &rule.resource).await?);
    }
    Ok(Plan { parent, inputs, outputs })
}

/// MC-003.4.
fn check_scope(plan: &Plan) -> Result<(), StartError> {
    let wide = plan.outputs.iter().find(|served| plan.parent.namespaced && !served.namespaced);
    match wide {
        Some(served) => Err(StartError::spec(format!(
            "{} is cluster-scoped and can't be owned by {}, which has a namespace",
            served.group_resource(),
            plan.parent.group_resource(),
        ))),
        None => Ok(()),
    }
}
