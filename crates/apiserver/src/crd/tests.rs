//! Definitions against recorded answers of a stock v1.36 server, and the follower against a store in memory.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use store::{Action, Collection, Engine, Expect, Key, Scope, SpaceStore, Write};
use tokio_util::sync::CancellationToken;

use super::Follower;
use super::follower::{collection, key};
use crate::builtin;
use crate::catalog::Catalog;
use crate::encode;
use crate::error::ApiError;
use crate::identity::UserInfo;
use crate::kinds::value::{at, list, put, set_at, text};
use crate::strategy::{Lookup, WriteContext};

struct Nothing;

impl Lookup for Nothing {
    fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Value> {
        None
    }

    fn list(&self, _: &str, _: &str, _: Option<&str>) -> Vec<Value> {
        Vec::new()
    }
}

fn with_context<T>(body: impl FnOnce(&WriteContext<'_>) -> T) -> T {
    let user = UserInfo::default();
    body(&WriteContext {
        user: &user,
        now: "2026-01-01T00:00:00Z",
        namespace: "",
        dry_run: false,
        lookup: &Nothing,
        settings: &crate::strategy::KindSettings::default(),
    })
}

fn kind() -> Arc<crate::descriptor::Descriptor> {
    builtin::catalog().resource(super::GROUP, "v1", super::PLURAL).cloned().expect("definitions")
}

fn decoded(mut object: Value) -> Value {
    let kind = kind();
    put(&mut object, "apiVersion", &"apiextensions.k8s.io/v1".into());
    put(&mut object, "kind", &"CustomResourceDefinition".into());
    kind.schema.decode(&mut object).expect("well typed");
    kind.schema.default(&mut object).expect("few defaults");
    kind.strategy.default(&mut object);
    object
}

fn refused(object: &Value, errors: &[machinery::field::Error]) -> Result<(), String> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(super::GROUP, "CustomResourceDefinition", text(object, "metadata.name"), errors)
        .message)
}

fn create(object: Value) -> Result<Value, String> {
    let mut object = decoded(object);
    with_context(|cx| {
        kind().strategy.prepare_create(cx, &mut object).map_err(|e| e.message)?;
        refused(&object, &kind().strategy.validate_create(cx, &object))
    })?;
    kind().schema.normalise(&mut object);
    Ok(object)
}

fn update(object: Value, old: &Value) -> Result<Value, String> {
    let mut object = decoded(object);
    with_context(|cx| {
        kind().strategy.prepare_update(cx, &mut object, old).map_err(|e| e.message)?;
        refused(&object, &kind().strategy.validate_update(cx, None, &object, old))
    })?;
    Ok(object)
}

fn version(name: &str, extra: Value) -> Value {
    let mut version = json!({"name": name, "served": true, "storage": true, "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "color": {"type": "string"}}}}}}});
    for (key, value) in extra.as_object().into_iter().flatten() {
        put(&mut version, key, value);
    }
    version
}

fn widgets(names: Value, versions: Vec<Value>) -> Value {
    let mut all = json!({"plural": "widgets", "kind": "Widget"});
    for (key, value) in names.as_object().into_iter().flatten() {
        put(&mut all, key, value);
    }
    let name = format!("{}.ex.com", text(&all, "plural"));
    json!({"metadata": {"name": name}, "spec": {"group": "ex.com", "scope": "Namespaced", "names": all, "versions": versions}})
}

#[test]
fn as_040_a_new_definition_answers_at_once() {
    let made = create(widgets(json!({}), vec![version("v1", json!({}))])).expect("created");
    assert_eq!(
        at(&made, "status"),
        &json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]})
    );
    assert_eq!(
        at(&made, "spec.names"),
        &json!({"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"})
    );
    assert_eq!(at(&made, "spec.conversion"), &json!({"strategy": "None"}));
}

#[test]
fn as_039_an_empty_definition_lacks_everything() {
    let message = create(json!({"metadata": {"name": "widgets.ex.com"}})).expect_err("refused");
    assert_eq!(
        message,
        "CustomResourceDefinition.apiextensions.k8s.io \"widgets.ex.com\" is invalid: [metadata.name: Invalid value: \"widgets.ex.com\": must be spec.names.plural+\".\"+spec.group, spec.group: Required value, spec.scope: Required value, spec.versions: Invalid value: null: must have exactly one version marked as storage version, spec.names.plural: Required value, spec.names.singular: Required value, spec.names.kind: Required value, spec.names.listKind: Required value, status.storedVersions: Invalid value: null: must have at least one stored version]"
    );
}

