//! `kubestellar metacontroller` (MC-200 to MC-208).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use machinery::selector::LabelSelector;
use metacontroller::{Config, Metrics, Strategy};
use runtime::Ready;
use runtime::election::LeaseLock;
use runtime::endpoints::{Bind, Page, Pages};
use runtime::limiter::{Limiter, Rate};

use super::election::pod_namespace;
use super::goflags::boolean;
use super::process::{Door, Process, by_default};
use crate::clients::client;
use crate::exit::{Exit, Failure};
use crate::logging::LogFormat;
use crate::signals::stop_token_or;

/// Run controllers whose decisions are webhooks: MapControllers, CompositeControllers and DecoratorControllers.
///
/// Watches the cluster given by kubeconfig. The definitions of the three kinds must be there; they are part of the
/// manifests that come with the examples.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar metacontroller --kubeconfig cluster.conf\n  kubestellar metacontroller --context wds1 --metrics-address 0 --health-probe-bind-address 0\n  kubestellar metacontroller --apply-strategy server-side-apply --workers 20 --client-go-qps 100 --client-go-burst 200"
)]
pub(crate) struct Args {
    /// Context of the kubeconfig [default: current]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// Longest pause before a resource that is not served is looked for again
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    discovery_interval: Duration,
    /// How often everything is looked at though nothing changed
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = duration)]
    cache_flush_interval: Duration,
    /// Where /metrics is served; 0 for nowhere. Unless told otherwise, all interfaces in a pod, loopback elsewhere
    #[arg(long, value_name = "ADDRESS", default_value = by_default!(":9999"))]
    metrics_address: Bind,
    /// Most requests a second about objects, on average
    #[arg(long, value_name = "RATE", default_value_t = 5.0, value_parser = rate)]
    client_go_qps: f64,
    /// How many of those may go at once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    client_go_burst: u32,
    /// Parents, or inputs, worked on at once by each controller
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Events a second about one object, in the long run
    #[arg(long, value_name = "RATE", default_value_t = 1.0 / 300.0, value_parser = rate)]
    events_qps: f64,
    /// Events at once about one object
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    events_burst: u32,
    /// Where /debug/pprof/ is served; 0 for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    pprof_address: Bind,
    /// Where /healthz and /readyz are served; 0 for nowhere. Unless told otherwise, all interfaces in a pod, loopback elsewhere
    #[arg(long, value_name = "ADDRESS", default_value = by_default!(":8081"))]
    health_probe_bind_address: Bind,
    /// Work only while holding a Lease, so that of several such processes one works
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    leader_election: bool,
    /// Kind of the lock; only leases
    #[arg(long, value_name = "KIND", default_value = "leases", value_parser = ["leases"])]
    leader_election_resource_lock: String,
    /// Namespace of the Lease [default: the pod's]
    #[arg(long, value_name = "NAMESPACE", default_value = "")]
    leader_election_namespace: String,
    /// Name of the Lease
    #[arg(long, value_name = "NAME", default_value = "metacontroller")]
    leader_election_id: String,
    /// Run only the controllers with these labels
    #[arg(long, value_name = "SELECTOR", default_value = "", value_parser = selector)]
    target_label_selector: LabelSelector,
    /// How wanted objects are brought about
    #[arg(long, value_name = "STRATEGY", default_value = "dynamic-apply", value_parser = ["dynamic-apply", "server-side-apply"])]
    apply_strategy: String,
    /// Make children and attachments also of kinds and in namespaces that their controller does not declare, as the Go
    /// program does; they are not looked at again. Otherwise such an answer is refused
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    allow_undeclared_children: bool,
    /// Field manager of server-side apply
    #[arg(long, value_name = "NAME", default_value = "metacontroller")]
    apply_strategy_ssa_field_manager: String,
    /// Level of the log: debug, info, error, or a number as of -v [default: that of -v]
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    zap_log_level: Option<u8>,
    /// Form of the log: json or console [default: that of --log-format]
    #[arg(long, value_name = "FORM", value_parser = ["json", "console"])]
    zap_encoder: Option<String>,
    /// A log for development: text, at level debug
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    zap_devel: bool,
    /// Taken for the sake of existing manifests; there are no stack traces in the log
    #[arg(long, value_name = "LEVEL")]
    zap_stacktrace_level: Option<String>,
    /// Taken for the sake of existing manifests; times are as RFC 3339 has them
    #[arg(long, value_name = "FORM")]
    zap_time_encoding: Option<String>,
}

