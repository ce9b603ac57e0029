//! The CompositeController (MC-140 to MC-149).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use apis::metacontroller::CONTROLLER_UID_LABEL;
use futures::future::join_all;
use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use runtime::{Next, failure::message_of};
use serde_json::{Map, Value, json};

use super::{
    decide::{self, Children, Claim, CommonAnswer, DesiredObjects},
    rolling::{self, Revision, Roll},
    shell::{Base, Failure, Key, Syncer},
};
use crate::{
    apply::loosely_equal,
    cache::{Cache, ExpectedEvent, FollowGuard},
    hooks::HookClient,
    map::group::{self, Write},
    object::{self, Object, Text},
    resource::Served,
    selector_index::SelectorIndex,
    writes::Refused,
};

/// Longest wait until the watch reports a written revision.
const CATCH_UP: Duration = Duration::from_secs(5);

/// A running CompositeController.
pub struct Composite {
    /// The state that both kinds have.
    pub base: Base,
    /// Whether children are selected by a generated label with the parent's UID.
    pub generate_selector: bool,
    /// How children are rolled, by rule; `None` if no rule is a rolling one.
    pub rollout: Option<Rollout>,
    /// The selectors of parents by UID, to find parents for orphans (MC-147).
    pub selectors: Mutex<SelectorIndex<Text>>,
}

/// The rolling updates of a controller.
pub struct Rollout {
    /// By rule.
    pub rolls: Vec<Roll>,
    /// Fields of the parent that determine a revision.
    pub paths: Vec<String>,
    /// ControllerRevisions.
    pub served: Served,
    /// Their objects.
    pub cache: Arc<Cache>,
}

impl Syncer for Composite {
    fn base(&self) -> &Base {
        &self.base
    }

    fn also(&self) -> Option<Arc<Cache>> {
        self.rollout.as_ref().map(|rollout| rollout.cache.clone())
    }

    /// Shared caches may have reported their objects before this controller existed.
    fn starting(&self) {
        for (index, rule) in self.base.parents.iter().enumerate() {
            for parent in rule.cache.list("") {
                self.selects(index, &parent);
            }
        }
    }

    /// MC §3.4.
    async fn sync(&self, key: &Key) -> Result<Next, Failure> {
        let base = &self.base;
        let Some((rule, mut parent)) = base.parents.get(key.0).zip(base.parent(key)) else {
            return Ok(Next::OnChange);
        };
        let selected = rule.selects(&parent.value);
        let finalizes = base.hooks.finalize.is_some();
        let has = object::has_finalizer(&parent.value, &base.finalizer);
        if !selected && !has {
            return Ok(Next::OnChange);
        }
        if (finalizes && selected && !has && !object::is_terminating(&parent.value)) || (!finalizes && has) {
            match base.finalizer(key.0, &parent, finalizes).await? {
                Some(changed) => parent = changed,
                None => return Ok(Next::OnChange),
            }
            if !selected && !finalizes {
                return Ok(Next::OnChange);
            }
        }
        let selector = decide::composite_selector(&parent.value, self.generate_selector)?;
        let observed = self.claim(&parent, &selector).await?;
        let finalizing = finalizes && (object::is_terminating(&parent.value) || !selected);
        let hook = if finalizing { &base.hooks.finalize } else { &base.hooks.sync };
        let Some(hook) = hook else { return Err(Failure::Text("no sync hook defined".into())) };
        let asked = Asked { hook, parent: &parent, selector: &selector, observed: &observed, finalizing };
        let rolls = self.rollout.as_ref().filter(|_| {
            !object::is_terminating(&parent.value)
                || (finalizes && object::has_finalizer(&parent.value, &base.finalizer))
        });
        let (rest, wanted) = match rolls {
            Some(rollout) => self.roll(rollout, &asked).await?,
            None => self.ask(&asked, &parent.value, "").await?,
        };
        if finalizing && rest.finalized {
            match base.finalizer(key.0, &parent, false).await? {
                Some(changed) => parent = changed,
                None => return Ok(Next::OnChange),
            }
        }
        decide::check_labels(&wanted, &selector)?;
        let managed = if decide::may_manage(&parent.value, &base.finalizer, finalizing) {
            base.manage(&parent.value, &wanted, observed).await
        } else {
            Ok(())
        };
        self.status(key, &parent, rest.status.unwrap_or_default()).await?;
        managed.map_err(Failure::Text)?;
        Ok(base.again(rest.again_after))
    }
}

/// The subject of a hook call.
struct Asked<'a> {
    hook: &'a HookClient,
    parent: &'a Object,
    selector: &'a LabelSelector,
    observed: &'a Children,
    finalizing: bool,
}

