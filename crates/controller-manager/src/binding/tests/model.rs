//! The world compared with a naive model, in which everything is computed from scratch.

use super::*;

#[derive(Clone, Debug, Default)]
struct Model {
    /// Version in which [`THINGS`] are served.
    things: Option<String>,
    objects: BTreeMap<ObjectId, Arc<PartialObject>>,
    policies: BTreeMap<String, Policy>,
    clusters: BTreeMap<String, Labels>,
    namespaces: BTreeMap<String, Labels>,
}

impl Model {
    fn version(&self, resource: &GroupResource) -> &str {
        if resource.is(THINGS.0, THINGS.1) { self.things.as_deref().unwrap_or_default() } else { "v1" }
    }

    fn spec(&self, policy: &Policy) -> Value {
        let mut entries = BTreeSet::new();
        for (id, object) in &self.objects {
            let found =
                matching(&policy.clauses, id, &object.metadata.labels, |name| self.namespaces.get(name));
            if let Some(modulation) = found {
                entries.insert(format!(
                    "{id} {} {} {modulation:?}",
                    self.version(id.resource()),
                    object.metadata.resource_version
                ));
            }
        }
        json!({"entries": entries, "destinations": self.destinations(policy)})
    }

    fn destinations(&self, policy: &Policy) -> BTreeSet<String> {
        let chosen = self.clusters.iter();
        let chosen =
            chosen.filter(|(_, labels)| policy.cluster_selectors.iter().any(|it| selects(it, labels)));
        chosen.map(|(name, _)| name.clone()).collect()
    }

    /// A world that has received every event once.
    fn world(&self, policies_first: bool) -> World {
        let mut world = World::default();
        for (group, plural, version, kind) in RESOURCES {
            let resource = GroupResource::new(group, plural);
            if !resource.is(THINGS.0, THINGS.1) || self.things.is_some() {
                let version = if resource.is(THINGS.0, THINGS.1) { self.version(&resource) } else { version };
                world.put_resource(
                    &Arc::new(resource.clone()),
                    Served { version: version.into(), kind: kind.into() },
                );
            }
        }
        let policies = |world: &mut World| {
            for policy in self.policies.values() {
                world.put_policy(policy.clone());
            }
        };
        if policies_first {
            policies(&mut world);
        }
        for (id, object) in &self.objects {
            world.put_object(id, object.clone());
        }
        for (name, labels) in &self.namespaces {
            world.put_namespace(name, labels.clone());
        }
        for (name, labels) in &self.clusters {
            world.put_cluster(name, labels.clone());
        }
        if !policies_first {
            policies(&mut world);
        }
        world
    }

    /// The request for status, and the number of clusters that a singleton status would come from.
    fn request(&self, id: &ObjectId) -> (Request, Option<usize>) {
        let (mut request, mut singletons) = (Request::default(), None);
        let Some(object) = self.objects.get(id) else { return (request, None) };
        for policy in self.policies.values() {
            let found =
                matching(&policy.clauses, id, &object.metadata.labels, |name| self.namespaces.get(name));
            let Some(modulation) = found.filter(|it| it.wants_status()) else { continue };
            request.singleton |= modulation.singleton;
            request.multi |= modulation.multi;
            let destinations = self.destinations(policy);
            request.clusters.extend(destinations.iter().map(|it| it.as_str().into()));
            if modulation.singleton {
                singletons.get_or_insert_with(BTreeSet::new).extend(destinations);
            }
        }
        (request, singletons.map(|clusters| clusters.len()))
    }
}

fn seen(world: &World, policy: &str) -> Value {
    let resolution = world.resolution(policy).unwrap();
    let entries: BTreeSet<_> = resolution
        .objects()
        .iter()
        .map(|(id, it)| {
            let version = world.version(id.resource());
            format!("{id} {version} {} {:?}", it.object.metadata.resource_version, it.modulation)
        })
        .collect();
    let destinations: BTreeSet<_> = resolution.destinations().iter().map(ToString::to_string).collect();
    json!({"entries": entries, "destinations": destinations})
}

#[derive(Clone, Debug)]
enum Op {
    Put(ObjectId, u32, Labels),
    Remove(ObjectId),
    Policy(String, u8, Value),
    RemovePolicy(String),
    Cluster(String, Labels),
    RemoveCluster(String),
    Namespace(String, Labels),
    RemoveNamespace(String),
    /// A CRD is created or changes its version.
    Resource(u8),
    /// A CRD is deleted.
    RemoveResource,
    /// The controller restarts and receives the policies first, or last.
    Restart(bool),
}

