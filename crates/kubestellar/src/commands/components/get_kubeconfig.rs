//! `kubestellar get-kubeconfig`, which replaces `kflex-get-kubeconfig` (KS-218, SP-127).

use std::io::Write as _;
use std::path::PathBuf;

use apis::tenancy::ControlPlane;
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::{Api, Client, ResourceExt as _};
use runtime::Backoff;

use crate::datadir::write_atomically;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::signals::stop_token;

use super::goflags::{KlogFlags, boolean, duration};
use super::spaces::credentials;

/// Write the kubeconfig of one space, as its ControlPlane in the hosting cluster refers to it.
///
/// Waits until the ControlPlane is ready. Takes the flags and has the exit codes of kflex-get-kubeconfig: 1 for wrong
/// flags, 10 when the hosting cluster's own kubeconfig can't be used, 86 when the time is up, 99 and 100 when the file
/// can't be opened or written.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar get-kubeconfig --control-plane-name its1 --output-file its1.conf\n  kubestellar get-kubeconfig --control-plane-label-selector kflex.kubestellar.io/cptype=its --output-file - --in-cluster=false"
)]
pub(crate) struct Args {
    /// Name of the ControlPlane
    #[arg(long, value_name = "NAME", default_value = "")]
    control_plane_name: String,
    /// Labels that only this ControlPlane has
    #[arg(long, value_name = "SELECTOR", default_value = "")]
    control_plane_label_selector: String,
    /// Take the kubeconfig that is meant for use within the hosting cluster
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", value_parser = boolean)]
    in_cluster: bool,
    /// File to write, or - for stdout
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Context of the hosting cluster's kubeconfig [default: current]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// User of that kubeconfig [default: the context's]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Cluster of that kubeconfig [default: the context's]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Longest wait; 0 waits without limit
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
    timeout: std::time::Duration,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

pub(crate) async fn run(args: &Args, hosting: Option<&PathBuf>, out: &Printer) -> Result<Exit, Failure> {
    let wrong = |why: &str| Failure::new(Exit::Failed, "reading the flags", why);
    match (args.control_plane_name.is_empty(), args.control_plane_label_selector.is_empty()) {
        (true, true) => {
            return Err(wrong("give either --control-plane-name or --control-plane-label-selector"));
        }
        (false, false) => {
            return Err(wrong("--control-plane-name and --control-plane-label-selector exclude each other"));
        }
        _ => {}
    }
    let file = args.output_file.as_ref().ok_or_else(|| wrong("--output-file is missing"))?;
    args.logging.warn();
    let options = KubeConfigOptions {
        context: args.context.clone(),
        cluster: args.cluster.clone(),
        user: args.user.clone(),
    };
    let usable = |failure: Failure| Failure { exit: Exit::Unusable, ..failure };
    let config = crate::clients::config(hosting.map(PathBuf::as_path), &options).await.map_err(usable)?;
    let client = runtime::connect::client(config)
        .map_err(|error| Failure::new(Exit::Unusable, "connecting to the hosting cluster", error))?;
    let limit = if args.timeout.is_zero() { std::time::Duration::MAX } else { args.timeout };
    let stop = stop_token();
    let text = tokio::select! {
        found = tokio::time::timeout(limit, wait(args, &client)) => found.map_err(|_| {
            Failure::new(Exit::NeverReady, "waiting for the control plane", "it was not ready in time")
        })?,
        () = stop.cancelled() => return Ok(Exit::Interrupted),
    };
    write(file, &text, out)
}

async fn wait(args: &Args, client: &Client) -> String {
    let mut backoff = Backoff::new(std::time::Duration::from_secs(1), std::time::Duration::from_secs(20));
    loop {
        match look(args, client).await {
            Ok(text) => return text,
            Err(why) => tracing::info!(why, "the control plane is not ready; will look again"),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn look(args: &Args, client: &Client) -> Result<String, String> {
    let planes: Api<ControlPlane> = Api::all(client.clone());
    let mut all = if args.control_plane_name.is_empty() {
        let labels = ListParams::default().labels(&args.control_plane_label_selector);
        planes.list(&labels).await.map_err(|error| error.to_string())?.items
    } else {
        vec![planes.get(&args.control_plane_name).await.map_err(|error| error.to_string())?]
    };
    let plane = all.pop().ok_or("no control plane has these labels")?;
    if !all.is_empty() {
        return Err(format!("{} control planes have these labels, not one", all.len() + 1));
    }
    if !is_available(&plane) {
        return Err(format!("{} is not available", plane.name_any()));
    }
    credentials(client, &plane, args.in_cluster).await.map_err(|missing| missing.to_string())
}

/// The condition by which clients decide whether a ControlPlane can be used (SP-007).
fn is_available(plane: &ControlPlane) -> bool {
    let conditions = plane.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True" && it.reason == "Available")
}

/// Removes the rights of other users from a file. A device or pipe stays as it is.
fn tighten(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let about = file.metadata()?;
    let mode = about.permissions().mode() & 0o777;
    if !about.is_file() || mode | 0o600 == 0o600 {
        return Ok(());
    }
    file.set_permissions(std::fs::Permissions::from_mode(mode & 0o600))
}

fn write(file: &PathBuf, text: &str, out: &Printer) -> Result<Exit, Failure> {
    if file.as_os_str() == "-" {
        out.result(text.trim_end());
        return Ok(Exit::Done);
    }
    // An existing file or device is written in place, as the original does. Other users must not be able to read the file.
    if file.exists() {
        let opened = std::fs::OpenOptions::new().write(true).truncate(true).open(file);
        let what = || format!("writing {}", file.display());
        let mut opened = opened.map_err(|error| Failure::new(Exit::Unopened, what(), error))?;
        let written = tighten(&opened).and_then(|()| opened.write_all(text.as_bytes()));
        return written.map(|()| Exit::Done).map_err(|error| Failure::new(Exit::Unwritten, what(), error));
    }
    write_atomically(file, text.as_bytes(), 0o600)
        .map(|()| Exit::Done)
        .map_err(|error| Failure::new(Exit::Unopened, format!("writing {}", file.display()), error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A kubeconfig holds a key: what was there before does not make it anybody else's.
    #[test]
    fn credentials_are_nobody_elses_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        for (before, after) in
            [(0o644, 0o600), (0o666, 0o600), (0o700, 0o600), (0o600, 0o600), (0o200, 0o200)]
        {
            std::fs::write(&path, b"old").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(before)).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            tighten(&file).unwrap();
            let mode = file.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, after, "{before:o}");
            std::fs::remove_file(&path).unwrap();
        }
        let device = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let before = device.metadata().unwrap().permissions();
        tighten(&device).unwrap();
        assert_eq!(device.metadata().unwrap().permissions(), before);
    }
}
