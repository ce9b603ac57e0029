//! Installs CustomResourceDefinitions and waits until they are served.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, future::try_join_all, pin_mut};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionVersion,
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
    /// The server refused the CRD.
    #[error("installing {crd}")]
    Refused { crd: String, source: kube::Error },
    /// The CRD is installed but was not served in time.
    #[error("{crd} was not established within {seconds} s{}", because(.source.as_ref()))]
    Late {
        crd: String,
        seconds: u64,
        /// The error of the last request, if it failed.
        source: Option<kube::Error>,
    },
}

fn because(last: Option<&kube::Error>) -> &'static str {
    if last.is_some() { "; the last try failed" } else { "" }
}

const BUDGET: Duration = Duration::from_secs(60);

/// Creates the CRDs, updates those whose spec differs, and waits until all are served (KS-002). Versions that
/// exist and are not wanted stay. Writes with the field manager `manager`. Takes at most a minute.
///
/// # Errors
///
/// [`InstallError::Refused`] if the server refuses a CRD, [`InstallError::Late`] if a CRD is not served
/// within a minute.
pub fn install<'a>(
    client: &'a Client,
    crds: &'a [CustomResourceDefinition],
    manager: &'a str,
) -> BoxFuture<'a, Result<(), InstallError>> {
    Box::pin(install_all(client, crds, Writer { manager, shared: false }))
}

/// Like [`install`], for CRDs that other programs install, too, perhaps newer ones: a CRD whose spec none of our
/// programs has written stays as it is, and only gets the versions that it lacks.
///
/// # Errors
///
/// As for [`install`].
pub fn install_shared<'a>(
    client: &'a Client,
    crds: &'a [CustomResourceDefinition],
    manager: &'a str,
) -> BoxFuture<'a, Result<(), InstallError>> {
    Box::pin(install_all(client, crds, Writer { manager, shared: true }))
}

/// Field managers of our programs that install CRDs which others install, too.
const OURS: [&str; 4] = ["kubestellar", "klusterlet", "registration-controller", "addon-manager"];

/// Who writes a CRD.
#[derive(Clone, Copy)]
struct Writer<'a> {
    manager: &'a str,
    /// The CRDs of other programs are left alone.
    shared: bool,
}

impl Writer<'_> {
    /// Returns whether the spec was written by other programs only.
    fn is_foreign(self, live: &CustomResourceDefinition) -> bool {
        let managers =
            live.metadata.managed_fields.iter().flatten().filter(|entry| {
                entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some())
            });
        let mut names = managers.filter_map(|entry| entry.manager.as_deref()).peekable();
        self.shared
            && names.peek().is_some()
            && names.all(|name| name != self.manager && !OURS.contains(&name))
    }
}

async fn install_all(
    client: &Client,
    crds: &[CustomResourceDefinition],
    writer: Writer<'_>,
) -> Result<(), InstallError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    try_join_all(crds.iter().map(|crd| install_one(&api, crd, writer))).await?;
    Ok(())
}

async fn install_one(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    writer: Writer<'_>,
) -> Result<(), InstallError> {
    let name = crd.name_any();
    let mut last = None;
    let all = async {
        let live = put(api, crd, writer, &mut last).await?;
        if is_established(&live) { Ok(()) } else { wait(api, live, &mut last).await }
    };
    match tokio::time::timeout(BUDGET, all).await {
        Ok(done) => done.map_err(|source| InstallError::Refused { crd: name, source }),
        Err(_) => Err(InstallError::Late { crd: name, seconds: BUDGET.as_secs(), source: last }),
    }
}

