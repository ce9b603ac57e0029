//! One installation: directories, processes, credentials.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{when, within};

/// A data directory, home and kubeconfig that nobody else uses. Dropping it stops what runs there.
pub struct Installation {
    root: TempDir,
}

/// How a command ended.
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A process in the foreground, killed when dropped.
pub struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Installation {
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("ks-").tempdir().expect("a temporary directory");
        std::fs::create_dir(root.path().join("tmp")).expect("a directory");
        Self { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The data directory; not there before the first start.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// The user's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("home/.kube/config")
    }

    pub fn kubeconfig_text(&self) -> String {
        std::fs::read_to_string(self.kubeconfig()).expect("the user's kubeconfig")
    }

    pub fn put_kubeconfig(&self, text: &str) {
        std::fs::create_dir_all(self.path("home/.kube")).expect("a directory");
        std::fs::write(self.kubeconfig(), text).expect("the user's kubeconfig");
    }

    /// The binary in the environment of this installation, and nothing else of the environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        Command::from(self.blocking_command(arguments))
    }

    fn blocking_command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kubestellar"));
        command.args(arguments).env_clear().current_dir(self.root.path()).stdin(Stdio::null());
        command.env("HOME", self.path("home")).env("KUBECONFIG", self.kubeconfig());
        command
            .env("KUBESTELLAR_DATA_DIR", self.data())
            .env("TMPDIR", self.path("tmp"))
            .env("RUST_BACKTRACE", "1");
        command
    }

    /// The binary as a shell starts it after a script, which may set limits.
    pub fn in_shell(&self, script: &str, arguments: &[&str]) -> Command {
        let plain = self.blocking_command(arguments);
        let mut command = std::process::Command::new("/bin/sh");
        command.arg("-c").arg(format!("{script}; exec \"$0\" \"$@\"")).arg(plain.get_program());
        command.args(arguments).env_clear().current_dir(self.root.path()).stdin(Stdio::null());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        Command::from(command)
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.command(arguments);
        let output = within(&format!("{arguments:?}"), command.kill_on_drop(true).output()).await;
        let output = output.expect("the binary runs");
        Outcome {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("UTF-8 on stdout"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8 on stderr"),
        }
    }

    /// Runs a command that must succeed, and explains itself when it does not.
    pub async fn must(&self, arguments: &[&str]) -> Outcome {
        let outcome = self.run(arguments).await;
        if outcome.code != 0 {
            let log = std::fs::read_to_string(self.data().join("logs/server.log")).unwrap_or_default();
            panic!("{arguments:?}: exit {}\n{}{}\nlog:\n{log}", outcome.code, outcome.stdout, outcome.stderr);
        }
        outcome
    }

    /// Runs a server in the foreground; returns when everything it has is ready.
    pub async fn serve(&self, arguments: &[&str]) -> Server {
        let mut server = self.spawn("serve", &[&["serve", "--report"], arguments].concat());
        let ready = async {
            while let Some(line) = server.line().await {
                let reply: Value = serde_json::from_str(&line).expect("a JSON line");
                match reply["is"].as_str() {
                    Some("ready") => return true,
                    Some("failed") => return false,
                    _ => {}
                }
            }
            false
        };
        let ready = within("the start of the server", ready).await;
        assert!(ready, "the server did not start:\n{}", server.log());
        server
    }

    /// Starts a process in the foreground; what it says on stderr goes to a file called after it.
    pub fn spawn(&self, name: &str, arguments: &[&str]) -> Server {
        let log = self.path(&format!("{name}.log"));
        let file = File::options().append(true).create(true).open(&log).expect("a log file");
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(file).kill_on_drop(true);
        let mut child = command.spawn().expect("the binary runs");
        let lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        Server { child, lines, log }
    }

    /// A client with the credentials that the installation gives out.
    pub async fn client(&self, context: &str) -> Client {
        client_of(&self.data().join("kubeconfig"), context).await
    }

    pub async fn config(&self, context: &str) -> Config {
        config_of(&self.data().join("kubeconfig"), context).await
    }

    /// The server's own view.
    pub async fn status(&self) -> Value {
        let status = self.must(&["status", "-o", "json"]).await;
        serde_json::from_str(&status.stdout).expect("one JSON document")
    }

    pub async fn pid(&self) -> u64 {
        self.status().await["server"]["pid"].as_u64().expect("a pid")
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let running = self.data().join("lock").exists();
        if running {
            let mut down = self.blocking_command(&["down", "--quiet", "--timeout", "20"]);
            let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let said: Vec<&str> = log.lines().filter(|l| l.contains("WARN") || l.contains("ERROR")).collect();
            eprintln!(
                "{} had said:\n{}",
                self.log.display(),
                said[said.len().saturating_sub(40)..].join("\n")
            );
        }
    }
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// The next line of stdout; `None` when the process closed it.
    pub async fn line(&mut self) -> Option<String> {
        self.lines.next_line().await.expect("UTF-8 on stdout")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// kill -9.
    pub async fn kill(mut self) {
        within("a kill", self.child.kill()).await.expect("it is killed");
    }

    /// Sends SIGTERM without waiting for anything.
    pub async fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().await;
        assert!(sent.expect("kill runs").success(), "it had ended before it was told to:\n{}", self.log());
    }

    /// Sends a signal, such as `TERM`, to a process that may have ended.
    pub async fn signal(&self, name: &str) {
        if let Some(pid) = self.child.id() {
            let mut kill = Command::new("kill");
            kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null());
            kill.status().await.expect("kill runs");
        }
    }

    /// Waits without a deadline: for processes that should not end.
    pub async fn wait(&mut self) -> ExitStatus {
        self.child.wait().await.expect("its exit status")
    }

    pub async fn ended(&mut self) -> ExitStatus {
        within("the end of a process", self.wait()).await
    }

    /// SIGTERM, and an orderly end.
    pub async fn stop(mut self) {
        self.terminate().await;
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }
}

impl Outcome {
    /// One `error:` line with all of `parts`, at most one `hint:` line, and no third kind (SP-083).
    #[track_caller]
    pub fn fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        let lines: Vec<&str> = self.stderr.lines().filter(|l| !l.starts_with("ok  ")).collect();
        let (error, hint) = (lines.first().expect("an error line"), &lines[1..]);
        assert!(error.starts_with("error: "), "{}", self.stderr);
        assert!(hint.len() <= 1 && hint.iter().all(|h| h.starts_with("hint: ")), "{}", self.stderr);
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error:?}");
        }
    }
}

pub async fn client_of(kubeconfig: &Path, context: &str) -> Client {
    Client::try_from(config_of(kubeconfig, context).await).expect("a client")
}

async fn config_of(kubeconfig: &Path, context: &str) -> Config {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(file, &options).await.expect("a usable context")
}

/// Waits until a process that is told to end has ended.
pub async fn gone(pid: u64) {
    let alive = || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Past the name in parentheses: the state; Z is one that has ended.
        state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    when("the end of the server", || !alive()).await;
}
