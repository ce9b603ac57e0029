//! Exit codes, and the output of a failed command (SP-083, SP-084).

use std::fmt;

use runtime::connect::RequestError;

/// Exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    /// Already exists, or something else holds the port or the directory.
    Conflict = 4,
    TimedOut = 5,
    /// Server not reachable or not running.
    NotRunning = 6,
    Forbidden = 7,
    /// Not in the required state (`status --exit-code`).
    NotInState = 9,
    /// `get-kubeconfig`, with the codes of the Go program that it replaces (KS-218): the hosting cluster's kubeconfig cannot be used.
    Unusable = 10,
    /// The control plane was not ready in time.
    NeverReady = 86,
    /// The file could not be opened.
    Unopened = 99,
    /// The file could not be written.
    Unwritten = 100,
    /// The terminal was closed (SIGHUP).
    HungUp = 129,
    /// Ctrl-C (SIGINT).
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

/// A command's failure: printed as `error: <what>: <why>` and at most one `hint:` line.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { exit, what: what.into(), why: one_line(&why.to_string()), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}: {}", self.what, self.why)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Turns an error into a [`Failure`] that names the action that failed.
pub(crate) trait OrFail<T> {
    fn or_fail(self, what: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(Exit::Failed, what, error))
    }
}

/// The failure of every command that finds no server; its hint is the command that starts one.
pub(crate) fn not_running(what: impl Into<String>, start: &str) -> Failure {
    Failure::new(Exit::NotRunning, what, "no server is running").hint(format!("start it with `{start}`"))
}

/// Returns whether an error says that nothing listens at the address.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// The failure of a Kubernetes request, with the exit code for its status.
pub(crate) fn from_kube(what: impl Into<String>, error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => {
            let exit = match status.code {
                401 | 403 => Exit::Forbidden,
                404 => Exit::NotFound,
                409 => Exit::Conflict,
                _ => Exit::Failed,
            };
            // The answer of an API server to a path that it does not know.
            if status.code == 404 && status.message.trim() == "404 page not found" {
                return Failure::new(exit, what, "this space does not serve objects of that kind")
                    .hint("name a space that does, with --wds or --its; `kubestellar status` shows what each space is for");
            }
            Failure::new(exit, what, &status.message)
        }
        kube::Error::HyperError(_) | kube::Error::Service(_) if is_refused(error) => {
            not_running(what, "kubestellar up")
        }
        kube::Error::Service(cause) => {
            // A request without a response names the first cause already.
            let named = cause.downcast_ref::<RequestError>().map(ToString::to_string);
            Failure::new(Exit::NotRunning, what, named.unwrap_or_else(|| chain(cause.as_ref())))
        }
        kube::Error::HyperError(_) => Failure::new(Exit::NotRunning, what, chain(error)),
        other => Failure::new(Exit::Failed, what, chain(other)),
    }
}

/// Writes an error and its sources in one line, without repeated texts.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = if source.is::<RequestError>() { None } else { source.source() };
    }
    text
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-084: a space of another sort is said to be one, instead of the words of its HTTP server.
    #[test]
    fn sp_084_a_kind_that_is_not_served() {
        let answer = |message: &str| {
            let status = kube::core::Status { code: 404, message: message.into(), ..Default::default() };
            from_kube("listing the policies", &kube::Error::Api(Box::new(status))).to_string()
        };
        assert!(answer("404 page not found\n").contains("does not serve objects of that kind"));
        assert!(answer("policies \"x\" not found").contains("\"x\" not found"));
    }

    /// SP-083: one `error:` line, at most one `hint:` line.
    #[test]
    fn sp_083_error_is_one_line_and_a_hint() {
        let failure =
            Failure::new(Exit::Conflict, "starting the server", "port taken\n by pid 7").hint("use --listen");
        assert_eq!(
            failure.to_string(),
            "error: starting the server: port taken; by pid 7\nhint: use --listen"
        );
    }
}
