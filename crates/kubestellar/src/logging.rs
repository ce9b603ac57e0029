//! Logs on stderr (SP-092).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Levels like klog's (KS-212): 0 warnings, 1 what happens once in a run, 2 what happens once in the life of an object, 4 each
/// look at an object, 6 requests. `KUBESTELLAR_LOG` overrides with a
/// `tracing` filter.
pub(crate) fn init(verbosity: u8, format: LogFormat) {
    let filter = std::env::var("KUBESTELLAR_LOG").unwrap_or_else(|_| level(verbosity).to_owned());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        // Otherwise a line that cannot be written, for example on a full disk, is reported on the same stderr, and that panics.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}

/// Targets that are not shown: kube's client logs each refused connection, and each client that trusts any certificate. The caller
/// of the request reports the former, and [`crate::clients`] reports the latter once.
macro_rules! quiet {
    () => {
        ",kube_client::client=off"
    };
}

/// Returns the filter of a level. A target stands for all targets that begin with it.
fn level(verbosity: u8) -> &'static str {
    match verbosity {
        0 => concat!("warn", quiet!()),
        1 => concat!("warn,kubestellar=info", quiet!()),
        2 | 3 => concat!("info", quiet!()),
        4 | 5 => {
            "info,kubestellar=debug,kubestellar_apiserver=debug,kubestellar_space=debug,kubestellar_runtime=debug,kubestellar_controller_manager=debug,kubestellar_transport=debug,kubestellar_ocm=debug,kubestellar_status_addon=debug,kubestellar_metacontroller=debug,kube_client::client=off"
        }
        // Bodies of Metacontroller's hooks are its traces (MC-107).
        _ => "debug,kubestellar_metacontroller=trace",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Which lines of a run are shown at a level.
    fn shown(verbosity: u8) -> Vec<&'static str> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(level(verbosity)))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "kubestellar_transport::controller", "trouble");
            tracing::info!(target: "kubestellar_controller_manager::binding", "run");
            tracing::info!(target: "lifecycle", "object");
            tracing::debug!(target: "kubestellar_controller_manager::binding::sync", "sync");
            tracing::warn!(target: "kube_client::client::tls", "request");
            tracing::debug!(target: "hyper_util::client", "request");
            tracing::trace!(target: "kubestellar_metacontroller::hooks", "body");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        ["trouble", "run", "object", "sync", "request", "body"]
            .into_iter()
            .filter(|it| text.contains(it))
            .collect()
    }

    /// KS-212: level 1 shows what happens once in a run, 2 what happens once in the life of an object, 4 each look at an object, 6
    /// what libraries say about requests. MC-107: and what is said to hooks.
    #[test]
    fn ks_212_levels_show_more_and_more() {
        let all = ["trouble", "run", "object", "sync", "request", "body"];
        for (level, count) in [(0, 1), (1, 2), (2, 3), (3, 3), (4, 4), (5, 4), (6, 6), (9, 6)] {
            assert_eq!(shown(level), all[..count], "level {level}");
        }
    }
}
