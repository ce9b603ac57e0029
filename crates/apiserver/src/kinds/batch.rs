//! Jobs and CronJobs.

use machinery::field::Path;
use serde_json::{Map, Value};

use super::check::{Errs, IMMUTABLE, name};
use super::pod::default_template;
use super::pod_validation;
use super::spec::{Facts, Spec, WITH_STATUS};
use super::value::{at, fill, fill_at, flag, has, int, object_mut, set_at, text};
use crate::strategy::WriteContext;

pub(super) const JOB: Spec = Spec {
    facts: Facts {
        own_labels: true,
        orphans: true,
        unpropagated_delete: Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        ),
        ..WITH_STATUS.facts
    },
    fields: &[("status.successful", "status.succeeded", "0")],
    default: default_job,
    create: generate_selector,
    validate: |_, obj, errs| job_with_selector(at(obj, "spec"), &Path::field("spec"), errs),
    validate_create: |_, obj, errs| generated(obj, errs),
    validate_update: job_fixed,
    warnings: |obj, old| super::pod_warnings::template(obj, old, "spec.template"),
    ..WITH_STATUS
};

pub(super) const CRON_JOB: Spec = Spec {
    default: default_cron_job,
    validate: validate_cron_job,
    warnings: |obj, old| super::pod_warnings::template(obj, old, "spec.jobTemplate.spec.template"),
    validate_create: |_, obj, errs| {
        if name(obj).len() > 52 {
            errs.invalid_str(
                &super::value::path("metadata.name"),
                name(obj),
                "must be no more than 52 characters",
            );
        }
    },
    ..WITH_STATUS
};

/// The labels by which a Job selects its pods.
const LABELS: [&str; 4] =
    ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"];

