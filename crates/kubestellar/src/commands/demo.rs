//! `kubestellar demo`: the main job, from nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::clients::client;
use crate::datadir::DataDir;
use crate::demo::manifests::Manifests;
use crate::demo::{Report, Stage};
use crate::exit::{Exit, Failure};
use crate::printer::{Printer, seconds, table};
use crate::shape::{Shape, Wish};

use super::{down, up};

/// Show the main job from nothing: start, deliver an application to every cluster, bring its status back.
///
/// Works in a data directory of its own and leaves nothing behind, unless asked to keep it. Exit code 0 means
/// that every object was read back from its clusters.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar demo\n  kubestellar demo --clusters 5 --keep\n  kubestellar demo -f ./manifests"
)]
pub(crate) struct Args {
    /// Deliver these manifests and policies instead of the built-in application
    #[arg(short, long, value_name = "DIR|FILE")]
    filename: Option<PathBuf>,
    /// Simulated clusters
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1000))]
    clusters: u16,
    /// Leave it running, to look around
    #[arg(long)]
    keep: bool,
    /// Longest wait for each step, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

pub(crate) async fn run(args: &Args, data_dir: Option<&Path>, out: &Printer) -> Result<Exit, Failure> {
    let manifests = match &args.filename {
        Some(path) => Manifests::read(path)?,
        None => Manifests::built_in()?,
    };
    let temporary = std::env::temp_dir().join(format!("kubestellar-demo-{}", up::uuid()));
    let data = DataDir::resolve(Some(data_dir.unwrap_or(&temporary)))?;
    if data.is_locked() {
        return Err(Failure::new(
            Exit::Conflict,
            format!("using {}", data.path().display()),
            "a server runs there",
        )
        .hint("leave out --data-dir to use a temporary one"));
    }
    let outcome = tokio::select! {
        outcome = play(args, &data, &manifests, out) => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Interrupted, "playing the demo", "interrupted")),
    };
    if args.keep && outcome.is_ok() {
        remember(&data);
    } else {
        let purge = down::Args { purge: true, keep_contexts: true, yes: true, timeout: 30 };
        let quiet = Printer::new(true, true);
        down::run(&purge, &data, &[], &quiet).await?;
    }
    let (report, took) = outcome?;
    out.result(&summary(args, &data, &report, took));
    Ok(Exit::Done)
}

async fn play(
    args: &Args,
    data: &DataDir,
    manifests: &Manifests,
    out: &Printer,
) -> Result<(Report, Duration), Failure> {
    let started = Instant::now();
    let wish = Wish {
        clusters: Some(usize::from(args.clusters)),
        listen: "127.0.0.1:0".parse().ok(),
        ..Wish::default()
    };
    let shape = Shape::fulfil(Shape::load(data)?.as_ref(), &wish, &up::uuid())?;
    up::start(data, &shape, false, args.timeout, out).await?;
    out.step(
        &format!("1 ITS, 1 WDS and {} simulated clusters are up", args.clusters),
        Some(started.elapsed()),
    );
    let stage = stage(args, data, &shape).await?;
    let report = stage.play(manifests, out).await?;
    Ok((report, started.elapsed()))
}

async fn stage(args: &Args, data: &DataDir, shape: &Shape) -> Result<Stage, Failure> {
    let file = data.kubeconfig();
    let wds = shape.wds.first().map_or("wds1", |w| w.name.as_str());
    let its = shape.its.first().map_or("its1", |n| n.as_str());
    let mut clusters = BTreeMap::new();
    for cluster in &shape.clusters {
        let name = cluster.name.to_string();
        clusters.insert(name.clone(), client(Some(&file), Some(&name)).await?);
    }
    Ok(Stage {
        wds: client(Some(&file), Some(wds)).await?,
        its: client(Some(&file), Some(its)).await?,
        clusters,
        timeout: Duration::from_secs(args.timeout),
        simulated: shape.simulate_workloads,
    })
}

/// Lets `status` and `down` find the demo while no other installation runs.
fn remember(data: &DataDir) {
    if let Ok(file) = DataDir::last_demo() {
        let _ = crate::datadir::write_atomically(&file, data.path().as_os_str().as_encoded_bytes(), 0o600);
    }
}

fn summary(args: &Args, data: &DataDir, report: &Report, took: Duration) -> String {
    let rows = |list: &[(String, String, Duration)], what: &str| -> Vec<Vec<String>> {
        list.iter()
            .map(|(object, at, took)| vec![object.clone(), what.to_owned(), at.clone(), seconds(*took)])
            .collect()
    };
    let mut all = rows(&report.delivered, "delivered to");
    all.extend(rows(&report.statuses, "status from"));
    for row in &mut all {
        if row.get(2).is_some_and(|at| at == "WDS")
            && let Some(what) = row.get_mut(1)
        {
            "status back in".clone_into(what);
        }
    }
    let verified = table(&["OBJECT", "WHAT", "WHERE", "AFTER"], &all);
    let go_on = if args.keep {
        format!(
            "It is still running:\n  export KUBECONFIG={}\n  kubectl --context wds1 get bindingpolicies\n  \
             kubectl --context cluster1 get all -A\n  kubectl --context its1 get manifestworks,workstatuses -A\n  \
             kubestellar status\n  kubestellar down --purge --yes",
            data.kubeconfig().display()
        )
    } else {
        "To look around with kubectl:\n  kubestellar demo --keep\nTo use it for real:\n  kubestellar up"
            .to_owned()
    };
    format!(
        "{verified}\n\nEverything was verified in {}. The clusters are simulated.\n\n{go_on}",
        seconds(took)
    )
}
