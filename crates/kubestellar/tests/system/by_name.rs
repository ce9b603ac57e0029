//! Programs that lose the path of a space's URL reach the space by its server name.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::support::{Installation, config_map, create, within};

fn kubectl(ks: &Installation, context: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--context").arg(context).args(arguments).env("KUBECONFIG", ks.kubeconfig());
    command.env("HOME", ks.path("home")).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn output(command: &mut Command) -> String {
    let output = within("kubectl", command.output()).await.expect("kubectl runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file())
}

/// SP-056: with the contexts of `up`, `kubectl get --raw`, `kubectl proxy` and a plugin that builds its own URLs reach the space of
/// the context, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn sp_056_kubectl_without_paths_reaches_the_space_of_its_context() {
    if !is_installed("kubectl") || !is_installed("curl") {
        println!("skipped: there is no kubectl, or no curl");
        return;
    }
    let ks = Installation::new();
    ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    for space in ["wds1", "its1"] {
        create(&ks.client(space).await, config_map("default", &format!("of-{space}"), "x")).await;
    }
    for (space, other) in [("wds1", "its1"), ("its1", "wds1")] {
        let maps = "/api/v1/namespaces/default/configmaps";
        let raw = output(&mut kubectl(&ks, space, &["get", "--raw", maps])).await;
        assert!(raw.contains(&format!("of-{space}")) && !raw.contains(&format!("of-{other}")), "{raw}");
        // The way with the path stays.
        let raw =
            output(&mut kubectl(&ks, space, &["get", "--raw", &format!("/spaces/{space}{maps}")])).await;
        assert!(raw.contains(&format!("of-{space}")), "{raw}");
        // The context names one space, the path another.
        let mut refused = kubectl(&ks, space, &["get", "--raw", &format!("/spaces/{other}{maps}")]);
        let refused = within("kubectl", refused.output()).await.expect("kubectl runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("names the space"), "{said}");

        let mut proxy = kubectl(&ks, space, &["proxy", "--port", "0"]);
        let mut proxy = proxy.stdout(Stdio::piped()).spawn().expect("kubectl runs");
        let mut lines = BufReader::new(proxy.stdout.take().expect("its stdout")).lines();
        let line = within("the proxy", lines.next_line()).await.expect("a line").expect("a line");
        let address = line.rsplit(' ').next().expect("an address").to_owned();
        let listed = output(Command::new("curl").args(["-sS", &format!("http://{address}{maps}")])).await;
        assert!(
            listed.contains(&format!("of-{space}")) && !listed.contains(&format!("of-{other}")),
            "{listed}"
        );
        within("the end of the proxy", proxy.kill()).await.expect("it is killed");
    }
    // As a plugin does that takes the server's name and the credentials from the kubeconfig, and builds the URL itself.
    let config = ks.kubeconfig().display().to_string();
    let view = |path: &'static str| {
        let mut command = kubectl(&ks, "wds1", &["config", "view", "--raw", "--minify", "-o"]);
        command.arg(format!("jsonpath={path}"));
        command
    };
    let server = output(&mut view("{.clusters[0].cluster.server}")).await;
    let name = output(&mut view("{.clusters[0].cluster.tls-server-name}")).await;
    assert_eq!(name, "wds1.localhost", "{config}");
    for (path, field) in [
        ("ca.crt", "{.clusters[0].cluster.certificate-authority-data}"),
        ("tls.crt", "{.users[0].user.client-certificate-data}"),
        ("tls.key", "{.users[0].user.client-key-data}"),
    ] {
        let mut command = Command::new("base64");
        std::fs::write(ks.path("encoded"), output(&mut view(field)).await).unwrap();
        command.arg("-d").arg(ks.path("encoded"));
        std::fs::write(ks.path(path), output(&mut command).await).unwrap();
    }
    let port = server.trim_start_matches("https://").split('/').next().unwrap().rsplit(':').next().unwrap();
    let mut plugin = Command::new("curl");
    plugin
        .current_dir(ks.path(""))
        .args(["-sS", "--cacert", "ca.crt", "--cert", "tls.crt", "--key", "tls.key"]);
    plugin.args(["--resolve", &format!("{name}:{port}:127.0.0.1")]);
    plugin.arg(format!("https://{name}:{port}/api/v1/namespaces/default/configmaps"));
    let listed = output(&mut plugin).await;
    assert!(listed.contains("of-wds1") && !listed.contains("of-its1"), "{listed}");
}