fn log_level(raw: &str) -> Result<u8, String> {
    match raw {
        "debug" => Ok(4),
        "info" => Ok(1),
        "error" => Ok(0),
        number => number.parse().map_err(|_| "it must be debug, info, error or a number".to_owned()),
    }
}

fn duration(raw: &str) -> Result<Duration, String> {
    super::goflags::duration(raw)
        .and_then(|it| if it.is_zero() { Err("it must be greater than 0".to_owned()) } else { Ok(it) })
}

fn rate(raw: &str) -> Result<f64, String> {
    let rate: f64 = raw.parse().map_err(|_| "it is not a number".to_owned())?;
    if rate.is_finite() && rate > 0.0 { Ok(rate) } else { Err("it must be greater than 0".to_owned()) }
}

fn selector(raw: &str) -> Result<LabelSelector, String> {
    LabelSelector::parse(raw).map_err(|error| error.to_string())
}

/// Exit code after a second signal (MC-201).
const IMPATIENT: i32 = 1;

pub(crate) async fn run(args: &Args, kubeconfig: Option<&Path>) -> Result<Exit, Failure> {
    if args.zap_stacktrace_level.is_some() || args.zap_time_encoding.is_some() {
        tracing::warn!("--zap-stacktrace-level and --zap-time-encoding have no effect here");
    }
    let lock = args.lock()?;
    let plain = client(kubeconfig, args.context.as_deref()).await?;
    let shared = runtime::metrics::Metrics::new(env!("CARGO_PKG_VERSION"));
    let (own, ready) = (Metrics::new(shared.clone()), Ready::new(false));
    let stop = stop_token_or(Some(IMPATIENT));
    let process =
        Process::open("metacontroller", stop, shared.clone(), ready.clone(), args.doors(&own)).await?;
    let asked = process.first(reachable(&plain)).await;
    let (process, asked) = process.unless_failed(asked).await?;
    if asked.is_none() {
        process.close().await;
        return Ok(Exit::Done);
    }
    let limiter = Limiter::new(Rate { qps: args.client_go_qps, burst: args.client_go_burst });
    let limited = runtime::calls::observed(plain.clone(), Some(Arc::new(limiter)), shared.requests("", None));
    let config = Config { metrics: own, ready, proxies: crate::clients::proxies(), ..args.config() };
    process.run(lock.map(|lock| (plain, lock)), |stop| metacontroller::run(limited, config, stop)).await
}

/// Serves the metrics that every process has, followed by Metacontroller's own.
fn metrics_page(own: &Metrics) -> Pages {
    let own = own.clone();
    Pages::new(move |request| {
        if request.uri.path() != "/metrics" {
            return Page::text(http::StatusCode::NOT_FOUND, "404 page not found\n");
        }
        Page {
            status: http::StatusCode::OK,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body: own.page(),
        }
    })
}

/// Waits for the server: tries six times, five seconds apart (MC-201).
async fn reachable(client: &Client) -> Result<(), Failure> {
    let mut last = String::new();
    for again in [true, true, true, true, true, false] {
        match tokio::time::timeout(Duration::from_secs(5), client.list_core_api_versions()).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = "no answer within 5 s".into(),
        }
        tracing::warn!(why = last, "the API server can't be reached");
        if again {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }
    Err(Failure::new(Exit::Failed, "reaching the API server", last))
}

impl Args {
    /// Level and format of the log, as far as these flags set them.
    pub(crate) fn logging(&self, level: u8, format: LogFormat) -> (u8, LogFormat) {
        let level = self.zap_log_level.unwrap_or(if self.zap_devel { 4 } else { level });
        let format = match self.zap_encoder.as_deref() {
            Some("json") => LogFormat::Json,
            Some(_) => LogFormat::Text,
            None if self.zap_devel => LogFormat::Text,
            None => format,
        };
        (level, format)
    }

