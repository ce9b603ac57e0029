//! Joining a hub and staying joined: ManagedCluster, signing requests, Secret (OCM-031, OCM-035 … OCM-038).

use std::{sync::Arc, time::Duration};

use apis::{
    constants::{ADDON_NAME_LABEL, CLUSTER_GROUP, CLUSTER_NAME_LABEL},
    ocm::ManagedCluster,
};
use k8s_openapi::{
    ByteString,
    api::{certificates::v1::CertificateSigningRequest, core::v1::Secret},
};
use kube::Client;
use rcgen::PublicKeyData as _;
use runtime::{
    Source, Store, TaskError, Tasks,
    failure::{code_of, is_clash, message_of},
    informer,
    rest::Rest,
};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Agent, Config, chance,
    identity::{self, CERTIFICATE, Data, KEY, Need},
    jitter, managed_clusters,
    pending::{MOST_REQUESTS, Pending, counted_requests, fresh},
    requests,
    secret::{Kept, write_files},
    waiting::Waiting,
};
use ocm_shared::conditions::rotated;

/// Tries to write the condition about a certificate on the ManagedCluster.
const NOTES: usize = 5;
/// Shortest pause between two checks without an event.
const SHORTEST: Duration = Duration::from_millis(50);
/// Prefix of the annotations that an agent may set.
const ANNOTATION_PREFIX: &str = "agent.open-cluster-management.io/";

/// Reads the content of the agent's Secret; empty if there is none.
pub(super) async fn read(cluster: &Rest, config: &Config) -> Result<Data, kube::Error> {
    Kept { cluster, namespace: &config.namespace, name: &config.secret }.read().await
}

/// Whether the agent bootstraps or works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Bootstrap,
    Steady,
}

/// State that is kept between two checks of Secret and requests.
#[derive(Default)]
struct Memory {
    /// The pending signing request.
    pending: Option<Pending>,
    /// Whether the request of an earlier run has been looked up.
    recalled: bool,
    /// Time until the certificate may have to be renewed.
    due: Option<Duration>,
    /// Since when the agent waits for an administrator.
    waiting: Waiting,
}

impl Memory {
    /// Returns how long to wait for an event before the next check.
    fn pause(&self, usual: Duration) -> Duration {
        let next = [self.due, self.waiting.next_log_in(Instant::now())]
            .into_iter()
            .flatten()
            .fold(usual, Duration::min);
        next.max(SHORTEST)
    }
}

