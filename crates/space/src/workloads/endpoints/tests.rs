use super::*;

fn service(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "n", "uid": "s", "labels": {"app": "web"}}, "spec": spec})
}

fn http() -> Value {
    service(json!({"selector": {"app": "web"}, "ports": [
        {"name": "http", "port": 80, "targetPort": "web"}, {"name": "raw", "port": 81, "protocol": "TCP"}]}))
}

fn pod(number: usize, ready: bool) -> Backend {
    let ready = if ready { "True" } else { "False" };
    let (name, address) = (format!("p{number}"), format!("10.128.{}.{}", number / 250, number % 250 + 1));
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "n", "uid": format!("u{number}")},
        "spec": {"nodeName": "node", "containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": ready}]}}))
    .unwrap()
}

/// A Service whose writes are applied.
#[derive(Default)]
struct Cluster {
    endpoints: Value,
    slices: Vec<Value>,
    made: usize,
}

impl Cluster {
    /// Applies what is decided, and returns the number of writes.
    fn settle(&mut self, service: &Value, pods: &[Backend]) -> usize {
        let there = Existing { endpoints: self.endpoints.clone(), slices: self.slices.clone() };
        let (writes, _) = decide(service, pods, &there);
        let count = writes.len();
        for write in writes {
            match write {
                Write::Create(Kind::EndpointSlice, mut slice) => {
                    self.made += 1;
                    set(&mut slice, &["metadata"], "name", format!("web-{}", self.made));
                    set(&mut slice, &["metadata"], "uid", format!("slice-{}", self.made));
                    self.slices.push(slice);
                }
                Write::Update(Kind::EndpointSlice, slice) => {
                    let old = self.slices.iter_mut().find(|old| name(old) == name(&slice)).unwrap();
                    *old = slice;
                }
                Write::Delete { kind: Kind::EndpointSlice, uid: gone, .. } => {
                    self.slices.retain(|slice| uid(slice) != gone);
                }
                Write::Create(Kind::Endpoints, object) | Write::Update(Kind::Endpoints, object) => {
                    self.endpoints = object;
                }
                other => panic!("{other:?}"),
            }
        }
        count
    }

    fn sizes(&self) -> Vec<usize> {
        self.slices.iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect()
    }
}

#[test]
fn ready_pods_are_endpoints() {
    let mut cluster = Cluster::default();
    let (service, pods) = (http(), [pod(1, true), pod(2, false)]);
    assert_eq!(cluster.settle(&service, &pods), 2);
    assert_eq!(cluster.settle(&service, &pods), 0, "nothing is left to do");
    let slice = &cluster.slices[0];
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["kind"], "Service");
    assert_eq!(
        slice["ports"],
        json!([{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "raw", "port": 81, "protocol": "TCP"}])
    );
    assert_eq!(
        slice["endpoints"],
        json!([
            {"addresses": ["10.128.0.2"], "nodeName": "node",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "n", "name": "p1", "uid": "u1"}},
            {"addresses": ["10.128.0.3"], "nodeName": "node",
                "conditions": {"ready": false, "serving": false, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "n", "name": "p2", "uid": "u2"}}])
    );
    let subset = &cluster.endpoints["subsets"][0];
    assert_eq!(subset["addresses"][0]["ip"], "10.128.0.2");
    assert_eq!(subset["notReadyAddresses"][0]["targetRef"]["name"], "p2");
    assert_eq!(subset["ports"][0], json!({"name": "http", "port": 8080, "protocol": "TCP"}));

    assert_eq!(cluster.settle(&service, &[]), 2);
    assert_eq!((cluster.slices.len(), cluster.endpoints.get("subsets")), (0, None));
    let mut early = service.clone();
    early["spec"]["publishNotReadyAddresses"] = json!(true);
    cluster.settle(&early, &pods);
    assert_eq!(cluster.endpoints["subsets"][0]["addresses"].as_array().unwrap().len(), 2);
}

