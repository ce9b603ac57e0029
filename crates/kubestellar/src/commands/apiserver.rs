//! `kubestellar apiserver`: one bare space.

mod flags;
mod serving;

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apiserver::authn::{Authenticator, AuthnConfig, StaticToken};
use apiserver::authz::Authorizer;
use apiserver::server::{ApiServer, ApiServerConfig, Limits};
use apiserver::strategy::KindSettings;
use apiserver::tokens::{Issuer, VerifyingKey};
use space::listener::{Listener, Router};
use space::pki;
use store::{Engine, SpaceStore, StoreError};
use tokio_util::sync::CancellationToken;

use flags::KubeFlags;

use crate::datadir::write_atomically;
use crate::exit::{Exit, Failure, OrFail};
use crate::logging::LogFormat;
use crate::printer::Printer;
use crate::signals::stop_token;

/// How often the certificate is compared with the clock, which may be set at any time (SP-062), and with its files.
const CERTIFICATES: Duration = Duration::from_secs(60);

/// The name under which the program is this command alone.
const PROGRAM: &str = "kube-apiserver";

/// Serve one Kubernetes API server without any controllers.
///
/// What a stock kube-apiserver does by itself, and nothing of what its controller manager does: useful in tests
/// and for comparing answers. Keeps its data in memory unless given a directory. Under the name kube-apiserver (a symbolic link)
/// the program is this command and takes flags of kube-apiserver.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar apiserver --listen 127.0.0.1:6443 --token-auth-file tokens.csv\n  kubestellar apiserver --store-dir ./data --listen 127.0.0.1:0 --address-file url\n\nTests of controllers with envtest:\n  ln -s \"$(command -v kubestellar)\" ./kube-apiserver\n  export TEST_ASSET_KUBE_APISERVER=$PWD/kube-apiserver TEST_ASSET_ETCD=/usr/bin/etcd TEST_ASSET_KUBECTL=/usr/bin/kubectl\n  go test ./..."
)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 picks a free one. Others than loopback need --token-auth-file or --client-ca-file [default: 127.0.0.1:6443]
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// CSV file of bearer tokens: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// PEM file of CAs whose client certificates are accepted
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Keep data and keys in this directory instead of in memory
    #[arg(long, value_name = "DIR")]
    store_dir: Option<PathBuf>,
    /// Drop from a damaged store exactly what is damaged, list it, and keep the damaged files as *.damaged
    #[arg(long, requires = "store_dir")]
    repair: bool,
    /// Write the server's URL to this file once it serves
    #[arg(long, value_name = "FILE")]
    address_file: Option<PathBuf>,
    #[command(flatten)]
    kube: KubeFlags,
}

impl Args {
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        self.kube.logging.format()
    }

    fn address(&self) -> SocketAddr {
        self.listen.unwrap_or_else(|| self.kube.address())
    }
}

/// Puts the name of this command behind that of the program if it was started as `kube-apiserver`. Programs that start a
/// kube-apiserver know its path, and of no command.
pub(crate) fn under_its_name(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let named = arguments.first().is_some_and(|it| Path::new(it).file_name() == Some(OsStr::new(PROGRAM)));
    if named {
        arguments.insert(1, "apiserver".into());
    }
    arguments
}

/// A server that other machines can reach needs authentication. (Its own CA signs certificates for nobody else.)
fn check(args: &Args) -> Result<(), Failure> {
    let address = args.address();
    if let Some(why) = args.kube.contradiction() {
        return Err(Failure::new(Exit::Usage, "starting the API server", why).hint("add RBAC"));
    }
    if address.ip().is_loopback() || args.token_auth_file.is_some() || args.client_ca_file.is_some() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Usage,
        format!("listening on {address}"),
        "other machines could reach a server that nobody can authenticate to",
    )
    .hint("give --token-auth-file or --client-ca-file, or listen on 127.0.0.1"))
}

pub(crate) async fn run(args: &Args, out: &Printer) -> Result<Exit, Failure> {
    check(args)?;
    let stop = stop_token();
    args.kube.warn(args.store_dir.is_none());
    let listener = Listener::bind(args.address()).await.map_err(|error| {
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        let exit = if taken { Exit::Conflict } else { Exit::Failed };
        Failure::new(exit, format!("listening on {}", args.address()), error)
    })?;
    let address = listener.address();
    // The keys live as long as the data: with the store, or in a temporary directory of this process. Its name cannot
    // be guessed, and it must not exist before, because keys found in it would be trusted.
    let temporary = std::env::temp_dir().join(format!("kubestellar-apiserver-{}", uuid::Uuid::new_v4()));
    let home = match &args.store_dir {
        Some(dir) => dir.clone(),
        None => {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&temporary)
                .or_fail("making a directory for the keys")?;
            temporary.clone()
        }
    };
    let outcome = serve(args, listener, &home, out, &stop).await;
    if args.store_dir.is_none() {
        let _ = std::fs::remove_dir_all(&temporary);
    }
    tracing::info!(%address, "stopped");
    outcome.map(|()| Exit::Done)
}

fn open(dir: &Path, repair: bool) -> Result<Engine, StoreError> {
    let store = dir.join("store");
    if repair {
        for dropped in Engine::repair(&store)?.dropped {
            tracing::warn!(%dropped, "dropped from the store");
        }
    }
    if dir.join("pki").exists() { Engine::open_existing(&store) } else { Engine::open(&store) }
}

