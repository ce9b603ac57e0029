//! Executes the decisions of the controllers.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use machinery::time::now;
use parking_lot::Mutex;
use runtime::Next;
use serde_json::{Value, json};
use store::{Collection, Entry, Key, Snapshot, SpaceStore};

use super::accounts::{self, NamespaceWrite};
use super::gc::{self, Action, Uid};
use super::{
    Config, ControllerState, Task, authentication, certificates, expiry, namespaces, protection, requests,
    roles,
};
use crate::kinds::{Resource, escape};
use crate::local::{ErrorResponse, InProcessApi, MERGE, unless_overtaken};

/// How often a namespace with remaining content is visited.
const NAMESPACE_RETRY: Duration = Duration::from_secs(5);
/// How often an object with owners of an unknown kind is visited.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(30);

pub(super) struct Shell {
    pub(super) local: InProcessApi,
    pub(super) store: SpaceStore,
    pub(super) state: Arc<Mutex<ControllerState>>,
    pub(super) config: Config,
}

fn key(collection: Collection, namespace: &str, name: &str) -> Key {
    Key { collection, namespace: namespace.into(), name: name.into() }
}

fn is_pods(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "pods"
}

fn value(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.value).unwrap_or_default()
}

impl Shell {
    pub(super) async fn act(&self, task: Task) -> Result<Next, ErrorResponse> {
        match task {
            Task::Collect(uid) => self.collect(&uid).await,
            Task::EmptyNamespace(namespace) => self.empty(&namespace).await,
            Task::RestoreNamespace(name) => {
                unless_overtaken(self.local.post("/api/v1/namespaces", &namespaces::standard(name)).await)?;
                Ok(Next::OnChange)
            }
            Task::ProvisionNamespace(namespace) => self.provision(&namespace).await,
            Task::Aggregate => self.aggregate().await,
            Task::Certify(name) => self.certify(&name).await,
            Task::DeleteRequest(name) => self.clear(&name).await,
            Task::ExpireEvent(namespace, name) => self.expire(&namespace, &name).await,
            Task::ReleaseProtection(key) => {
                let released = protection::release(&key, &self.store.snapshot());
                if let Some((uid, finalizer)) = released {
                    self.drop_finalizer(&key, &uid, finalizer).await?;
                }
                Ok(Next::OnChange)
            }
        }
    }

    async fn collect(&self, uid: &Uid) -> Result<Next, ErrorResponse> {
        // The snapshot is taken after the graph, so that it lacks the objects that the graph has as deleted.
        let action = {
            let mut state = self.state.lock();
            let action = state.graph.next_action(uid, &state.kinds, &self.store.snapshot());
            if action == Some(Action::Later) {
                state.unresolved.push(uid.clone());
            }
            action
        };
        match action {
            None => Ok(Next::OnChange),
            Some(Action::Later) => Ok(Next::After(UNRESOLVED_RETRY)),
            Some(action) => self.carry_out(action).await,
        }
    }

    fn path(&self, key: &Key) -> Option<String> {
        gc::path(&self.state.lock().kinds, key)
    }

    async fn carry_out(&self, action: Action) -> Result<Next, ErrorResponse> {
        match action {
            Action::Later => {}
            Action::Delete { key, uid, revision, policy } => {
                self.delete(&key, &uid, Some(revision.0), policy).await?;
            }
            Action::Prune { key, uid, owners } => {
                self.keep_owners(&key, &uid, |owner| !owners.iter().any(|lost| **lost == *owner)).await?;
            }
            Action::Unblock { key, uid, then } => {
                self.unblock(&key, &uid).await?;
                if let Action::Delete { policy, .. } = *then {
                    self.delete(&key, &uid, None, policy).await?;
                }
            }
            Action::Finish { key, uid, finalizer } => self.drop_finalizer(&key, &uid, finalizer).await?,
            Action::Orphan { owner, uid, dependents } => {
                for (dependent, dependent_uid) in dependents {
                    self.keep_owners(&dependent, &dependent_uid, |one| *one != *uid).await?;
                }
                self.drop_finalizer(&owner, &uid, "orphan").await?;
            }
            Action::Warn { key, uid, owner } => self.warn(&key, &uid, &owner).await?,
        }
        Ok(Next::OnChange)
    }

