//! Measures what scale costs, from outside: a policy over many objects, many policies, many clusters. `scripts/bench-scale` runs it.
//!
//! Knows the public API only: a kubeconfig with contexts `wds1`, `its1` and `cluster1` … `clusterN`.

#![allow(clippy::print_stdout, reason = "a report is what it is for")]

mod clusters;
mod fleet;
mod policies;
mod report;
mod spaces;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use report::Processes;
use spaces::Spaces;

/// What to measure, and how large.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Kubeconfig of the installation
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Scenarios in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fleet,policies,combined")]
    scenario: Vec<Scenario>,
    /// Objects of the one policy
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Clusters it goes to: cluster1 … clusterN
    #[arg(long, default_value_t = 10)]
    clusters: usize,
    /// Policies that there are beside
    #[arg(long, default_value_t = 1_000)]
    policies: usize,
    /// Clusters that report for one CombinedStatus
    #[arg(long, default_value_t = 1_000)]
    reporters: usize,
    /// Single changes, one after the other
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Processes to account for: NAME=PID
    #[arg(long, value_delimiter = ',')]
    pids: Vec<String>,
    /// Longest wait for one thing, in seconds
    #[arg(long, default_value_t = 900)]
    timeout: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// One policy, many objects, some clusters
    Fleet,
    /// Many policies, single objects
    Policies,
    /// Many clusters that report on one object
    Combined,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let spaces = Spaces::connect(&args.kubeconfig, args.timeout).await?;
    let processes = Processes::new(&args.pids)?;
    spaces.ready(args.clusters).await?;
    for scenario in &args.scenario {
        println!("\n## {scenario:?}\n");
        match scenario {
            Scenario::Fleet => fleet::run(&spaces, &args, &processes).await?,
            Scenario::Policies => policies::run(&spaces, &args, &processes).await?,
            Scenario::Combined => clusters::run(&spaces, &args, &processes).await?,
        }
        println!("{}", processes.memory());
    }
    Ok(())
}