/// The resource whose CRD is created and deleted.
const THINGS: (&str, &str) = ("g.example", "things");

fn any_labels() -> impl Strategy<Value = Labels> {
    let value = || proptest::option::of(prop_oneof!["1", "2"]);
    (value(), value()).prop_map(|(app, env)| {
        let pairs = [("app", app), ("env", env)].into_iter();
        pairs.filter_map(|(key, value)| Some((key.into(), value?.into()))).collect()
    })
}

fn any_id() -> impl Strategy<Value = ObjectId> {
    (0..RESOURCES.len(), prop_oneof!["", "a", "b"], prop_oneof!["x", "y"]).prop_map(
        |(resource, namespace, name)| {
            let (group, plural, ..) = RESOURCES[resource];
            id(group, plural, if plural == "namespaces" { "" } else { &namespace }, &name)
        },
    )
}

fn any_selectors() -> impl Strategy<Value = Value> {
    let key = || prop_oneof!["app", "env"];
    let one = prop_oneof![
        (key(), prop_oneof!["1", "2"]).prop_map(|(key, value)| json!({"matchLabels": {key: value}})),
        key().prop_map(|key| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]})),
        key().prop_map(
            |key| json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["1"]}]})
        ),
        key().prop_map(
            |key| json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["1", "2"]}]})
        ),
        Just(json!({})),
        Just(json!({"matchExpressions": [{"key": "app", "operator": "In"}]})),
    ];
    proptest::collection::vec(one, 0..3).prop_map(Value::from)
}

fn any_clause() -> impl Strategy<Value = Value> {
    let opt = |strategy| proptest::option::weighted(0.3, strategy);
    let names = |of: &'static [&'static str]| {
        proptest::collection::vec(proptest::sample::select(of), 0..3).prop_map(|list| json!(list))
    };
    (
        proptest::option::weighted(0.3, proptest::sample::select(&["", "apps", "g.example"][..])),
        proptest::option::weighted(0.3, names(&["configmaps", "deployments", "things", "*"])),
        proptest::option::weighted(0.3, names(&["a", "b", "*", ""])),
        proptest::option::weighted(0.3, names(&["x", "y", "*"])),
        opt(any_selectors().boxed()),
        opt(any_selectors().boxed()),
        any::<[bool; 3]>(),
    )
        .prop_map(|(group, resources, namespaces, objects, own, inside, [create, single, multi])| {
            let mut clause = json!({
                "createOnly": create, "wantSingletonReportedState": single, "wantMultiWECReportedState": multi,
            });
            let fields = [
                ("apiGroup", group.map(Value::from)),
                ("resources", resources),
                ("namespaces", namespaces),
                ("objectNames", objects),
                ("objectSelectors", own),
                ("namespaceSelectors", inside),
            ];
            for (key, value) in fields {
                if let Some(value) = value {
                    clause[key] = value;
                }
            }
            clause
        })
}

fn any_op() -> impl Strategy<Value = Op> {
    let policy = || prop_oneof!["p", "q"];
    let spec = (any_selectors(), proptest::collection::vec(any_clause(), 0..3))
        .prop_map(|(clusters, clauses)| json!({"clusterSelectors": clusters, "downsync": clauses}));
    prop_oneof![
        6 => (any_id(), 0..4_u32, any_labels()).prop_map(|(id, version, labels)| Op::Put(id, version, labels)),
        2 => any_id().prop_map(Op::Remove),
        4 => (policy(), 0..2_u8, spec).prop_map(|(name, uid, spec)| Op::Policy(name, uid, spec)),
        1 => policy().prop_map(Op::RemovePolicy),
        2 => (prop_oneof!["c1", "c2"], any_labels()).prop_map(|(name, labels)| Op::Cluster(name, labels)),
        1 => prop_oneof!["c1", "c2"].prop_map(Op::RemoveCluster),
        2 => (prop_oneof!["a", "b"], any_labels()).prop_map(|(name, labels)| Op::Namespace(name, labels)),
        1 => prop_oneof!["a", "b"].prop_map(Op::RemoveNamespace),
        2 => (1..3_u8).prop_map(Op::Resource),
        1 => Just(Op::RemoveResource),
        1 => any::<bool>().prop_map(Op::Restart),
    ]
}

