//! Validates a CompositeController or DecoratorController and builds its parts (MC-140 to MC-142, MC-170,
//! MC-176).

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use apis::metacontroller::{
    AnnotationSelector, COMPOSITE_FINALIZER_PREFIX, ChildResource, CompositeController,
    CompositeParentResource, DECORATOR_FINALIZER_PREFIX, DecoratorController, EndpointConfig, Hook,
};
use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use runtime::{Queue, limiter::Rate};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    composite::{Composite, Rollout},
    decorator::Decorator,
    related::{Related, Wake},
    rolling::Roll,
    shell::{Base, ChildRule, Hooks, ParentRule},
};
use crate::{
    hooks::{HookKind, Settings},
    map::{
        group::Method,
        run::Periods,
        setup::{label_selector, resync_period},
    },
    object::{self, Text},
    resource::Served,
    shared::{FailureReport, Shared, StartError},
};

/// Back-off of a parent, as in the original.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1000));
/// Rate limit of retries, for all parents of a controller together (MC-143).
const RETRIES: Rate = Rate { qps: 10.0, burst: 100 };

struct Parts<'a> {
    kind: &'static str,
    object: &'a Value,
    finalizer_prefix: &'static str,
    hooks: [(HookKind, Option<&'a Hook>); 3],
    endpoints: &'a [EndpointConfig],
    parents: Vec<ParentRule>,
    children: Vec<(Served, Method)>,
}

/// Builds a CompositeController.
pub async fn composite(
    shared: &Arc<Shared>,
    object: &Value,
    shown: Arc<Mutex<Arc<Value>>>,
    stop: CancellationToken,
) -> Result<(Arc<Composite>, Periods), StartError> {
    let controller: CompositeController = read(object)?;
    let spec = &controller.spec;
    let hooks = spec.hooks.as_ref().ok_or_else(|| StartError::hook("no hooks defined".into()))?;
    let parent = &spec.parent_resource;
    // MC-141: a CRD that does not exist yet is waited for. If it has no status subresource, that is reported
    // to the user once. Every try looks again.
    let served = shared.served(&parent.api_version, &parent.resource).await.map_err(StartError::awaited)?;
    if !served.has_status {
        return Err(StartError { failure_report: FailureReport::SyncError, ..StartError::status(&served) });
    }
    let rule = ParentRule {
        cache: shared.caches.get(&served),
        served,
        labels: label_selector(&parent.label_selector)?,
        annotations: LabelSelector::everything(),
        ignore_status: parent.ignore_status_changes.unwrap_or(false),
    };
    let (children, rolls) = children(shared, &spec.child_resources).await?;
    let rollout = rollout(shared, parent, &rule.served, rolls).await?;
    let base = Parts {
        kind: "CompositeController",
        object,
        finalizer_prefix: COMPOSITE_FINALIZER_PREFIX,
        hooks: [
            (HookKind::Sync, hooks.sync.as_ref()),
            (HookKind::Finalize, hooks.finalize.as_ref()),
            (HookKind::Customize, hooks.customize.as_ref()),
        ],
        endpoints: &spec.endpoint_configs,
        parents: vec![rule],
        children,
    };
    let waker = Waker::default();
    let base = base.build(shared, shown, stop, &waker).await?;
    let composite = Arc::new(Composite {
        base,
        generate_selector: spec.generate_selector.unwrap_or(false),
        rollout,
        selectors: Mutex::default(),
    });
    let weak = Arc::downgrade(&composite);
    waker.set(move |uid| wake_composite(&weak, uid));
    Ok((composite, periods(shared, spec.resync_period_seconds)))
}

/// Finds the resources of children, and how they are updated. Of two rules for one kind, the second counts if it updates.
async fn children(
    shared: &Shared,
    rules: &[ChildResource],
) -> Result<(Vec<(Served, Method)>, Vec<Roll>), StartError> {
    let mut children: Vec<(Served, Method)> = Vec::new();
    let mut rolls: Vec<Roll> = Vec::new();
    for child in rules {
        let strategy = child.update_strategy.as_ref();
        let method = strategy.and_then(|strategy| strategy.method.as_deref());
        let checks = strategy.and_then(|strategy| strategy.status_checks.as_ref());
        let roll = Roll {
            rolling: matches!(method, Some("RollingRecreate" | "RollingInPlace")),
            in_place: method == Some("RollingInPlace"),
            checks: checks.map(|checks| checks.conditions.clone()).unwrap_or_default(),
        };
        let served = shared.served(&child.api_version, &child.resource).await?;
        let method = Method::parse(method);
        if let Some(index) = rule_of_same_kind(&children, &served)? {
            if let (Some(known), Some(its_roll)) = (children.get_mut(index), rolls.get_mut(index))
                && method != Method::OnDelete
            {
                (known.1, *its_roll) = (method, roll);
            }
            continue;
        }
        rolls.push(roll);
        children.push((served, method));
    }
    Ok((children, rolls))
}

/// Returns how revisions of a parent are rolled out; `None` if no kind of children is updated one after the other.
async fn rollout(
    shared: &Shared,
    parent: &CompositeParentResource,
    parents: &Served,
    rolls: Vec<Roll>,
) -> Result<Option<Rollout>, StartError> {
    if !rolls.iter().any(|roll| roll.rolling) {
        return Ok(None);
    }
    if !parents.namespaced {
        return Err(StartError::spec("rolling updates need parents with a namespace".into()));
    }
    let served = shared.served("metacontroller.k8s.io/v1alpha1", "controllerrevisions").await?;
    let history = parent.revision_history.as_ref().map(|history| history.field_paths.clone());
    let paths = history.filter(|paths| !paths.is_empty()).unwrap_or_else(|| vec!["spec".into()]);
    Ok(Some(Rollout { rolls, paths, cache: shared.caches.get(&served), served }))
}

/// Builds a DecoratorController.
pub async fn decorator(
    shared: &Arc<Shared>,
    object: &Value,
    shown: Arc<Mutex<Arc<Value>>>,
    stop: CancellationToken,
) -> Result<(Arc<Decorator>, Periods), StartError> {
    let controller: DecoratorController = read(object)?;
    let spec = &controller.spec;
    let hooks = spec.hooks.as_ref().ok_or_else(|| StartError::hook("no hooks defined".into()))?;
    let mut parents: Vec<ParentRule> = Vec::new();
    for resource in &spec.resources {
        let served = shared.served(&resource.api_version, &resource.resource).await?;
        // The last entry counts, as in the original, so that no target is synced twice at a time.
        parents.retain(|known| !same_kind(&known.served, &served));
        parents.push(ParentRule {
            cache: shared.caches.get(&served),
            served,
            labels: label_selector(&resource.label_selector)?,
            annotations: annotation_selector(resource.annotation_selector.as_ref())?,
            ignore_status: resource.ignore_status_changes.unwrap_or(false),
        });
    }
    let mut children: Vec<(Served, Method)> = Vec::new();
    for attachment in &spec.attachments {
        let method = attachment.update_strategy.as_ref().and_then(|strategy| strategy.method.as_deref());
        let served = shared.served(&attachment.api_version, &attachment.resource).await?;
        let method = Method::parse(method);
        match rule_of_same_kind(&children, &served)?.and_then(|index| children.get_mut(index)) {
            Some(known) if method != Method::OnDelete => known.1 = method,
            Some(_) => {}
            None => children.push((served, method)),
        }
    }
    let base = Parts {
        kind: "DecoratorController",
        object,
        finalizer_prefix: DECORATOR_FINALIZER_PREFIX,
        hooks: [
            (HookKind::Sync, hooks.sync.as_ref()),
            (HookKind::Finalize, hooks.finalize.as_ref()),
            (HookKind::Customize, hooks.customize.as_ref()),
        ],
        endpoints: &spec.endpoint_configs,
        parents,
        children,
    };
    let waker = Waker::default();
    let decorator = Arc::new(Decorator(base.build(shared, shown, stop, &waker).await?));
    let weak = Arc::downgrade(&decorator);
    waker.set(move |uid| {
        if let Some(decorator) = weak.upgrade() {
            decorator.0.wake(uid);
        }
    });
    Ok((decorator, periods(shared, spec.resync_period_seconds)))
}

fn same_kind(one: &Served, other: &Served) -> bool {
    (&one.kind, &one.gvr.group) == (&other.kind, &other.gvr.group)
}

/// Returns the earlier rule for the same kind. Two rules would each take the other's objects for undesired
/// and delete them. As in the original, the last method that changes anything counts. Rules in two versions
/// are rejected.
fn rule_of_same_kind(children: &[(Served, Method)], served: &Served) -> Result<Option<usize>, StartError> {
    let Some(index) = children.iter().position(|(known, _)| same_kind(known, served)) else {
        return Ok(None);
    };
    let same = children.get(index).is_some_and(|(known, _)| known.gvr == served.gvr);
    if same {
        Ok(Some(index))
    } else {
        Err(StartError::spec(format!("{} is declared in two versions", served.group_resource())))
    }
}

fn wake_composite(weak: &Weak<Composite>, uid: &Text) {
    if let Some(composite) = weak.upgrade() {
        composite.base.wake(uid);
    }
}

/// Filled once the controller is built, because only then is it known which queue related objects wake.
#[derive(Clone, Default)]
struct Waker(Arc<OnceLock<Wake>>);

impl Waker {
    fn set(&self, wake: impl Fn(&Text) + Send + Sync + 'static) {
        let _ = self.0.set(Arc::new(wake));
    }

    fn as_wake(&self) -> Wake {
        let inner = self.0.clone();
        Arc::new(move |uid| {
            if let Some(wake) = inner.get() {
                wake(uid);
            }
        })
    }
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Result<T, StartError> {
    serde_json::from_value(object.clone())
        .map_err(|error| StartError::spec(format!("the object can't be read: {error}")))
}

fn periods(shared: &Shared, resync: Option<i32>) -> Periods {
    Periods { resync: resync.map(resync_period), flush: shared.flush }
}

/// Parses an annotation selector. Annotation values are free text, which label selectors would reject, so
/// only the operators are checked.
fn annotation_selector(selector: Option<&AnnotationSelector>) -> Result<LabelSelector, StartError> {
    use machinery::selector::{LabelOp, LabelRequirement};
    let Some(selector) = selector else { return Ok(LabelSelector::everything()) };
    let exact = selector.match_annotations.iter().map(|(key, value)| LabelRequirement {
        key: key.clone(),
        op: LabelOp::Equals,
        values: std::iter::once(value.clone()).collect(),
    });
    let mut requirements: Vec<_> = exact.collect();
    for one in &selector.match_expressions {
        let op = match (one.operator.as_str(), one.values.is_empty()) {
            ("In", false) => LabelOp::In,
            ("NotIn", false) => LabelOp::NotIn,
            ("Exists", true) => LabelOp::Exists,
            ("DoesNotExist", true) => LabelOp::DoesNotExist,
            _ => {
                let shown = json!({"key": one.key, "operator": one.operator, "values": one.values});
                return Err(StartError::spec(format!("annotationSelector: {shown} is no test")));
            }
        };
        requirements.push(LabelRequirement {
            key: one.key.clone(),
            op,
            values: one.values.iter().cloned().collect(),
        });
    }
    Ok(LabelSelector::from_requirements(requirements))
}

impl Parts<'_> {
    async fn build(
        self,
        shared: &Arc<Shared>,
        shown: Arc<Mutex<Arc<Value>>>,
        stop: CancellationToken,
        waker: &Waker,
    ) -> Result<Base, StartError> {
        let name = object::name(self.object);
        let mut hooks = Hooks::default();
        for (kind, hook) in self.hooks {
            let Some(hook) = hook else { continue };
            let settings = Settings::read(kind, hook, self.endpoints).map_err(StartError::hook)?;
            let fields = kind.answer_fields(self.kind == "DecoratorController");
            let client = Some(shared.hook_client((self.kind, name), settings, fields).await?);
            match kind {
                HookKind::Finalize => hooks.finalize = client,
                HookKind::Customize => hooks.customize = client,
                _ => hooks.sync = client,
            }
        }
        let related = hooks.customize.clone().map(|hook| Related::new(shared.clone(), hook, waker.as_wake()));
        let (child_resources, methods): (Vec<_>, Vec<_>) = self.children.into_iter().unzip();
        let children = child_resources.iter().zip(methods);
        Ok(Base {
            kind: self.kind,
            name: name.into(),
            object: shown,
            finalizer: format!("{}{name}", self.finalizer_prefix),
            shared: shared.clone(),
            children: children
                .map(|(served, method)| ChildRule { cache: shared.caches.get(served), method })
                .collect(),
            child_resources,
            parents: self.parents,
            hooks,
            related,
            queue: Queue::new(RETRY.0, RETRY.1)
                .limited(RETRIES)
                .observed(shared.metrics.queue((self.kind, name))),
            stop,
            started: AtomicBool::default(),
            rate_limits: Mutex::default(),
            runs: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }
}
