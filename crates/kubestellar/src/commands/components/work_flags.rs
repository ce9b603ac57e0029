//! What a work agent can be told about its work, under the names of OCM's agent (OCM-151).

use std::time::Duration;

use ocm_agent::work_agent::{Config, feedback::Raw};

use super::goflags::{boolean, duration};
use crate::exit::{Exit, Failure};

/// How a work agent calls itself towards API servers (OCM-070).
pub(super) const WORK_AGENT: &str = "work-agent";

/// Flags of the work itself, the same wherever the agent runs.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Work")]
pub(crate) struct WorkFlags {
    /// ManifestWorks handled at once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=256))]
    workload_agent_workers: u16,
    /// How long what was applied stays when its ManifestWork can't be found any more
    #[arg(long, value_name = "DURATION", default_value = "60m", value_parser = duration)]
    appliedmanifestwork_eviction_grace_period: Duration,
    /// Remove what was applied even if more than half of the ManifestWorks disappeared within ten minutes, which a hub that
    /// was restored or emptied looks like
    #[arg(long)]
    allow_mass_eviction: bool,
    /// Pause between two looks at objects that can't be watched; what can be watched is reported at once
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive)]
    status_sync_interval: Duration,
    /// Most kinds that are watched in the cluster; objects of further kinds are looked at every --status-sync-interval
    /// [default: all]
    #[arg(long, value_name = "N")]
    max_feedback_watch: Option<u32>,
    /// Most bytes of a feedback value that is reported as JSON, with the gate RawFeedbackJsonString; 1024 at most
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    max_json_raw_length: u32,
    /// Report feedback and conditions also for objects that the executor of their ManifestWork may not get, as OCM's
    /// agent does. Every author of ManifestWorks can then read Secrets of the cluster
    #[arg(long)]
    unchecked_feedback: bool,
}

impl WorkFlags {
    /// `config` with what the flags say.
    pub(crate) fn configure(&self, config: Config, gates: WorkGates) -> Config {
        Config {
            workers: usize::from(self.workload_agent_workers),
            eviction_grace: self.appliedmanifestwork_eviction_grace_period,
            allow_mass_eviction: self.allow_mass_eviction,
            status_sync: self.status_sync_interval,
            max_watched_kinds: self
                .max_feedback_watch
                .map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)),
            raw_feedback: if gates.raw_feedback {
                Raw::UpTo(usize::try_from(self.max_json_raw_length).unwrap_or(usize::MAX))
            } else {
                Raw::Refused
            },
            unchecked_feedback: self.unchecked_feedback,
            ..config
        }
    }
}

fn positive(raw: &str) -> Result<Duration, String> {
    match duration(raw)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        some => Ok(some),
    }
}

/// What feature gates of OCM's work agent mean here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkGates {
    raw_feedback: bool,
}

impl WorkGates {
    /// From `NAME=true|false` pairs; the last one of a name counts.
    pub(crate) fn of(pairs: &[(String, String)]) -> Result<Self, Failure> {
        let mut gates = Self::default();
        for (name, value) in pairs {
            let what = || format!("setting the feature gate {name}");
            let on = boolean(value).map_err(|why| Failure::new(Exit::Usage, what(), why))?;
            match name.as_str() {
                "RawFeedbackJsonString" => gates.raw_feedback = on,
                // Executors are asked about anew each time: nothing to switch on, and nothing that would be stale.
                "ExecutorValidatingCaches" => {}
                // Those of the registration agent that are always on.
                "ClusterClaim" | "AddonManagement" if on => {}
                "ClusterClaim" | "AddonManagement" => {
                    return Err(Failure::new(Exit::Usage, what(), "it can't be switched off here"));
                }
                _ if on => return Err(Failure::new(Exit::Usage, what(), "there is no such gate here")),
                _ => {}
            }
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Told {
        #[command(flatten)]
        flags: WorkFlags,
    }

    fn told(arguments: &[&str]) -> Result<WorkFlags, String> {
        let all = ["agent"].iter().chain(arguments);
        Told::try_parse_from(all).map(|told| told.flags).map_err(|error| error.to_string())
    }

    fn pairs(text: &[(&str, &str)]) -> Vec<(String, String)> {
        text.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    /// OCM-151, OCM-090, OCM-161: the flags of OCM's agent mean what they mean there.
    #[test]
    fn ocm_151_flags_of_the_work() {
        let base = || Config::new("c1", "https://hub");
        let none = told(&[]).unwrap().configure(base(), WorkGates::default());
        assert_eq!((none.workers, none.status_sync), (10, Duration::from_secs(10)));
        assert_eq!((none.eviction_grace, none.max_watched_kinds), (Duration::from_secs(3600), usize::MAX));
        assert_eq!((none.raw_feedback, none.unchecked_feedback), (Raw::Refused, false));
        assert!(
            told(&["--unchecked-feedback"])
                .unwrap()
                .configure(base(), WorkGates::default())
                .unchecked_feedback
        );
        let arguments = [
            "--workload-agent-workers=3",
            "--status-sync-interval=1m30s",
            "--max-feedback-watch=7",
            "--max-json-raw-length=100",
            "--appliedmanifestwork-eviction-grace-period=5s",
            "--allow-mass-eviction",
        ];
        let gates = WorkGates::of(&pairs(&[("RawFeedbackJsonString", "true")])).unwrap();
        let some = told(&arguments).unwrap().configure(base(), gates);
        assert_eq!((some.workers, some.status_sync), (3, Duration::from_secs(90)));
        assert_eq!((some.eviction_grace, some.max_watched_kinds), (Duration::from_secs(5), 7));
        assert_eq!((some.raw_feedback, some.allow_mass_eviction), (Raw::UpTo(100), true));
        assert!(!none.allow_mass_eviction);
        for wrong in ["--workload-agent-workers=0", "--status-sync-interval=0s", "--max-json-raw-length=-1"] {
            assert!(told(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ocm_151_gates_of_the_work() {
        assert_eq!(WorkGates::of(&[]).unwrap(), WorkGates::default());
        let twice = pairs(&[("RawFeedbackJsonString", "true"), ("RawFeedbackJsonString", "false")]);
        assert_eq!(WorkGates::of(&twice).unwrap(), WorkGates::default());
        assert!(WorkGates::of(&pairs(&[("ExecutorValidatingCaches", "true"), ("Other", "false")])).is_ok());
        for (name, value) in
            [("Other", "true"), ("RawFeedbackJsonString", "maybe"), ("ClusterClaim", "false")]
        {
            assert!(WorkGates::of(&pairs(&[(name, value)])).is_err(), "{name}={value}");
        }
    }
}