/// The result of a check of Secret and request.
enum Look {
    /// Nothing to do, or another party must act.
    Wait,
    /// A new certificate is in the Secret.
    Renewed,
    /// The stored credential is not valid: start over.
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
                let pause = match me.ensure_managed_cluster(&to).await {
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

    /// Creates the ManagedCluster if necessary (OCM-035).
    async fn ensure_managed_cluster(&self, hub: &Rest) -> Result<(), kube::Error> {
        let name = self.names.cluster.as_str();
        let found = match hub.find::<ManagedCluster>(&managed_clusters(), "", name).await {
            Ok(found) => found,
            // The token may have expired, which the agent cannot change.
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
                Err(error) if is_clash(&error) => Ok(()),
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

    /// Starts the tasks that renew the certificate while the agent works; they end all tasks when the
    /// credential is lost.
    pub(super) fn keep_certificate_fresh(self: &Arc<Self>, tasks: &mut Tasks) {
        let hub = Rest::with_manager(self.config.connection.client(), "registration-agent");
        self.keep_certificate(hub, Phase::Steady, tasks);
    }

    fn keep_certificate(self: &Arc<Self>, hub: Rest, phase: Phase, tasks: &mut Tasks) {
        let wake = Arc::new(Notify::new());
        let seen: Store<CertificateSigningRequest> = Store::default();
        // Requests of our cluster. Those of its add-ons are counted separately.
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
            let mut memory = Memory::default();
            let mut backoff = runtime::Backoff::new(Duration::from_millis(50), Duration::from_secs(60));
            while !token.is_cancelled() {
                let looked = tokio::select! {
                    looked = me.look(&hub, &seen, phase, &mut memory) => looked,
                    () = token.cancelled() => return,
                };
                let pause = match looked {
                    Ok(Look::Renewed) if phase == Phase::Bootstrap => return token.cancel(),
                    Ok(Look::Lost) => return token.cancel(),
                    Ok(Look::Renewed | Look::Wait) => {
                        backoff.reset();
                        memory.pause(me.config.timers.secret)
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
        memory: &mut Memory,
    ) -> Result<Look, kube::Error> {
        let data = read(&self.cluster, &self.config).await?;
        self.write_files(&data);
        let additional = identity::additional(&self.names, &self.config.endpoint);
        let subject = self.names.subject();
        let (threshold, now) = (identity::threshold(memory.pending.is_some(), chance()), self.now());
        memory.due = identity::due(&data, identity::threshold(false, chance()), now);
        let need = identity::need(&data, &subject, &additional, threshold, now);
        let Some(need) = need else {
            memory.pending = None;
            memory.waiting.over();
            return Ok(if phase == Phase::Bootstrap { Look::Renewed } else { Look::Wait });
        };
        if phase == Phase::Steady && need == Need::Certificate {
            tracing::warn!(cluster = self.names.cluster, "the certificate for the hub is no longer valid");
            return Ok(Look::Lost);
        }
        if !seen.is_synced() {
            return Ok(Look::Wait);
        }
        if memory.pending.is_none() && !std::mem::replace(&mut memory.recalled, true) {
            memory.pending =
                self.recall_request(seen, &data).await.inspect_err(|_| memory.recalled = false)?;
        }
        if let Some(waiting) = memory.pending.take() {
            let mut settled = false;
            let looked = self.follow_up(hub, phase, &data, &waiting, &mut settled).await;
            if settled {
                memory.waiting.over();
            } else {
                memory.pending = Some(waiting);
                if phase == Phase::Bootstrap && looked.is_ok() {
                    memory.waiting.tell(&self.names.cluster, Instant::now());
                }
            }
            if matches!(looked, Ok(Look::Renewed)) {
                // The new certificate may be due long before the usual next check.
                memory.due = Some(Duration::ZERO);
            }
            return looked;
        }
        let there = counted_requests(seen.list().iter().map(AsRef::as_ref), now);
        if there >= MOST_REQUESTS {
            let why = "Stop creating csr since there are too many csr created already on hub";
            tracing::warn!(cluster = self.names.cluster, requests = there, why);
            self.note(phase, hub, Err(why.into())).await?;
            memory.due = None;
            return Ok(Look::Wait);
        }
        match self.ask(hub).await {
            Ok(made) => {
                memory.pending = Some(made);
                if phase == Phase::Bootstrap {
                    memory.waiting.begin(Instant::now());
                }
            }
            Err(error) => {
                // The hub may have created it nevertheless; then the next check finds it.
                memory.recalled = false;
                let why = format!("Failed to create CSR {}", message_of(&error));
                self.note(phase, hub, Err(why)).await?;
                return Err(error);
            }
        }
        Ok(Look::Wait)
    }

    /// The Secret with the key of a pending request. The agent's own Secret must have exactly the keys that
    /// other programs know, and its key and certificate must always match.
    fn beside<'a>(&'a self, name: &'a str) -> Kept<'a> {
        Kept { cluster: &self.cluster, namespace: &self.config.namespace, name }
    }

    fn pending_name(&self) -> String {
        super::pending_secret(&self.config.secret)
    }

    /// Returns the pending request of an earlier run, if the hub still has it (OCM-A-36).
    async fn recall_request(
        &self,
        seen: &Store<CertificateSigningRequest>,
        data: &Data,
    ) -> Result<Option<Pending>, kube::Error> {
        let name = self.pending_name();
        let kept = self.beside(&name).read().await?;
        let all = seen.list();
        let found = Pending::recalled(&kept, data, &self.names.subject(), all.iter().map(AsRef::as_ref));
        if let Some(found) = &found {
            tracing::info!(
                cluster = self.names.cluster,
                request = found.name,
                "continuing with the certificate that was requested before"
            );
        }
        Ok(found)
    }

    /// Creates a signing request (OCM-036). Its key is stored first, so that a restarted agent finds the
    /// request by the key.
    async fn ask(&self, hub: &Rest) -> Result<Pending, kube::Error> {
        let (key, mut body) = fresh(&self.names)?;
        if let Some(seconds) = self.config.certificate_seconds {
            body["spec"]["expirationSeconds"] = seconds.into();
        }
        let kept = Data::from([(KEY.to_owned(), ByteString(key.serialize_pem().into_bytes()))]);
        let name = self.pending_name();
        self.beside(&name).save(&kept).await?;
        let made: CertificateSigningRequest =
            hub.create(&requests(), "", body.to_string().into_bytes()).await?;
        let name = made.metadata.name.unwrap_or_default();
        tracing::info!(cluster = self.names.cluster, request = name, "asked the hub for a certificate");
        Ok(Pending { name, key })
    }

    /// Checks a request; sets `settled` once it is not pending any more.
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
            self.note(phase, hub, Err(why)).await?;
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
        // Saved before it is reported. If that fails, request and key still exist for the next try.
        let secret =
            Kept { cluster: &self.cluster, namespace: &self.config.namespace, name: &self.config.secret };
        secret.save(&new).await?;
        *settled = true;
        self.write_files(&new);
        tracing::info!(cluster = self.names.cluster, until = %facts.not_after, "the hub issued a certificate");
        if phase == Phase::Steady {
            self.adopt(&new).await;
            let message = format!(
                "client certificate rotated starting from {} to {}",
                facts.not_before, facts.not_after
            );
            self.note(phase, hub, Ok(message)).await?;
        }
        // The key is in the agent's own Secret now. A copy that is left here does no harm: a key that is in
        // use never counts as pending.
        let name = self.pending_name();
        if let Err(error) = self.beside(&name).save(&Data::new()).await {
            tracing::debug!(%error, secret = name, "the key of the finished request stays");
        }
        Ok(Look::Renewed)
    }

    /// Writes the condition about the certificate on the ManagedCluster; while bootstrapping there is no
    /// permission for that. Other writers write conditions, too: on a conflict it is written again.
    async fn note(
        &self,
        phase: Phase,
        hub: &Rest,
        outcome: Result<String, String>,
    ) -> Result<(), kube::Error> {
        if phase != Phase::Steady {
            return Ok(());
        }
        let (news, name) = (rotated(outcome, self.now()), &self.names.cluster);
        let mut known = self.mine.get("", name);
        for _ in 0..NOTES {
            let cluster = match known.take() {
                Some(cluster) => cluster,
                None => match hub.find::<ManagedCluster>(&managed_clusters(), "", name).await? {
                    Some(cluster) => Arc::new(cluster),
                    None => return Ok(()),
                },
            };
            match super::status::report(hub, &cluster, vec![news.clone()]).await {
                Err(error) if is_clash(&error) => {}
                other => return other,
            }
        }
        // The certificate matters more than the condition about it.
        Ok(())
    }

    /// Writes the files for programs beside this one (OCM-031).
    pub(super) fn write_files(&self, data: &Data) {
        if let Some(directory) = &self.config.directory {
            write_files(directory, data);
        }
    }
}
