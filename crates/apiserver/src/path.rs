//! Parsing of URLs (AS-001): the attributes that authorization, routing and handlers use.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::authz::Attributes;
use crate::request::Query;

/// A parsed request line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// The decoded path.
    pub path: String,
    /// Whether the path is below `/api/v1/...` or `/apis/{group}/{version}/...`.
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the lower-case method
    /// for other paths.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// The name comes from `fieldSelector=metadata.name=x` only. Authorization uses it, routing does not.
    pub implied_name: bool,
    /// Path segments after the subresource.
    pub rest: Vec<String>,
    /// The path has the deprecated `/watch/` prefix.
    pub watch_prefix: bool,
    /// The path is `/api/v1/namespaces/{namespace}` or a subresource of it: `namespace` names the addressed object
    /// itself.
    pub is_namespace: bool,
}

impl RequestInfo {
    /// Whether the path addresses something inside [`RequestInfo::namespace`].
    ///
    /// Only the Namespace objects of the core group have a path with a namespace that they do not belong to. A
    /// resource of another group whose plural is `namespaces` is a resource like any other.
    pub(crate) fn in_namespace(&self) -> bool {
        !self.namespace.is_empty() && !self.is_namespace
    }

    /// The namespace of the objects of the addressed resource; empty for cluster-scoped resources.
    ///
    /// `/api/v1/namespaces/{name}` has a [`RequestInfo::namespace`], but the Namespace object belongs to no namespace.
    pub(crate) fn namespace_of_objects(&self, namespaced: bool) -> &str {
        if namespaced { &self.namespace } else { "" }
    }

    /// The attributes for authorization.
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        Attributes {
            verb: &self.verb,
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            path: &self.path,
            resource_request: self.is_resource,
        }
    }

    /// Parses a request line. `path` is percent-encoded, as sent.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let verb = method.as_str().to_ascii_lowercase();
        let mut info = Self { path, verb, ..Self::default() };
        let path = info.path.clone();
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let parts = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                info.version = (*version).to_owned();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                info.group = (*group).to_owned();
                info.version = (*version).to_owned();
                rest
            }
            _ => return info,
        };
        info.is_resource = true;
        info.set_verb(method);
        let parts = match parts {
            ["watch", rest @ ..] if !rest.is_empty() => {
                info.verb = "watch".into();
                info.watch_prefix = true;
                rest
            }
            _ => parts,
        };
        info.set_parts(parts);
        info.refine_verb(query);
        info
    }

    fn set_verb(&mut self, method: &Method) {
        let verb = match *method {
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        self.verb = verb.to_owned();
    }

    fn set_parts(&mut self, parts: &[&str]) {
        let parts = match parts {
            ["namespaces", name, rest @ ..] => {
                self.namespace = (*name).to_owned();
                match rest {
                    [] | ["status" | "finalize", ..] => {
                        self.is_namespace = self.group.is_empty();
                        parts
                    }
                    _ => rest,
                }
            }
            _ => parts,
        };
        let mut parts = parts.iter().map(|p| (*p).to_owned());
        self.resource = parts.next().unwrap_or_default();
        self.name = parts.next().unwrap_or_default();
        self.subresource = parts.next().unwrap_or_default();
        self.rest = parts.collect();
    }

    fn refine_verb(&mut self, query: &Query) {
        if !self.name.is_empty() {
            return;
        }
        match self.verb.as_str() {
            "get" => self.verb = if query.flag("watch") { "watch" } else { "list" }.to_owned(),
            "delete" => self.verb = "deletecollection".to_owned(),
            _ => {}
        }
        // A collection request for one named object is authorised with that name.
        if matches!(self.verb.as_str(), "list" | "watch" | "deletecollection")
            && let Some(name) = query.get("fieldSelector").and_then(single_name)
        {
            self.name = name;
            self.implied_name = true;
        }
    }

    /// The name, if the path contains one.
    pub fn path_name(&self) -> &str {
        if self.implied_name { "" } else { &self.name }
    }
}

/// The value of a `metadata.name=x` term of a field selector.
fn single_name(selector: &str) -> Option<String> {
    selector.split(',').find_map(|term| {
        let value = term.strip_prefix("metadata.name=")?;
        let value = value.strip_prefix('=').unwrap_or(value);
        let fine = !value.is_empty() && !value.contains(['/', '%', '\\']) && value != "." && value != "..";
        fine.then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> RequestInfo {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        RequestInfo::parse(&Method::GET, path, &Query::parse(query))
    }

    fn shape(path: &str) -> (String, String, String, String, String) {
        let i = parse(path);
        (i.verb, i.namespace, i.resource, i.name, i.subresource)
    }

    fn parts(v: &str, ns: &str, r: &str, n: &str, s: &str) -> (String, String, String, String, String) {
        (v.into(), ns.into(), r.into(), n.into(), s.into())
    }

    #[test]
    fn as_001_paths_are_parsed() {
        assert_eq!(shape("/api/v1/pods"), parts("list", "", "pods", "", ""));
        assert_eq!(shape("/api/v1/namespaces/a"), parts("get", "a", "namespaces", "a", ""));
        assert_eq!(shape("/api/v1/namespaces/a/status"), parts("get", "a", "namespaces", "a", "status"));
        assert_eq!(shape("/api/v1/namespaces/a/pods/x/log"), parts("get", "a", "pods", "x", "log"));
        assert_eq!(shape("/apis/apps/v1/deployments?watch=1"), parts("watch", "", "deployments", "", ""));
        assert_eq!(shape("/api/v1/watch/namespaces/a/pods/x"), parts("watch", "a", "pods", "x", ""));
        assert_eq!(shape("/api/v1/namespaces/a/pods/x%2fy"), parts("get", "a", "pods", "x", "y"));
        assert_eq!(
            shape("/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dq"),
            parts("list", "a", "pods", "q", "")
        );
        assert_eq!(shape("/api/v1/namespaces/a/namespaces/b"), parts("get", "a", "namespaces", "b", ""));
        for path in ["/", "/api", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1", "/healthz/ping"] {
            assert!(!parse(path).is_resource, "{path}");
        }
    }
    /// Authorization uses the namespace of the path; the handlers must act in the same one.
    #[test]
    fn as_001_only_namespace_objects_have_a_namespace_that_is_not_their_place() {
        for path in ["/api/v1/namespaces/a", "/api/v1/namespaces/a/status", "/api/v1/namespaces/a/finalize"] {
            assert!(!parse(path).in_namespace(), "{path}");
        }
        for path in [
            "/api/v1/namespaces/a/namespaces",
            "/api/v1/namespaces/a/namespaces/b",
            "/api/v1/namespaces/a/namespaces/b/finalize",
            "/api/v1/watch/namespaces/a/namespaces/b",
            "/apis/example.com/v1/namespaces/a",
            "/apis/example.com/v1/namespaces/a/status",
            "/apis/example.com/v1/namespaces/a/namespaces/b",
        ] {
            assert!(parse(path).in_namespace(), "{path}");
        }
    }
}
