//! `kubestellar demo`: the main job, from nothing (SP-129).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::clients::client;
use crate::datadir::{Contents, DataDir, Owner, quoted};
use crate::demo::manifests::Manifests;
use crate::demo::{Report, Stage};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::{Printer, seconds, table};
use crate::shape::{Shape, Wish};
use crate::signals::Interrupts;

use super::background::Background;
use super::up;

/// Show the main job from nothing: start, deliver an application to every cluster, bring its status back.
///
/// Works in a directory of its own and leaves nothing behind, unless asked to keep it. Never uses the directory of an
/// installation: KUBESTELLAR_DATA_DIR is not for demos, and --data-dir must name a directory that is empty, does not
/// exist yet, or was left by a demo. Exit code 0 means that every object was read back from its clusters.
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
    /// Longest wait for each step, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse_positive)]
    timeout: Duration,
}

/// How long the server may take to stop.
const STOP: Duration = Duration::from_secs(30);

/// Runs the command. `asked` is the directory that the command line names.
pub(crate) async fn run(args: &Args, asked: Option<&Path>, out: &Printer) -> Result<Exit, Failure> {
    let manifests = match &args.filename {
        Some(path) => Manifests::read(path)?,
        None => Manifests::built_in()?,
    };
    // Signals are handled from before anything is created until all of it is removed.
    let mut interrupts = Interrupts::catch()?;
    let mut demo = Demo { data: directory(asked)?, server: None };
    demo.data.create_for_demo()?;
    let outcome = tokio::select! {
        outcome = play(args, &mut demo, &manifests, out) => outcome,
        exit = interrupts.next() => {
            out.note("interrupted; cleaning up");
            Err(Failure::new(exit, "playing the demo", "interrupted"))
        }
    };
    let data = demo.data.clone();
    let settled = match &outcome {
        Ok(_) if args.keep => demo.keep(out).await,
        _ => demo.clear().await,
    };
    let (report, took) = match (outcome, settled) {
        (Err(failure), Err(also)) => {
            out.note(&format!(
                "{also}\nsomething is left; remove it with: {}",
                data.command("down --purge --yes")
            ));
            return Err(failure);
        }
        (outcome, settled) => settled.and(outcome)?,
    };
    out.result(&summary(args, &data, &report, took));
    Ok(Exit::Done)
}

/// Returns the directory of the demo: the one that the user names, which an earlier demo may have left, or a temporary one.
fn directory(asked: Option<&Path>) -> Result<DataDir, Failure> {
    let Some(dir) = asked else {
        return DataDir::resolve(Some(
            &std::env::temp_dir().join(format!("kubestellar-demo-{}", up::uuid())),
        ));
    };
    let data = DataDir::resolve(Some(dir))?;
    if data.contents()? == Contents::Of(Owner::Demo) {
        if data.is_locked()? {
            let what = format!("using {}", data.path().display());
            return Err(Failure::new(Exit::Conflict, what, "an earlier demo still runs there")
                .hint(format!("end it with `{}`", data.command("down --purge --yes"))));
        }
        data.purge()?;
    }
    Ok(data)
}

/// What a demo creates and has to remove.
struct Demo {
    data: DataDir,
    server: Option<Background>,
}

impl Demo {
    /// Ends the server and removes the directory.
    async fn clear(self) -> Result<(), Failure> {
        if let Some(server) = self.server {
            // A failure of the server does not matter here, as long as it has ended.
            server.end(STOP).await?;
        }
        self.data.purge().map(drop)
    }

    /// Leaves the server running. `status` and `down` find it as long as no other installation runs.
    async fn keep(self, out: &Printer) -> Result<(), Failure> {
        if let Some(server) = self.server {
            server.keep().await?;
        }
        if let Some(earlier) = DataDir::kept_demo().filter(|earlier| *earlier != self.data) {
            out.note(&format!(
                "an earlier demo is still there; remove it with: {}",
                earlier.command("down --purge --yes")
            ));
        }
        self.data.remember_demo()
    }
}

async fn play(
    args: &Args,
    demo: &mut Demo,
    manifests: &Manifests,
    out: &Printer,
) -> Result<(Report, Duration), Failure> {
    let started = Instant::now();
    let wish = Wish {
        clusters: Some(usize::from(args.clusters)),
        listen: "127.0.0.1:0".parse().ok(),
        ..Wish::default()
    };
    let shape = Shape::fulfil(None, &wish, &up::uuid())?;
    let server = demo.server.insert(Background::for_demo(&demo.data)?);
    server.tell(&shape).await?;
    server.ready(args.timeout, out).await?;
    out.step(
        &format!("1 ITS, 1 WDS and {} simulated clusters are up", args.clusters),
        Some(started.elapsed()),
    );
    let stage = stage(args, &demo.data, &shape).await?;
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
        timeout: args.timeout,
        simulated: shape.simulate_workloads,
    })
}

fn summary(args: &Args, data: &DataDir, report: &Report, took: Duration) -> String {
    let rows = |list: &[(String, String, Duration)], what: &str| -> Vec<Vec<String>> {
        list.iter()
            .map(|(object, at, took)| vec![object.clone(), what.to_owned(), at.clone(), seconds(*took)])
            .collect()
    };
    let mut all = rows(&report.delivered, "delivered to");
    all.sort();
    let mut statuses = rows(&report.statuses, "status from");
    statuses.sort();
    all.extend(statuses);
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
             {}\n  {}",
            quoted(&data.kubeconfig()),
            data.command("status"),
            data.command("down --purge --yes")
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
