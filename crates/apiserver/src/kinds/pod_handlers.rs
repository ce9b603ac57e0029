//! Validation of probes and lifecycle hooks of containers (spec 2.5).

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, has, int, list, text};

const PROBES: &[&str] = &["livenessProbe", "readinessProbe", "startupProbe"];
const HOOKS: &[&str] = &["postStart", "preStop"];
const PROBE_HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "grpc"];
const HOOK_HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "sleep"];
const WINDOWS_SIGNALS: &[&str] = &["SIGKILL", "SIGTERM"];
const LINUX_SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// Validates hooks and probes of a container that keeps running. `pod` is the pod's spec.
pub(super) fn running(container: &Value, pod: &Value, place: &Path, errs: &mut Errs) {
    let grace = int(pod, "terminationGracePeriodSeconds");
    let lifecycle = at(container, "lifecycle");
    let here = place.child("lifecycle");
    for hook in HOOKS {
        if has(lifecycle, hook) {
            handler(at(lifecycle, hook), HOOK_HANDLERS, grace, &here.child(hook), errs);
        }
    }
    if has(lifecycle, "stopSignal") {
        stop_signal(text(lifecycle, "stopSignal"), pod, &here.child("stopSignal"), errs);
    }
    for kind in PROBES {
        if has(container, kind) {
            probe(at(container, kind), kind, &place.child(kind), errs);
        }
    }
}

/// Refuses hooks and probes of an init container that ends.
pub(super) fn none_allowed(container: &Value, place: &Path, errs: &mut Errs) {
    for key in ["lifecycle"].iter().chain(PROBES) {
        if has(container, key) {
            errs.forbidden(
                &place.child(key),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

fn stop_signal(signal: &str, pod: &Value, place: &Path, errs: &mut Errs) {
    match text(pod, "os.name") {
        "" if !has(pod, "os") => {
            errs.forbidden(place, "may not be set for containers with empty `spec.os.name`");
        }
        "windows" => errs.one_of(place, signal, WINDOWS_SIGNALS),
        "linux" => errs.one_of(place, signal, LINUX_SIGNALS),
        _ => {}
    }
}

fn probe(probe: &Value, kind: &str, place: &Path, errs: &mut Errs) {
    handler(probe, PROBE_HANDLERS, None, place, errs);
    for key in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        errs.non_negative(probe, place, key);
    }
    let grace = place.child("terminationGracePeriodSeconds");
    if let Some(n) = int(probe, "terminationGracePeriodSeconds").filter(|n| *n <= 0) {
        errs.invalid(&grace, &Value::from(n), "must be greater than 0");
    }
    if kind == "readinessProbe" {
        if has(probe, "terminationGracePeriodSeconds") {
            errs.invalid(
                &grace,
                at(probe, "terminationGracePeriodSeconds"),
                "must not be set for readinessProbes",
            );
        }
    } else if let Some(n) = int(probe, "successThreshold").filter(|n| *n != 1) {
        errs.invalid(&place.child("successThreshold"), &Value::from(n), "must be 1");
    }
}

fn handler(handler: &Value, kinds: &[&str], grace: Option<i64>, place: &Path, errs: &mut Errs) {
    let mut given = kinds.iter().filter(|key| has(handler, key));
    let first = given.next();
    match first {
        None => errs.required(place, "must specify a handler type"),
        Some(kind) => action(kind, at(handler, kind), grace, &place.child(kind), errs),
    }
    for extra in given {
        errs.forbidden(&place.child(extra), "may not specify more than 1 handler type");
    }
}

fn action(kind: &str, action: &Value, grace: Option<i64>, place: &Path, errs: &mut Errs) {
    match kind {
        "exec" => {
            if list(action, "command").is_empty() {
                errs.required(&place.child("command"), "");
            }
        }
        "httpGet" => {
            if text(action, "path").is_empty() {
                errs.required(&place.child("path"), "");
            }
            errs.port_or_name(&place.child("port"), at(action, "port"));
            errs.one_of(&place.child("scheme"), text(action, "scheme"), &["HTTP", "HTTPS"]);
            for header in list(action, "httpHeaders") {
                let name = text(header, "name");
                errs.names(&place.child("httpHeaders"), name, names::http_header_name(name));
            }
        }
        "sleep" => {
            let seconds = int(action, "seconds").unwrap_or_default();
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                errs.invalid(
                    place,
                    &Value::from(seconds),
                    &format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
                );
            }
        }
        _ => errs.port_or_name(&place.child("port"), at(action, "port")),
    }
}
