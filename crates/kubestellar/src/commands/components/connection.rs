//! The connection flags of all components: API server, credentials and rate limits (KS-210, KS-215, KS-216, KS-217,
//! OCM-151).

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderValue, header};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use runtime::calls::observed;
use runtime::connect::ConnectError;
use runtime::election::LeaseLock;
use runtime::limiter::{Limiter, Rate};
use runtime::metrics::Metrics;

use crate::clients::{broken, config, server};
use crate::exit::{Exit, Failure, chain};

/// The flags of one API server.
#[derive(Clone, Default)]
pub(super) struct Connection {
    pub(super) file: Option<PathBuf>,
    pub(super) options: KubeConfigOptions,
    /// The rate limit; `None` for no limit.
    pub(super) rate: Option<Rate>,
}

/// Declares the flags `--<name>-kubeconfig`, `-context`, `-user` and `-cluster`, and two limits with names and
/// defaults of their own.
macro_rules! connection_flags {
    ($type:ident, $name:literal, $what:literal, $qps:literal = $qps_default:literal, $burst:literal = $burst_default:literal) => {
        /// Connection flags of one API server.
        #[derive(Clone, Debug, clap::Args)]
        #[command(next_help_heading = concat!("Connection to ", $what))]
        pub(super) struct $type {
            #[arg(help = concat!("Kubeconfig of ", $what, " [default: kubectl's, or the service account's in a cluster]"), id = concat!($name, "-kubeconfig"), long = concat!($name, "-kubeconfig"), value_name = "FILE")]
            kubeconfig: Option<std::path::PathBuf>,
            /// Context of that kubeconfig [default: current]
            #[arg(id = concat!($name, "-context"), long = concat!($name, "-context"), value_name = "CONTEXT")]
            context: Option<String>,
            /// User of that kubeconfig [default: the context's]
            #[arg(id = concat!($name, "-user"), long = concat!($name, "-user"), value_name = "USER")]
            user: Option<String>,
            /// Cluster of that kubeconfig [default: the context's]
            #[arg(id = concat!($name, "-cluster"), long = concat!($name, "-cluster"), value_name = "CLUSTER")]
            cluster: Option<String>,
            #[arg(help = concat!("Most requests a second about objects of ", $what, ", on average; negative for no limit"), id = $qps, long = $qps, value_name = "RATE", default_value = $qps_default,
                allow_negative_numbers = true, value_parser = $crate::commands::components::connection::qps)]
            qps: f64,
            /// How many of those may go at once
            #[arg(id = $burst, long = $burst, value_name = "N", default_value_t = $burst_default,
                value_parser = clap::value_parser!(u32).range(1..))]
            burst: u32,
        }

        impl $type {
            pub(super) fn connection(&self) -> $crate::commands::components::connection::Connection {
                // Go programs treat an empty value as absent.
                let given = |text: &Option<String>| text.clone().filter(|it| !it.is_empty());
                $crate::commands::components::connection::Connection {
                    file: self.kubeconfig.clone().filter(|it| !it.as_os_str().is_empty()),
                    options: kube::config::KubeConfigOptions {
                        context: given(&self.context),
                        cluster: given(&self.cluster),
                        user: given(&self.user),
                    },
                    rate: (self.qps > 0.0)
                        .then_some(runtime::limiter::Rate { qps: self.qps, burst: self.burst }),
                }
            }
        }
    };
}
pub(super) use connection_flags;

/// Parses a rate: above 0, or negative for no limit. At exactly 0 no request would ever be sent.
pub(super) fn qps(raw: &str) -> Result<f64, String> {
    let rate: f64 = raw.parse().map_err(|_| "it is not a number".to_owned())?;
    if rate.is_finite() && rate != 0.0 {
        Ok(rate)
    } else {
        Err("it must be greater than 0, or negative for no limit".to_owned())
    }
}

/// How a process connects to its API servers: the metrics that count requests, and its user agent.
#[derive(Clone)]
pub(super) struct Caller<'a> {
    pub(super) agent: &'static str,
    pub(super) metrics: &'a Metrics,
}

impl Connection {
    /// Returns whether a flag names the server; otherwise kubectl's rules choose it.
    pub(super) fn is_named(&self) -> bool {
        self.file.is_some()
            || self.options.context.is_some()
            || self.options.cluster.is_some()
            || self.options.user.is_some()
    }

    /// The same limits for another server.
    pub(super) fn config_of(&self, kubeconfig: Kubeconfig) -> KubeconfigSource {
        KubeconfigSource { kubeconfig, rate: self.rate }
    }

    async fn config(&self) -> Result<kube::Config, Failure> {
        config(self.file.as_deref(), &self.options).await
    }

    /// Returns a client whose requests are limited and counted; for one of KubeStellar's spaces by its role (KS-220).
    pub(super) async fn client(&self, caller: &Caller<'_>, space: Option<&str>) -> Result<Client, Failure> {
        client_of(self.config().await?, self.rate, caller, space)
            .map_err(|error| broken(self.file.as_deref(), self.options.context.as_deref(), &error))
    }