#[test]
fn as_039_names_and_versions_are_checked() {
    const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    const MIXED: &str = "may have mixed case, but should otherwise match: ";
    let one = || vec![version("v1", json!({}))];
    let changed = |key: &str, value: Value| {
        let mut crd = widgets(json!({}), one());
        set_at(&mut crd, "spec", key, value);
        crd
    };
    let renamed = {
        let mut crd = widgets(json!({}), one());
        set_at(&mut crd, "metadata", "name", "wrong.ex.com");
        crd
    };
    for (crd, errors) in [
        (renamed, "metadata.name: Invalid value: \"wrong.ex.com\": must be spec.names.plural+\".\"+spec.group".to_owned()),
        (changed("scope", "World".into()), "spec.scope: Unsupported value: \"World\": supported values: \"Cluster\", \"Namespaced\"".into()),
        (
            changed("group", "nodots".into()),
            "[metadata.name: Invalid value: \"widgets.ex.com\": must be spec.names.plural+\".\"+spec.group, spec.group: Invalid value: \"nodots\": should be a domain with at least one dot]".into(),
        ),
        (
            widgets(json!({"kind": "bad kind"}), one()),
            format!("[spec.names.singular: Invalid value: \"bad kind\": {LABEL}, spec.names.kind: Invalid value: \"bad kind\": {MIXED}{LABEL}, spec.names.listKind: Invalid value: \"bad kindList\": {MIXED}{LABEL}]"),
        ),
        (
            widgets(json!({"shortNames": ["Bad_Short"], "categories": ["UP"]}), one()),
            format!("[spec.names.shortNames[0]: Invalid value: \"Bad_Short\": {LABEL}, spec.names.categories[0]: Invalid value: \"UP\": {LABEL}]"),
        ),
        (
            widgets(json!({}), vec![version("V1", json!({}))]),
            format!("[spec.versions[0].name: Invalid value: \"V1\": {LABEL}, spec.version: Invalid value: \"V1\": {LABEL}]"),
        ),
        (
            widgets(json!({}), vec![version("v1", json!({"deprecated": false, "deprecationWarning": "x"}))]),
            "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions".into(),
        ),
        (
            widgets(json!({}), vec![version("v1", json!({"schema": null}))]),
            "spec.versions[0].schema.openAPIV3Schema: Required value".into(),
        ),
        (
            widgets(json!({}), vec![version("v1", json!({"subresources": {"scale": {"specReplicasPath": "spec.x", "statusReplicasPath": ".foo"}}}))]),
            "[spec.subresources.scale.specReplicasPath: Invalid value: \"spec.x\": must be a simple json path starting with ., spec.subresources.scale.statusReplicasPath: Invalid value: \".foo\": should be a json path under .status]".into(),
        ),
        (
            widgets(json!({}), vec![version("v1", json!({"selectableFields": [{"jsonPath": ".spec.zz"}]}))]),
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.zz\": is an invalid path: does not refer to a valid field".into(),
        ),
    ] {
        let name = text(&crd, "metadata.name").to_owned();
        let wanted = format!("CustomResourceDefinition.apiextensions.k8s.io \"{name}\" is invalid: {errors}");
        assert_eq!(create(crd).expect_err("refused"), wanted);
    }
}

#[test]
fn as_039_version_lists_are_checked() {
    let shown = |name: &str, storage: bool| {
        format!(
            "{{\"Name\":\"{name}\",\"Served\":true,\"Storage\":{storage},\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}"
        )
    };
    const PREFIX: &str = "CustomResourceDefinition.apiextensions.k8s.io \"widgets.ex.com\" is invalid: ";
    let twice = vec![version("v1", json!({})), version("v1", json!({}))];
    let list = format!("[{},{}]", shown("v1", true), shown("v1", true));
    assert_eq!(
        create(widgets(json!({}), twice)).expect_err("refused"),
        format!(
            "{PREFIX}[spec.versions: Invalid value: {list}: must contain unique version names, spec.versions: Invalid value: {list}: must have exactly one version marked as storage version, status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v1]"
        )
    );
    let none = vec![version("v1", json!({"storage": false}))];
    assert_eq!(
        create(widgets(json!({}), none)).expect_err("refused"),
        format!(
            "{PREFIX}[spec.versions: Invalid value: [{}]: must have exactly one version marked as storage version, status.storedVersions: Invalid value: null: must have at least one stored version]",
            shown("v1", false)
        )
    );
}

