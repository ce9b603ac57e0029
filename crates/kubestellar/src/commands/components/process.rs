//! A component as a process: endpoints, leader election, shutdown (KS-210, KS-211, KS-225, KS-226).

use std::future::Future;

use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use kube::Client;
use runtime::Ready;
use runtime::election::{self, LeaseLock};
use runtime::endpoints::{Bind, Endpoint, Pages};
use runtime::metrics::Metrics;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, chain};
use crate::signals::stop_token;

use super::connection::{Caller, Connection};
use super::goflags::KlogFlags;

/// Where a process serves what.
pub(super) struct Endpoints {
    pub(super) metrics: Bind,
    pub(super) pprof: Bind,
    pub(super) probes: Bind,
}

/// Default address of an endpoint. In a pod, which has a network of its own, it is that of the original. Elsewhere it is the
/// loopback address, because metrics and profiles are not for the whole network.
macro_rules! by_default {
    ($address:literal) => {
        $crate::commands::components::process::chosen(
            $crate::commands::components::process::in_pod(),
            $address,
            concat!("127.0.0.1", $address),
        )
    };
}
pub(super) use by_default;

/// Returns `everywhere`, such as `:8080`, in a pod, and `here` elsewhere. Other addresses stay as they are.
pub(super) fn chosen(in_pod: bool, everywhere: &'static str, here: &'static str) -> &'static str {
    if in_pod || !everywhere.starts_with(':') { everywhere } else { here }
}

/// Returns whether this process runs in a pod, according to its environment.
pub(super) fn in_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
}

/// Declares the three address flags, with defaults of their own. Each is known both as `-bind-address` and as
/// `-bind-addr`: the status add-on has the shorter name for two of them.
macro_rules! endpoint_flags {
    ($type:ident, metrics = $metrics:literal, pprof = $pprof:literal, probes = $probes:literal) => {
        /// Where the process serves what.
        #[derive(Clone, Debug, clap::Args)]
        #[command(
            next_help_heading = "Endpoints (HOST:PORT, or :PORT for all interfaces; 0 for off). Unless told otherwise, all interfaces in a pod, loopback elsewhere"
        )]
        pub(super) struct $type {
            /// Where /metrics is served
            #[arg(long, alias = "metrics-bind-addr", value_name = "ADDRESS", default_value = $crate::commands::components::process::by_default!($metrics))]
            metrics_bind_address: runtime::endpoints::Bind,
            /// Where /debug/pprof/ is served
            #[arg(long, alias = "pprof-bind-addr", value_name = "ADDRESS", default_value = $crate::commands::components::process::by_default!($pprof))]
            pprof_bind_address: runtime::endpoints::Bind,
            /// Where /healthz and /readyz are served
            #[arg(long, alias = "health-probe-bind-addr", value_name = "ADDRESS", default_value = $crate::commands::components::process::by_default!($probes))]
            health_probe_bind_address: runtime::endpoints::Bind,
        }

        impl $type {
            pub(super) fn endpoints(&self) -> $crate::commands::components::process::Endpoints {
                $crate::commands::components::process::Endpoints {
                    metrics: self.metrics_bind_address.clone(),
                    pprof: self.pprof_bind_address.clone(),
                    probes: self.health_probe_bind_address.clone(),
                }
            }
        }
    };
}
pub(super) use endpoint_flags;

/// The paths that probes may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Probes {
    /// Any path (KS-210).
    Any,
    /// The paths of controller-runtime's and OCM's programs only (OCM-133).
    Ping,
}

/// An endpoint, and the flag with its address.
pub(super) struct Door {
    pub(super) what: &'static str,
    pub(super) flag: &'static str,
    pub(super) bind: Bind,
    pub(super) pages: Pages,
}

/// The component. It gets a token to stop; its error is a sentence for users.
type Component<'a> = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'a, Result<(), String>> + Send + 'a>;

/// The process of a component. Its endpoints serve from the start, also while the process waits for a space or for leadership.
pub(super) struct Process {
    name: &'static str,
    /// Cancelled by Ctrl-C or SIGTERM.
    pub(super) stop: CancellationToken,
    pub(super) metrics: Metrics,
    /// The component sets this to true once it works.
    pub(super) ready: Ready,
    serving: JoinSet<()>,
    /// Stops the endpoints. Cancelled last.
    last: CancellationToken,
}

impl Process {
    /// Opens the endpoints. Fails if one cannot be opened, as the originals do.
    pub(super) async fn start(
        name: &'static str,
        endpoints: Endpoints,
        probes: Probes,
        logging: &KlogFlags,
    ) -> Result<Self, Failure> {
        logging.warn();
        let (metrics, ready) = (Metrics::new(env!("CARGO_PKG_VERSION")), Ready::new(false));
        let well = match probes {
            Probes::Any => Pages::always_well(&ready),
            Probes::Ping => Pages::readiness(&ready).or(Pages::ping()),
        };
        let doors = [
            Door {
                what: "metrics",
                flag: "--metrics-bind-address",
                bind: endpoints.metrics,
                pages: Pages::metrics(metrics.clone()),
            },
            Door {
                what: "profiles",
                flag: "--pprof-bind-address",
                bind: endpoints.pprof,
                pages: Pages::pprof(),
            },
            Door { what: "probes", flag: "--health-probe-bind-address", bind: endpoints.probes, pages: well },
        ];
        Self::open(name, stop_token(), metrics, ready, doors).await
    }