fn default_job(obj: &mut Value) {
    let Some(spec) = object_mut(obj, "spec") else { return };
    let absent = |spec: &Map<String, Value>, key: &str| spec.get(key).is_none_or(Value::is_null);
    if absent(spec, "parallelism") && absent(spec, "completions") {
        spec.insert("completions".into(), 1.into());
    }
    fill(spec, "parallelism", 1);
    if absent(spec, "backoffLimitPerIndex") {
        fill(spec, "backoffLimit", 6);
    } else {
        fill(spec, "backoffLimit", i64::from(i32::MAX));
    }
    fill(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    fill(spec, "manualSelector", false);
    let replacement = if absent(spec, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
    fill(spec, "podReplacementPolicy", replacement);
    for rule in super::value::list_mut(obj, "spec.podFailurePolicy.rules") {
        for pattern in super::value::list_mut(rule, "onPodConditions").filter_map(Value::as_object_mut) {
            fill(pattern, "status", "True");
        }
    }
    default_template(obj, "spec.template");
    labels_from_template(obj);
}

fn labels_from_template(obj: &mut Value) {
    let labels = at(obj, "spec.template.metadata.labels").clone();
    if labels.as_object().is_some_and(|l| !l.is_empty())
        && at(obj, "metadata.labels").as_object().is_none_or(Map::is_empty)
    {
        set_at(obj, "metadata", "labels", labels);
    }
}

/// Generates the selector by the Job's uid, unless the client manages the selector.
fn generate_selector(_: &WriteContext<'_>, obj: &mut Value) {
    if flag(obj, "spec.manualSelector") {
        return;
    }
    let (uid, name) = (text(obj, "metadata.uid").to_owned(), name(obj).to_owned());
    // Labels that were copied from the template get the generated ones, too, as in Kubernetes.
    let own = at(obj, "metadata.labels");
    let shared = own.is_object() && own == at(obj, "spec.template.metadata.labels");
    for (label, value) in LABELS.iter().zip([&uid, &name, &uid, &name]) {
        fill_at(obj, "spec.template.metadata.labels", label, value.clone());
    }
    if !has(obj, "spec.selector") {
        set_at(obj, "spec.selector.matchLabels", LABELS[0], uid);
    }
    if shared {
        set_at(obj, "metadata", "labels", at(obj, "spec.template.metadata.labels").clone());
    }
    labels_from_template(obj);
}

/// Checks that a generated selector is unchanged.
fn generated(obj: &Value, errs: &mut Errs) {
    if flag(obj, "spec.manualSelector") {
        return;
    }
    let uid = text(obj, "metadata.uid");
    let selector = at(obj, "spec.selector");
    if uid.is_empty() {
        return;
    }
    let own = at(selector, "matchLabels");
    if own.get(LABELS[0]).or_else(|| own.get(LABELS[2])).and_then(Value::as_str) != Some(uid) {
        errs.invalid(&super::value::path("spec.selector"), selector, "`selector` not auto-generated");
    }
}

/// Checks a Job spec without its selector, which the templates of CronJobs lack.
fn job_spec(spec: &Value, place: &Path, errs: &mut Errs) {
    for key in
        ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"]
    {
        errs.non_negative(spec, place, key);
    }
    for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
        errs.non_negative(spec, place, key);
    }
    super::job_policies::indexes(spec, place, errs);
    super::job_policies::policies(spec, place, errs);
    let replacement = text(spec, "podReplacementPolicy");
    if has(spec, "podReplacementPolicy") {
        let here = place.child("podReplacementPolicy");
        if has(spec, "podFailurePolicy") {
            // With a failure policy only this one is supported.
            errs.one_of(&here, replacement, &["Failed"]);
        } else {
            errs.one_of(&here, replacement, &["Failed", "TerminatingOrFailed"]);
        }
    }
    let here = place.child("template");
    pod_validation::template(at(spec, "template"), &here, errs);
    let restart = here.child("spec").child("restartPolicy");
    match text(spec, "template.spec.restartPolicy") {
        "Always" | "" => errs.required(&restart, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if has(spec, "podFailurePolicy") => errs.invalid_str(
            &restart,
            "OnFailure",
            "only \"Never\" is supported when podFailurePolicy is specified",
        ),
        "Never" | "OnFailure" => {}
        other => errs.unsupported(&restart, other, &["OnFailure", "Never"]),
    }
}

fn job_with_selector(spec: &Value, place: &Path, errs: &mut Errs) {
    job_spec(spec, place, errs);
    let selector = at(spec, "selector");
    if selector.is_null() {
        errs.required(&place.child("selector"), "");
    } else {
        errs.selector(&place.child("selector"), selector);
    }
    super::workloads::selected_template(spec, at(spec, "template"), &place.child("template"), errs);
}

fn job_fixed(_: &WriteContext<'_>, obj: &Value, old: &Value, errs: &mut Errs) {
    // An elastic indexed Job may change both counts together.
    let elastic = text(obj, "spec.completionMode") == "Indexed"
        && has(obj, "spec.completions")
        && int(obj, "spec.completions") == int(obj, "spec.parallelism");
    if !elastic {
        errs.immutable("spec.completions", obj, old);
    }
    errs.immutable("spec.selector", obj, old);
    template_fixed(obj, old, errs);
    for key in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        errs.immutable(&format!("spec.{key}"), obj, old);
    }
}

/// Checks that the template is unchanged, except for scheduling directives of a suspended Job that has not started.
fn template_fixed(obj: &Value, old: &Value, errs: &mut Errs) {
    let mut new_template = at(obj, "spec.template").clone();
    let old_template = at(old, "spec.template");
    if flag(old, "spec.suspend") && !has(old, "status.startTime") {
        for key in ["nodeSelector", "tolerations", "affinity", "schedulingGates"] {
            if let Some(spec) = super::value::at_mut(&mut new_template, "spec") {
                super::value::put(spec, key, at(at(old_template, "spec"), key));
            }
        }
        for key in ["labels", "annotations"] {
            if let Some(metadata) = super::value::at_mut(&mut new_template, "metadata") {
                super::value::put(metadata, key, at(at(old_template, "metadata"), key));
            }
        }
    }
    if &new_template != old_template {
        errs.invalid_text(&super::value::path("spec.template"), "core.PodTemplateSpec{…}", IMMUTABLE);
    }
}

fn default_cron_job(obj: &mut Value) {
    let Some(spec) = object_mut(obj, "spec") else { return };
    fill(spec, "concurrencyPolicy", "Allow");
    fill(spec, "suspend", false);
    fill(spec, "successfulJobsHistoryLimit", 3);
    fill(spec, "failedJobsHistoryLimit", 1);
    object_mut(obj, "spec.jobTemplate.metadata");
    default_template(obj, "spec.jobTemplate.spec.template");
}

fn validate_cron_job(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    let schedule = text(spec, "schedule");
    let here = place.child("schedule");
    if schedule.is_empty() {
        errs.required(&here, "");
    } else if schedule.contains("TZ") {
        errs.invalid_str(&here, schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
    } else if let Err(fault) = super::cron::check(schedule) {
        errs.invalid_str(&here, schedule, &fault);
    }
    if has(spec, "timeZone") {
        time_zone(text(spec, "timeZone"), &place.child("timeZone"), errs);
    }
    errs.non_negative(spec, &place, "startingDeadlineSeconds");
    errs.required_enum(
        &place.child("concurrencyPolicy"),
        text(spec, "concurrencyPolicy"),
        &["Allow", "Forbid", "Replace"],
    );
    let here = place.child("jobTemplate").child("spec");
    let job = at(spec, "jobTemplate.spec");
    job_spec(job, &here, errs);
    if flag(job, "manualSelector") {
        errs.unsupported_bool(&here.child("manualSelector"), true, &["nil", "false"]);
    }
    if has(job, "selector") {
        errs.invalid(&here.child("selector"), at(job, "selector"), "`selector` will be auto-generated");
    }
    errs.non_negative(spec, &place, "successfulJobsHistoryLimit");
    errs.non_negative(spec, &place, "failedJobsHistoryLimit");
}

fn time_zone(zone: &str, place: &Path, errs: &mut Errs) {
    if zone.is_empty() {
        errs.invalid_str(place, zone, "timeZone must be nil or non-empty string");
    } else if zone.eq_ignore_ascii_case("local") {
        errs.invalid_str(
            place,
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    } else if !super::cron::zone_exists(zone) {
        errs.invalid_str(place, zone, &format!("unknown time zone {zone}"));
    }
}