async fn serve(
    args: &Args,
    listener: Listener,
    home: &Path,
    out: &Printer,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let address = listener.address();
    let url = format!("https://{address}");
    // Opened before the certificates are made: if certificates exist, the store must exist.
    let engine = match &args.store_dir {
        Some(dir) => open(dir, args.repair).or_fail(format!("opening the store in {}", dir.display()))?,
        None => Engine::in_memory(),
    };
    let (certificate, mut source) = serving::open(&args.kube, home)?;
    let store = engine.space("apiserver").or_fail("opening the store")?;
    let server =
        ApiServer::start(config(args, home, address, store)?).await.or_fail("starting the API server")?;
    let router = Arc::new(Router::default());
    router.set_root(server.service());
    let (listening, draining) = (stop.child_token(), CancellationToken::new());
    let certificate = Arc::new(certificate);
    let serving =
        tokio::spawn(listener.serve(certificate.clone(), router, listening.clone(), draining.clone()));
    if let Some(file) = &args.address_file {
        write_atomically(file, url.as_bytes(), 0o600).or_fail(format!("writing {}", file.display()))?;
    }
    out.note(&format!("serving {url}"));
    while stop.run_until_cancelled(tokio::time::sleep(CERTIFICATES)).await.is_some() {
        source.renew(&certificate);
    }
    listening.cancel();
    server.stop().await;
    draining.cancel();
    serving.await.or_fail("serving")?.or_fail("serving")?;
    engine.close().await.or_fail("closing the store")
}

fn config(
    args: &Args,
    home: &Path,
    address: SocketAddr,
    store: SpaceStore,
) -> Result<ApiServerConfig, Failure> {
    let keys = pki::space(home, "apiserver", SystemTime::now()).or_fail("preparing the keys")?;
    let issuer = Arc::new(issuer(&args.kube, home, address)?);
    let authenticator = Authenticator::new(AuthnConfig {
        client_ca: Some(client_ca(args, &keys.client_ca)?),
        tokens: tokens(args)?,
        service_accounts: Some(issuer.clone()),
        anonymous: args.kube.anonymous(),
    })
    .or_fail("preparing authentication")?;
    let rbac = !args.kube.allows_all();
    Ok(ApiServerConfig {
        authorizer: if rbac { Authorizer::rbac(store.clone()) } else { Authorizer::always_allow() },
        store,
        authenticator: Arc::new(authenticator),
        tokens: Some(issuer),
        advertise: args.kube.advertised(address).to_string(),
        rbac_bootstrap: rbac,
        system_namespaces: true,
        limits: Limits::default(),
        kinds: KindSettings {
            service_network: args.kube.service_cluster_ip_range,
            pod_accounts: args.kube.pod_accounts(),
            unenforced_warnings: false,
        },
        admission: Some(crate::server::admission::of_bare_server()),
    })
}

/// The issuer of service-account tokens, with the keys that flags name.
fn issuer(flags: &KubeFlags, home: &Path, address: SocketAddr) -> Result<Issuer, Failure> {
    let url = format!("https://{address}");
    let host = flags
        .external_hostname
        .as_ref()
        .map_or_else(|| address.to_string(), |host| format!("{host}:{}", address.port()));
    let (first, others) = match flags.service_account_issuer.split_first() {
        Some((first, others)) => (first.as_str(), others.to_vec()),
        None => (url.as_str(), Vec::new()),
    };
    let mut keys = Vec::new();
    for file in &flags.service_account_key_file {
        let what = format!("reading {}", file.display());
        let pem = std::fs::read_to_string(file).or_fail(&what)?;
        keys.extend(VerifyingKey::all_from_pem(&pem).or_fail(what)?);
    }
    let issuer = match &flags.service_account_signing_key_file {
        Some(file) => {
            let what = format!("reading {}", file.display());
            let pem = std::fs::read_to_string(file).or_fail(&what)?;
            Issuer::new(&pem, first, &flags.api_audiences).or_fail(what)?
        }
        None => space::token_issuer(home, "apiserver", first, &flags.api_audiences),
    };
    Ok(issuer.trusting(others, keys).keys_at(format!("https://{host}/openid/v1/jwks")))
}

fn client_ca(args: &Args, own: &str) -> Result<String, Failure> {
    match &args.client_ca_file {
        Some(file) => {
            let given = std::fs::read_to_string(file).or_fail(format!("reading {}", file.display()))?;
            Ok(format!("{own}\n{given}"))
        }
        None => Ok(own.to_owned()),
    }
}

fn tokens(args: &Args) -> Result<Vec<StaticToken>, Failure> {
    match &args.token_auth_file {
        Some(file) => {
            let what = format!("reading {}", file.display());
            let text = std::fs::read_to_string(file).or_fail(&what)?;
            apiserver::authn::parse_token_file(&text).or_fail(what)
        }
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-126: started as `kube-apiserver`, the program is the API server.
    #[test]
    fn sp_126_the_name_of_the_program_chooses_the_command() {
        let under = |line: &str| {
            let words = under_its_name(line.split(' ').map(OsString::from).collect());
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(under("/opt/kube-apiserver --help"), "/opt/kube-apiserver apiserver --help");
        assert_eq!(under("kube-apiserver"), "kube-apiserver apiserver");
        assert_eq!(under("/kube-apiserver/kubestellar up"), "/kube-apiserver/kubestellar up");
        assert_eq!(under("kubestellar kube-apiserver"), "kubestellar kube-apiserver");
    }
}
