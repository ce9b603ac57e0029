//! Logs on stderr (SP-092).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Levels like klog's: 0 warnings, 1 information, 4 debug, 6 requests. `KUBESTELLAR_LOG` overrides with a
/// `tracing` filter.
pub(crate) fn init(verbosity: u8, format: LogFormat) {
    let level = match verbosity {
        0 => "warn",
        1 => "warn,kubestellar=info",
        2 | 3 => "info",
        4 | 5 => {
            "info,kubestellar=debug,kubestellar_apiserver=debug,kubestellar_space=debug,kubestellar_runtime=debug,kubestellar_controller_manager=debug,kubestellar_transport=debug,kubestellar_ocm=debug,kubestellar_status_addon=debug,kubestellar_metacontroller=debug"
        }
        _ => "debug",
    };
    let filter = std::env::var("KUBESTELLAR_LOG").unwrap_or_else(|_| level.to_owned());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}
