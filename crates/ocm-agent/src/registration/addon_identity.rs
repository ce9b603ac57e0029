//! Maintains one identity of one add-on's agent: its signing requests and its Secret (OCM-115).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use apis::constants::{ADDON_NAME_LABEL, CLUSTER_NAME_LABEL};
use k8s_openapi::{
    ByteString,
    api::{certificates::v1::CertificateSigningRequest, core::v1::Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use rcgen::PublicKeyData as _;
use runtime::{
    Source, Store,
    failure::message_of,
    informer,
    rest::{Gvr, Rest},
};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Agent, Credential,
    addon_api::{Member, Version},
    addon_report::report,
    addon_rules::WantedIdentity,
    addon_token, chance,
    identity::{self, CERTIFICATE, Data, KEY, TOKEN},
    pending::{MOST_REQUESTS, counted_requests},
    requests,
    secret::Kept,
};
use ocm_shared::{
    addon::token_account,
    conditions::rotated,
    request::{KeyPair, request},
};

/// Maintains the identity.
pub(super) struct Holder {
    pub(super) agent: Arc<Agent>,
    pub(super) hub: Rest,
    pub(super) addon: String,
    pub(super) of: WantedIdentity,
    pub(super) addons: Store<Member>,
    pub(super) api: Version,
    pub(super) requests: Store<CertificateSigningRequest>,
    pub(super) certified: Arc<AtomicBool>,
    /// Called when `certified` has changed.
    pub(super) changed: Box<dyn Fn() + Send + Sync>,
}

/// State that is kept between two runs and nowhere else.
#[derive(Default)]
struct Memory {
    pending: Option<(String, KeyPair)>,
    /// A condition that is still to be written on the add-on.
    note: Option<Condition>,
    /// The certificate that the current client uses.
    adopted: Option<ByteString>,
    /// A request failed, so another one must be created.
    failed: bool,
    /// Time until the certificate or token may have to be renewed.
    due: Option<Duration>,
    /// A token that could not be saved yet.
    unsaved: Option<ByteString>,
}

impl Holder {
    /// Runs until `stop`.
    pub(super) async fn keep(self, mut news: watch::Receiver<u64>, stop: CancellationToken) {
        let wake = Notify::new();
        let source = Source::of::<Secret>()
            .namespaced(self.of.namespace.as_str())
            .fields(format!("metadata.name={}", self.of.secret));
        let secrets = informer::run(
            self.agent.cluster.client().clone(),
            source,
            Store::<Secret>::default(),
            |_| wake.notify_one(),
            stop.clone(),
        );
        let keep = async {
            let mut memory = Memory::default();
            let mut backoff = runtime::Backoff::new(Duration::from_millis(50), Duration::from_secs(15));
            while !stop.is_cancelled() {
                let looked = tokio::select! {
                    looked = self.look(&mut memory) => looked,
                    () = stop.cancelled() => return,
                };
                let pause = match looked {
                    Ok(()) => {
                        backoff.reset();
                        let usual = self.agent.config.timers.secret;
                        memory.due.map_or(usual, |due| due.min(usual))
                    }
                    Err(error) => {
                        tracing::debug!(%error, addon = self.addon, secret = self.of.secret, "keeping the identity");
                        backoff.pause()
                    }
                };
                tokio::select! {
                    () = wake.notified() => {}
                    changed = news.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => return,
                }
            }
        };
        tokio::join!(secrets, keep);
    }

    async fn look(&self, memory: &mut Memory) -> Result<(), kube::Error> {
        match self.of.tokens {
            Some(seconds) => self.look_for_token(seconds, memory).await,
            None => self.look_for_certificate(memory).await,
        }
    }

    /// Keeps a token of the add-on's service account on the hub, once the hub has made that (OCM-167).
    async fn look_for_token(&self, seconds: i64, memory: &mut Memory) -> Result<(), kube::Error> {
        let cluster = self.agent.names.cluster.as_str();
        let Some(addon) = self.addons.get(cluster, &self.addon) else { return Ok(()) };
        memory.due = None;
        let Some(account) = addon_token::account(&addon) else { return self.tell(memory).await };
        let data = self.kept().read().await?;
        let additional = self.of.additional(cluster, &self.agent.config.endpoint);
        let now = self.agent.now();
        memory.due = addon_token::good_for(data.get(TOKEN), account, now);
        if memory.due.is_some() && identity::has(&data, &additional) {
            return self.tell(memory).await;
        }
        let fresh =
            memory.unsaved.take().filter(|token| addon_token::good_for(Some(token), account, now).is_some());
        let token = match fresh {
            Some(token) => token,
            None => match self.new_token(seconds).await {
                Ok(token) => token,
                Err(error) => {
                    memory.note = Some(addon_token::refreshed(Err(message_of(&error)), now));
                    self.tell(memory).await?;
                    return Err(error);
                }
            },
        };
        let new = addon_token::with_token(&data, additional, token.clone());
        if let Err(error) = self.kept().save(&new).await {
            memory.unsaved = Some(token);
            return Err(error);
        }
        memory.due = addon_token::good_for(Some(&token), account, now);
        memory.note = Some(addon_token::refreshed(Ok(&token), now));
        self.tell(memory).await
    }

    async fn new_token(&self, seconds: i64) -> Result<ByteString, kube::Error> {
        let accounts = Gvr::new("", "v1", "serviceaccounts").path(&self.agent.names.cluster);
        let path = format!("{accounts}/{}/token", token_account(&self.addon));
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": seconds}});
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
        let answer: Value = self.hub.client().request(request).await?;
        let token = answer.pointer("/status/token").and_then(Value::as_str).unwrap_or_default();
        if token.is_empty() {
            return Err(kube::Error::Service("the hub answered without a token".into()));
        }
        tracing::info!(
            cluster = self.agent.names.cluster,
            addon = self.addon,
            "the hub issued a token for the add-on"
        );
        Ok(ByteString(token.as_bytes().to_vec()))
    }

    async fn look_for_certificate(&self, memory: &mut Memory) -> Result<(), kube::Error> {
        let data = self.kept().read().await?;
        let additional = self.of.additional(&self.agent.names.cluster, &self.agent.config.endpoint);
        let (threshold, now) = (identity::threshold(memory.pending.is_some(), chance()), self.agent.now());
        memory.due = identity::due(&data, identity::threshold(false, chance()), now);
        let need = identity::need(&data, &self.of.subject(), &additional, threshold, now);
        self.adopt(&data, need != Some(identity::Need::Certificate), memory).await;
        if need.is_none() {
            memory.pending = None;
            return self.tell(memory).await;
        }
        if let Some((name, key)) = memory.pending.take() {
            let done = self.follow_up(&name, &key, &data, memory).await;
            if !matches!(done, Ok(true)) {
                memory.pending = Some((name, key));
            }
            done?;
            self.tell(memory).await?;
            if std::mem::take(&mut memory.failed) {
                return Err(kube::Error::Service("the request came to nothing; making another".into()));
            }
            return Ok(());
        }
        if !self.requests.is_synced() {
            return Ok(());
        }
        let theirs = |csr: &&CertificateSigningRequest| {
            let label = csr.metadata.labels.as_ref().and_then(|all| all.get(ADDON_NAME_LABEL));
            label == Some(&self.addon)
        };
        let requests = self.requests.list();
        if counted_requests(requests.iter().map(AsRef::as_ref).filter(theirs), now) >= MOST_REQUESTS {
            let why = "Stop creating csr since there are too many csr created already on hub";
            memory.note = Some(rotated(Err(why.into()), self.agent.now()));
            return self.tell(memory).await;
        }
        match self.ask().await {
            Ok(made) => memory.pending = Some(made),
            Err(error) => {
                memory.note = Some(rotated(Err(format!("Failed to create CSR {}", message_of(&error))), now));
                self.tell(memory).await?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// The Secret.
    fn kept(&self) -> Kept<'_> {
        Kept { cluster: &self.agent.cluster, namespace: &self.of.namespace, name: &self.of.secret }
    }

    /// Creates the client of an agent in this process, and reports whether there is a valid certificate.
    async fn adopt(&self, data: &Data, good: bool, memory: &mut Memory) {
        let certificate = data.get(CERTIFICATE).filter(|_| good).cloned();
        if certificate == memory.adopted {
            return;
        }
        let own =
            self.agent.config.built_in.iter().find(|own| own.name() == self.addon && self.of.is_for_hub());
        if let Some(own) = own {
            let text = |key: &str| {
                data.get(key).and_then(|v| String::from_utf8(v.0.clone()).ok()).unwrap_or_default()
            };
            let client = match certificate {
                Some(_) => {
                    let credential = Credential { certificate: text(CERTIFICATE), key: text(KEY) };
                    match (self.agent.config.connect)(credential).await {
                        Ok(client) => Some(client),
                        Err(error) => {
                            tracing::error!(
                                error,
                                addon = self.addon,
                                "the add-on's credential cannot be used"
                            );
                            return;
                        }
                    }
                }
                None => None,
            };
            own.connection.set(client);
        }
        self.certified.store(certificate.is_some(), Ordering::SeqCst);
        memory.adopted = certificate;
        (self.changed)();
    }

    async fn ask(&self) -> Result<(String, KeyPair), kube::Error> {
        use base64::Engine as _;
        let broken = |error: &dyn std::error::Error| kube::Error::Service(error.to_string().into());
        let subject = self.of.subject();
        let key = KeyPair::generate().map_err(|error| broken(&error))?;
        let dns = [format!("{}.addon.open-cluster-management.io", self.addon)];
        let pem = request(&key, &subject.common_name, &subject.organizations, &subject.units, &dns)
            .map_err(|error| broken(&error))?;
        let cluster = self.agent.names.cluster.as_str();
        let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": format!("addon-{cluster}-{}-", self.addon),
                "labels": {CLUSTER_NAME_LABEL: cluster, ADDON_NAME_LABEL: self.addon}},
            "spec": {"signerName": self.of.registration.signer_name,
                "usages": ["digital signature", "key encipherment", "client auth"],
                "request": base64::engine::general_purpose::STANDARD.encode(pem)}});
        let made: CertificateSigningRequest =
            self.hub.create(&requests(), "", body.to_string().into_bytes()).await?;
        let name = made.metadata.name.unwrap_or_default();
        tracing::info!(
            cluster,
            addon = self.addon,
            request = name,
            "asked the hub for the add-on's certificate"
        );
        Ok((name, key))
    }

    /// Checks a request. Returns true once it is not pending any more.
    async fn follow_up(
        &self,
        name: &str,
        key: &KeyPair,
        data: &Data,
        memory: &mut Memory,
    ) -> Result<bool, kube::Error> {
        let found: Option<CertificateSigningRequest> = self.hub.find(&requests(), "", name).await?;
        let Some(csr) = found else {
            let why = format!("Failed to rotated client certificate request {name} is gone");
            memory.note = Some(rotated(Err(why), self.agent.now()));
            memory.failed = true;
            return Ok(true);
        };
        let status = csr.status.unwrap_or_default();
        let denied = status.conditions.iter().flatten().any(|c| c.type_ == "Denied" || c.type_ == "Failed");
        let Some(certificate) = status.certificate.filter(|c| !c.0.is_empty() && !denied) else {
            return Ok(false);
        };
        let facts = identity::facts(&certificate.0);
        let Some(facts) = facts.filter(|f| f.public_key == key.subject_public_key_info()) else {
            let why =
                "Failed to rotated client certificate it is not for the key it was asked with".to_owned();
            memory.note = Some(rotated(Err(why), self.agent.now()));
            memory.failed = true;
            return Ok(true);
        };
        let mut new = data.clone();
        new.remove(TOKEN);
        new.extend(self.of.additional(&self.agent.names.cluster, &self.agent.config.endpoint));
        new.insert(CERTIFICATE.into(), certificate);
        new.insert(KEY.into(), ByteString(key.serialize_pem().into_bytes()));
        // Saved before it is reported. If that fails, request and key still exist for the next try.
        self.kept().save(&new).await?;
        self.adopt(&new, true, memory).await;
        // The new certificate may be due long before the usual next check.
        memory.due = Some(Duration::ZERO);
        let message =
            format!("client certificate rotated starting from {} to {}", facts.not_before, facts.not_after);
        memory.note = Some(rotated(Ok(message), self.agent.now()));
        Ok(true)
    }

    /// Writes the condition about the certificate on the add-on. On a conflict it is written again to the new
    /// version.
    async fn tell(&self, memory: &mut Memory) -> Result<(), kube::Error> {
        let Some(note) = memory.note.clone() else { return Ok(()) };
        if let Some(addon) = self.addons.get(&self.agent.names.cluster, &self.addon) {
            report(&self.hub, self.api, &addon, note).await?;
        }
        memory.note = None;
        Ok(())
    }
}
