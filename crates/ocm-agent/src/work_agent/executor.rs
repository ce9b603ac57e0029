//! Checks whether the executor of a work may do what the agent will do for it (OCM-086).

use std::time::Duration;

use apis::ocm::work::{ExecutorServiceAccount, ManifestWorkExecutor};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::{
    Error,
    core::{params::PostParams, request::Request},
};
use runtime::failure::{code_of, is_clash};
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};

use super::{
    apply::{DesiredObject, Failure},
    rules::Target,
};

/// The verbs that every object needs; an object that the work owns must also be deleted some day.
const VERBS: [&str; 4] = ["create", "update", "patch", "get"];

/// Checks the permissions of the executor. Costs a SubjectAccessReview for each verb, and for RBAC kinds a
/// dry run as the executor.
///
/// # Errors
///
/// [`Failure::Denied`] if a permission is missing; the agent checks again after `pause`.
pub(crate) async fn check(
    cluster: &Rest,
    executor: Option<&ManifestWorkExecutor>,
    wanted: &DesiredObject<'_>,
    pause: Duration,
) -> Result<(), Failure> {
    let Some(executor) = executor else { return Ok(()) };
    let account = account(executor).map_err(|message| Failure::Settled(message.into()))?;
    let verbs = VERBS.into_iter().chain(wanted.owned.then_some("delete"));
    let target = Target {
        group: wanted.gvr.group.clone(),
        resource: wanted.gvr.plural.clone(),
        namespace: wanted.namespace.to_owned(),
        name: wanted.name.to_owned(),
    };
    let target = &target;
    let reviews = verbs.map(|verb| async move { review(cluster, account, wanted.gvr, target, verb).await });
    for allowed in futures::future::join_all(reviews).await {
        if !allowed? {
            return Err(denied(wanted, "", pause));
        }
    }
    if is_rbac(wanted.gvr) && !may_grant(cluster, account, wanted).await? {
        return Err(denied(wanted, ", error: permission escalation", pause));
    }
    Ok(())
}

/// Checks whether the executor may read an object. Costs a SubjectAccessReview.
///
/// # Errors
///
/// [`Failure::Denied`] if it may not.
pub(crate) async fn may_get(
    cluster: &Rest,
    executor: &ManifestWorkExecutor,
    gvr: &Gvr,
    target: &Target,
) -> Result<(), Failure> {
    let account = account(executor).map_err(|message| Failure::Settled(message.into()))?;
    if review(cluster, account, gvr, target, "get").await? {
        return Ok(());
    }
    let dot = if gvr.group.is_empty() { "" } else { "." };
    let slash = if target.namespace.is_empty() { "" } else { "/" };
    Err(Failure::Denied(format!(
        "the executor {}/{} may not get {}{dot}{} {}{slash}{}",
        account.namespace, account.name, gvr.plural, gvr.group, target.namespace, target.name
    )))
}

fn account(executor: &ManifestWorkExecutor) -> Result<&ExecutorServiceAccount, &'static str> {
    if executor.subject.type_ != "ServiceAccount" {
        return Err("only support ServiceAccount type for the executor");
    }
    executor.subject.service_account.as_ref().ok_or("the executor service account is nil")
}

fn user(account: &ExecutorServiceAccount) -> String {
    format!("system:serviceaccount:{}:{}", account.namespace, account.name)
}

async fn review(
    cluster: &Rest,
    account: &ExecutorServiceAccount,
    gvr: &Gvr,
    target: &Target,
    verb: &str,
) -> Result<bool, Error> {
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": user(account),
        "groups": ["system:serviceaccounts", "system:authenticated",
            format!("system:serviceaccounts:{}", account.namespace)],
        "resourceAttributes": {"group": gvr.group, "version": gvr.version,
            "resource": gvr.plural, "namespace": target.namespace, "name": target.name, "verb": verb}}});
    let gvr = Gvr::of::<SubjectAccessReview>();
    let answer: Value = cluster.create(&gvr, "", body.to_string().into_bytes()).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or_default())
}

fn is_rbac(gvr: &Gvr) -> bool {
    gvr.group == "rbac.authorization.k8s.io"
        && ["roles", "rolebindings", "clusterroles", "clusterrolebindings"].contains(&gvr.plural.as_str())
}

/// A review does not tell whether a role may be granted, but an API server that is asked to create it does.
async fn may_grant(
    cluster: &Rest,
    account: &ExecutorServiceAccount,
    wanted: &DesiredObject<'_>,
) -> Result<bool, Failure> {
    let params = PostParams { dry_run: true, field_manager: None };
    let body = super::merge::to_create(wanted.manifest).to_string().into_bytes();
    let request = Request::new(wanted.gvr.path(wanted.namespace)).create(&params, body);
    let mut request = request.map_err(|e| Failure::from(Error::BuildRequest(e)))?;
    let header =
        user(account).parse().map_err(|_| Failure::Settled("the executor has no valid name".into()))?;
    request.headers_mut().insert("impersonate-user", header);
    match cluster.client().request::<Value>(request).await {
        Ok(_) => Ok(true),
        // The server checks whether the role may be granted before it checks whether it exists.
        Err(error) if is_clash(&error) => Ok(true),
        Err(error) if code_of(&error) == 403 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn denied(wanted: &DesiredObject<'_>, suffix: &str, pause: Duration) -> Failure {
    let (gvr, seconds) = (wanted.gvr, pause.as_secs());
    let pause =
        if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) };
    Failure::Denied(format!(
        "not allowed to apply the resource {} {}, {} {}{suffix}, will try again in {pause}",
        gvr.group, gvr.plural, wanted.namespace, wanted.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_086_only_service_accounts() {
        let executor = |value: Value| -> ManifestWorkExecutor { serde_json::from_value(value).expect("one") };
        let user = executor(json!({"subject": {"type": "User"}}));
        assert_eq!(account(&user), Err("only support ServiceAccount type for the executor"));
        let nobody = executor(json!({"subject": {"type": "ServiceAccount"}}));
        assert_eq!(account(&nobody), Err("the executor service account is nil"));
    }
}
