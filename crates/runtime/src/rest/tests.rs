use super::*;
use serde_json::json;

#[test]
fn paths_follow_group_and_namespace() {
    let cases = [
        (Gvr::new("", "v1", "namespaces"), "", "/api/v1/namespaces"),
        (Gvr::new("", "v1", "configmaps"), "shop", "/api/v1/namespaces/shop/configmaps"),
        (Gvr::new("apps", "v1", "deployments"), "shop", "/apis/apps/v1/namespaces/shop/deployments"),
    ];
    for (gvr, namespace, path) in cases {
        assert_eq!(gvr.path(namespace), path);
    }
}

/// MC-133, OCM-086: a dry run addresses its object as an apply does.
#[tokio::test]
async fn mc_133_a_dry_run_addresses_nothing_else() {
    let asked = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let record = asked.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        record.lock().push(request.uri().to_string());
        std::future::ready(Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(
            b"{}".to_vec(),
        ))))
    });
    let rest = Rest::new(Client::new(service, "default"));
    let maps = Gvr::new("", "v1", "configmaps");
    let dry = async |name: &str| rest.apply_dry_run::<Value>(&maps, "ns", name, &json!({}), "m").await;
    assert!(dry("a?force=true").await.is_ok());
    assert!(dry("a/status").await.is_err());
    let asked = asked.lock().clone();
    let [uri] = &asked[..] else { panic!("{asked:?}") };
    assert!(uri.starts_with("/api/v1/namespaces/ns/configmaps/a%3Fforce%3Dtrue?"), "{uri}");
    assert!(uri.contains("dryRun=All") && uri.contains("fieldManager=m"), "{uri}");
}

/// OCM-086: a name is one part of a path or is rejected, so it cannot address anything else.
#[test]
fn ocm_086_names_address_nothing_else() {
    let maps = Gvr::new("", "v1", "configmaps");
    for (name, path) in [
        ("system:a", Some("system:a")),
        ("a.b-c", Some("a.b-c")),
        ("a?dryRun=All", Some("a%3FdryRun%3DAll")),
        ("a#b c", Some("a%23b%20c")),
        ("\u{fc}", Some("%C3%BC")),
        ("a/status", None),
        ("a%2fstatus", None),
        (".", None),
        ("..", None),
    ] {
        assert_eq!(super::named(name).ok().as_deref(), path, "{name}");
        assert_eq!(maps.request(name).is_ok(), path.is_some(), "{name}");
    }
    let refused = super::named("a/b").expect_err("no name");
    assert_eq!(crate::failure::message_of(&refused), "invalid resource name \"a/b\": [may not contain '/']");
    assert_eq!(maps.path("a/b?c"), "/api/v1/namespaces/a%2Fb%3Fc/configmaps");
    assert!(maps.request("").is_ok());
}

#[test]
fn ks_089_what_is_no_list_is_not_an_empty_one() {
    let gvr = Gvr::new("apps", "v1", "deployments");
    let version = json!({"resourceVersion": "7"});
    for (answer, items) in [
        (json!({}), None),
        (json!({"items": []}), None),
        (json!({"metadata": {}, "items": []}), None),
        (json!({"metadata": {"resourceVersion": ""}, "items": []}), None),
        (json!({"metadata": version}), None),
        (json!({"metadata": version, "items": {}}), None),
        (json!({"metadata": version, "items": []}), Some(0)),
        (json!({"metadata": version, "items": null}), Some(0)),
        (json!({"metadata": version, "items": [{}]}), Some(1)),
    ] {
        assert_eq!(super::items(&mut answer.clone(), &gvr).ok().map(|items| items.len()), items, "{answer}");
    }
}