    async fn delete(
        &self,
        key: &Key,
        uid: &str,
        revision: Option<u64>,
        policy: &str,
    ) -> Result<(), ErrorResponse> {
        let Some(path) = self.path(key) else { return Ok(()) };
        let mut preconditions = json!({"uid": uid});
        if let (Some(revision), Some(preconditions)) = (revision, preconditions.as_object_mut()) {
            preconditions.insert("resourceVersion".into(), revision.to_string().into());
        }
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "propagationPolicy": policy, "preconditions": preconditions,
        });
        unless_overtaken(self.local.delete(&path, &options).await)
    }

    /// Changes a list in an object's metadata. Retries if the object changes meanwhile.
    async fn rewrite(
        &self,
        key: &Key,
        uid: &str,
        list: &str,
        kept: impl Fn(&Entry) -> Vec<Value>,
    ) -> Result<(), ErrorResponse> {
        const TRIES: usize = 8;
        let Some(path) = self.path(key) else { return Ok(()) };
        for _ in 0..TRIES {
            let Some(entry) = self.store.snapshot().get(key).filter(|entry| *entry.meta.uid == *uid) else {
                return Ok(());
            };
            let kept = kept(&entry);
            if kept == gc::list(&entry, list) {
                return Ok(());
            }
            let patch = gc::list_patch(uid, entry.revision, list, kept);
            match self.local.patch(&path, MERGE, &patch).await {
                Err(refused) if refused.is_not_found() => return Ok(()),
                Err(refused) if refused.is_overtaken() => {}
                Err(refused) => return Err(refused),
                Ok(_) => return Ok(()),
            }
        }
        Ok(())
    }

    async fn keep_owners(
        &self,
        key: &Key,
        uid: &str,
        keep: impl Fn(&str) -> bool,
    ) -> Result<(), ErrorResponse> {
        self.rewrite(key, uid, "ownerReferences", |entry| gc::kept_owners(entry, &keep)).await
    }

    async fn drop_finalizer(&self, key: &Key, uid: &str, finalizer: &str) -> Result<(), ErrorResponse> {
        self.rewrite(key, uid, "finalizers", |entry| {
            gc::list(entry, "finalizers").into_iter().filter(|one| one != finalizer).collect()
        })
        .await
    }

    async fn unblock(&self, key: &Key, uid: &str) -> Result<(), ErrorResponse> {
        self.rewrite(key, uid, "ownerReferences", |entry| {
            let mut owners = gc::list(entry, "ownerReferences");
            for owner in owners.iter_mut().filter_map(Value::as_object_mut) {
                owner.insert("blockOwnerDeletion".into(), false.into());
            }
            owners
        })
        .await
    }

    async fn warn(&self, key: &Key, uid: &str, owner: &str) -> Result<(), ErrorResponse> {
        let Some(entry) = self.store.snapshot().get(key) else { return Ok(()) };
        let object = value(&entry);
        let at = now();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            // The name makes it one Event per object, however often the object is visited.
            "metadata": {"name": format!("{}.owner-invalid-{uid}", key.name).to_lowercase().replace(':', "-"), "namespace": "default"},
            "involvedObject": {"apiVersion": object.get("apiVersion"), "kind": object.get("kind"), "name": &*key.name, "uid": uid},
            "reason": "OwnerRefInvalidNamespace", "type": "Warning", "count": 1,
            "message": format!("ownerRef [{owner}] does not exist in namespace \"\""),
            "source": {"component": "garbage-collector-controller"}, "reportingComponent": "garbage-collector-controller",
            "firstTimestamp": at, "lastTimestamp": at,
        });
        unless_overtaken(self.local.post("/api/v1/namespaces/default/events", &event).await)
    }

    async fn empty(&self, name: &str) -> Result<Next, ErrorResponse> {
        let place = key(namespaces::collection(), "", name);
        let terminating =
            |all: &Snapshot| all.get(&place).map(|entry| value(&entry)).filter(namespaces::is_terminating);
        let before = self.store.snapshot();
        if terminating(&before).is_none() {
            return Ok(Next::OnChange);
        }
        let mut resources = namespaces::resources(&before, &self.state.lock().kinds, name);
        // Pods first, because the objects that they use should exist longer.
        resources.sort_by_key(|resource| (!is_pods(resource), resource.full_name()));
        let mut failures = Vec::new();
        for resource in resources {
            let options =
                json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
            match self.local.delete(&resource.path(name), &options).await {
                Err(refused) if !refused.is_not_found() => failures.push(refused.to_string()),
                _ => {}
            }
            if is_pods(&resource) && self.store.snapshot().view(&resource.collection).len(Some(name)) > 0 {
                break;
            }
        }
        let after = self.store.snapshot();
        let Some(namespace) = terminating(&after) else { return Ok(Next::OnChange) };
        let content = namespaces::content(&after, &self.state.lock().kinds, name);
        let path = format!("/api/v1/namespaces/{name}");
        if content.objects.is_empty() && failures.is_empty() {
            let finalized = namespaces::finalized(namespace);
            return match self.local.put(&format!("{path}/finalize"), &finalized).await {
                Err(refused) if refused.is_not_found() => Ok(Next::OnChange),
                Err(refused) if refused.is_overtaken() => Ok(Next::After(Duration::from_millis(10))),
                Err(refused) => Err(refused),
                Ok(_) => Ok(Next::OnChange),
            };
        }
        self.report(&path, namespace, &content, &failures).await?;
        Ok(Next::After(NAMESPACE_RETRY))
    }

    async fn report(
        &self,
        path: &str,
        mut namespace: Value,
        content: &namespaces::Content,
        failures: &[String],
    ) -> Result<(), ErrorResponse> {
        let before =
            namespace.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        let conditions = namespaces::conditions(content, failures, &before, &now());
        if conditions == before {
            return Ok(());
        }
        if let Some(object) = namespace.as_object_mut() {
            object.insert("status".into(), json!({"phase": "Terminating", "conditions": conditions}));
        }
        unless_overtaken(self.local.put(&format!("{path}/status"), &namespace).await)
    }

    async fn provision(&self, namespace: &str) -> Result<Next, ErrorResponse> {
        let all = self.store.snapshot();
        let Some(found) = all.get(&key(namespaces::collection(), "", namespace)) else {
            return Ok(Next::OnChange);
        };
        if value(&found).pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(Next::OnChange);
        }
        if namespace == authentication::NAMESPACE {
            self.publish(&all).await?;
        }
        let account = all.get(&key(Collection::new("", "serviceaccounts"), namespace, accounts::ACCOUNT));
        let root_ca = all.get(&key(Collection::new("", "configmaps"), namespace, accounts::ROOT_CA));
        let root_ca = root_ca.map(|entry| value(&entry));
        let path = format!("/api/v1/namespaces/{namespace}");
        for need in
            accounts::needs(namespace, account.is_some(), root_ca.as_ref(), &self.config.ca_bundle_pem)
        {
            let done = match need {
                NamespaceWrite::CreateAccount(object) => {
                    self.local.post(&format!("{path}/serviceaccounts"), &object).await
                }
                NamespaceWrite::CreateRootCa(object) => {
                    self.local.post(&format!("{path}/configmaps"), &object).await
                }
                NamespaceWrite::PatchRootCa(patch) => {
                    self.local.patch(&format!("{path}/configmaps/{}", accounts::ROOT_CA), MERGE, &patch).await
                }
            };
            match done {
                // The namespace is being deleted.
                Err(refused) if refused.is_forbidden() => return Ok(Next::OnChange),
                other => unless_overtaken(other)?,
            }
        }
        Ok(Next::OnChange)
    }

    /// Publishes the ConfigMap for extensions of the control plane.
    async fn publish(&self, all: &Snapshot) -> Result<(), ErrorResponse> {
        let Some(signer) = &self.config.csr_signer else { return Ok(()) };
        let (namespace, name) = (authentication::NAMESPACE, authentication::NAME);
        let found = all.get(&key(Collection::new("", "configmaps"), namespace, name));
        let found = found.map(|entry| value(&entry));
        let Some(data) = authentication::missing_data(found.as_ref(), &signer.ca_pem()) else {
            return Ok(());
        };
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let done = match found {
            None => self.local.post(&path, &authentication::object(&data)).await,
            Some(_) => self.local.patch(&format!("{path}/{name}"), MERGE, &json!({"data": data})).await,
        };
        unless_overtaken(done)
    }

    async fn aggregate(&self) -> Result<Next, ErrorResponse> {
        let view = self.store.snapshot().view(&roles());
        let all: Vec<(u64, Value)> =
            view.iter(None, None).map(|entry| (entry.revision.0, value(entry))).collect();
        let values: Vec<Value> = all.iter().map(|(_, role)| role.clone()).collect();
        for (revision, role) in &all {
            let Some(rules) = apiserver::authz::aggregate(role, &values) else { continue };
            if role.get("rules").and_then(Value::as_array).cloned().unwrap_or_default() == rules {
                continue;
            }
            let name = role.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{}", escape(name));
            let patch = json!({"metadata": {"resourceVersion": revision.to_string()}, "rules": rules});
            unless_overtaken(self.local.patch(&path, MERGE, &patch).await)?;
        }
        Ok(Next::OnChange)
    }

    async fn certify(&self, name: &str) -> Result<Next, ErrorResponse> {
        let Some(signer) = &self.config.csr_signer else { return Ok(Next::OnChange) };
        let Some(entry) = self.store.snapshot().get(&key(requests(), "", name)) else {
            return Ok(Next::OnChange);
        };
        let mut request = value(&entry);
        let applicable_rules = certificates::approve::applicable_rules(&request);
        if !applicable_rules.is_empty() {
            return self.approve(name, request, applicable_rules).await;
        }
        let Some(status) = certificates::decide::status(&request, signer, &now()) else {
            return Ok(Next::OnChange);
        };
        if let Some(object) = request.as_object_mut() {
            object.insert("status".into(), status);
        }
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{}/status", escape(name));
        unless_overtaken(self.local.put(&path, &request).await)?;
        Ok(Next::OnChange)
    }

    /// Approves a node's request if the requester has one of these rights. A right may also be granted later.
    async fn approve(
        &self,
        name: &str,
        request: Value,
        applicable_rules: Vec<certificates::approve::ApprovalRule>,
    ) -> Result<Next, ErrorResponse> {
        for rule in applicable_rules {
            let review = certificates::approve::review(&request, rule);
            let answer =
                self.local.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
            if answer.pointer("/status/allowed").and_then(Value::as_bool) == Some(true) {
                let path = format!(
                    "/apis/certificates.k8s.io/v1/certificatesigningrequests/{}/approval",
                    escape(name)
                );
                let approved = certificates::approve::approved(request, rule, &now());
                unless_overtaken(self.local.put(&path, &approved).await)?;
                return Ok(Next::OnChange);
            }
        }
        Ok(Next::Retry)
    }

    async fn clear(&self, name: &str) -> Result<Next, ErrorResponse> {
        let place = key(requests(), "", name);
        let Some(entry) = self.store.snapshot().get(&place) else { return Ok(Next::OnChange) };
        let Some(due) = certificates::clean::deletion_time(&value(&entry)) else { return Ok(Next::OnChange) };
        let left = certificates::clean::remaining(due, Timestamp::now());
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        self.delete(&place, &entry.meta.uid, Some(entry.revision.0), "Background").await?;
        Ok(Next::OnChange)
    }

    async fn expire(&self, namespace: &str, name: &str) -> Result<Next, ErrorResponse> {
        let place = key(expiry::collection(), namespace, name);
        let Some(entry) = self.store.snapshot().get(&place) else { return Ok(Next::OnChange) };
        let left = expiry::last_seen(&entry)
            .map_or(Duration::ZERO, |seen| expiry::remaining(seen, Timestamp::now()));
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        self.delete(&place, &entry.meta.uid, Some(entry.revision.0), "Background").await?;
        Ok(Next::OnChange)
    }
}
