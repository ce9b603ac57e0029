//! Cells of pods: the state of all containers in one word.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::Value;

use super::fields::{NONE, PrintedObject, human_duration};

/// The states of a pod's containers, counted.
#[derive(Default)]
struct ContainerCounts {
    ready: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
    reason: Option<String>,
}

impl ContainerCounts {
    fn restarted(&mut self, container: &PrintedObject<'_>) {
        self.restarts += container.int("/restartCount");
        self.last_restart = self.last_restart.max(container.time("/lastState/terminated/finishedAt"));
    }
}

pub(super) fn cells(o: &PrintedObject<'_>) -> Vec<Value> {
    let tally = tally(o);
    let total = o.count("/spec/containers") + o.each("/spec/initContainers").filter(is_sidecar).count();
    let restarts = match tally.last_restart {
        Some(last) if tally.restarts != 0 => {
            format!("{} ({} ago)", tally.restarts, human_duration(o.now(), last))
        }
        _ => tally.restarts.to_string(),
    };
    let ip = o.list("/status/podIPs").first().and_then(|ip| ip.get("ip")?.as_str());
    vec![
        format!("{}/{total}", tally.ready).into(),
        status(o, tally.reason).into(),
        restarts.into(),
        ip.unwrap_or(NONE).into(),
        o.text_or("/spec/nodeName", NONE).into(),
        o.text_or("/status/nominatedNodeName", NONE).into(),
        readiness_gates(o).into(),
    ]
}

fn is_sidecar(container: &PrintedObject<'_>) -> bool {
    container.text("/restartPolicy") == "Always"
}

fn status(o: &PrintedObject<'_>, of_containers: Option<String>) -> String {
    let phase = o.text("/status/phase");
    if o.has("/metadata/deletionTimestamp") {
        if o.text("/status/reason") == "NodeLost" {
            return "Unknown".into();
        }
        if !matches!(phase, "Failed" | "Succeeded") {
            return "Terminating".into();
        }
    }
    let gated = o
        .each("/status/conditions")
        .any(|c| c.text("/type") == "PodScheduled" && c.text("/reason") == "SchedulingGated");
    of_containers.unwrap_or_else(|| {
        if gated { "SchedulingGated" } else { o.text_or("/status/reason", phase) }.to_owned()
    })
}

fn tally(o: &PrintedObject<'_>) -> ContainerCounts {
    let (mut all, mut sidecars) = (ContainerCounts::default(), ContainerCounts::default());
    let mut initializing = false;
    let specs: Vec<PrintedObject<'_>> = o.each("/spec/initContainers").collect();
    let names: HashSet<&str> =
        specs.iter().filter(|spec| is_sidecar(spec)).map(|s| s.text("/name")).collect();
    for (i, c) in o.each("/status/initContainerStatuses").enumerate() {
        let sidecar = names.contains(c.text("/name"));
        all.restarted(&c);
        if sidecar {
            sidecars.restarted(&c);
        }
        let terminated = c.has("/state/terminated");
        if terminated && c.int("/state/terminated/exitCode") == 0 {
            continue;
        }
        if sidecar && c.flag("/started") {
            let ready = usize::from(c.flag("/ready"));
            all.ready += ready;
            sidecars.ready += ready;
            continue;
        }
        let waiting = c.text("/state/waiting/reason");
        let what = if terminated {
            end(&c)
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            waiting.to_owned()
        } else {
            format!("{i}/{}", specs.len())
        };
        all.reason = Some(format!("Init:{what}"));
        initializing = true;
        break;
    }
    if initializing && o.condition("Initialized") != Some("True") {
        return all;
    }
    sidecars.reason = all.reason;
    containers(o, sidecars)
}

fn containers(o: &PrintedObject<'_>, mut tally: ContainerCounts) -> ContainerCounts {
    let mut running = false;
    let statuses: Vec<PrintedObject<'_>> = o.each("/status/containerStatuses").collect();
    for c in statuses.iter().rev() {
        tally.restarted(c);
        let waiting = c.text("/state/waiting/reason");
        if !waiting.is_empty() {
            tally.reason = Some(waiting.to_owned());
        } else if c.has("/state/terminated") {
            tally.reason = Some(end(c));
        } else if c.flag("/ready") && c.has("/state/running") {
            running = true;
            tally.ready += 1;
        }
    }
    if running && tally.reason.as_deref() == Some("Completed") {
        let ready = o.condition("Ready") == Some("True");
        tally.reason = Some(if ready { "Running" } else { "NotReady" }.to_owned());
    }
    tally
}

/// The reason that a container has terminated.
fn end(c: &PrintedObject<'_>) -> String {
    let reason = c.text("/state/terminated/reason");
    match c.int("/state/terminated/signal") {
        _ if !reason.is_empty() => reason.to_owned(),
        0 => format!("ExitCode:{}", c.int("/state/terminated/exitCode")),
        signal => format!("Signal:{signal}"),
    }
}

fn readiness_gates(o: &PrintedObject<'_>) -> String {
    let gates = o.texts("/spec/readinessGates", "/conditionType");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let open = gates.iter().filter(|g| o.condition(g) == Some("True")).count();
    format!("{open}/{}", gates.len())
}
