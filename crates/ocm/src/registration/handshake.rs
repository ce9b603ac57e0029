//! Joining and staying joined: ManagedCluster, signing requests, Secret (OCM-031, OCM-035 … OCM-038).

use std::{path::Path, sync::Arc, time::Duration};

use apis::{
    constants::{ADDON_NAME_LABEL, CLUSTER_GROUP, CLUSTER_NAME_LABEL},
    ocm::{ManagedCluster, cluster::CONDITION_ROTATED},
};
use k8s_openapi::{
    ByteString,
    api::{certificates::v1::CertificateSigningRequest, core::v1::Secret},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::Client;
use rcgen::PublicKeyData as _;
use runtime::{
    Store, TaskError, Tasks,
    informer::{self, Source},
    rest::{Gvr, Rest, code_of, is_conflict, message_of},
};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Agent, Config, chance,
    identity::{self, CERTIFICATE, Data, KEY, Need},
    jitter, managed_clusters,
    request::{KeyPair, request},
    requests,
};
use crate::hub::csr::CLIENT_SIGNER;

/// Requests of a cluster, decided or not, beyond which no more is made until the hub has cleared some away (OCM-038).
const MOST_REQUESTS: usize = 10;
/// Prefix of the annotations that an agent may set.
const ANNOTATION_PREFIX: &str = "agent.open-cluster-management.io/";

fn secrets() -> Gvr {
    Gvr::new("", "v1", "secrets")
}

/// Content of the agent's Secret; empty if there is none.
pub(super) async fn read(cluster: &Rest, config: &Config) -> Result<Data, kube::Error> {
    let found: Option<Secret> = cluster.find(&secrets(), &config.namespace, &config.secret).await?;
    Ok(found.and_then(|secret| secret.data).unwrap_or_default())
}

/// Whether the agent bootstraps or works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Bootstrap,
    Steady,
}

/// A signing request that is waited for. Its key is nowhere else, as with OCM (2.4.1): the Secret has exactly the keys
/// that other programs know, and always a key and a certificate that belong together. So an agent that is started again
/// asks anew; the hub clears the request that nobody waits for away.
struct Pending {
    name: String,
    key: KeyPair,
}

/// What a look at Secret and request came to.
enum Look {
    /// All is well, or somebody else's turn.
    Wait,
    /// A new certificate is in the Secret.
    Renewed,
    /// What is kept is no good: back to the start.
    Lost,
}

impl Agent {
    /// Asks to join until there is a certificate (2.3).
    pub(super) async fn bootstrap(
        self: Arc<Self>,
        hub: Client,
        stop: &CancellationToken,
    ) -> Result<(), TaskError> {
        let mut tasks = Tasks::new(stop);
        let hub = Rest::with_manager(hub, "registration-agent");
        let (me, to, token) = (self.clone(), hub.clone(), tasks.token().clone());
        tasks.spawn_endless("managedcluster", async move {
            loop {
                let pause = match me.introduce(&to).await {
                    Ok(()) => jitter(me.config.timers.creation, 1.0),
                    Err(error) => {
                        tracing::warn!(%error, cluster = me.names.cluster, "creating the ManagedCluster");
                        jitter(Duration::from_secs(2), 1.0).min(me.config.timers.creation)
                    }
                };
                tokio::select! {
                    () = sleep(pause) => {}
                    () = token.cancelled() => return,
                }
            }
        });
        self.keep_certificate(hub, Phase::Bootstrap, &mut tasks);
        tasks.finish().await
    }