    fn doors(&self, own: &Metrics) -> [Door; 3] {
        [
            Door {
                what: "metrics",
                flag: "--metrics-address",
                bind: self.metrics_address.clone(),
                pages: metrics_page(own),
            },
            Door {
                what: "profiles",
                flag: "--pprof-address",
                bind: self.pprof_address.clone(),
                pages: Pages::pprof(),
            },
            Door {
                what: "probes",
                flag: "--health-probe-bind-address",
                bind: self.health_probe_bind_address.clone(),
                pages: Pages::ping(),
            },
        ]
    }

    fn config(&self) -> Config {
        Config {
            workers: usize::from(self.workers),
            discovery_interval: self.discovery_interval,
            cache_flush_interval: Some(self.cache_flush_interval),
            events: Rate { qps: self.events_qps, burst: self.events_burst },
            target: self.target_label_selector.clone(),
            undeclared_children: self.allow_undeclared_children,
            strategy: if self.apply_strategy == "server-side-apply" {
                Strategy::ServerSide { manager: self.apply_strategy_ssa_field_manager.clone() }
            } else {
                Strategy::Dynamic
            },
            ..Config::default()
        }
    }

    fn lock(&self) -> Result<Option<LeaseLock>, Failure> {
        if !self.leader_election {
            return Ok(None);
        }
        let said = Some(self.leader_election_namespace.clone()).filter(|said| !said.is_empty());
        let namespace = said.or_else(pod_namespace);
        let missing = || {
            Failure::new(Exit::Usage, "electing a leader", "outside of a cluster, no namespace is the pod's")
                .hint("name one with --leader-election-namespace")
        };
        Ok(Some(LeaseLock::new(&namespace.ok_or_else(missing)?, &self.leader_election_id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: Args,
    }

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        Only::try_parse_from([&["metacontroller"], arguments].concat()).map(|only| only.args)
    }

    /// MC-200, MC-A-84: the defaults are those of the Go program.
    #[test]
    fn mc_200_defaults() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.discovery_interval, Duration::from_secs(30));
        assert_eq!(args.cache_flush_interval, Duration::from_secs(30 * 60));
        assert_eq!((args.client_go_qps, args.client_go_burst, args.workers), (5.0, 10, 5));
        assert_eq!((args.events_qps, args.events_burst), (1.0 / 300.0, 25));
        assert_eq!(
            (args.metrics_address.to_string(), args.health_probe_bind_address.to_string()),
            (by_default!(":9999").into(), by_default!(":8081").into())
        );
        assert!(
            args.pprof_address.is_off()
                && !args.leader_election
                && !args.allow_undeclared_children
                && args.target_label_selector.is_everything()
        );
        assert_eq!(args.config().strategy, Strategy::Dynamic);
    }

    /// MC-134, MC-149, MC-200, MC-208: what is taken and what is refused.
    #[test]
    fn mc_200_values() {
        for bad in [
            &["--apply-strategy", "magic"][..],
            &["--leader-election-resource-lock", "configmaps"],
            &["--discovery-interval", "5"],
            &["--workers", "0"],
            &["--client-go-qps", "-1"],
            &["--target-label-selector", "a in b"],
            &["--no-such-flag"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        let args = parse(&[
            "--apply-strategy=server-side-apply",
            "--apply-strategy-ssa-field-manager=me",
            "--leader-election",
            "--allow-undeclared-children",
        ])
        .unwrap();
        assert_eq!(args.config().strategy, Strategy::ServerSide { manager: "me".into() });
        assert!(args.leader_election && args.config().undeclared_children);
        let off = parse(&["--allow-undeclared-children=false"]).unwrap();
        assert!(!off.config().undeclared_children);
        let logging = |flags: &[&str]| parse(flags).unwrap().logging(1, LogFormat::Text);
        assert_eq!(logging(&["--zap-log-level=debug", "--zap-encoder=json"]), (4, LogFormat::Json));
        assert_eq!(logging(&["--zap-log-level=6", "--zap-devel"]), (6, LogFormat::Text));
        assert_eq!(logging(&[]), (1, LogFormat::Text));
    }
}
