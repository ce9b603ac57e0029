//! PostCreateHooks.

use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use space::Identity;

use crate::world::{World, condition};

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// SP-014, SP-017, SP-019, SP-021: templates go to the namespace of the ControlPlane once; cluster-scoped objects are marked
/// and go with it; labels are handed on; another value of the annotation applies everything again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_017_template_hooks() {
    let world = World::start().await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "{{.ControlPlaneName}}-role"}, "rules": []});
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "{{.ControlPlaneName}}-class"}, "value": 7});
    let templates =
        json!([config_map("{{.HookName}}-map", json!({"a": "{{.Namespace}} {{.Who}}"})), role, class]);
    let labels = json!({"labels": {"kflex.kubestellar.io/cptype": "its", "mine": "yes"}});
    world.hook("h", labels, templates).await;
    let spec = json!({"type": "k8s", "globalVars": {"Who": "global"},
        "postCreateHooks": [{"hookName": "h", "vars": {"Who": "use"}}]});
    world.plane("a", spec).await;
    let check = |found: Option<&Value>| found.is_some_and(|p| p["status"]["postCreateHookCompleted"] == true);
    let plane = world.until("ControlPlane", "", "a", &check).await.unwrap();
    assert_eq!(plane["status"]["postCreateHooks"], json!({"h": true}));
    assert_eq!(plane["metadata"]["labels"], json!({"kflex.kubestellar.io/cptype": "its", "mine": "yes"}));
    let map = world.find("ConfigMap", "a-system", "h-map").await.unwrap();
    assert_eq!(map["data"]["a"], "a-system use");
    assert_eq!(map["metadata"]["managedFields"][0]["manager"], "kubeflex");
    let role = world.find("ClusterRole", "", "a-role").await.unwrap();
    assert_eq!(role["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm");
    assert_eq!(role["metadata"]["annotations"]["meta.helm.sh/release-namespace"], "a-system");

    world.delete("ConfigMap", "a-system", "h-map").await;
    let annotation = json!({"metadata": {"annotations": {"space.kubestellar.io/reapply-hooks": "1"}}});
    world.patch("ControlPlane", "", "a", annotation).await;
    world.until("ConfigMap", "a-system", "h-map", &|found| found.is_some()).await;
    let check = |found: Option<&Value>| {
        found.is_some_and(|p| p["metadata"]["annotations"]["space.kubestellar.io/reapplied-hooks"] == "1")
    };
    world.until("ControlPlane", "", "a", &check).await;
    world.until_event("a", "HookApplied").await;

    world.delete("ControlPlane", "", "a").await;
    for (kind, name) in [("ControlPlane", "a"), ("ClusterRole", "a-role"), ("PriorityClass", "a-class")] {
        world.until_gone(kind, "", name).await;
    }
    world.end().await;
}