    /// Sees to it that there is a ManagedCluster (OCM-035).
    async fn introduce(&self, hub: &Rest) -> Result<(), kube::Error> {
        let name = self.names.cluster.as_str();
        let found = match hub.find::<ManagedCluster>(&managed_clusters(), "", name).await {
            Ok(found) => found,
            // The token may have ended: there is nothing to be done about that from here.
            Err(error) if matches!(code_of(&error), 401 | 403) => return Ok(()),
            Err(error) => return Err(error),
        };
        let urls = &self.config.external_urls;
        let Some(cluster) = found else {
            let annotations: serde_json::Map<String, Value> = self
                .config
                .annotations
                .iter()
                .filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX))
                .map(|(key, value)| (key.clone(), value.clone()))
                .chain(self.config.built_in_annotation())
                .map(|(key, value)| (key, value.into()))
                .collect();
            let clients: Vec<Value> = urls.iter().map(|url| json!({"url": url})).collect();
            let body = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1"), "kind": "ManagedCluster",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"hubAcceptsClient": false, "managedClusterClientConfigs": clients}});
            return match hub.create::<Value>(&managed_clusters(), "", body.to_string().into_bytes()).await {
                Err(error) if is_conflict(&error) => Ok(()),
                Err(error) if matches!(code_of(&error), 401 | 403) => {
                    tracing::warn!(
                        cluster = name,
                        "the hub refuses a new ManagedCluster: {}",
                        message_of(&error)
                    );
                    Ok(())
                }
                other => other.map(drop),
            };
        };
        let known = |url: &String| cluster.spec.managed_cluster_client_configs.iter().any(|c| c.url == *url);
        if urls.iter().all(known) {
            return Ok(());
        }
        let mut body = serde_json::to_value(&cluster).unwrap_or_default();
        for url in urls.iter().filter(|url| !known(url)) {
            if let Some(list) = body["spec"]["managedClusterClientConfigs"].as_array_mut() {
                list.push(json!({"url": url}));
            } else {
                body["spec"]["managedClusterClientConfigs"] = json!([{"url": url}]);
            }
        }
        match hub.replace::<Value>(&managed_clusters(), "", name, body.to_string().into_bytes()).await {
            Err(error) if matches!(code_of(&error), 401 | 403 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Starts what renews the certificate while the agent works; it ends the tasks when that is lost.
    pub(super) fn keep_certificate_fresh(self: &Arc<Self>, tasks: &mut Tasks) {
        let hub = Rest::with_manager(self.config.connection.client(), "registration-agent");
        self.keep_certificate(hub, Phase::Steady, tasks);
    }

    fn keep_certificate(self: &Arc<Self>, hub: Rest, phase: Phase, tasks: &mut Tasks) {
        let wake = Arc::new(Notify::new());
        let seen: Store<CertificateSigningRequest> = Store::default();
        // Those of our cluster; those of its add-ons are counted by themselves.
        let own = format!("{CLUSTER_NAME_LABEL}={},!{ADDON_NAME_LABEL}", self.names.cluster);
        let source = Source::of::<CertificateSigningRequest>().labels(own);
        let (client, store, notify, token) =
            (hub.client().clone(), seen.clone(), wake.clone(), tasks.token().clone());
        tasks.spawn_endless("certificatesigningrequests", async move {
            informer::run(client, source, store, |_| notify.notify_one(), token).await;
        });
        let source = Source::of::<Secret>()
            .namespaced(self.config.namespace.as_str())
            .fields(format!("metadata.name={}", self.config.secret));
        let (client, notify, token) = (self.cluster.client().clone(), wake.clone(), tasks.token().clone());
        tasks.spawn_endless("secret", async move {
            informer::run(client, source, Store::<Secret>::default(), |_| notify.notify_one(), token).await;
        });
        let (me, token) = (self.clone(), tasks.token().clone());
        tasks.spawn_endless("certificate", async move {
            let mut pending = None;
            let mut backoff = runtime::Backoff::new(Duration::from_millis(50), Duration::from_secs(60));
            while !token.is_cancelled() {
                let looked = tokio::select! {
                    looked = me.look(&hub, &seen, phase, &mut pending) => looked,
                    () = token.cancelled() => return,
                };
                let pause = match looked {
                    Ok(Look::Renewed) if phase == Phase::Bootstrap => return token.cancel(),
                    Ok(Look::Lost) => return token.cancel(),
                    Ok(Look::Renewed | Look::Wait) => {
                        backoff.reset();
                        me.config.timers.secret
                    }
                    Err(error) => {
                        tracing::warn!(%error, cluster = me.names.cluster, "renewing the certificate");
                        backoff.pause()
                    }
                };
                tokio::select! {
                    () = wake.notified() => {}
                    () = sleep(pause) => {}
                    () = token.cancelled() => return,
                }
            }
        });
    }

    async fn look(
        &self,
        hub: &Rest,
        seen: &Store<CertificateSigningRequest>,
        phase: Phase,
        pending: &mut Option<Pending>,
    ) -> Result<Look, kube::Error> {
        let data = read(&self.cluster, &self.config).await?;
        self.write_files(&data);
        let additional = identity::additional(&self.names, &self.config.endpoint);
        let subject = self.names.subject();
        let threshold = 0.20 + chance() * 0.05;
        let need = identity::need(&data, &subject, &additional, threshold, self.now());
        let Some(need) = need else {
            *pending = None;
            return Ok(if phase == Phase::Bootstrap { Look::Renewed } else { Look::Wait });
        };
        if phase == Phase::Steady && need == Need::Certificate {
            tracing::warn!(cluster = self.names.cluster, "the certificate for the hub is no good any more");
            return Ok(Look::Lost);
        }
        if let Some(waiting) = pending.take() {
            let mut settled = false;
            let looked = self.follow_up(hub, phase, &data, &waiting, &mut settled).await;
            if !settled {
                *pending = Some(waiting);
            }
            return looked;
        }
        if !seen.is_synced() {
            return Ok(Look::Wait);
        }
        let there = seen.list().len();
        if there >= MOST_REQUESTS {
            let why = "Stop creating csr since there are too many csr created already on hub";
            tracing::warn!(cluster = self.names.cluster, requests = there, why);
            self.rotated(phase, hub, Err(why.into())).await?;
            return Ok(Look::Wait);
        }
        match self.ask(hub).await {
            Ok(made) => *pending = Some(made),
            Err(error) => {
                let why = format!("Failed to create CSR {}", message_of(&error));
                self.rotated(phase, hub, Err(why)).await?;
                return Err(error);
            }
        }
        Ok(Look::Wait)
    }

    /// Makes a signing request (OCM-036).
    async fn ask(&self, hub: &Rest) -> Result<Pending, kube::Error> {
        use base64::Engine as _;
        let broken = |error: &dyn std::error::Error| kube::Error::Service(error.to_string().into());
        let subject = self.names.subject();
        let key = KeyPair::generate().map_err(|error| broken(&error))?;
        let pem = request(&key, &subject.common_name, &subject.organizations, &subject.units, &[])
            .map_err(|error| broken(&error))?;
        let cluster = self.names.cluster.as_str();
        let mut body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": format!("{cluster}-"), "labels": {CLUSTER_NAME_LABEL: cluster}},
            "spec": {"signerName": CLIENT_SIGNER, "usages": ["digital signature", "key encipherment", "client auth"],
                "request": base64::engine::general_purpose::STANDARD.encode(pem)}});
        if let Some(seconds) = self.config.certificate_seconds {
            body["spec"]["expirationSeconds"] = seconds.into();
        }
        let made: CertificateSigningRequest =
            hub.create(&requests(), "", body.to_string().into_bytes()).await?;
        let name = made.metadata.name.unwrap_or_default();
        tracing::info!(cluster, request = name, "asked the hub for a certificate");
        Ok(Pending { name, key })
    }

    /// Looks at what became of a request; `settled` once it is not waited for any more.
    async fn follow_up(
        &self,
        hub: &Rest,
        phase: Phase,
        data: &Data,
        waiting: &Pending,
        settled: &mut bool,
    ) -> Result<Look, kube::Error> {
        let found: Option<CertificateSigningRequest> = hub.find(&requests(), "", &waiting.name).await?;
        let Some(csr) = found else {
            *settled = true;
            let why = format!("Failed to rotated client certificate request {} is gone", waiting.name);
            self.rotated(phase, hub, Err(why)).await?;
            return Err(kube::Error::Service("the signing request is gone; making another".into()));
        };
        let status = csr.status.unwrap_or_default();
        let denied = status.conditions.iter().flatten().any(|c| c.type_ == "Denied" || c.type_ == "Failed");
        let Some(certificate) = status.certificate.filter(|c| !c.0.is_empty() && !denied) else {
            return Ok(Look::Wait);
        };
        let facts = identity::facts(&certificate.0);
        let Some(facts) = facts.filter(|f| f.public_key == waiting.key.subject_public_key_info()) else {
            *settled = true;
            return Err(kube::Error::Service("the certificate is not for the key it was asked with".into()));
        };
        let mut new = data.clone();
        new.extend(identity::additional(&self.names, &self.config.endpoint));
        new.insert(CERTIFICATE.into(), certificate);
        new.insert(KEY.into(), ByteString(waiting.key.serialize_pem().into_bytes()));
        // Saved before anyone is told; if that fails, request and key are still there for the next try.
        self.save(&new).await?;
        *settled = true;
        self.write_files(&new);
        tracing::info!(cluster = self.names.cluster, until = %facts.not_after, "the hub issued a certificate");
        if phase == Phase::Steady {
            self.adopt(&new).await;
            let message = format!(
                "client certificate rotated starting from {} to {}",
                facts.not_before, facts.not_after
            );
            self.rotated(phase, hub, Ok(message)).await?;
        }
        Ok(Look::Renewed)
    }

    async fn save(&self, data: &Data) -> Result<(), kube::Error> {
        let (namespace, name) = (self.config.namespace.as_str(), self.config.secret.as_str());
        let found: Option<Secret> = self.cluster.find(&secrets(), namespace, name).await?;
        let mut secret = found.unwrap_or_default();
        let exists = secret.metadata.uid.is_some();
        secret.metadata.name = Some(name.into());
        secret.metadata.namespace = Some(namespace.into());
        secret.data = Some(data.clone());
        let body = serde_json::to_vec(&secret).map_err(kube::Error::SerdeError)?;
        if exists {
            self.cluster.replace::<Value>(&secrets(), namespace, name, body).await.map(drop)
        } else {
            self.cluster.create::<Value>(&secrets(), namespace, body).await.map(drop)
        }
    }

    /// Says on the ManagedCluster what became of the certificate; while bootstrapping nobody may.
    async fn rotated(
        &self,
        phase: Phase,
        hub: &Rest,
        outcome: Result<String, String>,
    ) -> Result<(), kube::Error> {
        let Some(cluster) = self.mine.get("", &self.names.cluster).filter(|_| phase == Phase::Steady) else {
            return Ok(());
        };
        let (status, reason, message) = match outcome {
            Ok(message) => ("True", "ClientCertificateUpdated", message),
            Err(message) => ("False", "ClientCertificateUpdateFailed", message),
        };
        let news = Condition {
            type_: CONDITION_ROTATED.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            observed_generation: None,
            last_transition_time: Time(self.now()),
        };
        match super::status::report(hub, &cluster, vec![news]).await {
            // Someone else wrote meanwhile. The certificate counts, not the note about it.
            Err(error) if is_conflict(&error) => Ok(()),
            other => other,
        }
    }

    /// Writes the Secret as files for programs beside us (OCM-031).
    fn write_files(&self, data: &Data) {
        let Some(directory) = &self.config.directory else { return };
        for (key, value) in data {
            if let Err(error) = write_file(directory, key, &value.0) {
                tracing::warn!(%error, directory = %directory.display(), key, "writing the credential's file");
            }
        }
    }
}