/// A change of one pod among many rewrites one slice.
#[test]
fn a_change_rewrites_one_slice() {
    let (mut cluster, service) = (Cluster::default(), http());
    let mut pods: Vec<Backend> = (0..250).map(|number| pod(number, true)).collect();
    cluster.settle(&service, &pods);
    assert_eq!(cluster.sizes(), [100, 100, 50]);
    pods.remove(17);
    assert_eq!(cluster.settle(&service, &pods), 2, "a slice and the Endpoints");
    pods.push(pod(300, true));
    assert_eq!(cluster.settle(&service, &pods), 2);
    assert_eq!(cluster.sizes().iter().sum::<usize>(), 250);
    assert_eq!(cluster.settle(&service, &pods), 0);
    let many: Vec<Backend> = (0..1200).map(|number| pod(number, true)).collect();
    cluster.settle(&service, &many);
    assert_eq!(cluster.sizes().iter().sum::<usize>(), 1200);
    let listed = cluster.endpoints["subsets"][0]["addresses"].as_array().unwrap().len();
    assert_eq!(listed, 1000);
    assert_eq!(cluster.endpoints["metadata"]["annotations"][OVER_CAPACITY], "truncated");
    pods.truncate(3);
    cluster.settle(&service, &pods);
    assert_eq!(cluster.sizes(), [2, 1], "a pod stays where it is, and empty slices go");
    assert!(cluster.endpoints["metadata"]["annotations"].get(OVER_CAPACITY).is_none());
}

#[test]
fn services_without_selector_are_left_alone() {
    let none = Existing { endpoints: Value::Null, slices: vec![] };
    for spec in [
        json!({"ports": [{"port": 80}]}),
        json!({"selector": {}, "ports": [{"port": 80}]}),
        json!({"type": "ExternalName", "selector": {"app": "web"}, "externalName": "x"}),
    ] {
        assert_eq!(decide(&service(spec), &[pod(1, true)], &none).0, []);
    }
    let done = {
        let mut pod = pod(1, true);
        pod.status.phase = "Succeeded".into();
        pod
    };
    let (writes, size) = decide(&http(), &[done], &none);
    assert_eq!((writes.len(), size), (1, 0), "Endpoints without addresses");
    let of_users = json!({"metadata": {"name": "web", "namespace": "n", "uid": "e"}});
    assert_eq!(removal(&of_users), None);
}

#[test]
fn headless_services_name_their_pods() {
    let spec = json!({"clusterIP": "None", "selector": {"app": "web"}});
    let mut one = pod(1, true);
    (one.spec.hostname, one.spec.subdomain) = ("web-0".into(), "web".into());
    let mut cluster = Cluster::default();
    cluster.settle(&service(spec.clone()), &[one.clone()]);
    assert_eq!(cluster.slices[0]["endpoints"][0]["hostname"], "web-0");
    assert_eq!(cluster.slices[0]["metadata"]["labels"][HEADLESS], "");
    assert_eq!(cluster.endpoints["subsets"][0]["addresses"][0]["hostname"], "web-0");
    assert!(cluster.endpoints["subsets"][0].get("ports").is_none());
    assert_eq!(cluster.settle(&service(spec), &[one]), 0);
}

#[test]
fn a_load_balancer_has_an_address() {
    let mut service = service(json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    let none = Existing { endpoints: Value::Null, slices: vec![] };
    let (writes, _) = decide(&service, &[], &none);
    let [Write::Status(Kind::Service, written)] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(written["status"]["loadBalancer"]["ingress"][0]["ip"], NODE_ADDRESS);
    service["status"] = written["status"].clone();
    assert_eq!(decide(&service, &[], &none).0, []);
}

/// Many pods of a Service share a visit: the more there are, the longer a visit waits for further changes.
#[test]
fn visits_of_large_services_are_rare() {
    let (namespace, name): (Arc<str>, Arc<str>) = ("n".into(), "web".into());
    let mut selectors = Selectors::default();
    selectors.put(&namespace, &name, Some(&http()));
    let label = |key: &str| (key == "app").then_some("web");
    let pause = |selectors: &Selectors| selectors.of("n", label)[0].1;
    assert_eq!(pause(&selectors), Duration::from_millis(20));
    selectors.found("n", "web", 10_000);
    assert_eq!(pause(&selectors), Duration::from_millis(5_020));
    selectors.put(&namespace, &name, Some(&http()));
    assert_eq!(pause(&selectors), Duration::from_millis(5_020), "a change of the Service");
    assert!(selectors.of("n", |_| None).is_empty() && selectors.of("other", label).is_empty());
    selectors.put(&namespace, &name, None);
    assert!(selectors.0.is_empty());
}
