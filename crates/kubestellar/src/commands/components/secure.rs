//! The TLS port of OCM's agents (OCM-150). Everybody may use the probes. The cluster decides who may read the metrics
//! (SP-138).

use std::sync::Arc;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use runtime::endpoints::{Bind, Endpoint, Guard, Page, Pages};
use runtime::metrics::Metrics;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;
use rustls::{ServerConfig, SupportedProtocolVersion};

use crate::exit::{Exit, Failure, OrFail};

/// A TLS version.
pub(super) type Versions = &'static [&'static SupportedProtocolVersion];

static NEWEST: [&SupportedProtocolVersion; 1] = [&TLS13];

/// The TLS settings of the port.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TlsFlags {
    /// Oldest TLS version of --listen: VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "")]
    tls_min_version: String,
    #[arg(long, hide = true, default_value = "")]
    tls_cipher_suites: String,
}

impl TlsFlags {
    /// Returns the accepted versions, or why the settings are invalid.
    pub(super) fn check(&self) -> Result<Versions, Failure> {
        let wrong = |why: String| Err(Failure::new(Exit::Usage, "reading the TLS flags", why));
        if !self.tls_cipher_suites.is_empty() {
            return wrong(
                "--tls-cipher-suites: the suites can't be chosen; only safe ones are offered".to_owned(),
            );
        }
        match self.tls_min_version.as_str() {
            "" | "VersionTLS12" => Ok(rustls::ALL_VERSIONS),
            "VersionTLS13" => Ok(&NEWEST),
            other => wrong(format!("--tls-min-version: {other:?} is neither VersionTLS12 nor VersionTLS13")),
        }
    }
}

/// Opens the port with a self-signed certificate; `None` if it is off.
pub(super) async fn open(
    bind: &Bind,
    versions: Versions,
    metrics: Metrics,
    reviewer: Client,
) -> Result<Option<Endpoint>, Failure> {
    if bind.is_off() {
        return Ok(None);
    }
    let tls = Arc::new(self_signed(versions)?);
    let opened = Endpoint::open(bind, Pages::ping().or(Pages::metrics(metrics))).await;
    let opened = opened.map_err(|error| {
        Failure::new(Exit::Failed, format!("serving probes and metrics on {bind}"), error)
            .hint("choose another address with --listen, or 0 for none")
    })?;
    Ok(opened.map(|endpoint| endpoint.secured(tls, guard(reviewer))))
}

/// Makes a self-signed certificate. Programs that probe a component do not verify it.
fn self_signed(versions: Versions) -> Result<ServerConfig, Failure> {
    let what = "making a certificate";
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).or_fail(what)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).or_fail(what)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions);
    versions
        .or_fail(what)?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .or_fail(what)
}

fn guard(reviewer: Client) -> Guard {
    Arc::new(move |request| {
        let path = request.uri.path().to_owned();
        let given = request.headers.get(http::header::AUTHORIZATION).and_then(|it| it.to_str().ok());
        let token = given.and_then(|it| it.strip_prefix("Bearer ")).map(|it| it.trim().to_owned());
        let reviewer = reviewer.clone();
        Box::pin(async move {
            if ["/healthz", "/livez", "/readyz"].iter().any(|open| path.starts_with(open)) {
                return None;
            }
            let refused = |code: http::StatusCode, text: &str| Some(Page::text(code, format!("{text}\n")));
            let Some(token) = token else { return refused(http::StatusCode::UNAUTHORIZED, "Unauthorized") };
            match allowed(&reviewer, token, &path).await {
                Ok(Verdict::Allowed) => None,
                Ok(Verdict::Unknown) => refused(http::StatusCode::UNAUTHORIZED, "Unauthorized"),
                Ok(Verdict::Forbidden) => refused(http::StatusCode::FORBIDDEN, "Forbidden"),
                Err(error) => {
                    tracing::warn!(%error, path, "asking the cluster who may see this");
                    refused(
                        http::StatusCode::INTERNAL_SERVER_ERROR,
                        "the cluster could not be asked who you are",
                    )
                }
            }
        })
    })
}

enum Verdict {
    Allowed,
    Unknown,
    Forbidden,
}

/// Asks the cluster which user has this token, and whether that user may read this path.
async fn allowed(reviewer: &Client, token: String, path: &str) -> Result<Verdict, kube::Error> {
    let review = TokenReview {
        spec: TokenReviewSpec { token: Some(token), ..TokenReviewSpec::default() },
        ..TokenReview::default()
    };
    let reviewed = Api::<TokenReview>::all(reviewer.clone()).create(&PostParams::default(), &review).await?;
    let status = reviewed.status.unwrap_or_default();
    let (Some(true), Some(user)) = (status.authenticated, status.user) else { return Ok(Verdict::Unknown) };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviewed =
        Api::<SubjectAccessReview>::all(reviewer.clone()).create(&PostParams::default(), &review).await?;
    let allowed = reviewed.status.is_some_and(|status| status.allowed);
    Ok(if allowed { Verdict::Allowed } else { Verdict::Forbidden })
}