#[test]
fn as_047_stored_versions_stay() {
    let made = create(widgets(json!({}), vec![version("v1", json!({}))])).expect("created");
    assert_eq!(
        update(widgets(json!({}), vec![version("v2", json!({}))]), &made).expect_err("refused"),
        "CustomResourceDefinition.apiextensions.k8s.io \"widgets.ex.com\" is invalid: status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions"
    );
    let both = vec![version("v1", json!({"storage": false})), version("v2", json!({}))];
    let moved = update(widgets(json!({}), both), &made).expect("updated");
    assert_eq!(at(&moved, "status.storedVersions"), &json!(["v1", "v2"]));
}

#[test]
fn as_039_protected_groups_need_approval() {
    let mut crd = widgets(json!({}), vec![version("v1", json!({}))]);
    set_at(&mut crd, "spec", "group", "x.k8s.io");
    set_at(&mut crd, "metadata", "name", "widgets.x.k8s.io");
    assert_eq!(
        create(crd.clone()).expect_err("refused"),
        "CustomResourceDefinition.apiextensions.k8s.io \"widgets.x.k8s.io\" is invalid: metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
    );
    set_at(&mut crd, "metadata.annotations", "api-approved.kubernetes.io", "https://golden.test/1");
    assert!(create(crd).is_ok());
}

#[test]
fn as_073_deprecated_versions_warn() {
    let versions = vec![version("v1", json!({"deprecated": true})), version("v2", json!({"storage": false}))];
    let made = super::descriptors(&decoded(widgets(json!({}), versions))).expect("compiled");
    let warning = |name: &str| {
        made.iter().find(|d| d.version == name).and_then(|d| d.custom.as_ref()?.deprecation_warning.clone())
    };
    assert_eq!(warning("v1").as_deref(), Some("ex.com/v1 Widget is deprecated; use ex.com/v2 Widget"));
    assert_eq!(warning("v2"), None);
    let own = vec![version("v1", json!({"deprecated": true, "deprecationWarning": "golden: use v2"}))];
    let made = super::descriptors(&decoded(widgets(json!({}), own))).expect("compiled");
    let warning = made[0].custom.as_ref().and_then(|c| c.deprecation_warning.as_deref());
    assert_eq!(warning, Some("golden: use v2"));
}

#[test]
fn as_046_columns_default_to_age() {
    let made =
        super::descriptors(&decoded(widgets(json!({}), vec![version("v1", json!({}))]))).expect("compiled");
    let names: Vec<&str> = made[0].columns.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["Name", "Age"]);
    let columns =
        json!({"additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]});
    let made =
        super::descriptors(&decoded(widgets(json!({}), vec![version("v1", columns)]))).expect("compiled");
    let last = made[0].columns.last().expect("a column");
    assert_eq!(
        (last.name.as_str(), last.description.as_str()),
        ("Size", "Custom resource definition column (in JSONPath format): .spec.size")
    );
}

#[test]
fn as_043_custom_status_is_written_apart() {
    let subresources = json!({"subresources": {"status": {}}});
    let made = super::descriptors(&decoded(widgets(json!({}), vec![version("v1", subresources)])))
        .expect("compiled");
    let strategy = &made[0].strategy;
    let old = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"size": 1}, "status": {"phase": "x"}});
    with_context(|cx| {
        let mut new = json!({"metadata": {"name": "a", "labels": {"l": "1"}, "resourceVersion": "1", "managedFields": []},
            "spec": {"size": 2}, "status": {"phase": "y"}});
        let mut main = new.clone();
        strategy.prepare_update(cx, &mut main, &old).expect("prepared");
        assert_eq!(at(&main, "status"), &json!({"phase": "x"}));
        assert_eq!(at(&main, "spec.size"), &json!(2));
        assert!(strategy.spec_changed(&main, &old));
        strategy.prepare_subresource_update(cx, "status", &mut new, &old).expect("prepared");
        assert_eq!(
            new,
            json!({"metadata": {"name": "a", "resourceVersion": "1", "managedFields": []}, "spec": {"size": 1}, "status": {"phase": "y"}})
        );
        assert!(!strategy.spec_changed(&new, &old));
        strategy.prepare_create(cx, &mut new).expect("prepared");
        assert!(new.get("status").is_none());
    });
}

