//! `kubestellar up` (SP-100 to SP-104).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::control::{self, Request, ServerStatus};
use crate::datadir::{DataDir, quoted};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::kubeconfig::{self, Kubeconfig};
use crate::printer::{Printer, seconds, table};
use crate::shape::{HOST, Shape, SpaceName, Wish};

use super::background::{Background, follow};

/// The flags that define the shape of an installation; shared by `up` and `serve`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ShapeArgs {
    /// Inventory and transport space to have (repeatable) [default: its1]
    #[arg(long, value_name = "NAME", value_parser = space_name)]
    its: Vec<SpaceName>,
    /// Workload description space to have, with the ITS it uses (repeatable) [default: wds1]
    #[arg(long, value_name = "NAME[@ITS]", value_parser = wds)]
    wds: Vec<(SpaceName, Option<SpaceName>)>,
    /// Simulated workload execution clusters to have, cluster1 to clusterN [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=5000))]
    clusters: Option<u16>,
    /// Labels of a cluster at enrolment (repeatable)
    #[arg(long, value_name = "CLUSTER=K=V[,K=V]", value_parser = labels)]
    label: Vec<(SpaceName, BTreeMap<String, String>)>,
    /// Loopback address and port to listen on; port 0 picks one and remembers it [default: 127.0.0.1:9443]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Carry workloads in simulated clusters to the status a healthy cluster would show [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    simulate_workloads: Option<bool>,
    /// Run Metacontroller in every WDS: MapControllers, CompositeControllers and DecoratorControllers
    #[arg(long)]
    metacontroller: bool,
    /// Label the Secrets of Helm releases in every WDS as their charts' objects are, so that policies deliver them, too
    ///
    /// Secrets of type helm.sh/release.v1 get app.kubernetes.io/managed-by=Helm and app.kubernetes.io/instance=RELEASE in
    /// place of any other values; then `helm list` shows in a cluster what policies with these labels brought there.
    #[arg(long)]
    label_helm_releases: bool,
    /// Let StatusCollectors read the contents of Secrets, as the original does [default: false]
    ///
    /// Whoever may write StatusCollectors and BindingPolicies can then read every Secret of the WDS in CombinedStatus objects.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    collectors_read_secrets: Option<bool>,
}

impl ShapeArgs {
    pub(crate) fn wish(&self) -> Result<Wish, Failure> {
        if let Some(listen) = self.listen.filter(|l| !l.ip().is_loopback()) {
            return Err(Failure::new(
                Exit::Usage,
                format!("listening on {listen}"),
                "not a loopback address",
            )
            .hint("this version serves on loopback only; use 127.0.0.1:PORT"));
        }
        Ok(Wish {
            its: self.its.clone(),
            wds: self.wds.clone(),
            clusters: self.clusters.map(usize::from),
            labels: self.label.clone(),
            listen: self.listen,
            simulate_workloads: self.simulate_workloads,
            metacontroller: self.metacontroller.then_some(true),
            label_helm_releases: self.label_helm_releases.then_some(true),
            collectors_read_secrets: self.collectors_read_secrets,
            kubeconfigs: Vec::new(),
        })
    }
}

/// Start KubeStellar, or bring a running one into the wanted shape.
///
/// One process serves an inventory space, a workload description space and simulated clusters, each with its
/// own kubectl context. Returns when the first object applied would be delivered. Asking again for the same
/// changes nothing; asking for more adds it; nothing is removed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar up\n  kubestellar up --clusters 5\n  kubestellar up --listen 127.0.0.1:0 --data-dir ./ks --no-kubeconfig-merge"
)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Run the server in this process until Ctrl-C
    #[arg(long)]
    pub(crate) foreground: bool,
    /// The clock is right, although the installation has seen later times
    #[arg(long)]
    trust_clock: bool,
    /// Leave the user's kubeconfig alone; contexts are in the data directory's own file
    #[arg(long)]
    no_kubeconfig_merge: bool,
    /// Drop from a damaged store exactly what is damaged, list it, and keep the damaged files as *.damaged
    #[arg(long)]
    repair: bool,
    /// Longest wait until everything is ready, such as 90s or 5m; 0 waits without limit
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    timeout: Duration,
}

