//! The command line: declarations and dispatch.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::builder::TypedValueParser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    apiserver, cluster, completion, components, demo, down, explain, get, manifests, serve, status, up,
    version,
};
use crate::contexts::Sources;
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure};
use crate::kubeconfig;
use crate::logging::{self, LogFormat};
use crate::printer::Printer;

/// Run workloads across many Kubernetes clusters.
///
/// Put ordinary Kubernetes objects and a BindingPolicy into the workload description space; they appear in the
/// selected clusters, and their status comes back.
#[derive(Debug, Parser)]
#[command(
    name = "kubestellar",
    version,
    after_help = "Examples:\n  kubestellar demo                  see it work, from nothing, in a few seconds\n  kubestellar up                    start it for real\n  kubectl --context wds1 get bindingpolicies\n  kubestellar down"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Directory of the installation [default: $XDG_DATA_HOME/kubestellar]
    #[arg(long, global = true, env = crate::datadir::VARIABLE, value_name = "DIR", value_parser = clap::builder::OsStringValueParser::new().map(PathBuf::from))]
    data_dir: Option<PathBuf>,
    /// Whether the directory comes from the command line itself, not from the environment.
    #[arg(skip)]
    data_dir_given: bool,
    /// Kubeconfig file to read and update [default: $KUBECONFIG, or ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Errors only
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// No colour and no spinner
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Log level as klog's: 0 warnings, 1 information, 4 debug, 6 requests
    #[arg(short, long = "v", global = true, value_name = "N", default_value_t = 1)]
    v: u8,
    /// Form of the log lines
    #[arg(long, global = true, value_enum, default_value_t)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Down(down::Args),
    Status(status::Args),
    Get(get::Args),
    Explain(explain::Args),
    Demo(demo::Args),
    Serve(serve::Args),
    Cluster(cluster::Args),
    Ocm(components::ocm::Args),
    Version(version::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    Complete(completion::NamesArgs),
    Apiserver(Box<apiserver::Args>),
    ControllerManager(components::controller_manager::Args),
    TransportController(components::transport_controller::Args),
    WorkAgent(components::work_agent::Args),
    StatusAddon(Box<components::status_addon::Args>),
    // The arguments of a deployed agent begin with the name of the original's command.
    #[command(alias = "agent")]
    StatusAgent(components::status_agent::Args),
    GetKubeconfig(components::get_kubeconfig::Args),
    Metacontroller(components::metacontroller::Args),
    SpaceManager(components::space_manager::Args),
    Manifests(manifests::Args),
}

impl Command {
    /// The value of `--logging-format`, as the flag is called in Kubernetes' programs.
    fn log_format(&self) -> Option<LogFormat> {
        match self {
            Self::ControllerManager(args) => args.logging.format(),
            Self::TransportController(args) => args.logging.format(),
            Self::WorkAgent(args) => args.logging.format(),
            Self::StatusAddon(args) => args.logging.format(),
            Self::StatusAgent(args) => args.logging.format(),
            Self::GetKubeconfig(args) => args.logging.format(),
            Self::SpaceManager(args) => args.logging.format(),
            Self::Ocm(args) => args.log_format(),
            Self::Apiserver(args) => args.log_format(),
            _ => None,
        }
    }
}

/// Parses the command line. Flags of components may be spelled in all ways that Go programs accept.
pub(crate) fn parse() -> Cli {
    let given: Vec<_> = std::env::args_os().collect();
    let mut command = named(Cli::command(), &given);
    let arguments = apiserver::under_its_name(given);
    let arguments = components::normalise(&command, arguments);
    let matches = command.clone().try_get_matches_from(arguments);
    let matches = matches.unwrap_or_else(|error| end(&without_hidden(&command, error)));
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    cli.global.data_dir_given = matches.value_source("data_dir") == Some(ValueSource::CommandLine);
    cli
}

/// Under the name `kube-apiserver` the usage lines show that program.
fn named(command: clap::Command, arguments: &[OsString]) -> clap::Command {
    if apiserver::under_its_name(arguments.to_vec()).len() == arguments.len() {
        return command;
    }
    command.mut_subcommand("apiserver", |it| it.override_usage("kube-apiserver [OPTIONS]"))
}

