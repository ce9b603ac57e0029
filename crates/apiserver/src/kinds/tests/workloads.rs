//! Workloads.

use serde_json::{Value, json};

use super::*;

/// AS-011, AS-016: the defaults of a created Deployment.
#[test]
fn as_016_deployment_defaults() {
    let pipeline = Pipeline::new("apps", "v1", "deployments");
    let made = pipeline
        .create(json!({"metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}, "status": {"replicas": 3}}))
        .expect("created");
    assert_eq!(
        made,
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10,
                "selector": {"matchLabels": {"a": "b"}},
                "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}, "type": "RollingUpdate"},
                "template": template_defaulted()},
            "status": {}})
    );
}

#[test]
fn as_016_other_workload_defaults() {
    let selector = json!({"matchLabels": {"a": "b"}});
    let made = Pipeline::new("apps", "v1", "replicasets")
        .create(json!({"metadata": {"name": "rs"}, "spec": {"selector": selector, "template": template()}}))
        .expect("created");
    assert_eq!(
        at(&made, "spec"),
        &json!({"replicas": 1, "selector": selector, "template": template_defaulted()})
    );
    assert_eq!(at(&made, "status"), &json!({"replicas": 0}));

    let pipeline = Pipeline::new("apps", "v1", "daemonsets");
    let made = pipeline
        .create(json!({"metadata": {"name": "ds"}, "spec": {"selector": selector, "template": template()}}))
        .expect("created");
    assert_eq!(
        at(&made, "spec"),
        &json!({"revisionHistoryLimit": 10, "selector": selector, "template": template_defaulted(),
            "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}, "type": "RollingUpdate"}})
    );
    let counts = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
    assert_eq!(at(&made, "status"), &counts);
    assert_eq!(at(&made, "metadata.annotations"), &json!({"deprecated.daemonset.template.generation": "1"}));
    let patched = pipeline
        .patch(None, json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}), &made)
        .expect("patched");
    assert_eq!(at(&patched, "spec.updateStrategy"), &json!({"type": "OnDelete"}));
    assert_eq!(at(&patched, "metadata.annotations"), at(&made, "metadata.annotations"));

    let made = Pipeline::new("batch", "v1", "cronjobs")
        .create(json!({"metadata": {"name": "c"}, "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec":
            {"template": {"spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}],
                "restartPolicy": "Never"}}}}}}))
        .expect("created");
    let mut inner = template_defaulted();
    put(&mut inner, "metadata", &json!({}));
    set_at(&mut inner, "spec", "restartPolicy", "Never");
    assert_eq!(
        at(&made, "spec"),
        &json!({"concurrencyPolicy": "Allow", "failedJobsHistoryLimit": 1, "schedule": "*/5 * * * *",
            "successfulJobsHistoryLimit": 3, "suspend": false,
            "jobTemplate": {"metadata": {}, "spec": {"template": inner}}})
    );
}

/// AS-011, AS-017: all errors of a Deployment.
#[test]
fn as_017_deployment_errors_at_once() {
    let pipeline = Pipeline::new("apps", "v1", "deployments");
    let refused = pipeline.create(json!({"metadata": {"name": "bad"}, "spec": {"replicas": -1,
        "template": {"spec": {"containers": [{"name": "UPPER"}], "restartPolicy": "Never"}}}}));
    assert_eq!(
        refused.expect_err("refused"),
        "Deployment.apps \"bad\" is invalid: [spec.replicas: Invalid value: -1: must be greater than or equal to 0, spec.selector: Required value, spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`, spec.template.spec.containers[0].name: Invalid value: \"UPPER\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?'), spec.template.spec.containers[0].image: Required value, spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"]"
    );
    assert_eq!(
        pipeline.create(json!({"metadata": {"name": "bad"}, "spec": {}})).expect_err("refused"),
        "Deployment.apps \"bad\" is invalid: [spec.selector: Required value, spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`, spec.template.spec.containers: Required value]"
    );
}

#[test]
fn as_017_deployment_selector_is_fixed_and_matches() {
    let pipeline = Pipeline::new("apps", "v1", "deployments");
    let refused = pipeline.create(json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": {"a": "1"}},
        "template": {"metadata": {"labels": {"a": "2"}}, "spec": {"containers": [{"name": "app", "image": "i:1"}]}}}}));
    assert_eq!(
        refused.expect_err("refused"),
        "Deployment.apps \"x\" is invalid: spec.template.metadata.labels: Invalid value: {\"a\":\"2\"}: `selector` does not match template `labels`"
    );
    let made = pipeline
        .create(json!({"metadata": {"name": "y"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}}))
        .expect("created");
    let patch = json!({"spec": {"selector": {"matchLabels": {"z": "1"}}, "template": {"metadata": {"labels": {"z": "1"}}}}});
    assert_eq!(
        pipeline.patch(None, patch, &made).expect_err("refused"),
        "Deployment.apps \"y\" is invalid: spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"z\":\"1\"}}: field is immutable"
    );
}