/// A space with its follower running.
struct Space {
    store: SpaceStore,
    catalog: Arc<ArcSwap<Catalog>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Space {
    async fn start(store: SpaceStore) -> Self {
        let catalog = Arc::new(ArcSwap::from(builtin::catalog()));
        let follower = Follower::new(store.clone(), catalog.clone(), None);
        follower.sync().await;
        let stop = CancellationToken::new();
        let task = tokio::spawn(follower.run(stop.clone()));
        Self { store, catalog, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the follower ended well");
    }

    async fn put(&self, key: Key, object: &Value) {
        let expect =
            self.store.snapshot().get(&key).map_or(Expect::Absent, |entry| Expect::At(entry.revision));
        let encoded = encode::encode(object, text(object, "apiVersion"), text(object, "kind"));
        self.store.commit(Write { key, expect, action: Action::Put(encoded) }).await.expect("stored");
    }

    async fn define(&self, crd: Value, uid: &str) -> Key {
        let mut crd = create(crd).expect("created");
        set_at(&mut crd, "metadata", "uid", uid);
        let owner = json!([{"manager": "golden", "operation": "Update", "apiVersion": "apiextensions.k8s.io/v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:group": {}}}}]);
        set_at(&mut crd, "metadata", "managedFields", owner);
        let key = key(text(&crd, "metadata.name"));
        self.put(key.clone(), &crd).await;
        key
    }

    fn get(&self, key: &Key) -> Option<Value> {
        self.store.snapshot().get(key).map(|entry| serde_json::from_slice(&entry.value).expect("JSON"))
    }