/// SP-049: a ControlPlane that goes takes cluster-scoped objects along that its hooks made, and no others: not those that
/// existed, nor those of another ControlPlane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_049_what_hooks_did_not_make_stays() {
    let world = World::start().await;
    let role = |name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": []})
    };
    world.create(role("precious")).await;
    let labelled = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "precious", "labels": {"seen": "yes"}}});
    let default = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    world.hook("h", json!({}), json!([role("shared"), labelled, default])).await;
    let applied =
        |found: Option<&Value>| found.is_some_and(|p| p["status"]["postCreateHookCompleted"] == true);
    for name in ["a", "b"] {
        world.plane(name, json!({"type": "k8s", "postCreateHooks": [{"hookName": "h"}]})).await;
        world.until("ControlPlane", "", name, &applied).await;
    }
    assert_eq!(world.find("ClusterRole", "", "precious").await.unwrap()["metadata"]["labels"]["seen"], "yes");

    world.delete("ControlPlane", "", "b").await;
    world.until_gone("ControlPlane", "", "b").await;
    for kept in ["shared", "precious"] {
        let found = world.find("ClusterRole", "", kept).await.unwrap();
        assert!(found["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    }
    world.delete("ControlPlane", "", "a").await;
    world.until_gone("ControlPlane", "", "a").await;
    world.until_gone("ClusterRole", "", "shared").await;
    assert!(world.find("ClusterRole", "", "precious").await.is_some());
    assert!(world.find("Namespace", "", "default").await.unwrap()["metadata"]["deletionTimestamp"].is_null());
    world.end().await;
}

/// SP-049: an object that hooks of several ControlPlanes use goes with the last of them, also if that one's finalizer is removed
/// by force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_049_a_shared_object_goes_with_its_last_user() {
    let world = World::start().await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "shared"}, "rules": []});
    let mut released = role.clone();
    released["metadata"] = json!({"name": "released", "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "a-system"}});
    world.create(released).await;
    let released = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "released", "labels": {"seen": "yes"}}});
    world.hook("h", json!({}), json!([role, released])).await;
    let applied =
        |found: Option<&Value>| found.is_some_and(|p| p["status"]["postCreateHookCompleted"] == true);
    for name in ["a", "b", "c"] {
        world.plane(name, json!({"type": "k8s", "postCreateHooks": [{"hookName": "h"}]})).await;
        world.until("ControlPlane", "", name, &applied).await;
    }
    let of_helm = world.find("ClusterRole", "", "released").await.unwrap();
    assert_eq!(of_helm["metadata"]["labels"]["seen"], "yes");
    assert!(of_helm["metadata"].get("ownerReferences").is_none(), "Helm's: {of_helm}");
    for (name, next) in [("a", "b-system"), ("b", "c-system")] {
        world.delete("ControlPlane", "", name).await;
        world.until_gone("ControlPlane", "", name).await;
        let shared = world.find("ClusterRole", "", "shared").await.unwrap();
        assert!(shared["metadata"]["deletionTimestamp"].is_null(), "after {name}");
        assert_eq!(shared["metadata"]["annotations"]["meta.helm.sh/release-namespace"], next);
    }
    *world.spaces.broken.lock() = Some("busy".into());
    world.delete("ControlPlane", "", "c").await;
    world.until_message("c", "Synced", "busy").await;
    world.patch("ControlPlane", "", "c", json!({"metadata": {"finalizers": null}})).await;
    world.until_gone("ClusterRole", "", "shared").await;
    world.end().await;
}

/// SP-014: the objects of a hook are bounded together, and none is made of a hook that goes beyond.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_014_a_hook_cannot_become_gigabytes() {
    let world = World::start().await;
    let template = |n: usize| config_map(&format!("m{n}"), json!({"a": "{{.Big}}{{.Big}}{{.Big}}"}));
    world.hook("h", json!({}), (0..60).map(template).collect()).await;
    let spec = json!({"type": "k8s", "globalVars": {"Big": "x".repeat(100_000)},
        "postCreateHooks": [{"hookName": "h"}]});
    world.plane("a", spec).await;
    let part = "hook h: template 55: the objects of this hook become larger than 16777216 bytes together";
    world.until_message("a", "Synced", part).await;
    assert!(world.find("ConfigMap", "a-system", "m0").await.is_none());
    world.end().await;
}

/// SP-049: a hook that is being applied ends when its ControlPlane is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_049_a_deletion_interrupts_hooks() {
    const MANY: usize = 3000;
    let world = World::start().await;
    let annotations = json!({"annotations": {"space.kubestellar.io/apply-to": "space"}});
    let templates = (0..MANY).map(|n| config_map(&format!("m{n}"), json!({}))).collect();
    world.hook("h", annotations, templates).await;
    world.plane("a", json!({"type": "k8s", "postCreateHooks": [{"hookName": "h"}]})).await;
    let inside = Rest::new(world.other.client(&Identity::admin()));
    let maps = Gvr::new("", "v1", "configmaps");
    let made = || async {
        let all: Value = inside.list(&maps, "default", "").await.unwrap();
        all["items"].as_array().unwrap().len()
    };
    testkit::wait::until("the first objects", async || made().await > 5).await;
    world.delete("ControlPlane", "", "a").await;
    world.until_gone("ControlPlane", "", "a").await;
    assert!(made().await < MANY, "all objects were made");
    world.end().await;
}

