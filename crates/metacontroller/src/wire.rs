//! The form of objects in requests to hooks (MC-041, MC-112).

use serde_json::{Map, Value};

use crate::{object, resource::Served};

/// The version of requests and answers of a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// Names are relative to the parent's namespace; unknown fields of answers are ignored by default.
    #[default]
    V1,
    /// Names include the namespace; unknown fields of answers are errors by default.
    V2,
}

/// Returns objects by `"<Kind>.<apiVersion>"` and name, with an entry for each resource even if there are no
/// objects. In v1, for a namespaced parent, objects in other namespaces are left out.
pub fn object_map<'a>(
    version: Version,
    parent_namespace: &str,
    resources: impl IntoIterator<Item = (&'a Served, Vec<Value>)>,
) -> Value {
    let groups = resources.into_iter().map(|(served, objects)| {
        let named = objects.into_iter().filter_map(|object| {
            let name = inner_name(version, parent_namespace, served.namespaced, &object)?;
            Some((name, object))
        });
        (served.wire_name(), Value::Object(named.collect()))
    });
    Value::Object(groups.collect::<Map<_, _>>())
}

fn inner_name(version: Version, parent_namespace: &str, namespaced: bool, object: &Value) -> Option<String> {
    let (namespace, name) = (object::namespace(object), object::name(object));
    match (version, namespaced, parent_namespace) {
        (Version::V2, true, _) | (Version::V1, true, "") => Some(format!("{namespace}/{name}")),
        (Version::V2, false, _) | (Version::V1, false, "") => Some(name.to_owned()),
        (Version::V1, true, parent) => (namespace == parent).then(|| name.to_owned()),
        (Version::V1, false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::rest::Gvr;
    use serde_json::json;

    /// MC-041, MC-112, MC-A-15: names by version and scope.
    #[test]
    fn mc_112_names_on_the_wire() {
        let maps = Served {
            gvr: Gvr::new("", "v1", "configmaps"),
            kind: "ConfigMap".into(),
            namespaced: true,
            has_status: false,
        };
        let nodes = Served {
            gvr: Gvr::new("", "v1", "nodes"),
            kind: "Node".into(),
            namespaced: false,
            has_status: true,
        };
        let jobs = Served {
            gvr: Gvr::new("batch", "v1", "jobs"),
            kind: "Job".into(),
            namespaced: true,
            has_status: true,
        };
        let keys = |version, parent: &str| {
            let all = vec![
                (
                    &maps,
                    vec![
                        json!({"metadata": {"namespace": "a", "name": "x"}}),
                        json!({"metadata": {"namespace": "b", "name": "x"}}),
                    ],
                ),
                (&nodes, vec![json!({"metadata": {"name": "n"}})]),
                (&jobs, vec![]),
            ];
            let map = object_map(version, parent, all);
            let inner =
                |outer: &str| map[outer].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
            assert_eq!(map["Job.batch/v1"], json!({}));
            (inner("ConfigMap.v1"), inner("Node.v1"))
        };
        assert_eq!(keys(Version::V1, "a"), ("x".into(), String::new()));
        assert_eq!(keys(Version::V1, ""), ("a/x b/x".into(), "n".into()));
        assert_eq!(keys(Version::V2, "a"), ("a/x b/x".into(), "n".into()));
        assert_eq!(keys(Version::V2, ""), ("a/x b/x".into(), "n".into()));
    }
}