/// Creates or updates one CRD. Retries while the server is unreachable. `last` receives the last error.
async fn put(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    writer: Writer<'_>,
    last: &mut Option<kube::Error>,
) -> Result<CustomResourceDefinition, kube::Error> {
    let mut backoff = Backoff::for_server();
    loop {
        match put_once(api, crd, writer).await {
            Err(error) if is_passing(&error) => {
                tracing::debug!(crd = crd.name_any(), %error, "installing; will be tried again");
                *last = Some(error);
                tokio::time::sleep(backoff.pause()).await;
            }
            Ok(live) => {
                *last = None;
                return Ok(live);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn put_once(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    writer: Writer<'_>,
) -> Result<CustomResourceDefinition, kube::Error> {
    let params = PostParams { field_manager: Some(writer.manager.to_owned()), ..PostParams::default() };
    let Some(live) = api.get_opt(&crd.name_any()).await? else {
        return api.create(&params, crd).await;
    };
    let next = if writer.is_foreign(&live) { completed(&live, crd) } else { updated(live.clone(), crd) };
    if same_spec(&live, &next) {
        return Ok(live);
    }
    api.replace(&crd.name_any(), &params, &next).await
}

/// Returns the live CRD with the versions that it lacks.
fn completed(live: &CustomResourceDefinition, wanted: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut next = live.clone();
    for version in &wanted.spec.versions {
        match next.spec.versions.iter_mut().find(|known| known.name == version.name) {
            Some(known) => known.served |= version.served,
            None => {
                next.spec
                    .versions
                    .push(CustomResourceDefinitionVersion { storage: false, ..version.clone() });
            }
        }
    }
    next
}

/// Returns the live CRD with the wanted spec. The versions that are not wanted stay, with their conversion, because
/// other programs may use them; so do labels, annotations and finalizers of other writers.
fn updated(
    mut live: CustomResourceDefinition,
    wanted: &CustomResourceDefinition,
) -> CustomResourceDefinition {
    for (key, value) in wanted.metadata.labels.iter().flatten() {
        live.labels_mut().insert(key.clone(), value.clone());
    }
    for (key, value) in wanted.metadata.annotations.iter().flatten() {
        live.annotations_mut().insert(key.clone(), value.clone());
    }
    let old = std::mem::replace(&mut live.spec, wanted.spec.clone());
    let known: Vec<&str> = wanted.spec.versions.iter().map(|version| version.name.as_str()).collect();
    let kept = old.versions.into_iter().filter(|version| !known.contains(&version.name.as_str()));
    live.spec
        .versions
        .extend(kept.map(|version| CustomResourceDefinitionVersion { storage: false, ..version }));
    if live.spec.conversion.is_none() {
        live.spec.conversion = old.conversion;
    }
    live
}

/// Compares two specs without the fields that the server fills in.
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
        || !matches!(failure::code_of(error), 400..=499)
}

/// Returns whether the resources of a CRD are served.
pub fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Waits until the CRD is served. Retries while the server is unreachable. `last` receives the last error.
async fn wait(
    api: &Api<CustomResourceDefinition>,
    mut live: CustomResourceDefinition,
    last: &mut Option<kube::Error>,
) -> Result<(), kube::Error> {
    let name = live.name_any();
    let mut backoff = Backoff::for_server();
    loop {
        match watch(api, &live).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if is_passing(&error) => *last = Some(error),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(backoff.pause()).await;
        match api.get(&name).await {
            Ok(now) if is_established(&now) => return Ok(()),
            Ok(now) => {
                *last = None;
                live = now;
            }
            Err(error) if is_passing(&error) => *last = Some(error),
            Err(error) => return Err(error),
        }
    }
}

/// Watches until the server ends the watch. Returns true once the CRD is served.
async fn watch(
    api: &Api<CustomResourceDefinition>,
    live: &CustomResourceDefinition,
) -> Result<bool, kube::Error> {
    let params = WatchParams::default().fields(&format!("metadata.name={}", live.name_any()));
    let events = match api.watch(&params, &live.resource_version().unwrap_or_default()).await {
        // The caller reads the current state next.
        Err(error) if failure::is_gone(&error) => return Ok(false),
        events => events?,
    };
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Added(crd) | WatchEvent::Modified(crd)) if is_established(&crd) => {
                return Ok(true);
            }
            Ok(WatchEvent::Error(_)) | Err(_) => break,
            Ok(_) => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, error::Error as _, sync::Arc};

    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    fn crd(version: &str) -> CustomResourceDefinition {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version = json!({"name": version, "served": true, "storage": true, "schema": schema});
        let names = json!({"kind": "Rocket", "plural": "rockets"});
        serde_json::from_value(
            json!({"metadata": {"name": "rockets.space.example", "annotations": {"ours": "1"}},
            "spec": {"group": "space.example", "scope": "Cluster", "names": names, "versions": [version]}}),
        )
        .unwrap()
    }

    /// A server that gives these responses, and the requests it received.
    fn server(
        answer: impl Fn(&str) -> (u16, Value) + Clone + Send + 'static,
    ) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let sent: Arc<Mutex<Vec<Value>>> = Arc::default();
        let notes = sent.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (code, body) = answer(request.method().as_str());
            let notes = notes.clone();
            async move {
                let sent = request.into_body().collect_bytes().await.unwrap();
                if let Ok(object) = serde_json::from_slice(&sent) {
                    notes.lock().push(object);
                }
                let answer = http::Response::builder().status(code);
                Ok::<_, Infallible>(answer.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        (Client::new(service, "default"), sent)
    }

    /// KS-002: the error of a wait that failed names the cause.
    #[tokio::test(start_paused = true)]
    async fn ks_002_a_server_that_fails_all_the_time_is_the_reason() {
        let status = json!({"kind": "Status", "status": "Failure", "code": 503, "reason": "x", "message": "out of order"});
        let live = serde_json::to_value(crd("v1")).unwrap();
        let never = server({
            let status = status.clone();
            move |_| (503, status.clone())
        });
        // The server accepts the CRD and is unavailable from then on.
        let soon =
            server(move |method| if method == "POST" { (201, live.clone()) } else { (503, status.clone()) });
        let gone = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"});
        let slow = server(move |method| {
            if method == "POST" {
                (201, serde_json::to_value(crd("v1")).unwrap())
            } else {
                (404, gone.clone())
            }
        });
        for (client, _) in [never, soon] {
            let error = install(&client, &[crd("v1")], "test").await.unwrap_err();
            assert!(matches!(error, InstallError::Late { .. }), "{error:?}");
            assert!(error.to_string().contains("the last try failed"), "{error}");
            assert!(
                error.source().is_some_and(|source| source.to_string().contains("out of order")),
                "{error:?}"
            );
        }
        let refused = install(&slow.0, &[crd("v1")], "test").await;
        assert!(matches!(refused, Err(InstallError::Refused { .. })), "somebody removed it: {refused:?}");
    }

    /// KS-002: an update of a CRD keeps what other clients wrote.
    #[tokio::test(start_paused = true)]
    async fn ks_002_an_update_keeps_what_others_wrote() {
        let mut live = serde_json::to_value(crd("v1alpha1")).unwrap();
        live["metadata"]["resourceVersion"] = json!("7");
        live["metadata"]["labels"] = json!({"theirs": "1"});
        live["metadata"]["annotations"] = json!({"theirs": "1", "ours": "0"});
        live["metadata"]["finalizers"] = json!(["theirs.example/keep"]);
        let mut served = serde_json::to_value(crd("v1")).unwrap();
        served["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        let (client, sent) =
            server(move |method| (200, if method == "PUT" { served.clone() } else { live.clone() }));
        install(&client, &[crd("v1")], "test").await.unwrap();
        let sent = sent.lock();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0]["spec"]["versions"][0]["name"], "v1");
        assert_eq!(sent[0]["spec"]["versions"][0]["storage"], true);
        assert_eq!(sent[0]["spec"]["versions"][1]["name"], "v1alpha1", "others may use it");
        assert_eq!(sent[0]["spec"]["versions"][1]["storage"], false);
        assert_eq!(
            sent[0]["metadata"],
            json!({"name": "rockets.space.example", "resourceVersion": "7", "labels": {"theirs": "1"},
                "annotations": {"theirs": "1", "ours": "1"}, "finalizers": ["theirs.example/keep"]})
        );
    }

    /// KS-002, OCM-001: a CRD of another program, which has more versions and fields than ours, stays as it is; a
    /// version that it lacks is added. The CRDs of our programs are updated.
    #[tokio::test(start_paused = true)]
    async fn ocm_001_newer_crds_of_others_are_kept() {
        let established = json!({"conditions": [{"type": "Established", "status": "True"}]});
        let live = |writer: &str| {
            let mut live = serde_json::to_value(crd("v1")).unwrap();
            let newer =
                json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}});
            live["spec"]["versions"][0]["schema"] = newer.clone();
            let second = json!({"name": "v2", "served": true, "storage": false, "schema": newer});
            live["spec"]["versions"].as_array_mut().unwrap().push(second);
            live["spec"]["conversion"] =
                json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}});
            live["metadata"]["managedFields"] = json!([
                {"manager": writer, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:group": {}}}},
                {"manager": "kubestellar", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {}}}]);
            live["status"] = established.clone();
            live
        };
        for (writer, wanted, puts) in
            [("operator", "v1", 0), ("operator", "v1beta1", 1), ("kubestellar", "v1", 1)]
        {
            let stored = live(writer);
            let (client, sent) = server(move |_| (200, stored.clone()));
            install_shared(&client, &[crd(wanted)], "test").await.unwrap();
            let sent = sent.lock();
            assert_eq!(sent.len(), puts, "{writer} {wanted}");
            let Some(spec) = sent.first().map(|crd| &crd["spec"]) else { continue };
            let versions: Vec<&str> =
                spec["versions"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
            let stored: Vec<bool> = spec["versions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v["storage"].as_bool().unwrap())
                .collect();
            assert_eq!(spec["conversion"]["strategy"], "Webhook");
            if writer == "operator" {
                assert_eq!((versions, stored), (vec!["v1", "v2", "v1beta1"], vec![true, false, false]));
                assert!(spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"].is_object());
            } else {
                assert_eq!((versions, stored), (vec!["v1", "v2"], vec![true, false]));
                assert!(spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"].is_null());
            }
        }
    }
}