/// SP-015, SP-017, SP-020: each failure is told with its hook, the other hooks run, and a hook that is corrected or appears
/// is applied at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_020_hooks_that_fail() {
    let world = World::start().await;
    world.hook("undefined", json!({}), json!([config_map("u", json!({"a": "{{.Nobody}}"}))])).await;
    let mut elsewhere = config_map("e", json!({}));
    elsewhere["metadata"]["namespace"] = "default".into();
    world.hook("elsewhere", json!({}), json!([elsewhere])).await;
    let unknown = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}});
    world.hook("unknown", json!({}), json!([unknown])).await;
    world.hook("good", json!({}), json!([config_map("g", json!({}))])).await;
    let hooks = ["undefined", "elsewhere", "unknown", "absent", "good"];
    let hooks: Vec<Value> = hooks.iter().map(|hook| json!({"hookName": hook})).collect();
    world.plane("a", json!({"type": "k8s", "postCreateHooks": hooks, "waitForPostCreateHooks": true})).await;
    let plane = world.until_message("a", "Synced", "hook absent: post create hook not found").await;
    let message = condition(&plane, "Synced").unwrap()["message"].as_str().unwrap().to_owned();
    for part in [
        "hook undefined: template 0: variable Nobody is not defined",
        "hook elsewhere: ConfigMap e: it is in namespace default, but objects of this hook must be in a-system",
        "hook unknown: Thing t: the server has no kind Thing in example.com/v1",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(condition(&plane, "Ready").unwrap()["reason"], "WaitingForPostCreateHooks");
    assert!(world.find("ConfigMap", "a-system", "g").await.is_some());
    world.until_event("a", "HookFailed").await;

    world.hook("absent", json!({}), json!([])).await;
    for hook in ["undefined", "elsewhere", "unknown"] {
        world.patch("PostCreateHook", "", hook, json!({"spec": {"templates": []}})).await;
    }
    world.until_condition("a", "Ready", "True", "Available").await;
    world.end().await;
}

/// SP-017: a field of another manager is not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_017_a_clash_is_a_conflict() {
    let world = World::start().await;
    let role = |rules: Value| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "shared"}, "rules": rules})
    };
    let rule = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let client = Rest::with_manager(world.rest.client().clone(), "somebody");
    let roles = Gvr::new("rbac.authorization.k8s.io", "v1", "clusterroles");
    client.apply::<Value>(&roles, "", "shared", &role(rule.clone()), "somebody", false).await.unwrap();
    world.hook("h", json!({}), json!([role(json!([]))])).await;
    world.plane("a", json!({"type": "k8s", "postCreateHook": "h"})).await;
    world.until_message("a", "Synced", "conflict").await;
    let kept = world.find("ClusterRole", "", "shared").await.unwrap();
    assert_eq!(kept["rules"], rule);
    world.end().await;
}

/// SP-018: templates go into the new space if the hook says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_018_templates_for_the_new_space() {
    let world = World::start().await;
    let annotations = json!({"annotations": {"space.kubestellar.io/apply-to": "space"}});
    world.hook("h", annotations, json!([config_map("m", json!({"cp": "{{.ControlPlaneName}}"}))])).await;
    let wrong = json!({"annotations": {"space.kubestellar.io/apply-to": "moon"}});
    world.hook("wrong", wrong, json!([])).await;
    let hooks = json!([{"hookName": "h"}, {"hookName": "wrong"}]);
    world.plane("a", json!({"type": "k8s", "postCreateHooks": hooks})).await;
    world.until_message("a", "Synced", "is \"moon\"; known are host and space").await;
    let inside = Rest::new(world.other.client(&Identity::admin()));
    let map: Value = inside.get(&Gvr::new("", "v1", "configmaps"), "default", "m").await.unwrap();
    assert_eq!(map["data"]["cp"], "a");
    assert!(world.find("ConfigMap", "a-system", "m").await.is_none());
    world.end().await;
}

