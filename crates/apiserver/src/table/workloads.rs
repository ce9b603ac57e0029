//! Cells of pod controllers and related kinds. Each list is without name and age.

use serde_json::Value;

use super::fields::{NONE, PrintedObject, UNSET, human_seconds};
use super::pods;

pub(super) fn cells(group: &str, plural: &str, o: &PrintedObject<'_>) -> Option<Vec<Value>> {
    let template = |pointer: &str| -> [Value; 2] {
        let all = |field: &str| o.texts(&format!("{pointer}/spec/containers"), field).join(",");
        [all("/name").into(), all("/image").into()]
    };
    let ready = || format!("{}/{}", o.int("/status/readyReplicas"), o.int("/spec/replicas"));
    let mut cells: Vec<Value> = Vec::new();
    match (group, plural) {
        ("", "pods") => return Some(pods::cells(o)),
        ("apps", "deployments") => {
            cells.extend([ready().into(), o.int("/status/updatedReplicas").into()]);
            cells.push(o.int("/status/availableReplicas").into());
            cells.extend(template("/spec/template"));
            cells.push(o.selector("/spec/selector").into());
        }
        ("apps", "replicasets") | ("", "replicationcontrollers") => {
            let numbers = ["/spec/replicas", "/status/replicas", "/status/readyReplicas"];
            cells.extend(numbers.map(|p| o.int(p).into()));
            cells.extend(template("/spec/template"));
            cells.push(match group {
                "" => o.labels("/spec/selector").into(),
                _ => o.selector("/spec/selector").into(),
            });
        }
        ("apps", "statefulsets") => {
            cells.push(ready().into());
            cells.extend(template("/spec/template"));
        }
        ("apps", "daemonsets") => {
            let numbers = [
                "/status/desiredNumberScheduled",
                "/status/currentNumberScheduled",
                "/status/numberReady",
                "/status/updatedNumberScheduled",
                "/status/numberAvailable",
            ];
            cells.extend(numbers.map(|p| o.int(p).into()));
            cells.push(o.labels("/spec/template/spec/nodeSelector").into());
            cells.extend(template("/spec/template"));
            cells.push(o.selector("/spec/selector").into());
        }
        ("batch", "jobs") => {
            cells.extend([job_status(o).into(), completions(o).into(), job_duration(o).into()]);
            cells.extend(template("/spec/template"));
            cells.push(o.selector("/spec/selector").into());
        }
        ("batch", "cronjobs") => {
            cells.extend(cron_job(o));
            cells.extend(template("/spec/jobTemplate/spec/template"));
            let selector = o.selector("/spec/jobTemplate/spec/selector");
            cells.push(if selector.is_empty() { NONE.into() } else { selector.into() });
        }
        ("", "podtemplates") => {
            cells.extend(template("/template"));
            cells.push(o.labels("/template/metadata/labels").into());
        }
        ("apps", "controllerrevisions") => {
            let controller = o.each("/metadata/ownerReferences").find(|r| r.flag("/controller"));
            cells.push(controller.map_or_else(|| NONE.to_owned(), |c| owner(&c)).into());
            cells.push(o.int("/revision").into());
        }
        ("policy", "poddisruptionbudgets") => {
            let limit = |p: &str| o.int_or_text(p).unwrap_or_else(|| "N/A".into());
            cells.extend([limit("/spec/minAvailable").into(), limit("/spec/maxUnavailable").into()]);
            cells.push(o.int("/status/disruptionsAllowed").into());
        }
        ("autoscaling", "horizontalpodautoscalers") => {
            let target =
                format!("{}/{}", o.text("/spec/scaleTargetRef/kind"), o.text("/spec/scaleTargetRef/name"));
            let min = o.get("/spec/minReplicas").map_or_else(|| UNSET.to_owned(), ToString::to_string);
            cells.extend([target.into(), scaling_targets(o).into(), min.into()]);
            cells.extend([o.int("/spec/maxReplicas").into(), o.int("/status/currentReplicas").into()]);
        }
        _ => return None,
    }
    Some(cells)
}

/// Schedule, time zone, suspension, active jobs and last schedule of a CronJob.
fn cron_job(o: &PrintedObject<'_>) -> [Value; 5] {
    let suspend = match o.get("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    };
    let last =
        if o.has("/status/lastScheduleTime") { o.since("/status/lastScheduleTime") } else { NONE.to_owned() };
    [
        o.text("/spec/schedule").into(),
        o.text_or("/spec/timeZone", NONE).into(),
        suspend.into(),
        o.count("/status/active").into(),
        last.into(),
    ]
}

/// `deployment.apps/x`
fn owner(reference: &PrintedObject<'_>) -> String {
    let group = reference.text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let kind = reference.text("/kind").to_lowercase();
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}{dot}{group}/{}", reference.text("/name"))
}

fn job_status(o: &PrintedObject<'_>) -> &'static str {
    let is = |condition: &str| o.condition(condition) == Some("True");
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if o.has("/metadata/deletionTimestamp") => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(o: &PrintedObject<'_>) -> String {
    let succeeded = o.int("/status/succeeded");
    match (o.get("/spec/completions"), o.int("/spec/parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn job_duration(o: &PrintedObject<'_>) -> String {
    let Some(start) = o.time("/status/startTime") else { return String::new() };
    let end = o.time("/status/completionTime").unwrap_or_else(|| o.now());
    human_seconds(end.duration_since(start).as_secs())
}

/// Current and target values of an autoscaler; of more than two, the first two.
fn scaling_targets(o: &PrintedObject<'_>) -> String {
    let metrics: Vec<String> = if o.has("/spec/metrics") {
        let current: Vec<PrintedObject<'_>> = o.each("/status/currentMetrics").collect();
        o.each("/spec/metrics").enumerate().map(|(i, m)| scaling_target(&m, current.get(i))).collect()
    } else if let Some(wanted) = o.get("/spec/targetCPUUtilizationPercentage") {
        let now = o.get("/status/currentCPUUtilizationPercentage").map(|c| format!("{c}%"));
        vec![format!("cpu: {}/{wanted}%", now.as_deref().unwrap_or("<unknown>"))]
    } else {
        Vec::new()
    };
    match metrics.as_slice() {
        [] => NONE.to_owned(),
        [a, b, more @ ..] if !more.is_empty() => format!("{a}, {b} + {} more...", more.len()),
        few => few.join(", "),
    }
}

fn scaling_target(metric: &PrintedObject<'_>, current: Option<&PrintedObject<'_>>) -> String {
    let (source, named) = match metric.text("/type") {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = |field: &str| metric.get(&format!("/{source}/target/{field}"));
    let now = |field: &str| current.and_then(|c| c.get(&format!("/{source}/current/{field}")));
    let text = |value: Option<&Value>, unit: &str| match value {
        None => "<unknown>".to_owned(),
        Some(Value::String(text)) => format!("{text}{unit}"),
        Some(other) => format!("{other}{unit}"),
    };
    let values = if let Some(average) = wanted("averageValue") {
        // Values of resources and pods are averages anyway.
        let mark = if matches!(source, "external" | "object") { " (avg)" } else { "" };
        format!("{}/{}{mark}", text(now("averageValue"), ""), text(Some(average), ""))
    } else if let Some(utilization) = wanted("averageUtilization") {
        format!("{}/{}", text(now("averageUtilization"), "%"), text(Some(utilization), "%"))
    } else {
        format!("{}/{}", text(now("value"), ""), text(wanted("value"), ""))
    };
    if named { format!("{}: {values}", metric.text(&format!("/{source}/name"))) } else { values }
}