pub(crate) async fn run(
    args: &Args,
    data: &DataDir,
    kubeconfigs: &[PathBuf],
    out: &Printer,
) -> Result<Exit, Failure> {
    // If a kubeconfig cannot be read, fail before anything is started (SP-A-08).
    if !args.no_kubeconfig_merge {
        for file in kubeconfigs {
            Kubeconfig::read(file)?;
        }
    }
    let known = Shape::load(data)?;
    let mut wish = args.shape.wish()?;
    if !args.no_kubeconfig_merge {
        // Other files of the list keep entries of earlier runs, if they have any.
        wish.kubeconfigs = kubeconfigs.to_vec();
    }
    let running = is_running(data).await?;
    // A running server has chosen its free port: port 0 keeps that port (SP-A-03).
    wish.listen = wish.listen.filter(|l| l.port() != 0 || !running);
    let shape = Shape::fulfil(known.as_ref(), &wish, &uuid())?;
    if let Some(remark) = beyond(&shape, wish.clusters) {
        out.note(&remark);
    }
    if args.foreground {
        return foreground(args, data, &shape, kubeconfigs, out).await;
    }
    let started = Instant::now();
    if running && args.repair {
        return Err(Failure::new(Exit::Conflict, "repairing the store", "the server is running")
            .hint("run `kubestellar down` first"));
    }
    if running {
        if known.as_ref() == Some(&shape) {
            well(data, &control::status(data).await?)?;
            out.note(&format!("already up ({})", seconds(started.elapsed())));
            return finish(args, data, kubeconfigs, out);
        }
        grow(data, known.as_ref(), &shape, args.timeout, out).await?;
    } else {
        start(args, data, &shape, out).await?;
    }
    out.step("everything is ready", Some(started.elapsed()));
    finish(args, data, kubeconfigs, out)
}

/// Reports simulated clusters beyond the requested number, because `up` removes nothing.
fn beyond(shape: &Shape, asked: Option<usize>) -> Option<String> {
    let asked = asked?;
    let is_more = |name: &&str| {
        let number = name.strip_prefix("cluster").and_then(|number| number.parse::<usize>().ok());
        number.is_some_and(|number| number > asked)
    };
    let more: Vec<&str> =
        shape.clusters.iter().map(|cluster| cluster.name.as_str()).filter(is_more).collect();
    let (first, others) = more.split_first()?;
    Some(match others {
        [] => format!("{first} stays: `up` adds clusters and removes none"),
        [.., last] => format!("{first} to {last} stay: `up` adds clusters and removes none"),
    })
}

/// A server whose store refuses writes is not up.
fn well(data: &DataDir, status: &ServerStatus) -> Result<(), Failure> {
    match &status.store_failure {
        None => Ok(()),
        Some(cause) => Err(Failure::new(
            Exit::Failed,
            format!("the server of {} runs, but its store refuses writes", data.path().display()),
            cause,
        )
        .hint("give the disk what it lacks; writes are accepted again once it takes them")),
    }
}

/// Longest wait for a server that is starting or stopping.
const BETWEEN: Duration = Duration::from_secs(10);

