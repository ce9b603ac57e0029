//! Kinds in the write pipeline. Expectations are recorded answers of a stock v1.36 server.

mod data;
mod small;
mod workloads;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::builtin;
use crate::descriptor::Descriptor;
use crate::error::ApiError;
use crate::identity::UserInfo;
use crate::kinds::value::{at, list, put, set_at, text};
use crate::strategy::{KindSettings, Lookup, WriteContext};

/// Other objects of the space.
#[derive(Default)]
struct Objects(BTreeMap<(String, String, String, String), Value>);

impl Objects {
    fn with(mut self, group: &str, plural: &str, namespace: &str, object: Value) -> Self {
        let name = text(&object, "metadata.name").to_owned();
        self.0.insert((group.into(), plural.into(), namespace.into(), name), object);
        self
    }
}

impl Lookup for Objects {
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.0.get(&(group.into(), plural.into(), namespace.into(), name.into())).cloned()
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value> {
        let wanted = |k: &(String, String, String, String)| {
            k.0 == group && k.1 == plural && namespace.is_none_or(|ns| k.2 == ns)
        };
        self.0.iter().filter(|(k, _)| wanted(k)).map(|(_, v)| v.clone()).collect()
    }
}

/// The strategy part of the write pipeline.
struct Pipeline {
    kind: std::sync::Arc<Descriptor>,
    objects: Objects,
    user: UserInfo,
    settings: KindSettings,
}

impl Pipeline {
    fn new(group: &str, version: &str, plural: &str) -> Self {
        let kind = builtin::catalog().resource(group, version, plural).cloned().expect("a built-in resource");
        let user = UserInfo {
            name: "golden-admin".into(),
            uid: "uid-golden-admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..UserInfo::default()
        };
        Self { kind, objects: Objects::default(), user, settings: KindSettings::default() }
    }

    fn context(&self) -> WriteContext<'_> {
        WriteContext {
            user: &self.user,
            now: "2026-01-01T00:00:00Z",
            namespace: if self.kind.namespaced { "ns" } else { "" },
            dry_run: false,
            lookup: &self.objects,
            settings: &self.settings,
        }
    }

    fn invalid(&self, object: &Value, errors: &[machinery::field::Error]) -> Result<(), String> {
        if errors.is_empty() {
            return Ok(());
        }
        Err(ApiError::invalid(&self.kind.group, &self.kind.kind, text(object, "metadata.name"), errors)
            .message)
    }

    fn decoded(&self, mut object: Value) -> Value {
        put(&mut object, "apiVersion", &self.kind.api_version().into());
        put(&mut object, "kind", &self.kind.kind.clone().into());
        self.kind.schema.decode(&mut object).expect("a well-typed object");
        self.kind.schema.default(&mut object).expect("few defaults");
        self.kind.strategy.default(&mut object);
        object
    }

    fn create(&self, object: Value) -> Result<Value, String> {
        let mut object = self.decoded(object);
        set_at(&mut object, "metadata", "uid", "u1");
        if self.kind.namespaced {
            set_at(&mut object, "metadata", "namespace", "ns");
        }
        self.kind.strategy.prepare_create(&self.context(), &mut object).map_err(|e| e.message)?;
        self.invalid(&object, &self.kind.strategy.validate_create(&self.context(), &object))?;
        crate::kinds::value::remove_at(&mut object, "metadata", "uid");
        self.kind.schema.normalise(&mut object);
        self.kind.schema.store_form(&mut object);
        Ok(object)
    }

    fn update(&self, subresource: Option<&str>, object: Value, old: &Value) -> Result<Value, String> {
        let mut object = self.decoded(object);
        let cx = self.context();
        match subresource {
            None => self.kind.strategy.prepare_update(&cx, &mut object, old),
            Some(name) => self.kind.strategy.prepare_subresource_update(&cx, name, &mut object, old),
        }
        .map_err(|e| e.message)?;
        self.invalid(&object, &self.kind.strategy.validate_update(&cx, subresource, &object, old))?;
        self.kind.schema.normalise(&mut object);
        self.kind.schema.store_form(&mut object);
        Ok(object)
    }

    /// Applies a merge patch through the main resource or a subresource.
    fn patch(&self, subresource: Option<&str>, patch: Value, old: &Value) -> Result<Value, String> {
        let mut object = old.clone();
        merge(&mut object, &patch);
        self.update(subresource, object, old)
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            crate::kinds::value::remove(target, key);
        } else {
            merge(target.as_object_mut().expect("an object").entry(key).or_insert(Value::Null), value);
        }
    }
}

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}]}})
}

fn template_defaulted() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {
        "containers": [{"image": "registry.example/app:1", "imagePullPolicy": "IfNotPresent", "name": "app",
            "resources": {}, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
        "securityContext": {}, "terminationGracePeriodSeconds": 30}})
}
