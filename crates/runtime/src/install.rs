//! CustomResourceDefinitions, until they are served.

use std::time::Duration;

use futures::{StreamExt, future::try_join_all, pin_mut};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{PostParams, WatchParams},
    core::WatchEvent,
};

use crate::{Backoff, failure};

/// Why CRDs could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The server refused.
    #[error("installing {crd}")]
    Refused { crd: String, source: kube::Error },
    /// It is installed, but not served in time.
    #[error("{crd} was not established within {seconds} s")]
    Late { crd: String, seconds: u64 },
}

const BUDGET: Duration = Duration::from_secs(60);

/// Creates the CRDs, updates those whose spec differs, and waits until all are served; at most a minute
/// (KS-002). Writes as `manager`.
pub async fn install(
    client: &Client,
    crds: &[CustomResourceDefinition],
    manager: &str,
) -> Result<(), InstallError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    try_join_all(crds.iter().map(|crd| install_one(&api, crd, manager))).await?;
    Ok(())
}

async fn install_one(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    manager: &str,
) -> Result<(), InstallError> {
    let name = crd.name_any();
    let all = async {
        let live = put(api, crd, manager).await?;
        if is_established(&live) { Ok(()) } else { wait(api, live).await }
    };
    match tokio::time::timeout(BUDGET, all).await {
        Ok(done) => done.map_err(|source| InstallError::Refused { crd: name, source }),
        Err(_) => Err(InstallError::Late { crd: name, seconds: BUDGET.as_secs() }),
    }
}

/// Sees to it that the spec is as wanted; an unreachable server is tried again.
async fn put(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    manager: &str,
) -> Result<CustomResourceDefinition, kube::Error> {
    let mut backoff = Backoff::for_server();
    loop {
        match put_once(api, crd, manager).await {
            Err(error) if is_passing(&error) => {
                tracing::debug!(crd = crd.name_any(), %error, "installing; will be tried again");
                tokio::time::sleep(backoff.pause()).await;
            }
            done => return done,
        }
    }
}

async fn put_once(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    manager: &str,
) -> Result<CustomResourceDefinition, kube::Error> {
    let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    let Some(live) = api.get_opt(&crd.name_any()).await? else {
        return api.create(&params, crd).await;
    };
    if same_spec(&live, crd) {
        return Ok(live);
    }
    let mut wanted = crd.clone();
    wanted.metadata.resource_version = live.resource_version();
    api.replace(&crd.name_any(), &params, &wanted).await
}

/// Equality but for what the server fills in.
fn same_spec(live: &CustomResourceDefinition, wanted: &CustomResourceDefinition) -> bool {
    let mut live = live.spec.clone();
    live.conversion = live.conversion.filter(|it| it != &none_conversion());
    let mut wanted = wanted.spec.clone();
    wanted.conversion = wanted.conversion.filter(|it| it != &none_conversion());
    live.preserve_unknown_fields = live.preserve_unknown_fields.filter(|yes| *yes);
    live == wanted
}

fn none_conversion() -> CustomResourceConversion {
    CustomResourceConversion { strategy: "None".into(), webhook: None }
}

fn is_passing(error: &kube::Error) -> bool {
    failure::is_conflict(error)
        || failure::is_already_exists(error)
        || !matches!(failure::code(error), Some(400..=499))
}

/// Whether a CRD's resources are served.
pub fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

async fn wait(
    api: &Api<CustomResourceDefinition>,
    mut live: CustomResourceDefinition,
) -> Result<(), kube::Error> {
    let name = live.name_any();
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut backoff = Backoff::for_server();
    loop {
        let events = api.watch(&params, &live.resource_version().unwrap_or_default()).await?;
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(WatchEvent::Added(crd) | WatchEvent::Modified(crd)) if is_established(&crd) => {
                    return Ok(());
                }
                Ok(WatchEvent::Error(_)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        tokio::time::sleep(backoff.pause()).await;
        live = api.get(&name).await?;
        if is_established(&live) {
            return Ok(());
        }
    }
}