impl Composite {
    /// Calls the hook for a parent as it is at a revision (MC §3.5). Checks that the desired children carry
    /// their labels and match the selector.
    async fn ask(
        &self,
        asked: &Asked<'_>,
        parent: &Value,
        part: &str,
    ) -> Result<(CommonAnswer, DesiredObjects), Failure> {
        let base = &self.base;
        let request = json!({
            "controller": *base.object.lock().clone(),
            "parent": parent,
            "children": base.child_map(asked.hook, asked.parent, asked.observed),
            "related": base.related(parent, part).await?,
            "finalizing": asked.finalizing,
        });
        let answer = base.ask(asked.hook, asked.parent, part, &request).await?;
        let rest = decide::common_answer(&answer)?;
        let mut wanted = decide::wanted(base.context("children", parent), &answer)?;
        self.label(parent, &mut wanted);
        Ok((rest, wanted))
    }

    /// Calls the hook for each revision, moves at most one child to the latest, and records the revision of
    /// each child before any child is changed (MC-151, MC-155). Costs one hook call for each revision.
    async fn roll(
        &self,
        rollout: &Rollout,
        asked: &Asked<'_>,
    ) -> Result<(CommonAnswer, DesiredObjects), Failure> {
        let (base, parent) = (&self.base, &asked.parent.value);
        let Some(served) = base.parents.first().map(|rule| &rule.served) else { return Err(Failure::Quiet) };
        let mut all = self.revisions(rollout, served, asked).await?;
        let patch = rolling::patch_of(parent, &rollout.paths);
        match all.iter().position(|revision| loosely_equal(&revision.patch, &patch)) {
            Some(index) => all.swap(0, index),
            None => {
                let name = rolling::name_of(served, asked.parent.uid(), &patch);
                all.insert(0, Revision { name, patch, ..Revision::default() });
            }
        }
        if let Some(related) = &base.related {
            let names: Vec<&str> = all.iter().map(|revision| revision.name.as_str()).collect();
            related.keep(asked.parent.uid(), &names);
        }
        let parents: Vec<Value> =
            all.iter().map(|revision| rolling::patched(parent, &revision.patch, &rollout.paths)).collect();
        let calls =
            parents.iter().zip(&all).map(|(parent, revision)| self.ask(asked, parent, &revision.name));
        let mut rests = Vec::new();
        let (mut answers, mut undeclared_objects) = (Vec::new(), None);
        for answer in join_all(calls).await {
            let (rest, wanted) = answer?;
            decide::check_labels(&wanted, asked.selector)?;
            rests.push(rest);
            answers.push(wanted.desired);
            undeclared_objects.get_or_insert(wanted.undeclared_objects);
        }
        let kind = |rule: usize| {
            base.child_resources.get(rule).map(|served| served.kind.clone()).unwrap_or_default()
        };
        let server_side = base.shared.writer.strategy().is_server_side();
        let latest = answers.first().map(Vec::as_slice).unwrap_or_default();
        let observed = base.as_wanted(latest, asked.observed.clone()).await?;
        let step = rolling::step(&mut all, &answers, &observed, &rollout.rolls, server_side, kind);
        self.commit(rollout, parent, served, &all).await?;
        let mut rest = rests.first().cloned().unwrap_or_default();
        rest.finalized = rests.iter().all(|rest| rest.finalized);
        rest.again_after = rests.iter().filter_map(|rest| rest.again_after).reduce(f64::min);
        rolling::set_condition(rest.status.get_or_insert_default(), step.condition);
        Ok((
            rest,
            DesiredObjects {
                desired: step.desired,
                undeclared_objects: undeclared_objects.unwrap_or_default(),
            },
        ))
    }

    /// Returns the revisions of a parent. They are claimed like its children: a revision without controller
    /// that has the parent's labels is adopted, and an own revision that no longer has them is released
    /// (MC-150). If the parent's own template lacks the labels, no revision can have them; then the own
    /// revisions stay, because each would be released as soon as it is created.
    async fn revisions(
        &self,
        rollout: &Rollout,
        served: &Served,
        asked: &Asked<'_>,
    ) -> Result<Vec<Revision>, Failure> {
        let (parent, cache) = (asked.parent, &rollout.cache);
        let selector = rolling::selector(asked.selector, served);
        let labels = rolling::labels(&parent.value, served, self.generate_selector);
        let by_label = selector.matches_labels(&Value::Object(labels));
        let mut orphans = cache.candidates(object::namespace(&parent.value), &selector);
        orphans.retain(|o| decide::claim(&parent.value, &selector, &o.value) == Claim::Adopt);
        if !orphans.is_empty() && !self.is_alive(parent).await? {
            orphans.clear();
        }
        let owned = cache.owned(parent.uid()).into_iter().map(|(.., object)| object);
        let live = owned.filter(|object| !object::is_terminating(&object.value));
        let strangers = |own: &Arc<Object>| {
            by_label && decide::claim(&parent.value, &selector, &own.value) == Claim::Release
        };
        let strangers: Vec<_> = live.filter(strangers).collect();
        let adopted = orphans.iter().map(|orphan| group::owned(orphan.value.clone(), &parent.value));
        let released = strangers.iter().map(|own| decide::released(&own.value, parent.uid()));
        let mut errors = Vec::new();
        for body in adopted.chain(released) {
            match self.base.shared.writer.update(&rollout.served, &body).await {
                Ok(Some(expected)) => cache.caught_up(&expected, CATCH_UP).await,
                Ok(None) => {}
                Err(refused) => errors.push(refused.text),
            }
        }
        if !errors.is_empty() {
            return Err(Failure::Text(errors.join("; ")));
        }
        let owned = cache.owned(parent.uid()).into_iter().map(|(.., object)| object);
        let ours = owned.filter(|object| {
            !object::is_terminating(&object.value)
                && (!by_label || selector.matches_labels(object::labels(&object.value)))
        });
        Ok(ours.map(|object| rolling::read(&object, &self.base.child_resources)).collect())
    }