/// Prints an error of the command line, or the help that was asked for, and ends the process.
fn end(error: &clap::Error) -> ! {
    if error.kind() != ErrorKind::ValueValidation {
        error.exit();
    }
    let styled = error.render();
    let text = if std::io::stderr().is_terminal() { styled.ansi().to_string() } else { styled.to_string() };
    let _ = std::io::stderr().lock().write_all(plain(&text).as_bytes());
    std::process::exit(error.exit_code());
}

/// Puts the complaints of the standard library's parsers into words of users.
fn plain(text: &str) -> String {
    let known = [
        ("invalid digit found in string", "not a whole number"),
        ("cannot parse integer from empty string", "there is no number"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("invalid float literal", "not a number"),
        ("cannot parse float from empty string", "there is no number"),
        (
            "invalid socket address syntax",
            "write ADDRESS:PORT, such as 127.0.0.1:9443, with a port up to 65535",
        ),
        ("invalid IP address syntax", "write an IP address, such as 127.0.0.1"),
        ("provided string was not `true` or `false`", "write true or false"),
    ];
    known.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// Removes suggestions of hidden names from an error: flags that our commands pass to each other, and flags that exist for
/// compatibility only.
fn without_hidden(command: &clap::Command, mut error: clap::Error) -> clap::Error {
    let (mut hidden, mut shown) = (BTreeSet::new(), BTreeSet::new());
    collect_names(command, &mut hidden, &mut shown);
    let is_hidden = |text: &str| {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)));
        words
            .map(|word| word.trim_start_matches('-'))
            .any(|word| hidden.contains(word) && !shown.contains(word))
    };
    for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Suggested] {
        let tells = match error.get(kind) {
            Some(ContextValue::String(text)) => is_hidden(text),
            Some(ContextValue::Strings(all)) => all.iter().any(|text| is_hidden(text)),
            Some(ContextValue::StyledStrs(all)) => all.iter().any(|text| is_hidden(&text.to_string())),
            _ => false,
        };
        if tells {
            error.remove(kind);
        }
    }
    error
}

/// The names of all flags and commands, and whether help shows them.
fn collect_names(command: &clap::Command, hidden: &mut BTreeSet<String>, shown: &mut BTreeSet<String>) {
    for argument in command.get_arguments() {
        let names = if argument.is_hide_set() { &mut *hidden } else { &mut *shown };
        names.extend(argument.get_long().map(str::to_owned));
    }
    for inner in command.get_subcommands() {
        let names = if inner.is_hide_set() { &mut *hidden } else { &mut *shown };
        names.insert(inner.get_name().to_owned());
        collect_names(inner, hidden, shown);
    }
}

