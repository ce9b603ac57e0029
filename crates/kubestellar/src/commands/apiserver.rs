//! `kubestellar apiserver`: one bare space.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apiserver::authn::{Anonymous, Authenticator, AuthnConfig, StaticToken};
use apiserver::authz::Authorizer;
use apiserver::server::{ApiServer, ApiServerConfig, Limits};
use space::listener::{Certificate, Listener, Router};
use space::pki;
use store::{Engine, StoreError};
use tokio_util::sync::CancellationToken;

use crate::datadir::write_atomically;
use crate::exit::{Exit, Failure, OrFail};
use crate::printer::Printer;
use crate::signals::stop_token;

/// How often the term of the serving certificate is compared with the clock, which may be set at any time (SP-062).
const CERTIFICATES: Duration = Duration::from_secs(60);

/// Serve one Kubernetes API server without any controllers.
///
/// What a stock kube-apiserver does by itself, and nothing of what its controller manager does: useful in tests
/// and for comparing answers. Keeps its data in memory unless given a directory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar apiserver --listen 127.0.0.1:6443 --token-auth-file tokens.csv\n  kubestellar apiserver --store-dir ./data --listen 127.0.0.1:0 --address-file url"
)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 picks a free one. Others than loopback need --token-auth-file or --client-ca-file
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
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
}

/// A server that other machines can reach needs authentication. (Its own CA signs certificates for nobody else.)
fn check(args: &Args) -> Result<(), Failure> {
    if args.listen.ip().is_loopback() || args.token_auth_file.is_some() || args.client_ca_file.is_some() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Usage,
        format!("listening on {}", args.listen),
        "other machines could reach a server that nobody can authenticate to",
    )
    .hint("give --token-auth-file or --client-ca-file, or listen on 127.0.0.1"))
}

pub(crate) async fn run(args: &Args, out: &Printer) -> Result<Exit, Failure> {
    check(args)?;
    let stop = stop_token();
    let listener = Listener::bind(args.listen).await.map_err(|error| {
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        let exit = if taken { Exit::Conflict } else { Exit::Failed };
        Failure::new(exit, format!("listening on {}", args.listen), error)
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

fn open(dir: &std::path::Path, repair: bool) -> Result<Engine, StoreError> {
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
    home: &std::path::Path,
    out: &Printer,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let url = format!("https://{}", listener.address());
    // Opened before the certificates are made: if certificates exist, the store must exist.
    let engine = match &args.store_dir {
        Some(dir) => open(dir, args.repair).or_fail(format!("opening the store in {}", dir.display()))?,
        None => Engine::in_memory(),
    };
    let serving = pki::serving(home, &[], SystemTime::now()).or_fail("preparing the certificates")?;
    let keys = pki::space(home, "apiserver", SystemTime::now()).or_fail("preparing the keys")?;
    let issuer = Arc::new(space::token_issuer(home, "apiserver", &url));
    let authenticator = Authenticator::new(AuthnConfig {
        client_ca: Some(client_ca(args, &keys.client_ca)?),
        tokens: tokens(args)?,
        service_accounts: Some(issuer.clone()),
        anonymous: Anonymous::On,
    })
    .or_fail("preparing authentication")?;
    let store = engine.space("apiserver").or_fail("opening the store")?;
    let server = ApiServer::start(ApiServerConfig {
        authorizer: Authorizer::rbac(store.clone()),
        store,
        authenticator: Arc::new(authenticator),
        tokens: Some(issuer),
        advertise: listener.address().to_string(),
        rbac_bootstrap: true,
        system_namespaces: true,
        limits: Limits::default(),
        admission: None,
    })
    .await
    .or_fail("starting the API server")?;
    let router = Arc::new(Router::default());
    router.set_root(server.service());
    let (listening, draining) = (stop.child_token(), CancellationToken::new());
    let certificate = Arc::new(Certificate::new(&serving).or_fail("preparing the certificates")?);
    let mut term = serving.term;
    let serving =
        tokio::spawn(listener.serve(certificate.clone(), router, listening.clone(), draining.clone()));
    if let Some(file) = &args.address_file {
        write_atomically(file, url.as_bytes(), 0o600).or_fail(format!("writing {}", file.display()))?;
    }
    out.note(&format!("serving {url}"));
    while stop.run_until_cancelled(tokio::time::sleep(CERTIFICATES)).await.is_some() {
        if !term.is_over(SystemTime::now()) {
            continue;
        }
        let renewed = pki::serving(home, &[], SystemTime::now()).map_err(|error| error.to_string());
        let shown = renewed.and_then(|serving| {
            certificate.replace(&serving).map_err(|error| error.to_string())?;
            Ok(serving.term)
        });
        match shown {
            Ok(next) => term = next,
            Err(error) => tracing::error!(error, "the serving certificate could not be renewed"),
        }
    }
    listening.cancel();
    server.stop().await;
    draining.cancel();
    serving.await.or_fail("serving")?.or_fail("serving")?;
    engine.close().await.or_fail("closing the store")
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
