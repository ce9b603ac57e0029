//! Flags as Go programs accept them: `-flag`, `--flag=value`, booleans with a value, words separated by `_` or `-`, and
//! the klog flags that every one of them has (KS-210, SP-126).

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::Command;

use crate::logging::LogFormat;

/// Rewrites the arguments after the name of a component from the spellings of Go's flag packages. All other arguments stay
/// as they are; the parser reports unknown ones.
pub(crate) fn normalise(command: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = arguments.iter().skip(1).position(|it| component(command, it).is_some()).map(|n| n + 1)
    else {
        return arguments;
    };
    let Some(component) = arguments.get(at).and_then(|it| component(command, it)) else { return arguments };
    let names = Names::of(command, component);
    let mut literal = false;
    let rewrite = |(index, argument): (usize, OsString)| {
        literal |= argument == "--";
        if index <= at || literal { argument } else { names.rewrite(argument) }
    };
    arguments.into_iter().enumerate().map(rewrite).collect()
}

fn component<'a>(command: &'a Command, name: &OsStr) -> Option<&'a Command> {
    // All components have klog's flags, or zap's.
    let marks = ["stderrthreshold", "zap_log_level"];
    command.get_subcommands().find(|it| {
        it.get_name() == name
            && it.get_arguments().any(|argument| marks.iter().any(|mark| argument.get_id() == *mark))
    })
}

/// Returns the long flags of a command and of the program.
struct Names(Vec<String>);

