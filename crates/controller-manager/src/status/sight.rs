//! How much of a workload object StatusCollectors may see. Pure.
//!
//! Expressions run with the rights of the controller, and their results are published in CombinedStatus objects.
//! Without a limit, whoever may write StatusCollectors and BindingPolicies could read every Secret of the WDS.

use machinery::cel::Expression;
use serde_json::Value;

use crate::identity::GroupResource;

/// The part of a Secret that expressions may see.
const VISIBLE: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// Annotations in which a program keeps a copy of the whole object that it applied or handled, to compare with later. With any
/// prefix: kubectl, Metacontroller, the operators of Banzai Cloud, those made with kopf.
const COPIES: [&str; 3] = ["last-applied-configuration", "last-applied", "last-handled-configuration"];
/// More of them: Rancher, Fleet and k3s (JSON, gzip, base64), and kapp.
const COPIES_OF: [&str; 2] = ["objectset.rio.cattle.io/applied", "kapp.k14s.io/original"];
/// The error of a column that wants to see more.
const REFUSAL: &str = "the expression reads more of a Secret than obj.apiVersion, obj.kind and obj.metadata; \
    the controller manager allows that only with --collectors-read-secrets";

/// How much of an object expressions may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// All but its status.
    #[default]
    Whole,
    /// What it is, and its metadata.
    Metadata,
}

impl Sight {
    /// Returns what expressions may see of objects of this resource. `read_secrets` is
    /// `--collectors-read-secrets`.
    pub fn of(resource: &GroupResource, read_secrets: bool) -> Self {
        if resource.is("", "secrets") && !read_secrets { Self::Metadata } else { Self::Whole }
    }

    /// Returns why the expression must not be evaluated; `None` if it may be.
    pub fn refusal(self, expression: &Expression) -> Option<&'static str> {
        (self == Self::Metadata && expression.sees_more_than("obj", &VISIBLE)).then_some(REFUSAL)
    }

    /// Removes what must not be seen from an object.
    pub fn cut(self, object: &mut Value) {
        let (Self::Metadata, Some(fields)) = (self, object.as_object_mut()) else { return };
        fields.retain(|field, _| VISIBLE.contains(&field.as_str()));
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        if let Some(annotations) = annotations {
            annotations.retain(|name, _| !is_copy(name));
        }
    }
}

/// Whether the value of an annotation is a copy of the object.
fn is_copy(annotation: &str) -> bool {
    let name = annotation.split_once('/').map_or(annotation, |(_, name)| name);
    COPIES.contains(&name) || COPIES_OF.contains(&annotation)
}

#[cfg(test)]
mod tests {
    use machinery::cel::Variable;
    use serde_json::json;

    use super::*;

    /// KS-176: which expressions may be evaluated for a Secret.
    #[test]
    fn ks_176_expressions_about_a_secret_see_its_metadata_only() {
        let refused = |source: &str| {
            let known = [Variable::map("obj"), Variable::map("returned")];
            let expression = Expression::compile(source, &known).unwrap();
            assert_eq!(Sight::Whole.refusal(&expression), None, "{source}");
            Sight::Metadata.refusal(&expression).is_some()
        };
        for source in [
            "1",
            "returned.status",
            "obj.metadata.name",
            "obj.kind + obj.apiVersion",
            "has(obj.metadata.labels)",
            "obj.metadata.labels.exists(key, key == 'data')",
            "[{'data': 1}].map(obj, obj.data)",
        ] {
            assert!(!refused(source), "{source}");
        }
        for source in [
            "obj",
            "obj.data",
            "obj.data.password == 'x'",
            "has(obj.data)",
            "obj['data']",
            "obj['metadata']",
            "string(obj.stringData.a)",
            "[obj].map(it, it.data)",
            "obj.map(key, obj[key])",
            "{'a': obj}.a.data",
            "obj.metadata.name + obj.data.a",
            "obj.metadata.name == 'a' ? obj : obj.metadata",
            "[1].map(obj, obj)[0] == 1 && obj.type == 'Opaque'",
        ] {
            assert!(refused(source), "{source}");
        }
    }

    /// KS-176: what is bound to `obj` has nothing secret, whatever the expression.
    #[test]
    fn ks_176_a_secret_is_cut_to_its_metadata() {
        let secrets = GroupResource::new("", "secrets");
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "s", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"a\":\"c2VjcmV0\"}}",
                "metacontroller.k8s.io/last-applied-configuration": "{}",
                "kopf.zalando.org/last-handled-configuration": "{}",
                "objectset.rio.cattle.io/applied": "H4sIAAAAAAAA", "kapp.k14s.io/original": "{}",
                "banzaicloud.com/last-applied": "UEsDBBQ", "objectset.rio.cattle.io/id": "a", "b": "c"}},
            "data": {"a": "c2VjcmV0"}, "stringData": {"a": "secret"}, "immutable": true});
        let whole = secret.clone();
        Sight::of(&secrets, true).cut(&mut secret);
        assert_eq!(secret, whole, "as the original");
        Sight::of(&secrets, false).cut(&mut secret);
        let left = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "annotations": {"objectset.rio.cattle.io/id": "a", "b": "c"}}});
        assert_eq!(secret, left);
        for other in [GroupResource::new("", "configmaps"), GroupResource::new("example.com", "secrets")] {
            assert_eq!(Sight::of(&other, false), Sight::Whole);
        }
    }
}