/// SP-022, SP-023: a waiting ControlPlane is ready when the objects of its hooks are, and a failed Job is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_022_waiting_for_objects() {
    let world = World::in_cluster().await;
    let container = json!([{"name": "c", "image": "i"}]);
    let job = |name: &str| {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template":
            {"spec": {"restartPolicy": "Never", "containers": container}}}})
    };
    world.hook("h", json!({"labels": {"role": "x"}}), json!([job("j1"), job("j2")])).await;
    let spec = json!({"type": "host", "postCreateHook": "h", "waitForPostCreateHooks": true});
    world.plane("a", spec).await;
    world.until_message("a", "Synced", "token not ready").await;
    let token = json!({"data": {"token": "dA==", "ca.crt": "Q0E="}});
    world.patch("Secret", "a-system", "a", token).await;
    let plane = world.until_message("a", "Ready", "Job j1 is not ready, Job j2 is not ready").await;
    assert_eq!(condition(&plane, "Ready").unwrap()["reason"], "WaitingForPostCreateHooks");
    assert_eq!(plane["metadata"].get("labels"), None, "labels come with the end of the hook");
    let jobs = Gvr::new("batch", "v1", "jobs");
    let now = "2026-01-01T00:00:00Z";
    let condition_ = |type_: &str, message: &str| {
        json!({"type": type_, "status": "True", "reason": "BackoffLimitExceeded", "message": message,
            "lastTransitionTime": now, "lastProbeTime": now})
    };
    let failed = json!({"status": {"failed": 7, "startTime": now,
        "conditions": [condition_("FailureTarget", "too often"), condition_("Failed", "too often")]}});
    world.rest.merge_status::<Value>(&jobs, "a-system", "j1", &failed).await.unwrap();
    world.until_message("a", "Synced", "Job j1 failed: BackoffLimitExceeded: too often").await;
    assert!(world.until_event("a", "HookFailed").await.contains("too often"));
    world.delete("Job", "a-system", "j1").await;
    world.until_message("a", "Synced", "Job j1 failed").await;
    world.end().await;
}

/// SP-026, SP-067 to SP-069, SP-072: the ControlPlanes of KubeStellar's chart get their components; Ready waits for them, and follows them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_072_built_in_hooks() {
    let world = World::start().await;
    let hook = world
        .until("PostCreateHook", "", "its-hub-init", &|found| {
            found.is_some_and(|hook| condition(hook, "Ready").is_some_and(|c| c["status"] == "True"))
        })
        .await
        .unwrap();
    assert_eq!(hook["metadata"]["annotations"]["space.kubestellar.io/component"], "ocm-hub");
    world.spaces.components.lock().insert("its1/ocm-hub".into(), false);
    let hooks = json!([{"hookName": "its-hub-init"}, {"hookName": "install-status-addon"}]);
    let secret = json!({"ITSSecretName": "vc-vcluster", "ITSSecretKey": "config-incluster"});
    let its = json!({"type": "vcluster", "backend": "shared", "postCreateHooks": hooks, "globalVars": secret,
        "waitForPostCreateHooks": true});
    world.plane("its1", its).await;
    world.until_message("its1", "Ready", "ocm-hub is not ready").await;
    world.spaces.ready("its1/ocm-hub", true);
    let plane = world.until_condition("its1", "Ready", "True", "Available").await;
    assert_eq!(
        plane["status"]["postCreateHooks"],
        json!({"its-hub-init": true, "install-status-addon": true})
    );
    assert_eq!(plane["metadata"]["labels"], json!({"kflex.kubestellar.io/cptype": "its"}));
    world.spaces.ready("its1/ocm-hub", false);
    world.until_condition("its1", "Ready", "False", "WaitingForPostCreateHooks").await;
    world.spaces.ready("its1/ocm-hub", true);
    // SP-025: an older name, for which there is no object.
    let wds = json!({"type": "k8s", "postCreateHook": "kubestellar", "waitForPostCreateHooks": true});
    world.plane("wds1", wds).await;
    let plane = world.until_condition("wds1", "Ready", "True", "Available").await;
    assert_eq!(plane["metadata"]["labels"], json!({"kflex.kubestellar.io/cptype": "wds"}));
    let components = world.spaces.components.lock().clone();
    for one in ["wds1/controller-manager/its1", "wds1/transport-controller/its1"] {
        assert!(components.contains_key(one), "{components:?}");
    }
    world.end().await;
}

