//! Processes one item: calls the hook and applies its answer (MC-040 to MC-068, MC §2.13).

use std::{collections::HashSet, sync::Arc, time::Duration};

use runtime::{events::Events, rest::Rest};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, MapAnswerContext, OutputRef},
    group::{self, MapContext, Write},
    mapping::{Group, Item, Mapping, ParentClusterView, Reason, Verdict},
};
use crate::{
    cache::{ExpectedEvent, ObjectState},
    hooks::{Call, HookClient, HookError, HookKind},
    lanes::Outcome,
    object::{self, Object},
    status_board::StatusBoard,
    wire::object_map,
    writes::{Refused, Writer},
};

/// Failures of a parent are reported at most once in this time (MC-074).
const TELL: Duration = Duration::from_secs(10);
/// Longest wait until the watch reports our own writes; after that the item continues with what is known.
const CATCH_UP: Duration = Duration::from_secs(15);

/// Processes the items of one MapController.
pub struct Worker {
    pub mapping: Arc<Mapping>,
    pub map: Arc<HookClient>,
    pub tombstone: Option<Arc<HookClient>>,
    pub writer: Arc<Writer>,
    pub events: Events,
    pub board: Arc<StatusBoard>,
    pub stop: CancellationToken,
}

/// The outcome of an item, the events that its writes will cause, and the states that it knew.
pub struct Done {
    pub outcome: Outcome,
    pub expected: Vec<(usize, ExpectedEvent)>,
    /// The states in the request to the hook, and those created exactly as the hook answered.
    pub known: Vec<ObjectState>,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, expected: Vec::new(), known: Vec::new() }
    }
}

/// Why an item failed.
enum Failure {
    Hook(HookKind, HookError),
    Writes(Vec<String>),
    /// An Event has reported the failure already.
    Reported,
}

/// Why a write was not done.
enum WriteError {
    /// The reason, for the Event about the parent.
    Refused(String),
    /// The object belongs to another owner. An Event has reported that already.
    Conflict,
}

impl Worker {
    /// Runs an item. All its effects are done when this returns.
    pub async fn run(&self, item: &Item) -> Done {
        let (uid, _) = item;
        let done = match self.mapping.judge(item) {
            Verdict::Drop | Verdict::Invalid => Outcome::Forget.into(),
            Verdict::Empty => {
                self.settle(item, Ok(()));
                Outcome::Forget.into()
            }
            Verdict::TooDeep { parent, input } => self.too_deep(item, &parent, &input),
            Verdict::Live { parent, input, group } => self.live(item, &parent, &input, &group).await,
            Verdict::Detached { parent, reason, group } => self.detached(item, &parent, reason, &group).await,
        };
        if let Some(key) = self.mapping.parents.lock().get(uid).map(|parent| parent.key.clone()) {
            self.board.touch(&self.mapping.parent, &key, uid);
        }
        done
    }

    fn too_deep(&self, item: &Item, parent: &Object, input: &Object) -> Done {
        let what = object::display(&input.key().namespace, &input.key().name);
        let text =
            format!("{} {what} was made of inputs too often and is not mapped", object::kind(&input.value));
        self.events.warning(&parent.value, "RecursionLimit", text);
        self.settle(item, Err(()));
        // Waiting does not repair this failure: the item runs again with its next change.
        Outcome::Done { again_after: None }.into()
    }

