//! `kubestellar cluster token` (SP-115).

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use ocm_agent::registration::Endpoint;
use ocm_shared::bootstrap;
use runtime::failure::is_clash;
use runtime::rest::Gvr;
use serde_json::{Value, json};

use super::Its;
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

/// Print a command that lets a cluster ask to join.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster token\n  kubestellar cluster token --ttl 1h --print-for clusteradm | grep '^clusteradm join'"
)]
pub(super) struct Args {
    /// How long the token is good, such as 30m or 24h; at least 10m
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
    ttl: Duration,
    /// A bootstrap token instead of one of a service account
    #[arg(long)]
    use_bootstrap_token: bool,
    /// For which program the command is
    #[arg(long, value_enum, default_value_t = For::Both)]
    print_for: For,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum For {
    Kubestellar,
    Clusteradm,
    Both,
}

/// Parses a duration of at least ten minutes, the shortest life of a service-account token.
fn duration(text: &str) -> Result<Duration, String> {
    let asked = crate::duration::parse(text)?;
    if asked < Duration::from_secs(600) {
        return Err(format!("{text:?} is less than ten minutes"));
    }
    Ok(asked)
}

pub(super) async fn run(args: &Args, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    let token = if args.use_bootstrap_token {
        bootstrap_token(its, args.ttl).await?
    } else {
        account_token(its, args.ttl).await?
    };
    let (server, ca) = endpoint(its)?;
    if is_loopback(&server) {
        out.note(&format!(
            "note: {server} is an address of this machine only: clusters elsewhere can't reach it. Give them one that leads here \
             (a tunnel, a proxy) as --hub-apiserver"
        ));
    }
    let mut lines = Vec::new();
    if args.print_for != For::Clusteradm {
        lines.push(format!(
            "kubestellar cluster join CLUSTER_NAME --hub-token {token} --hub-apiserver {server} --ca-data {ca}"
        ));
    }
    if args.print_for != For::Kubestellar {
        lines.push(line(&token, &server));
    }
    out.result(&lines.join("\n"));
    Ok(Exit::Done)
}

/// Returns whether a URL names the loopback interface.
fn is_loopback(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The line that scripts search for.
fn line(token: &str, server: &str) -> String {
    format!(
        "clusteradm join --hub-token {token} --hub-apiserver {server} --wait --cluster-name <cluster_name>"
    )
}

fn endpoint(its: &Its) -> Result<(String, String), Failure> {
    let what = || format!("finding the address of {}", its.context);
    let mut config = its.config.clone();
    config.current_context = Some(its.context.clone());
    let endpoint = Endpoint::of(&config)
        .ok_or_else(|| Failure::new(Exit::NotFound, what(), "the kubeconfig has no such context"))?;
    let ca = endpoint.cluster.certificate_authority_data.clone().unwrap_or_default();
    Ok((endpoint.server().to_owned(), ca))
}

async fn account_token(its: &Its, ttl: Duration) -> Result<String, Failure> {
    let what = "asking for a token of the bootstrap service account";
    let accounts = Gvr::new("", "v1", "serviceaccounts").path(apis::constants::OCM_NAMESPACE);
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": ttl.as_secs()}});
    let request = kube::core::Request::new(accounts)
        .create_subresource(
            "token",
            bootstrap::ACCOUNT,
            &PostParams::default(),
            body.to_string().into_bytes(),
        )
        .map_err(|error| Failure::new(Exit::Failed, what, error))?;
    let answer = its.rest.client().request::<Value>(request).await.map_err(|error| {
        let failure = from_kube(what, &error);
        let hint = || {
            format!("{} is no inventory space, or its hub does not run: name another with --its", its.context)
        };
        if failure.exit == Exit::NotFound { failure.hint(hint()) } else { failure }
    })?;
    let token = answer.pointer("/status/token").and_then(Value::as_str);
    token.map(str::to_owned).ok_or_else(|| Failure::new(Exit::Failed, what, "the answer has no token"))
}

/// Returns the one bootstrap token. An existing token is kept and prolonged, so that lines printed before stay valid.
async fn bootstrap_token(its: &Its, ttl: Duration) -> Result<String, Failure> {
    let what = "making a bootstrap token";
    let secrets = Gvr::new("", "v1", "secrets");
    let name = format!("bootstrap-token-{}", bootstrap::TOKEN_ID);
    let failed = |error: kube::Error| from_kube(what, &error);
    let found: Option<Secret> = its.rest.find(&secrets, "kube-system", &name).await.map_err(failed)?;
    let kept =
        found.as_ref().and_then(|s| String::from_utf8(s.data.as_ref()?.get("token-secret")?.0.clone()).ok());
    let made = uuid::Uuid::new_v4().simple().to_string().chars().take(16).collect::<String>();
    let secret = kept.unwrap_or(made);
    let body = bootstrap::token_secret(&secret, ttl, k8s_openapi::jiff::Timestamp::now());
    let created = if found.is_some() {
        its.rest
            .merge::<Value>(&secrets, "kube-system", &name, &json!({"stringData": body["stringData"]}))
            .await
    } else {
        its.rest.create::<Value>(&secrets, "kube-system", body.to_string().into_bytes()).await
    };
    match created {
        Err(error) if is_clash(&error) => {
            Err(Failure::new(Exit::Conflict, what, "somebody else makes one; try again"))
        }
        other => other.map(|_| format!("{}.{secret}", bootstrap::TOKEN_ID)).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts take the line apart by its beginning and its placeholder.
    #[test]
    fn sp_115_the_line_of_clusteradm() {
        let line = line("ab.cd", "https://h:1");
        assert!(line.starts_with("clusteradm join --hub-token ab.cd --hub-apiserver https://h:1 "));
        assert!(line.ends_with("--cluster-name <cluster_name>"));
    }

    /// SP-115: an address that no other machine can use is known as such.
    #[test]
    fn sp_115_addresses_of_this_machine() {
        for here in ["https://127.0.0.1:9443/spaces/its1", "https://localhost:1", "https://[::1]:9443/x"] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in ["https://hub:9443/spaces/its1", "https://10.0.0.1", "nonsense"] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn sp_115_durations() {
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        for bad in ["", "h", "1", "5m", "1d", "-1h", "99999999999999999999h", "é"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