    /// Returns a client for the Lease of a leader election, if there is one. It has no rate limit, so that a leader's renewals
    /// do not wait for its other requests.
    pub(super) async fn to_lead(
        &self,
        caller: &Caller<'_>,
        lock: Option<LeaseLock>,
    ) -> Result<Option<(Client, LeaseLock)>, Failure> {
        let Some(lock) = lock else { return Ok(None) };
        let unlimited = Self { rate: None, ..self.clone() };
        Ok(Some((unlimited.client(caller, None).await?, lock)))
    }

    /// Returns the server's URL exactly as the kubeconfig has it (OCM-071). In a cluster and without a kubeconfig, returns
    /// the URL of the cluster's API server.
    pub(super) async fn server(&self) -> Result<String, Failure> {
        // This also reports what is wrong with the kubeconfig.
        let url = self.config().await?.cluster_url.to_string();
        let written = server(self.file.as_deref(), &self.options);
        Ok(written.unwrap_or_else(|| url.trim_end_matches('/').to_owned()))
    }
}

/// A kubeconfig that was read from elsewhere than a file.
pub(super) struct KubeconfigSource {
    kubeconfig: Kubeconfig,
    rate: Option<Rate>,
}

impl KubeconfigSource {
    pub(super) async fn client(self, caller: &Caller<'_>, space: Option<&str>) -> Result<Client, Failure> {
        let what = format!("using the kubeconfig of the {}", space.unwrap_or("space"));
        let failed = |error: &dyn std::error::Error| Failure::new(Exit::Failed, what.clone(), chain(error));
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(self.kubeconfig, &options);
        client_of(config.await.map_err(|e| failed(&e))?, self.rate, caller, space).map_err(|e| failed(&e))
    }
}

fn client_of(
    mut config: kube::Config,
    rate: Option<Rate>,
    caller: &Caller<'_>,
    space: Option<&str>,
) -> Result<Client, ConnectError> {
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    config.headers.push((header::USER_AGENT, HeaderValue::from_static(caller.agent)));
    let limiter = rate.map(|rate| Arc::new(Limiter::new(rate)));
    Ok(observed(runtime::connect::client(config)?, limiter, caller.metrics.requests(&host, space)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An API server that answers everything with `{}` and notes who asked.
    async fn serve(listener: tokio::net::TcpListener, asked: tokio::sync::mpsc::Sender<String>) {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(answer(stream, asked.clone()));
        }
    }

    async fn answer(
        stream: tokio::net::TcpStream,
        asked: tokio::sync::mpsc::Sender<String>,
    ) -> std::io::Result<()> {
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 0 {
            if let Some(agent) = line.to_lowercase().strip_prefix("user-agent: ") {
                let _ = asked.send(agent.trim().to_owned()).await;
            }
            if line.trim().is_empty() {
                let answer =
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
                stream.write_all(answer.as_bytes()).await?;
            }
            line.clear();
        }
        Ok(())
    }

    /// OCM-070: requests say which program makes them, and wait for their turn at the given rate.
    #[tokio::test]
    async fn ocm_070_requests_have_a_name_and_a_rate() {
        let (sender, mut asked) = tokio::sync::mpsc::channel(8);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(serve(listener, sender));
        let (metrics, begun) = (Metrics::default(), std::time::Instant::now());
        let caller = Caller { agent: "work-agent", metrics: &metrics };
        let config = kube::Config::new(url.parse().unwrap());
        let rate = Some(Rate { qps: 10.0, burst: 1 });
        let client = client_of(config, rate, &caller, None).unwrap();
        for _ in 0..4 {
            let request = http::Request::get("/api/v1/namespaces/a").body(Vec::new()).unwrap();
            client.request::<serde_json::Value>(request).await.unwrap();
            assert_eq!(asked.recv().await.unwrap(), "work-agent");
        }
        // Three of them had to wait for a tenth of a second each; how much longer all took says nothing.
        assert!(begun.elapsed() >= std::time::Duration::from_millis(290), "{:?}", begun.elapsed());
        let count = "rest_client_rate_limiter_duration_seconds_count{verb=\"GET\"";
        assert!(metrics.text().lines().any(|line| line.starts_with(count) && line.ends_with(" 4")));
        drop(client);
        serving.abort();
        let _ = serving.await;
    }

    /// KS-210: rates are floats; a limit that would stop everything is refused.
    #[test]
    fn ks_210_rates() {
        for (raw, rate) in [("5", 5.0), ("0.5", 0.5), ("-1", -1.0), ("1e3", 1000.0)] {
            assert_eq!(qps(raw), Ok(rate));
        }
        for bad in ["0", "", "many", "inf", "NaN"] {
            assert!(qps(bad).is_err(), "{bad}");
        }
    }
}