    /// Writes the ControllerRevisions; deletes old ones without children. If the latest one was released
    /// because of its labels, it is adopted again and its labels are corrected: its name is fixed, so there
    /// cannot be another.
    async fn commit(
        &self,
        rollout: &Rollout,
        parent: &Value,
        served: &Served,
        all: &[Revision],
    ) -> Result<(), Failure> {
        let (writer, resources) = (&self.base.shared.writer, &self.base.child_resources);
        let labels = rolling::labels(parent, served, self.generate_selector);
        for (index, revision) in all.iter().enumerate() {
            let body = rolling::body(revision, parent, &labels, resources);
            let made = match &revision.existing {
                None => match writer.create_own(&rollout.served, &body).await {
                    Ok(None) => self.take_back(rollout, revision, parent, &labels).await,
                    made => made,
                },
                Some(existing) if index > 0 && revision.claims.is_empty() => {
                    let key = existing.key();
                    writer.delete(&rollout.served, &key.namespace, &key.name, existing.uid()).await
                }
                Some(existing) if existing.value == body => Ok(None),
                Some(_) => writer.update(&rollout.served, &body).await,
            };
            if let Some(expected) = made.map_err(|refused| refused.text)? {
                rollout.cache.caught_up(&expected, CATCH_UP).await;
            }
        }
        Ok(())
    }

    /// Adopts a revision of this name that exists but does not belong to the parent, if it has no controller.
    async fn take_back(
        &self,
        rollout: &Rollout,
        revision: &Revision,
        parent: &Value,
        labels: &Map<String, Value>,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        let (writer, namespace) = (&self.base.shared.writer, object::namespace(parent));
        let found = writer.rest().find::<Value>(&rollout.served.gvr, namespace, &revision.name).await;
        let found = found.map_err(|error| Refused { text: message_of(&error), exists: false })?;
        let free = |there: &Value| object::controller(there).is_none() && !object::is_terminating(there);
        let Some(mut there) = found.filter(free) else { return Ok(None) };
        if let Some(own) = object::metadata_map(&mut there, "labels") {
            own.extend(labels.clone());
        }
        let revision = Revision { existing: Some(Arc::new(Object::new(there))), ..revision.clone() };
        let body = rolling::body(&revision, parent, labels, &self.base.child_resources);
        writer.update(&rollout.served, &body).await
    }