/// Returns whether a server runs. A server that holds the directory and does not answer is starting or stopping; this waits until
/// it has done so.
async fn is_running(data: &DataDir) -> Result<bool, Failure> {
    let until = Instant::now() + BETWEEN;
    while data.is_locked()? {
        if control::status(data).await.is_ok() || Instant::now() > until {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// Starts a server in the background and waits until it is ready.
async fn start(args: &Args, data: &DataDir, shape: &Shape, out: &Printer) -> Result<(), Failure> {
    let flags = [("--trust-clock", args.trust_clock), ("--repair", args.repair)];
    let more: Vec<&str> = flags.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
    let mut server = Background::spawn(data, &more)?;
    server.tell(shape).await?;
    server.close();
    server.ready(args.timeout, out).await
}

async fn grow(
    data: &DataDir,
    known: Option<&Shape>,
    shape: &Shape,
    timeout: Duration,
    out: &Printer,
) -> Result<(), Failure> {
    let fixed = |shape: &Shape| (shape.listen, shape.simulate_workloads, shape.collectors_read_secrets);
    if known.is_some_and(|known| fixed(known) != fixed(shape)) {
        return Err(Failure::new(
            Exit::Conflict,
            "changing the running server",
            "the address, --simulate-workloads and --collectors-read-secrets can't change while it runs",
        )
        .hint(format!("run `{}` first; nothing is lost", data.command("down"))));
    }
    let replies = control::ask(data, &Request::Shape { shape: Box::new(shape.clone()) }).await?;
    follow(replies, timeout, out).await
}

async fn foreground(
    args: &Args,
    data: &DataDir,
    shape: &Shape,
    kubeconfigs: &[PathBuf],
    out: &Printer,
) -> Result<Exit, Failure> {
    let (sender, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let stop = crate::signals::stop_token();
    let options =
        crate::server::Options { trust_clock: args.trust_clock, repair: args.repair, ..Default::default() };
    let server =
        crate::server::run(data, shape.clone(), options, crate::server::Reporter::channel(sender), stop);
    tokio::pin!(server);
    loop {
        tokio::select! {
            outcome = &mut server => return outcome.map(|()| Exit::Done),
            Some(reply) = steps.recv() => match reply {
                control::Reply::Step { text, seconds } => {
                    out.step(&text, Some(Duration::from_secs_f64(seconds.max(0.0))));
                }
                control::Reply::Ready => {
                    finish(args, data, kubeconfigs, out)?;
                    out.note("Ctrl-C stops the server.");
                }
                _ => {}
            },
        }
    }
}

/// Writes the kubeconfig entries, and prints the table of contexts and the next commands.
fn finish(args: &Args, data: &DataDir, kubeconfigs: &[PathBuf], out: &Printer) -> Result<Exit, Failure> {
    let Some(shape) = Shape::load(data)? else {
        return Err(Failure::new(Exit::Failed, "reading the installation", "its shape is gone"));
    };
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    if args.no_kubeconfig_merge {
        out.note(&format!("export KUBECONFIG={}", quoted(&data.kubeconfig())));
    } else {
        let entries = Kubeconfig::read(&data.kubeconfig())?.entries(&shape.installation);
        let current = shape.wds.first().map(|w| w.name.as_str());
        let merged = kubeconfig::merge_into(kubeconfigs, &shape.installation, &entries, current)?;
        for (space, context) in merged.renamed {
            out.note(&format!("context {space} is somebody else's in your kubeconfig; ours is {context}"));
            names.insert(space, context);
        }
        if let Some(context) = merged.switched {
            out.note(&format!("current context: none -> {context}"));
        }
    }
    out.closing(&summary(&shape, &names));
    Ok(Exit::Done)
}

fn summary(shape: &Shape, names: &BTreeMap<String, String>) -> String {
    let context = |space: &SpaceName| names.get(space.as_str()).cloned().unwrap_or_else(|| space.to_string());
    let rows: Vec<Vec<String>> = shape
        .spaces()
        .into_iter()
        .map(|(name, role)| {
            let what = match role {
                "its" => "inventory and transport space",
                "wds" => "workload description space",
                _ => "simulated workload execution cluster",
            };
            vec![context(name), role.to_owned(), what.to_owned()]
        })
        .chain([vec![
            names.get(HOST).cloned().unwrap_or_else(|| HOST.to_owned()),
            "host".to_owned(),
            "host space: ControlPlanes, which are the spaces".to_owned(),
        ]])
        .collect();
    let first = |list: Vec<String>, default: &str| list.first().cloned().unwrap_or_else(|| default.into());
    let wds = first(shape.wds.iter().map(|w| context(&w.name)).collect(), "wds1");
    let its = first(shape.its.iter().map(&context).collect(), "its1");
    let wec = first(shape.clusters.iter().map(|c| context(&c.name)).collect(), "cluster1");
    format!(
        "{}\n\nTry:\n  kubectl --context {its} get managedclusters --show-labels\n  \
         kubectl --context {wds} apply -f app.yaml -f policy.yaml\n  kubectl --context {wec} get all -A",
        table(&["CONTEXT", "ROLE", "WHAT IT IS"], &rows)
    )
}

pub(crate) fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn space_name(raw: &str) -> Result<SpaceName, String> {
    let (name, kind) = raw.split_once(':').unwrap_or((raw, "k8s"));
    match kind {
        "k8s" => name.parse(),
        other => Err(format!("type {other:?} is not built yet; only k8s is")),
    }
}

fn wds(raw: &str) -> Result<(SpaceName, Option<SpaceName>), String> {
    match raw.split_once('@') {
        Some((name, its)) => Ok((space_name(name)?, Some(its.parse()?))),
        None => Ok((space_name(raw)?, None)),
    }
}

fn labels(raw: &str) -> Result<(SpaceName, BTreeMap<String, String>), String> {
    let (cluster, pairs) = raw.split_once('=').ok_or("expected CLUSTER=KEY=VALUE")?;
    let pairs = pairs
        .split(',')
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or(format!("{pair:?} is not KEY=VALUE"))?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect::<Result<_, String>>()?;
    Ok((cluster.parse()?, pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-102: what stays though less was asked for is named.
    #[test]
    fn sp_102_clusters_that_stay_are_named() {
        let of = |clusters| {
            let wish = Wish { clusters: Some(clusters), ..Wish::default() };
            Shape::fulfil(None, &wish, "id").unwrap()
        };
        assert_eq!(beyond(&of(2), Some(2)), None);
        assert_eq!(beyond(&of(2), None), None);
        assert!(beyond(&of(2), Some(1)).unwrap().starts_with("cluster2 stays"));
        assert!(beyond(&of(4), Some(0)).unwrap().starts_with("cluster1 to cluster4 stay"));
    }
}