fn act(op: Op, world: &mut World, model: &mut Model) -> Changes {
    let things = || Arc::new(GroupResource::new(THINGS.0, THINGS.1));
    match op {
        Op::Resource(version) => {
            let version = format!("v{version}");
            model.things = Some(version.clone());
            world.put_resource(&things(), Served { version: version.into(), kind: "Thing".into() })
        }
        Op::RemoveResource => {
            model.things = None;
            model.objects.retain(|id, _| !id.resource().is(THINGS.0, THINGS.1));
            world.remove_resource(&things())
        }
        Op::Restart(policies_first) => {
            *world = model.world(policies_first);
            Changes::default()
        }
        // There are no events for objects whose resource is not served.
        Op::Put(id, ..) if world.served(id.resource()).is_none() => Changes::default(),
        Op::Put(id, version, labels) => {
            let object = light(&id, version, labels);
            model.objects.insert(id.clone(), object.clone());
            world.put_object(&id, object)
        }
        Op::Remove(id) => {
            model.objects.remove(&id);
            world.remove_object(&id)
        }
        Op::Policy(name, uid, spec) => {
            let mut policy = policy(&name, spec);
            policy.uid = uid.to_string().into();
            model.policies.insert(name, policy.clone());
            world.put_policy(policy)
        }
        Op::RemovePolicy(name) => {
            model.policies.remove(&name);
            world.remove_policy(&name)
        }
        Op::Cluster(name, labels) => {
            model.clusters.insert(name.clone(), labels.clone());
            world.put_cluster(&name, labels)
        }
        Op::RemoveCluster(name) => {
            model.clusters.remove(&name);
            world.remove_cluster(&name)
        }
        Op::Namespace(name, labels) => {
            model.namespaces.insert(name.clone(), labels.clone());
            world.put_namespace(&name, labels)
        }
        Op::RemoveNamespace(name) => {
            model.namespaces.remove(&name);
            world.remove_namespace(&name)
        }
    }
}

proptest! {
    /// KS-071, KS-074, KS-001, KS-033, KS-036, KS-075: after any events the resolutions equal those of the
    /// naive model (which a restart computes, too), exactly the changed ones are reported, and their digest
    /// is that of the Binding they render to. The same holds for requests for status.
    #[test]
    fn ks_071_the_world_follows_the_naive_model(ops in proptest::collection::vec(any_op(), 1..40)) {
        let (mut world, mut model) =
            (Scene::new().world, Model { things: Some("v2".into()), ..Model::default() });
        let ids: Vec<ObjectId> = RESOURCES.iter().flat_map(|(group, plural, ..)| {
            ["", "a", "b"].into_iter().flat_map(move |ns| ["x", "y"].map(|name| id(group, plural, ns, name)))
        }).collect();
        for op in ops {
            let before: BTreeMap<String, Value> =
                model.policies.keys().map(|name| (name.clone(), seen(&world, name))).collect();
            let asked: Vec<_> = ids.iter().map(|id| (world.request(id), world.singletons(id))).collect();
            let changes = act(op, &mut world, &mut model);
            for name in ["p", "q"] {
                prop_assert_eq!(world.resolution(name).is_some(), model.policies.contains_key(name));
            }
            for (name, policy) in &model.policies {
                let now = seen(&world, name);
                prop_assert_eq!(&now, &model.spec(policy));
                let resolution = world.resolution(name).unwrap();
                let spec = resolution.render(|resource| world.version(resource));
                prop_assert_eq!(resolution.digest(), SpecDigest::of(&spec));
                let reported = changes.bindings.contains(name.as_str());
                prop_assert!(reported || before.get(name) == Some(&now), "{} changed silently", name);
            }
            let mut clauses = model.policies.values().flat_map(|policy| &policy.clauses);
            prop_assert_eq!(world.wants_singletons(), clauses.any(|it| it.modulation.singleton));
            for (id, asked) in ids.iter().zip(asked) {
                let now = (world.request(id), world.singletons(id));
                prop_assert_eq!(&now, &model.request(id));
                prop_assert!(now == asked || changes.requests.contains(id), "request for {} changed silently", id);
                prop_assert_eq!(world.is_requested(id), now.0.singleton || now.0.multi);
                prop_assert_eq!(world.wants_multi(id), now.0.multi);
            }
        }
    }
}