/// Runs the chosen command.
pub(crate) async fn run(cli: Cli, out: &Printer) -> Result<Exit, Failure> {
    let Some(command) = &cli.command else {
        out.result(&Cli::command().render_help().to_string());
        return Ok(Exit::Done);
    };
    let mut level = if cli.global.quiet { 0 } else { cli.global.v };
    let mut format = command.log_format().unwrap_or(cli.global.log_format);
    if let Command::Metacontroller(args) = command {
        (level, format) = args.logging(level, format);
    }
    logging::init(level, format);
    let named = cli.global.data_dir.as_deref().filter(|dir| !dir.as_os_str().is_empty());
    let data = || DataDir::resolve(named);
    let running = || DataDir::resolve_running(named);
    // A component in a pod: the cluster that it runs in.
    let own = || cli.global.kubeconfig.as_ref();
    let kubeconfigs = || kubeconfig::files(cli.global.kubeconfig.as_deref());
    let sources =
        || Sources { asked: cli.global.kubeconfig.clone(), data: running().ok(), named: named.is_some() };
    match command {
        Command::Up(args) => up::run(args, &data()?, &kubeconfigs()?, out).await,
        Command::Down(args) => down::run(args, &running()?, named.is_some(), &kubeconfigs()?, out).await,
        Command::Status(args) => status::run(args, &running()?, out).await,
        Command::Get(args) => get::run(args, &sources(), out).await,
        Command::Explain(args) => explain::run(args, &sources(), out).await,
        Command::Demo(args) => demo::run(args, named.filter(|_| cli.global.data_dir_given), out).await,
        Command::Serve(args) => serve::run(args, &data()?).await,
        Command::Cluster(args) => cluster::run(args, &sources(), out).await,
        Command::Ocm(args) => components::ocm::run(args).await,
        Command::Version(args) => version::run(args, out),
        Command::Completion(args) => Ok(completion::run(args, Cli::command())),
        Command::Complete(args) => completion::names(args, &sources(), out).await,
        Command::Apiserver(args) => apiserver::run(args, out).await,
        Command::ControllerManager(args) => components::controller_manager::run(args, own()).await,
        Command::TransportController(args) => components::transport_controller::run(args).await,
        Command::WorkAgent(args) => components::work_agent::run(args, own()).await,
        Command::StatusAddon(args) => components::status_addon::run(args).await,
        Command::StatusAgent(args) => components::status_agent::run(args, own()).await,
        Command::GetKubeconfig(args) => components::get_kubeconfig::run(args, own(), out).await,
        Command::SpaceManager(args) => {
            components::space_manager::run(args, cli.global.kubeconfig.as_deref()).await
        }
        Command::Manifests(args) => manifests::run(args, out).await,
        Command::Metacontroller(args) => {
            components::metacontroller::run(args, cli.global.kubeconfig.as_deref()).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-090: every command parses its own declaration and has examples where there is something to show.
    #[test]
    fn sp_090_declarations_hold_together() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no purpose line", command.get_name());
            assert!(command.get_after_help().is_some(), "{} has no examples", command.get_name());
        }
    }

    /// SP-084: a mistyped flag is not answered with one that no help shows.
    #[test]
    fn sp_084_errors_name_nothing_hidden() {
        let said = |line: &str| {
            let command = Cli::command();
            let error = command.clone().try_get_matches_from(line.split(' ')).unwrap_err();
            without_hidden(&command, error).to_string()
        };
        for line in
            ["k serve --repor", "k serve --shape-from-std", "k status-agent --log_fil", "k up --until-stdin"]
        {
            let said = said(line);
            assert!(!said.contains("tip:"), "{line}: {said}");
        }
        assert!(said("k up --cluster").contains("--clusters"), "what help shows is suggested");
    }

    /// SP-083: a number that is none is said to be none, in words of users.
    #[test]
    fn sp_083_complaints_about_numbers_are_plain() {
        for (line, expected) in [
            ("k up --clusters abc", "not a whole number"),
            ("k up --clusters ", "there is no number"),
            ("k up --clusters 9999999999999999999999", "too large"),
            ("k up --listen 127.0.0.1:99999", "write ADDRESS:PORT"),
            ("k up --clusters 9999", "9999 is not in 0..=5000"),
        ] {
            let error = Cli::command().try_get_matches_from(line.split(' ')).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{line}");
            let said = plain(&error.to_string());
            assert!(said.contains(expected), "{line}: {said}");
        }
    }

    /// SP-126: under its other name the program shows that name.
    #[test]
    fn sp_126_usage_of_kube_apiserver() {
        let usage = |line: &str| {
            let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let command = named(Cli::command(), &given);
            command.try_get_matches_from(apiserver::under_its_name(given)).unwrap_err().to_string()
        };
        assert!(usage("/x/kube-apiserver --help").contains("Usage: kube-apiserver [OPTIONS]"));
        assert!(usage("k apiserver --help").contains("Usage: k apiserver [OPTIONS]"));
    }

    /// SP-090: without a command there is help.
    #[test]
    fn sp_090_no_command_is_a_call_for_help() {
        assert!(Cli::try_parse_from(["kubestellar"]).unwrap().command.is_none());
        assert!(Cli::command().render_help().to_string().contains("Commands:"));
    }

    /// SP-089: a script for each shell.
    #[test]
    fn sp_089_completion_scripts() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubestellar", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("transport-controller"));
        }
    }
}