/// Writes a file if it differs, readable by the owner only, and never half.
fn write_file(directory: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    use std::{
        fs,
        io::Write as _,
        os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    };
    let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    if !plain {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no file name"));
    }
    let path = directory.join(name);
    let mine = || fs::Permissions::from_mode(0o600);
    if fs::read(&path).is_ok_and(|have| have == content) {
        // Unchanged files are not rewritten, but one that others may read is taken from them.
        let loose = fs::metadata(&path)?.permissions().mode() & 0o177 != 0;
        return if loose { fs::set_permissions(&path, mine()) } else { Ok(()) };
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let beside = directory.join(format!(".{name}.new"));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    // Also one that a crash left behind.
    file.set_permissions(mine())?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, &path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn ocm_031_files_are_the_owners_alone() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("hub");
        write_file(&directory, "tls.key", b"one").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&directory.join("tls.key"))), (0o700, 0o600));
        let before = std::fs::metadata(directory.join("tls.key")).unwrap().modified().unwrap();
        write_file(&directory, "tls.key", b"one").unwrap();
        assert_eq!(std::fs::metadata(directory.join("tls.key")).unwrap().modified().unwrap(), before);
        write_file(&directory, "tls.key", b"two").unwrap();
        assert_eq!(std::fs::read(directory.join("tls.key")).unwrap(), b"two");
        // OCM-031: whatever was there before, nobody else reads the key afterwards.
        let loosen = |name: &str| {
            let path = directory.join(name);
            if !path.exists() {
                std::fs::write(&path, b"left behind").unwrap();
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        };
        for content in [b"two", b"new"] {
            loosen("tls.key");
            loosen(".tls.key.new");
            write_file(&directory, "tls.key", content).unwrap();
            assert_eq!(mode(&directory.join("tls.key")), 0o600);
            assert_eq!(std::fs::read(directory.join("tls.key")).unwrap(), content);
        }
        for odd in ["", "../x", ".hidden"] {
            assert!(write_file(&directory, odd, b"x").is_err());
        }
    }
}