/// SP-028: several ITSes and no name: the candidates are listed, and it goes on once one of them is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_028_several_itses() {
    let world = World::start().await;
    let wds = json!({"type": "k8s", "waitForPostCreateHooks": true,
        "postCreateHooks": [{"hookName": "kubestellar-controller", "vars": {"ITSName": ""}}]});
    world.plane("wds1", wds).await;
    world.until_message("wds1", "Ready", "no ITS is there yet").await;
    for its in ["its1", "its2"] {
        world.create(json!({"apiVersion": "tenancy.kflex.kubestellar.org/v1alpha1", "kind": "ControlPlane",
            "metadata": {"name": its, "labels": {"kflex.kubestellar.io/cptype": "its"}}, "spec": {"type": "k8s"}}))
            .await;
        world.until_condition(its, "Ready", "True", "Available").await;
        if its == "its1" {
            world.until_condition("wds1", "Ready", "True", "Available").await;
        }
    }
    let wds = json!({"type": "k8s", "waitForPostCreateHooks": true,
        "postCreateHooks": [{"hookName": "transport-controller"}]});
    world.plane("wds2", wds).await;
    world.until_message("wds2", "Ready", "there are several ITSes (its1, its2); name one in ITSName").await;
    world.delete("ControlPlane", "", "its1").await;
    world.until_condition("wds2", "Ready", "True", "Available").await;
    assert!(world.spaces.components.lock().contains_key("wds2/transport-controller/its2"));
    world.end().await;
}

/// SP-068: a hook that needs pods is stored and reported, and nobody waits for it forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_068_pods_on_an_embedded_host() {
    let world = World::start().await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template":
        {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    world.hook("h", json!({}), json!([job])).await;
    world.plane("a", json!({"type": "k8s", "postCreateHook": "h", "waitForPostCreateHooks": true})).await;
    world.until_condition("a", "Ready", "True", "Available").await;
    assert!(world.until_event("a", "HookFailed").await.contains("this host runs no pods"));
    assert!(world.find("Job", "a-system", "j").await.is_some());
    world.end().await;
}

/// SP-024: the status of a hook tells what is wrong with it, or what its users must supply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_024_status_of_hooks() {
    let world = World::start().await;
    world.hook("h", json!({}), json!([config_map("{{.A}}", json!({"b": "{{.B}}"}))])).await;
    let says = |part: &'static str, status: &'static str| {
        move |found: Option<&Value>| {
            found.and_then(|hook| condition(hook, "Ready")).is_some_and(|c| {
                c["status"] == status && c["message"].as_str().is_some_and(|message| message.contains(part))
            })
        }
    };
    world.until("PostCreateHook", "", "h", &says("a ControlPlane must supply: A, B", "True")).await;
    let broken = json!({"spec": {"templates": [config_map("{{.A", json!({}))]}});
    world.patch("PostCreateHook", "", "h", broken).await;
    world.until("PostCreateHook", "", "h", &says("template 0", "False")).await;
    world.end().await;
}