#[test]
fn as_015_status_is_written_apart() {
    let pipeline = Pipeline::new("apps", "v1", "deployments");
    let made = pipeline
        .create(json!({"metadata": {"name": "st"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}}))
        .expect("created");
    let patch = json!({"status": {"replicas": 2, "observedGeneration": 1}, "spec": {"replicas": 9},
        "metadata": {"labels": {"via": "status"}, "annotations": {"kept": "yes"}}});
    let patched = pipeline.patch(Some("status"), patch, &made).expect("patched");
    assert_eq!(at(&patched, "spec"), at(&made, "spec"));
    assert_eq!(at(&patched, "status"), &json!({"observedGeneration": 1, "replicas": 2}));
    assert!(at(&patched, "metadata.labels").is_null());
    assert_eq!(at(&patched, "metadata.annotations"), &json!({"kept": "yes"}));
    let main = pipeline.patch(None, json!({"status": {"replicas": 9}}), &patched).expect("patched");
    assert_eq!(at(&main, "status"), at(&patched, "status"));
    assert_eq!(
        pipeline.patch(Some("status"), json!({"status": {"replicas": -2}}), &made).expect_err("refused"),
        "Deployment.apps \"st\" is invalid: [status.replicas: Invalid value: -2: must be greater than or equal to 0, status.updatedReplicas: Invalid value: 0: cannot be greater than status.replicas, status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas, status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas]"
    );
}

#[test]
fn as_012_jobs_select_their_pods() {
    let pipeline = Pipeline::new("batch", "v1", "jobs");
    let containers = json!([{"name": "app", "image": "registry.example/app:1"}]);
    let job = |extra: Value| {
        let mut spec = json!({"template": {"spec": {"containers": containers, "restartPolicy": "Never"}}});
        merge(&mut spec, &extra);
        json!({"metadata": {"name": "j"}, "spec": spec})
    };
    let made = pipeline.create(job(json!({"completionMode": "Indexed"}))).expect("created");
    let labels = json!({"batch.kubernetes.io/controller-uid": "u1", "batch.kubernetes.io/job-name": "j",
        "controller-uid": "u1", "job-name": "j"});
    assert_eq!(at(&made, "metadata.labels"), &labels);
    assert_eq!(at(&made, "spec.template.metadata.labels"), &labels);
    let mut spec = at(&made, "spec").clone();
    put(&mut spec, "template", &Value::Null);
    assert_eq!(
        spec,
        json!({"backoffLimit": 6, "completionMode": "Indexed", "completions": 1, "manualSelector": false,
            "parallelism": 1, "podReplacementPolicy": "TerminatingOrFailed", "suspend": false,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}}})
    );
    for (extra, message) in [
        (
            json!({"template": {"spec": {"restartPolicy": null}}}),
            "Job.batch \"j\" is invalid: spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ),
        (
            json!({"completions": -1}),
            "Job.batch \"j\" is invalid: spec.completions: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"manualSelector": true}),
            "Job.batch \"j\" is invalid: [spec.selector: Required value, spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`]",
        ),
    ] {
        assert_eq!(pipeline.create(job(extra)).expect_err("refused"), message);
    }
}

#[test]
fn as_017_cron_job_errors() {
    let pipeline = Pipeline::new("batch", "v1", "cronjobs");
    let cron = |name: &str, extra: Value| {
        let mut spec = json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": {
            "containers": [{"name": "app", "image": "registry.example/app:1"}], "restartPolicy": "Never"}}}}});
        merge(&mut spec, &extra);
        json!({"metadata": {"name": name}, "spec": spec})
    };
    assert_eq!(
        pipeline.create(cron("c", json!({"timeZone": "Mars/Base"}))).expect_err("refused"),
        "CronJob.batch \"c\" is invalid: spec.timeZone: Invalid value: \"Mars/Base\": unknown time zone Mars/Base"
    );
    assert_eq!(
        pipeline.create(cron("c", json!({"schedule": "TZ=UTC 0 0 * * *"}))).expect_err("refused"),
        "CronJob.batch \"c\" is invalid: spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    );
    let long = "c".repeat(53);
    assert_eq!(
        pipeline.create(cron(&long, json!({}))).expect_err("refused"),
        format!(
            "CronJob.batch \"{long}\" is invalid: metadata.name: Invalid value: \"{long}\": must be no more than 52 characters"
        )
    );
}