    /// The same for a program with flags and pages of its own.
    pub(super) async fn open(
        name: &'static str,
        stop: CancellationToken,
        metrics: Metrics,
        ready: Ready,
        doors: impl IntoIterator<Item = Door>,
    ) -> Result<Self, Failure> {
        let last = CancellationToken::new();
        let mut serving = JoinSet::new();
        for Door { what, flag, bind, pages } in doors {
            let opened = Endpoint::open(&bind, pages).await.map_err(|error| {
                let taken = error.kind() == std::io::ErrorKind::AddrInUse;
                Failure::new(Exit::Failed, format!("serving {what} on {bind}"), &error).hint(if taken {
                    format!("choose another address with {flag}, or 0 for none")
                } else {
                    format!("see {flag}")
                })
            })?;
            if let Some(endpoint) = opened {
                tracing::info!(what, address = %endpoint.address(), "serving");
                serving.spawn(endpoint.serve(last.clone()));
            }
        }
        tracing::info!(component = name, "starting");
        Ok(Self { name, stop, metrics, ready, serving, last })
    }

    /// Runs the component until it is told to stop; with a lock, only while this process leads. Returns once everything that
    /// was started has ended. If the lead is lost, ends at once, because another process may lead already.
    pub(super) fn run<'a, F, E>(
        self,
        lock: Option<(Client, LeaseLock)>,
        component: impl FnOnce(CancellationToken) -> F + Send + 'a,
    ) -> BoxFuture<'a, Result<Exit, Failure>>
    where
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: std::error::Error + 'static,
    {
        let component = |stop| component(stop).map_err(|error| chain(&error)).boxed();
        self.run_boxed(lock, Box::new(component)).boxed()
    }

    /// Not generic, so that it is compiled once and not for each component.
    async fn run_boxed(
        self,
        lock: Option<(Client, LeaseLock)>,
        component: Component<'_>,
    ) -> Result<Exit, Failure> {
        let what = format!("running the {}", self.name);
        let (name, mut ready) = (self.name, self.ready.subscribe());
        let announced = async move {
            if ready.wait_for(|ready| *ready).await.is_ok() {
                tracing::info!(component = name, "ready");
            }
            std::future::pending::<()>().await;
        };
        let (stop, metrics) = (self.stop.clone(), self.metrics.clone());
        let led = async {
            match lock {
                Some((client, lock)) => match election::lead(client, lock, &metrics, stop, component).await {
                    Ok(outcome) => outcome.unwrap_or(Ok(())),
                    Err(lost) => Err(lost.to_string()),
                },
                None => component(stop).await,
            }
        };
        let outcome: Result<(), String> = tokio::select! {
            outcome = led => outcome,
            () = announced => Ok(()),
        };
        self.close().await;
        outcome.map(|()| Exit::Done).map_err(|why| Failure::new(Exit::Failed, what, why))
    }

    /// Runs another server until the process ends.
    pub(super) fn serve(&mut self, what: &str, endpoint: Endpoint) {
        tracing::info!(what, address = %endpoint.address(), "serving");
        self.serving.spawn(endpoint.serve(self.last.clone()));
    }

    /// Waits for a preparation of the component. Returns `None` if the process is told to stop meanwhile.
    pub(super) async fn first<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Option<T>, Failure> {
        tokio::select! {
            done = work => done.map(Some),
            () = self.stop.cancelled() => Ok(None),
        }
    }

    /// Passes on a success. After a failure stops the endpoints first.
    pub(super) async fn unless_failed<T>(self, outcome: Result<T, Failure>) -> Result<(Self, T), Failure> {
        match outcome {
            Ok(value) => Ok((self, value)),
            Err(failure) => {
                self.close().await;
                Err(failure)
            }
        }
    }

    /// Connects a component to the one server that it has, `space` (see [`Connection::client`]): returns its client, and the
    /// client for `lock`.
    pub(super) async fn connected(
        self,
        connection: &Connection,
        agent: &'static str,
        space: &str,
        lock: Option<LeaseLock>,
    ) -> Result<(Self, Client, Option<(Client, LeaseLock)>), Failure> {
        let caller = Caller { agent, metrics: &self.metrics };
        let clients = async {
            let lock = connection.to_lead(&caller, lock).await?;
            Ok((connection.client(&caller, Some(space)).await?, lock))
        };
        let clients = clients.await;
        let (process, (client, lock)) = self.unless_failed(clients).await?;
        Ok((process, client, lock))
    }

    /// Stops the endpoints and waits for them.
    pub(super) async fn close(mut self) {
        self.last.cancel();
        while self.serving.join_next().await.is_some() {}
        tracing::info!(component = self.name, "stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KS-210: endpoints are open to all interfaces in a pod only, unless an address is given.
    #[test]
    fn ks_210_endpoints_listen_on_loopback_outside_of_pods() {
        assert_eq!(chosen(true, ":8080", "127.0.0.1:8080"), ":8080");
        assert_eq!(chosen(false, ":8080", "127.0.0.1:8080"), "127.0.0.1:8080");
        for off in ["0", ""] {
            assert_eq!((chosen(true, off, "x"), chosen(false, off, "x")), (off, off));
        }
        assert_eq!(by_default!(":8443"), chosen(in_pod(), ":8443", "127.0.0.1:8443"));
    }
}