impl Names {
    fn of(program: &Command, command: &Command) -> Self {
        let arguments =
            program.get_arguments().filter(|it| it.is_global_set()).chain(command.get_arguments());
        let names = arguments.flat_map(|it| {
            it.get_long()
                .into_iter()
                .chain(it.get_all_aliases().unwrap_or_default())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
        Self(names.chain(["help".to_owned()]).collect())
    }

    fn rewrite(&self, argument: OsString) -> OsString {
        let Some(text) = argument.to_str() else { return argument };
        let Some(rest) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else { return argument };
        let (name, value) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
        // A single letter is a short flag, as in Go.
        if name.chars().count() < 2 {
            return argument;
        }
        match self.find(name) {
            Some(name) => match value {
                Some(value) => format!("--{name}={value}").into(),
                None => format!("--{name}").into(),
            },
            None => argument,
        }
    }

    fn find(&self, name: &str) -> Option<&str> {
        let same = |known: &&String| {
            known.len() == name.len()
                && known
                    .chars()
                    .zip(name.chars())
                    .all(|(a, b)| a == b || (matches!(a, '-' | '_') && matches!(b, '-' | '_')))
        };
        self.0.iter().find(|known| *known == name).or_else(|| self.0.iter().find(same)).map(String::as_str)
    }
}

/// `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Go's `strconv.ParseBool`.
pub(crate) fn boolean(raw: &str) -> Result<bool, String> {
    match raw {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it is neither true nor false".to_owned()),
    }
}

/// Go's `time.ParseDuration`, of durations that are not negative: `137s`, `1m30s`, `1.5h`, `250ms`.
pub(super) fn duration(raw: &str) -> Result<Duration, String> {
    let wrong = || format!("{raw:?} is not a duration: write for example 15s, 1m30s or 250ms");
    machinery::duration::parse(raw).ok_or_else(wrong)
}

/// The flags of klog and of component-base's logs. `-v` is the program's own.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Logging, as klog has it (the log goes to stderr whatever these say)")]
pub(crate) struct KlogFlags {
    /// Form of the log lines: text or json
    #[arg(long = "logging-format", value_name = "FORMAT", value_enum)]
    format: Option<LogFormat>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    logtostderr: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    alsologtostderr: Option<bool>,
    #[arg(long = "log_dir", hide = true)]
    log_dir: Option<String>,
    #[arg(long = "log_file", hide = true)]
    log_file: Option<String>,
    #[arg(long = "log_file_max_size", hide = true)]
    log_file_max_size: Option<u64>,
    #[arg(long = "log_backtrace_at", hide = true)]
    log_backtrace_at: Option<String>,
    #[arg(long = "add_dir_header", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    add_dir_header: Option<bool>,
    #[arg(long = "skip_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    skip_headers: Option<bool>,
    #[arg(long = "skip_log_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    skip_log_headers: Option<bool>,
    #[arg(long = "one_output", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    one_output: Option<bool>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long = "log-flush-frequency", hide = true, value_parser = duration)]
    log_flush_frequency: Option<Duration>,
}

impl KlogFlags {
    pub(crate) fn format(&self) -> Option<LogFormat> {
        self.format
    }

    /// Logs one warning about flags that are accepted for compatibility and have no effect.
    pub(crate) fn warn(&self) {
        let ignored = self.ignored();
        if !ignored.is_empty() {
            tracing::warn!(flags = ignored.join(","), "these flags have no effect: the log goes to stderr");
        }
    }

    fn ignored(&self) -> Vec<&'static str> {
        let set = [
            ("vmodule", self.vmodule.as_ref().is_some_and(|it| !it.is_empty())),
            // A flag that sets the default value needs no warning.
            ("logtostderr", self.logtostderr == Some(false)),
            ("alsologtostderr", self.alsologtostderr == Some(true)),
            ("log_dir", self.log_dir.as_ref().is_some_and(|it| !it.is_empty())),
            ("log_file", self.log_file.as_ref().is_some_and(|it| !it.is_empty())),
            ("log_file_max_size", self.log_file_max_size.is_some()),
            ("log_backtrace_at", self.log_backtrace_at.as_ref().is_some_and(|it| !it.is_empty())),
            ("add_dir_header", self.add_dir_header == Some(true)),
            ("skip_headers", self.skip_headers == Some(true)),
            ("skip_log_headers", self.skip_log_headers == Some(true)),
            ("one_output", self.one_output == Some(true)),
            ("stderrthreshold", self.stderrthreshold.is_some()),
            ("log-flush-frequency", self.log_flush_frequency.is_some()),
        ];
        set.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn rewritten(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let done = normalise(&crate::cli::Cli::command(), arguments);
        done.iter().map(|it| it.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    /// SP-126, KS-210, MC-200: one dash or two, `_` or `-`; what is not a component's flag is left alone.
    #[test]
    fn sp_126_spellings_of_flags() {
        let cases = [
            ("controller-manager -wds-name=a --its_name b", "controller-manager --wds-name=a --its-name b"),
            ("controller-manager --log-file=x -log_dir y", "controller-manager --log_file=x --log_dir y"),
            ("controller-manager -v=4 -v 4 --v=4", "controller-manager -v=4 -v 4 --v=4"),
            ("-v 2 transport-controller -wds-qps=-1", "-v 2 transport-controller --wds-qps=-1"),
            ("controller-manager -kubeconfig f -nonsense=1", "controller-manager --kubeconfig f -nonsense=1"),
            ("controller-manager -- -wds-name", "controller-manager -- -wds-name"),
            ("status-agent --metrics-bind-addr=:1", "status-agent --metrics-bind-addr=:1"),
            ("work-agent -cluster-name=a", "work-agent --cluster-name=a"),
            ("metacontroller -workers=3 -leader-election", "metacontroller --workers=3 --leader-election"),
            ("metacontroller -zap-log-level 5 --zap_devel", "metacontroller --zap-log-level 5 --zap-devel"),
            ("up -clusters=3", "up -clusters=3"),
        ];
        for (given, wanted) in cases {
            assert_eq!(rewritten(&format!("kubestellar {given}")), format!("kubestellar {wanted}"));
        }
    }

    #[test]
    fn ocm_151_durations_as_go_has_them() {
        let cases = [
            ("137s", 137_000),
            ("2m17s", 137_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("0", 0),
            ("1h0m0.5s", 3_600_500),
        ];
        for (raw, millis) in cases {
            assert_eq!(duration(raw).map(|it| it.as_millis()), Ok(millis), "{raw}");
        }
        for bad in ["", "15", "s", "1d", "-1s", "1..5s", "1s2"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ks_210_booleans_as_go_has_them() {
        assert_eq!((boolean("T"), boolean("0")), (Ok(true), Ok(false)));
        assert!(boolean("yes").is_err());
    }
}