    async fn live(&self, item: &Item, parent: &Arc<Object>, input: &Arc<Object>, seen: &Group) -> Done {
        let about = ("input", object::without_managed_fields(&input.value));
        let request = self.request(&self.map, item, parent, seen, about);
        let answer = match self.ask(&self.map, item, &request).await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => return self.hook_failed(item, parent, HookKind::Map, error),
            None => return Outcome::Forget.into(),
        };
        let shown_input = ObjectState::of(&input.value);
        let context = self.context(parent, object::namespace(&input.value));
        let mapped = match answer::mapped(context, &answer) {
            Ok(mapped) => mapped,
            Err(invalid) => return self.invalid(item, parent, &self.map, invalid.0),
        };
        // Objects may have changed during the hook call (MC-045).
        let (parent, input, group) = match self.mapping.judge(item) {
            Verdict::Live { parent: now, input: there, group }
                if now.uid() == parent.uid() && there.uid() == input.uid() =>
            {
                (now, there, group)
            }
            Verdict::Drop | Verdict::Invalid => return Outcome::Forget.into(),
            _ => return Outcome::Stale.into(),
        };
        let (view, map_context) = self.cluster_view(item, &parent.value, &input.value);
        let server_side = self.writer.strategy().is_server_side();
        let method = |rule: usize| self.mapping.outputs.get(rule).map(|rule| rule.method).unwrap_or_default();
        let mut writes = group::plan(map_context, &mapped.outputs, &group, method, server_side, &view);
        // The hook's answer says nothing about outputs that were not in its request, so they are not deleted.
        let shown: HashSet<&str> = seen.iter().map(|(_, object)| object.uid()).collect();
        writes.retain(|write| !matches!(write, Write::Delete { uid, .. } if !shown.contains(uid.as_str())));
        let (expected, failure) = self.carry_out(map_context, &view, writes).await;
        let mut done = self.finish(item, &parent, expected, failure, mapped.again_after);
        done.known.push(shown_input);
        done.known.extend(seen.iter().map(|(_, object)| ObjectState::of(&object.value)));
        done
    }

    async fn detached(&self, item: &Item, parent: &Arc<Object>, reason: Reason, group: &Group) -> Done {
        let going = group::deletions(group, |_| true);
        if going.is_empty() {
            self.settle(item, Ok(()));
            return Outcome::Done { again_after: None }.into();
        }
        let (mut writes, mut again_after) = (going, None);
        if let Some(hook) = &self.tombstone {
            let request = self.request(hook, item, parent, group, ("reason", reason.as_str().into()));
            let answer = match self.ask(hook, item, &request).await {
                Some(Ok(answer)) => answer,
                Some(Err(error)) => return self.hook_failed(item, parent, HookKind::Tombstone, error),
                None => return Outcome::Forget.into(),
            };
            let namespace = item.1.parts().map_or("", |parts| parts.namespace);
            match answer::kept(self.context(parent, namespace), &answer) {
                Ok((kept, after)) => {
                    writes.retain(
                        |write| !matches!(write, Write::Delete { place, .. } if kept.contains(place)),
                    );
                    again_after = after;
                }
                Err(invalid) => return self.invalid(item, parent, hook, invalid.0),
            }
        }
        // If the input is back, nothing may be deleted (MC-065).
        match self.mapping.judge(item) {
            Verdict::Detached { parent: now, .. } if now.uid() == parent.uid() => {}
            Verdict::Drop | Verdict::Invalid => return Outcome::Forget.into(),
            _ => return Outcome::Stale.into(),
        }
        let (view, map_context) = self.cluster_view(item, &parent.value, &Value::Null);
        let (expected, failure) = self.carry_out(map_context, &view, writes).await;
        self.finish(item, parent, expected, failure, again_after)
    }

    fn context<'a>(&'a self, parent: &'a Arc<Object>, input_namespace: &'a str) -> MapAnswerContext<'a> {
        MapAnswerContext { outputs: &self.mapping.output_resources, parent: &parent.value, input_namespace }
    }

    /// Builds a request, with the one field that only this hook's requests have (MC-040, MC §2.9).
    fn request(
        &self,
        hook: &HookClient,
        (_, key): &Item,
        parent: &Object,
        group: &Group,
        (field, about): (&str, Value),
    ) -> Value {
        let mut request = json!({
            "controller": *self.mapping.object.lock().clone(),
            "parent": object::without_managed_fields(&parent.value),
            "mapKey": key.as_str(),
            "outputs": self.outputs(hook, parent, group),
        });
        request[field] = about;
        request
    }

    /// Returns what the plan for an item needs: the view of other objects, and the context.
    fn cluster_view<'a>(
        &'a self,
        (_, key): &'a Item,
        parent: &'a Value,
        input: &'a Value,
    ) -> (ParentClusterView<'a>, MapContext<'a>) {
        let view = ParentClusterView { mapping: &self.mapping, parent };
        (view, MapContext { controller: &self.mapping.name, parent, key, input })
    }

    fn outputs(&self, hook: &HookClient, parent: &Object, group: &Group) -> Value {
        let all = self.mapping.output_resources.iter().enumerate().map(|(index, served)| {
            let of_rule = group.iter().filter(|(rule, _)| *rule == index);
            (served, of_rule.map(|(_, object)| object::without_managed_fields(&object.value)).collect())
        });
        object_map(hook.settings().version, object::namespace(&parent.value), all)
    }

    /// Calls the hook. Returns `None` when the controller stops.
    async fn ask(
        &self,
        hook: &HookClient,
        item: &Item,
        body: &Value,
    ) -> Option<Result<Arc<Value>, HookError>> {
        let key = (hook.settings().kind, item.0.clone(), item.1.as_str().into());
        tokio::select! {
            answer = hook.call(Call { key, body }) => Some(answer),
            () = self.stop.cancelled() => None,
        }
    }

    fn invalid(&self, item: &Item, parent: &Object, hook: &HookClient, why: String) -> Done {
        let error = HookError::Validation(why);
        hook.metrics().failed(&error);
        self.hook_failed(item, parent, hook.settings().kind, error)
    }

    fn hook_failed(&self, item: &Item, parent: &Object, kind: HookKind, error: HookError) -> Done {
        self.settle(item, Err(()));
        if let HookError::TooManyRequests(Some(pause)) = error {
            return Outcome::RunAfter(pause).into();
        }
        if !matches!(error, HookError::TooManyRequests(None)) {
            self.report_failure(item, parent, &Failure::Hook(kind, error));
        }
        Outcome::Failed.into()
    }

    fn finish(
        &self,
        item: &Item,
        parent: &Object,
        expected: Vec<(usize, ExpectedEvent)>,
        failure: Option<Failure>,
        again_after: Option<f64>,
    ) -> Done {
        let outcome = match failure {
            None => {
                self.settle(item, Ok(()));
                let pause = again_after.and_then(|secs| Duration::try_from_secs_f64(secs).ok());
                Outcome::Done { again_after: pause }
            }
            Some(failure) => {
                self.settle(item, Err(()));
                self.report_failure(item, parent, &failure);
                Outcome::Failed
            }
        };
        let echo = |(_, expected): &(usize, ExpectedEvent)| match expected {
            ExpectedEvent::Version { echo, .. } => echo.clone(),
            ExpectedEvent::Gone { .. } => None,
        };
        let known = expected.iter().filter_map(echo).collect();
        Done { outcome, expected, known }
    }

    /// Records the outcome of a run.
    fn settle(&self, (uid, key): &Item, outcome: Result<(), ()>) {
        let mut parents = self.mapping.parents.lock();
        let Some(parent) = parents.get_mut(uid) else { return };
        parent.pending.remove(key);
        match outcome {
            Ok(()) => parent.failed.remove(key),
            Err(()) => parent.failed.insert(key.clone()),
        };
    }

    /// Emits at most one Event for a parent in ten seconds (MC-074).
    fn report_failure(&self, (uid, key): &Item, parent: &Object, failure: &Failure) {
        let failing = {
            let mut parents = self.mapping.parents.lock();
            let Some(known) = parents.get_mut(uid) else { return };
            let now = Instant::now();
            if matches!(failure, Failure::Reported)
                || known.reported.is_some_and(|reported| now < reported + TELL)
            {
                return;
            }
            known.reported = Some(now);
            known.failed.len().max(1)
        };
        let message = match failure {
            Failure::Hook(kind, error) => {
                format!("{} hook failed for {failing} input(s); {key}: {error}", kind.as_str())
            }
            Failure::Writes(texts) => format!("Sync error: {key}: {}", texts.join("; ")),
            Failure::Reported => return,
        };
        self.events.warning(&parent.value, "SyncError", message);
    }

    /// Does the writes in their order; a refused write does not stop the others (MC-050).
    async fn carry_out(
        &self,
        map_context: MapContext<'_>,
        view: &ParentClusterView<'_>,
        writes: Vec<Write>,
    ) -> (Vec<(usize, ExpectedEvent)>, Option<Failure>) {
        let (mut expected, mut errors, mut reported) = (Vec::new(), Vec::new(), false);
        for write in writes {
            let rule = place(&write).rule;
            match self.write(map_context, view, write).await {
                Ok(Some(one)) => expected.push((rule, one)),
                Ok(None) => {}
                Err(WriteError::Refused(text)) => errors.push(text),
                Err(WriteError::Conflict) => reported = true,
            }
        }
        let failure = match (errors.is_empty(), reported) {
            (false, _) => Some(Failure::Writes(errors)),
            (true, true) => Some(Failure::Reported),
            (true, false) => None,
        };
        (expected, failure)
    }

    /// Does one write. Returns the event that the watch will report, if there will be one.
    async fn write(
        &self,
        map_context: MapContext<'_>,
        view: &ParentClusterView<'_>,
        write: Write,
    ) -> Result<Option<ExpectedEvent>, WriteError> {
        let Some(served) = self.mapping.output_resources.get(place(&write).rule) else { return Ok(None) };
        let text = |refused: Refused| WriteError::Refused(refused.text);
        match write {
            Write::Delete { place, uid } => {
                self.writer.delete(served, &place.namespace, &place.name, &uid).await.map_err(text)
            }
            Write::Update { body, .. } => self.writer.update(served, &body).await.map_err(text),
            Write::Retag { place, patch } => {
                self.writer.merge(served, &place.namespace, &place.name, &patch).await.map_err(text)
            }
            Write::Apply { body, observed, recreate, .. } => {
                self.writer.apply(served, &body, &observed, recreate).await.map_err(text)
            }
            Write::Adopt { body, .. } => {
                self.adopt(map_context.parent, served, &body).await.map_err(WriteError::Refused)
            }
            Write::Conflict { place, owner } => {
                let what = format!("{} {}", served.kind, object::display(&place.namespace, &place.name));
                let text = format!("output {what} for {} belongs to {owner}", map_context.key);
                self.events.warning(map_context.parent, "OutputConflict", text);
                Err(WriteError::Conflict)
            }
            Write::Create { place, body } => match self.create(served, &place, &body).await {
                Ok(expected) => Ok(expected),
                Err(refused) if refused.exists => Box::pin(self.resolve(map_context, view, place)).await,
                Err(refused) => Err(text(refused)),
            },
        }
    }

    /// Server-side apply would take over an existing object, so this reads first.
    async fn create(
        &self,
        served: &crate::resource::Served,
        place: &OutputRef,
        body: &Value,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        if self.writer.strategy().is_server_side() {
            let found =
                self.rest().find::<Value>(&served.gvr, served.place(&place.namespace), &place.name).await;
            match found {
                Ok(None) => {}
                Ok(Some(_)) => return Err(Refused { text: String::new(), exists: true }),
                Err(error) => {
                    return Err(Refused { text: runtime::failure::message_of(&error), exists: false });
                }
            }
        }
        self.writer.create(served, body).await
    }

    /// Handles a desired output that exists although the cache does not show it (MC-055).
    async fn resolve(
        &self,
        map_context: MapContext<'_>,
        view: &ParentClusterView<'_>,
        place: OutputRef,
    ) -> Result<Option<ExpectedEvent>, WriteError> {
        let Some(served) = self.mapping.output_resources.get(place.rule) else { return Ok(None) };
        let found = self.rest().find::<Value>(&served.gvr, served.place(&place.namespace), &place.name).await;
        let existing = match found {
            Ok(Some(existing)) => Arc::new(Object::new(existing)),
            // It is gone again: its event or the retry brings the item back.
            Ok(None) => {
                return Err(WriteError::Refused(format!("{} {} came and went", served.kind, place.name)));
            }
            Err(error) => return Err(WriteError::Refused(runtime::failure::message_of(&error))),
        };
        match group::claim(map_context, &place, &existing, view) {
            Some(write) => self.write(map_context, view, write).await,
            None => {
                let version = existing.version().to_owned();
                Ok(Some(ExpectedEvent::Version { key: existing.key().clone(), version, echo: None }))
            }
        }
    }

    /// Takes over an orphan, after a read of the parent shows that it exists and is not being deleted
    /// (MC-055.4).
    async fn adopt(
        &self,
        parent: &Value,
        served: &crate::resource::Served,
        body: &Value,
    ) -> Result<Option<ExpectedEvent>, String> {
        let (namespace, name) = (object::namespace(parent), object::name(parent));
        let parents = &self.mapping.parent;
        let live = self.rest().find::<Value>(&parents.gvr, parents.place(namespace), name).await;
        let live = live.map_err(|error| runtime::failure::message_of(&error))?;
        let same = |live: &Value| object::uid(live) == object::uid(parent) && !object::is_terminating(live);
        if !live.as_ref().is_some_and(same) {
            return Ok(None);
        }
        self.writer.update(served, body).await.map_err(|refused| refused.text)
    }

    fn rest(&self) -> &Rest {
        self.writer.rest()
    }

    /// Waits until the caches show the writes, so that the next run of the item sees them.
    pub async fn catch_up(&self, expected: &[(usize, ExpectedEvent)]) {
        let deadline = Instant::now() + CATCH_UP;
        for (rule, one) in expected {
            if let Some(rule) = self.mapping.outputs.get(*rule) {
                rule.cache.caught_up(one, deadline.saturating_duration_since(Instant::now())).await;
            }
        }
    }
}

fn place(write: &Write) -> &OutputRef {
    match write {
        Write::Delete { place, .. }
        | Write::Create { place, .. }
        | Write::Update { place, .. }
        | Write::Retag { place, .. }
        | Write::Adopt { place, .. }
        | Write::Apply { place, .. }
        | Write::Conflict { place, .. } => place,
    }
}
