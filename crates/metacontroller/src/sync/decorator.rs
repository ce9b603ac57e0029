//! The DecoratorController (MC-170 to MC-176).

use std::sync::{Arc, atomic::Ordering};

use apis::metacontroller::DECORATOR_ANNOTATION;
use runtime::{
    Next,
    failure::{is_clash, is_not_found, message_of},
};
use serde_json::{Value, json};

use super::{
    decide::{self, Children},
    shell::{Base, Failure, Key, Syncer},
};
use crate::{
    cache::FollowGuard,
    object::{self, Object},
};

/// A running DecoratorController.
pub struct Decorator(pub Base);

impl Syncer for Decorator {
    fn base(&self) -> &Base {
        &self.0
    }

    async fn sync(&self, key: &Key) -> Result<Next, Failure> {
        let base = &self.0;
        let Some((rule, mut target)) = base.parents.get(key.0).zip(base.parent(key)) else {
            return Ok(Next::OnChange);
        };
        let selected = rule.selects(&target.value);
        let finalizes = base.hooks.finalize.is_some();
        let has = object::has_finalizer(&target.value, &base.finalizer);
        if !selected && !has {
            return Ok(Next::OnChange);
        }
        if (finalizes && selected && !has && !object::is_terminating(&target.value)) || (!finalizes && has) {
            match base.finalizer(key.0, &target, finalizes).await? {
                Some(changed) => target = changed,
                None => return Ok(Next::OnChange),
            }
            if !selected {
                return Ok(Next::OnChange);
            }
        }
        let finalizing = finalizes && (object::is_terminating(&target.value) || !selected);
        let hook = if finalizing { &base.hooks.finalize } else { &base.hooks.sync };
        let Some(hook) = hook else {
            return if base.hooks.sync.is_none() && !finalizes {
                Err(Failure::Text("no enabled hooks found".into()))
            } else {
                Ok(Next::OnChange)
            };
        };
        let observed = self.attachments(&target);
        let request = json!({
            "controller": *base.object.lock().clone(),
            "object": target.value,
            "attachments": base.child_map(hook, &target, &observed),
            "related": base.related(&target.value, "").await?,
            "finalizing": finalizing,
        });
        let answer = base.ask(hook, &target, "", &request).await?;
        let rest = decide::common_answer(&answer)?;
        let mut wanted = decide::wanted(base.context("attachments", &target.value), &answer)?;
        for body in wanted.bodies_mut() {
            if let Some(annotations) = object::metadata_map(body, "annotations") {
                annotations.insert(DECORATOR_ANNOTATION.into(), (&*base.name).into());
            }
        }
        let gone = finalizing && rest.finalized;
        let manage = decide::may_manage(&target.value, &base.finalizer, finalizing);
        if !self.update(key, &target, &answer, gone).await? {
            return Ok(Next::OnChange);
        }
        if manage {
            base.manage(&target.value, &wanted, observed).await?;
        }
        Ok(base.again(rest.again_after))
    }
}

impl Decorator {
    /// Follows targets and attachments.
    pub fn follow(self: &Arc<Self>) -> Vec<FollowGuard> {
        let mut all = Vec::new();
        for (index, rule) in self.0.parents.iter().enumerate() {
            let this = Arc::downgrade(self);
            all.push(rule.cache.follow(move |(old, new)| {
                if let Some(this) = this.upgrade() {
                    this.0.parent_changed(index, old, new);
                }
            }));
        }
        for rule in &self.0.children {
            let this = Arc::downgrade(self);
            all.push(rule.cache.follow(move |(old, new)| {
                let Some(this) = this.upgrade() else { return };
                if !this.0.started.load(Ordering::SeqCst) {
                    return;
                }
                for object in old.into_iter().chain(new) {
                    if object::annotation(&object.value, DECORATOR_ANNOTATION) == Some(&*this.0.name) {
                        this.0.owner_changed(&object.value);
                    }
                }
            }));
        }
        all
    }

    /// Returns the objects that the target controls and that carry our name (MC-170).
    fn attachments(&self, target: &Object) -> Children {
        let mut found = Vec::new();
        for (index, rule) in self.0.children.iter().enumerate() {
            for (.., object) in rule.cache.owned(target.uid()) {
                if object::annotation(&object.value, DECORATOR_ANNOTATION) == Some(&*self.0.name) {
                    found.push((index, object));
                }
            }
        }
        found
    }

    /// Writes labels, annotations and status, or removes our finalizer, before the attachments (MC-173).
    /// Returns false if the target is gone or was recreated: its event brings it back.
    async fn update(&self, key: &Key, target: &Object, answer: &Value, gone: bool) -> Result<bool, Failure> {
        let Some(rule) = self.0.parents.get(key.0) else { return Ok(false) };
        let (mut new, mut changed, moved) = decide::decorated(&target.value, answer)?;
        if gone && object::has_finalizer(&new, &self.0.finalizer) {
            changed = true;
            if let Some(meta) = object::metadata_mut(&mut new) {
                if let Some(Value::Array(list)) = meta.get_mut("finalizers") {
                    list.retain(|one| one.as_str() != Some(&self.0.finalizer));
                }
                if meta.get("finalizers").and_then(Value::as_array).is_some_and(Vec::is_empty) {
                    meta.remove("finalizers");
                }
            }
        }
        let (rest, served) = (self.0.shared.writer.rest(), &rule.served);
        let (namespace, name) = (served.place(&key.1.namespace), &key.1.name);
        if moved && served.has_status {
            let body = new.to_string().into_bytes();
            match rest.replace_status::<Value>(&served.gvr, namespace, name, body).await {
                Ok(written) => {
                    let version = object::resource_version(&written).to_owned();
                    if let Some(meta) = object::metadata_mut(&mut new) {
                        meta.insert("resourceVersion".into(), version.into());
                    }
                }
                Err(error) if is_clash(&error) || is_not_found(&error) => return Ok(false),
                Err(error) => {
                    return Err(Failure::Text(format!("updating the status: {}", message_of(&error))));
                }
            }
        }
        if changed || (moved && !served.has_status) {
            let body = new.to_string().into_bytes();
            match rest.replace::<Value>(&served.gvr, namespace, name, body).await {
                Ok(_) => {}
                Err(error) if is_clash(&error) || is_not_found(&error) => return Ok(false),
                Err(error) => return Err(Failure::Text(format!("updating {name}: {}", message_of(&error)))),
            }
        }
        Ok(true)
    }
}