    /// Waits, without sleeping, until the definition satisfies `wanted`.
    async fn until(&self, key: &Key, wanted: impl Fn(Option<&Value>) -> bool) -> Option<Value> {
        let waiting = async {
            let scope = Scope::all(collection());
            let mut watch = self.store.watch(scope, self.store.revision()).expect("a watch");
            loop {
                let object = self.get(key);
                if wanted(object.as_ref()) {
                    return object;
                }
                watch.next().await.expect("an event");
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.expect("in time")
    }

    /// Marks the definition as deleted, as a first DELETE does, and returns the marked definition. The controllers may
    /// change it at once.
    async fn delete(&self, key: &Key) -> Value {
        let mut crd = self.get(key).expect("a definition");
        with_context(|cx| kind().strategy.prepare_delete(cx, &mut crd).expect("prepared"));
        set_at(&mut crd, "metadata", "deletionTimestamp", "2026-01-01T00:00:00Z");
        self.put(key.clone(), &crd).await;
        crd
    }
}

fn condition<'a>(crd: &'a Value, kind: &str) -> (&'a str, &'a str, &'a str) {
    list(crd, "status.conditions")
        .iter()
        .find(|c| text(c, "type") == kind)
        .map_or(("", "", ""), |c| (text(c, "status"), text(c, "reason"), text(c, "message")))
}

fn established(crd: Option<&Value>) -> bool {
    crd.is_some_and(|crd| condition(crd, "Established").0 == "True")
}

#[tokio::test]
async fn as_040_established_means_served() {
    let engine = Engine::in_memory();
    let space = Space::start(engine.space("s").expect("a space")).await;
    let generation = space.catalog.load().generation;
    let key =
        space.define(widgets(json!({"shortNames": ["wd"]}), vec![version("v1", json!({}))]), "u1").await;
    let crd = space.until(&key, established).await.expect("a definition");
    let catalog = space.catalog.load_full();
    assert!(catalog.generation > generation);
    let served = catalog.resource("ex.com", "v1", "widgets").expect("served");
    assert_eq!((served.kind.as_str(), served.short_names.as_slice()), ("Widget", &["wd".to_owned()][..]));
    assert_eq!(catalog.groups().last().map(|g| g.name.as_str()), Some("ex.com"));
    assert_eq!(
        at(&crd, "status.acceptedNames"),
        &json!({"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "shortNames": ["wd"], "singular": "widget"})
    );
    let kinds: Vec<&str> = list(&crd, "status.conditions").iter().map(|c| text(c, "type")).collect();
    assert_eq!(kinds, ["NamesAccepted", "Established"]);
    assert_eq!(condition(&crd, "NamesAccepted"), ("True", "NoConflicts", "no conflicts found"));
    assert_eq!(
        condition(&crd, "Established"),
        ("True", "InitialNamesAccepted", "the initial names have been accepted")
    );
    let owners = list(&crd, "metadata.managedFields");
    let own =
        owners.iter().find(|o| text(o, "manager") == "kube-apiserver").expect("an owner of the conditions");
    assert_eq!(text(own, "subresource"), "status");
    assert!(own.pointer("/fieldsV1/f:status/f:acceptedNames/f:kind").is_some());
    assert!(own.pointer("/fieldsV1/f:status/f:conditions/k:{\"type\":\"Established\"}").is_some());
    let store = space.store.clone();
    space.stop().await;

    // After a restart the definition is served at once.
    let again = Space::start(store).await;
    assert!(again.catalog.load().resource("ex.com", "v1", "widgets").is_some());
    again.stop().await;
}

#[tokio::test]
async fn as_040_names_are_granted_once() {
    let engine = Engine::in_memory();
    let space = Space::start(engine.space("s").expect("a space")).await;
    let first = space.define(widgets(json!({}), vec![version("v1", json!({}))]), "u1").await;
    space.until(&first, established).await;
    let names = json!({"plural": "gadgets", "kind": "Gadget", "listKind": "WidgetList"});
    let second = space.define(widgets(names, vec![version("v1", json!({}))]), "u2").await;
    let crd =
        space.until(&second, |crd| crd.is_some_and(|c| !condition(c, "NamesAccepted").0.is_empty())).await;
    let crd = crd.expect("a definition");
    assert_eq!(
        condition(&crd, "NamesAccepted"),
        ("False", "ListKindConflict", "\"WidgetList\" is already in use")
    );
    assert_eq!(condition(&crd, "Established"), ("False", "NotAccepted", "not all names are accepted"));
    assert_eq!(text(&crd, "status.acceptedNames.plural"), "gadgets");
    assert!(space.catalog.load().resource("ex.com", "v1", "gadgets").is_none());
    // Deleting the holder frees the name.
    space.delete(&first).await;
    space.until(&first, |crd| crd.is_none()).await;
    space.until(&second, established).await;
    assert!(space.catalog.load().resource("ex.com", "v1", "widgets").is_none());
    assert!(space.catalog.load().resource("ex.com", "v1", "gadgets").is_some());
    space.stop().await;
}

#[tokio::test]
async fn as_049_a_deleted_definition_takes_its_instances_along() {
    let engine = Engine::in_memory();
    let space = Space::start(engine.space("s").expect("a space")).await;
    let crd = widgets(json!({}), vec![version("v1", json!({}))]);
    let key = space.define(crd.clone(), "u1").await;
    space.until(&key, established).await;
    let instance = |name: &str| Key {
        collection: Collection::new("ex.com", "widgets"),
        namespace: "ns".into(),
        name: name.into(),
    };
    let widget = |name: &str| json!({"apiVersion": "ex.com/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "ns", "generation": 1}});
    let mut held = widget("held");
    set_at(&mut held, "metadata", "finalizers", json!(["ex.com/hold"]));
    space.put(instance("free"), &widget("free")).await;
    space.put(instance("held"), &held).await;
    let deleted = space.delete(&key).await;
    assert_eq!(
        condition(&deleted, "Terminating"),
        (
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
        )
    );
    let marked = space
        .until(&key, |crd| crd.is_some_and(|c| condition(c, "Terminating").1 == "InstanceDeletionInProgress"))
        .await
        .expect("a definition");
    assert_eq!(list(&marked, "metadata.finalizers"), [json!(super::FINALIZER)]);
    let terminating = |catalog: &Catalog| {
        catalog.resource("ex.com", "v1", "widgets").and_then(|d| d.custom.as_ref().map(|c| c.terminating))
    };
    assert_eq!(terminating(&space.catalog.load()), Some(true));
    // The instance with a finalizer is marked and waited for.
    let scope = Scope::all(Collection::new("ex.com", "widgets"));
    let mut watch = space.store.watch(scope, store::Revision(0)).expect("a watch");
    let waiting = async {
        while space.get(&instance("held")).is_some_and(|w| at(&w, "metadata.deletionTimestamp").is_null())
            || space.get(&instance("free")).is_some()
        {
            watch.next().await.expect("an event");
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.expect("in time");
    assert_eq!(at(&space.get(&instance("held")).expect("held"), "metadata.generation"), &json!(2));
    let mut released = space.get(&instance("held")).expect("held");
    crate::kinds::value::remove_at(&mut released, "metadata", "finalizers");
    space.put(instance("held"), &released).await;
    space.until(&key, |crd| crd.is_none()).await;
    assert!(space.get(&instance("held")).is_none());

    // The same definition, created again, starts empty and is served.
    space.put(instance("left"), &widget("left")).await;
    let key = space.define(crd, "u2").await;
    space.until(&key, established).await;
    assert!(space.get(&instance("left")).is_none());
    assert_eq!(terminating(&space.catalog.load()), Some(false));
    space.stop().await;
}