    /// Follows parents and children.
    pub fn follow(self: &Arc<Self>) -> Vec<FollowGuard> {
        let mut all = Vec::new();
        for (index, rule) in self.base.parents.iter().enumerate() {
            let this = Arc::downgrade(self);
            all.push(rule.cache.follow(move |(old, new)| {
                if let Some(this) = this.upgrade() {
                    if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid() != old.uid())) {
                        this.selectors.lock().remove(&old.uid().into());
                    }
                    if let Some(new) = new {
                        this.selects(index, new);
                    }
                    this.base.parent_changed(index, old, new);
                }
            }));
        }
        for rule in &self.base.children {
            let this = Arc::downgrade(self);
            all.push(rule.cache.follow(move |(old, new)| {
                if let Some(this) = this.upgrade() {
                    this.child(old, new);
                }
            }));
        }
        all
    }

    /// Handles the change of a child without controller (MC-147). Cost: O(labels), and a look at each parent
    /// whose selector requires one of the labels with its value, or requires no such label (as with
    /// `exists`).
    fn child(&self, old: Option<&Arc<Object>>, new: Option<&Arc<Object>>) {
        if !self.base.started.load(Ordering::SeqCst) {
            return;
        }
        for object in old.into_iter().chain(new) {
            self.base.owner_changed(&object.value);
        }
        let Some(orphan) = new.filter(|new| object::controller(&new.value).is_none()) else { return };
        let labels = object::labels(&orphan.value);
        let (here, anywhere) = (&*orphan.key().namespace, "");
        let mut uids = self.selectors.lock().selecting(here, labels);
        if !here.is_empty() {
            uids.extend(self.selectors.lock().selecting(anywhere, labels));
        }
        for uid in uids {
            self.base.wake(&uid);
        }
    }

    /// Stores a parent's selector as the cache has it now.
    fn selects(&self, index: usize, parent: &Object) {
        let Some(rule) = self.base.parents.get(index) else { return };
        let mut selectors = self.selectors.lock();
        // Read while the lock is held, so that no older state replaces a newer one.
        let Some(parent) = rule.cache.by_key(parent.key()) else { return };
        let uid = parent.uid().into();
        match decide::composite_selector(&parent.value, self.generate_selector) {
            Ok(selector) => selectors.put(uid, &parent.key().namespace, selector),
            Err(_) => selectors.remove(&uid),
        }
    }

    fn label(&self, parent: &Value, wanted: &mut DesiredObjects) {
        if !self.generate_selector {
            return;
        }
        for body in wanted.bodies_mut() {
            if let Some(labels) = object::metadata_map(body, "labels") {
                labels.entry(CONTROLLER_UID_LABEL).or_insert_with(|| object::uid(parent).into());
            }
        }
    }

    /// Claims, adopts and releases children (MC-145). Reads the parent once from the server if there is
    /// anything to adopt.
    async fn claim(&self, parent: &Object, selector: &LabelSelector) -> Result<Children, Failure> {
        let base = &self.base;
        let (mut children, mut changes) = (Children::new(), Vec::new());
        for (rule, child_rule) in base.children.iter().enumerate() {
            let scope = object::namespace(&parent.value);
            let mut candidates = child_rule.cache.candidates(scope, selector);
            candidates.retain(|candidate| object::controller_uid(&candidate.value) != parent.uid());
            candidates.extend(child_rule.cache.owned(parent.uid()).into_iter().map(|(.., object)| object));
            for candidate in candidates {
                let place = group::place_of(rule, &candidate);
                match decide::claim(&parent.value, selector, &candidate.value) {
                    Claim::Ours => children.push((rule, candidate)),
                    Claim::Adopt => {
                        let body = group::owned(candidate.value.clone(), &parent.value);
                        changes.push(Write::Adopt { place, body });
                    }
                    Claim::Release => {
                        let body = decide::released(&candidate.value, parent.uid());
                        changes.push(Write::Update { place, body });
                    }
                    Claim::Ignore => {}
                }
            }
        }
        if changes.is_empty() {
            return Ok(children);
        }
        if changes.iter().any(|change| matches!(change, Write::Adopt { .. }))
            && !self.is_alive(parent).await?
        {
            changes.retain(|change| !matches!(change, Write::Adopt { .. }));
        }
        let adopted: Vec<_> = changes
            .iter()
            .filter_map(|change| match change {
                Write::Adopt { place, .. } => Some(place.clone()),
                _ => None,
            })
            .collect();
        base.carry_out(changes).await?;
        for place in adopted {
            let found =
                base.children.get(place.rule).and_then(|rule| rule.cache.get(&place.namespace, &place.name));
            children.extend(
                found.filter(|o| object::controller_uid(&o.value) == parent.uid()).map(|o| (place.rule, o)),
            );
        }
        Ok(children)
    }

    async fn is_alive(&self, parent: &Object) -> Result<bool, Failure> {
        let Some(rule) = self.base.parents.first() else { return Ok(false) };
        let (rest, served) = (self.base.shared.writer.rest(), &rule.served);
        let namespace = served.place(&parent.key().namespace);
        let live = rest.find::<Value>(&served.gvr, namespace, &parent.key().name).await;
        let live = live.map_err(|error| Failure::Text(message_of(&error)))?;
        Ok(live.is_some_and(|live| object::uid(&live) == parent.uid() && !object::is_terminating(&live)))
    }

    /// Replaces the status by the hook's status with the generation (MC §3.4, step 10).
    async fn status(
        &self,
        key: &Key,
        parent: &Object,
        mut status: serde_json::Map<String, Value>,
    ) -> Result<(), Failure> {
        status.insert("observedGeneration".into(), object::generation(&parent.value).into());
        let status = Value::Object(status);
        let same = |object: &Value| loosely_equal(object.get("status").unwrap_or(&Value::Null), &status);
        if self.base.parent(key).is_some_and(|known| same(&known.value)) {
            return Ok(());
        }
        let edit = |live: &mut Value| {
            if same(live) {
                return false;
            }
            if let Some(map) = live.as_object_mut() {
                map.insert("status".into(), status.clone());
            }
            true
        };
        self.base.change(key.0, parent, true, edit).await?;
        Ok(())
    }
}