#[test]
fn as_012_pods_get_an_account_and_may_change_little() {
    let mut pipeline = Pipeline::new("", "v1", "pods");
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}]}});
    assert_eq!(
        pipeline.create(pod.clone()).expect_err("refused"),
        "pods \"p\" is forbidden: error looking up service account ns/default: serviceaccount \"default\" not found"
    );
    pipeline.settings.pod_accounts = false;
    let without = pipeline.create(pod.clone()).expect("created");
    assert!(
        text(&without, "spec.serviceAccountName").is_empty() && list(&without, "spec.volumes").is_empty()
    );
    pipeline.settings = KindSettings::default();
    pipeline.objects =
        Objects::default().with("", "serviceaccounts", "ns", json!({"metadata": {"name": "default"}}));
    let made = pipeline.create(pod).expect("created");
    let volume = text(&list(&made, "spec.volumes")[0], "name").to_owned();
    assert!(volume.starts_with("kube-api-access-") && volume.len() == 21, "{volume}");
    let mut expected = template_defaulted();
    put(&mut expected, "metadata", &json!({}));
    merge(
        &mut expected,
        &json!({"spec": {"enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
            "serviceAccount": "default", "serviceAccountName": "default",
            "tolerations": [
                {"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300},
                {"effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300}],
            "volumes": [{"name": volume, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]}}]}}]}}),
    );
    let mount = json!([{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": volume, "readOnly": true}]);
    let container = &mut expected["spec"]["containers"][0];
    put(container, "volumeMounts", &mount);
    assert_eq!(at(&made, "spec"), at(&expected, "spec"));
    assert_eq!(at(&made, "status"), &json!({"phase": "Pending", "qosClass": "BestEffort"}));

    let mut other_image = made.clone();
    other_image["spec"]["containers"][0]["image"] = "registry.example/app:2".into();
    assert!(pipeline.update(None, other_image, &made).is_ok());
    let refused = pipeline.patch(None, json!({"spec": {"nodeName": "n1"}}), &made).expect_err("refused");
    assert!(
        refused.starts_with("Pod \"p\" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"),
        "{refused}"
    );
}

#[test]
fn as_012_evictions_mind_budgets() {
    let pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "status": {"phase": "Running"}});
    let budget = |allowed: i64| {
        vec![json!({"metadata": {"name": "budget"}, "spec": {"selector": {"matchLabels": {"a": "b"}}},
            "status": {"disruptionsAllowed": allowed, "desiredHealthy": 2, "currentHealthy": 2}})]
    };
    assert!(crate::kinds::covering_budget(&pod, &budget(1)).expect("allowed").is_some());
    let refused = crate::kinds::covering_budget(&pod, &budget(0)).expect_err("refused");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    );
    assert!(crate::kinds::covering_budget(&pod, &[]).expect("allowed").is_none());
    assert_eq!(
        crate::kinds::check_eviction("p", &json!({"metadata": {"name": "other"}}))
            .expect_err("refused")
            .message,
        "name in URL does not match name in Eviction object"
    );
}

#[test]
fn as_057_limit_ranges_bound_pods() {
    let mut pipeline = Pipeline::new("", "v1", "pods");
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]}});
    pipeline.objects = Objects::default()
        .with("", "serviceaccounts", "ns", json!({"metadata": {"name": "default"}}))
        .with("", "limitranges", "ns", range);
    let pod = |name: &str, resources: Value| {
        json!({"metadata": {"name": name}, "spec": {"automountServiceAccountToken": false,
            "containers": [{"name": "app", "image": "registry.example/app:1", "resources": resources}]}})
    };
    let made = pipeline.create(pod("p", json!({}))).expect("created");
    assert_eq!(
        at(&list(&made, "spec.containers")[0], "resources"),
        &json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        at(&made, "metadata.annotations"),
        &json!({"kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu request for container app; cpu limit for container app"})
    );
    assert_eq!(
        pipeline.create(pod("q", json!({"limits": {"cpu": "3"}}))).expect_err("refused"),
        "pods \"q\" is forbidden: maximum cpu usage per Container is 1, but limit is 3"
    );
}
