//! `kubestellar space`: spaces as the ControlPlanes of a host space (SP-108 to SP-112, SP-050).

mod create;
mod delete;
mod kubeconfig;
mod list;
mod suspend;

use std::path::PathBuf;
use std::time::Duration;

use apis::tenancy::ControlPlane;
use runtime::rest::{Gvr, Rest};
use serde_json::Value;

use crate::contexts::{self, Contexts, Sources};
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, from_kube};
use crate::kubeconfig as files;
use crate::printer::Printer;
use crate::shape::Shape;

/// Manage spaces: create, list, stop, start and delete them, get their kubeconfigs.
///
/// A space is a ControlPlane of the host space. `kubectl --context kubestellar get controlplanes` shows the same objects.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar space create team-a --role wds\n  kubestellar space list -o wide\n  kubestellar space kubeconfig team-a -o team-a.conf\n  kubestellar space delete team-a --yes"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Context of the host space
    #[arg(
        long,
        global = true,
        value_name = "CONTEXT",
        env = "KUBESTELLAR_HOST",
        default_value = "kubestellar"
    )]
    host: String,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(create::Args),
    #[command(visible_alias = "ls")]
    List(list::Args),
    Kubeconfig(kubeconfig::Args),
    Stop(suspend::StopArgs),
    Start(suspend::StartArgs),
    Delete(delete::Args),
}

/// The host space that a command works on.
struct Host {
    rest: Rest,
    /// The installation that it is part of, if it is one on this machine.
    data: Option<DataDir>,
    /// The user's kubeconfig files.
    files: Vec<PathBuf>,
}

pub(crate) async fn run(args: &Args, sources: &Sources, out: &Printer) -> Result<Exit, Failure> {
    let known = Contexts::read(sources)?;
    let config = known.find(&args.host, "--host")?;
    let client = contexts::client(config, &args.host).await?;
    let data = match &sources.data {
        Some(data) if sources.asked.is_none() => {
            let is_its = |shape: Shape| contexts::is_of(config, &args.host, &shape.installation);
            Shape::load(data)?.is_some_and(is_its).then(|| data.clone())
        }
        _ => None,
    };
    let host = Host { rest: Rest::new(client), data, files: files::files(sources.asked.as_deref())? };
    match &args.command {
        Command::Create(args) => create::run(args, &host, out).await,
        Command::List(args) => list::run(args, &host, out).await,
        Command::Kubeconfig(args) => kubeconfig::run(args, &host, out).await,
        Command::Stop(args) => suspend::stop(args, &host, out).await,
        Command::Start(args) => suspend::start(args, &host, out).await,
        Command::Delete(args) => delete::run(args, &host, out).await,
    }
}

impl Host {
    /// The ControlPlane of this name, if there is one.
    async fn find(&self, what: &str, name: &str) -> Result<Option<ControlPlane>, Failure> {
        self.rest.find(&planes(), "", name).await.map_err(|error| from_kube(what, &error))
    }

    /// The ControlPlane of this name.
    ///
    /// # Errors
    /// [`Exit::NotFound`], and those of the request.
    async fn get(&self, what: &str, name: &str) -> Result<ControlPlane, Failure> {
        let found = self.find(what, name).await?;
        found.ok_or_else(|| {
            Failure::new(Exit::NotFound, what, format!("there is no space {name}"))
                .hint("kubestellar space list shows all")
        })
    }

    /// Waits until a ControlPlane is as `reached` says, and returns it. `reached` gets `None` once it is gone.
    ///
    /// # Errors
    /// [`Exit::TimedOut`], with the last message of its conditions.
    async fn until(
        &self,
        what: &str,
        name: &str,
        timeout: Duration,
        reached: &(dyn Fn(Option<&ControlPlane>) -> bool + Sync),
    ) -> Result<Option<ControlPlane>, Failure> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let found = self.find(what, name).await?;
            if reached(found.as_ref()) {
                return Ok(found);
            }
            if tokio::time::Instant::now() > deadline {
                let why = found.as_ref().map_or_else(|| "it is gone".to_owned(), last_message);
                return Err(Failure::new(Exit::TimedOut, what, why)
                    .hint(format!("kubectl --context kubestellar describe controlplane {name}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Pause between two looks at a ControlPlane. A command waits for seconds, once.
const LOOK: Duration = Duration::from_millis(100);

fn planes() -> Gvr {
    Gvr::of::<ControlPlane>()
}

/// Status of a condition; `None` if it is not there.
fn condition<'a>(plane: &'a ControlPlane, type_: &str) -> Option<&'a str> {
    let conditions = &plane.status.as_ref()?.conditions;
    conditions.iter().find(|one| one.type_ == type_).map(|one| one.status.as_str())
}

/// Returns whether a ControlPlane can be used (SP-007).
fn is_available(plane: &ControlPlane) -> bool {
    let conditions = plane.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True" && it.reason == "Available")
}

/// What the conditions of a ControlPlane say.
fn last_message(plane: &ControlPlane) -> String {
    let conditions = plane.status.iter().flat_map(|status| &status.conditions);
    let said: Vec<String> = conditions
        .filter(|one| one.status != "True")
        .map(|one| {
            format!("{} is {} ({})", one.type_, one.status, [one.reason.as_str(), &one.message].join(": "))
        })
        .collect();
    if said.is_empty() { "it has no conditions yet".to_owned() } else { said.join("; ") }
}

/// The text of a key of the Secret to which a ControlPlane refers.
async fn credentials(host: &Host, plane: &ControlPlane, inside: bool) -> Result<String, Failure> {
    use base64::Engine as _;
    let name = plane.metadata.name.as_deref().unwrap_or_default();
    let what = format!("reading the kubeconfig of {name}");
    let missing = |why: String| {
        Failure::new(Exit::NotFound, &what, why)
            .hint(format!("is it ready? kubestellar space list shows {name}"))
    };
    let at = plane.status.as_ref().and_then(|status| status.secret_ref.as_ref());
    let at = at.ok_or_else(|| missing("it has no credentials yet".into()))?;
    let key = if inside { &at.in_cluster_key } else { &at.key };
    let secret: Value = host
        .rest
        .get(&Gvr::new("", "v1", "secrets"), &at.namespace, &at.name)
        .await
        .map_err(|error| from_kube(&what, &error))?;
    let text = secret.pointer(&format!("/data/{key}")).and_then(Value::as_str);
    let text = text.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    let text = text.and_then(|text| String::from_utf8(text).ok()).filter(|text| !text.is_empty());
    text.ok_or_else(|| missing(format!("Secret {}/{} has no key {key}", at.namespace, at.name)))
}
