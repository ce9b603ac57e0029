//! Automatic approval of CertificateSigningRequests of nodes (AS-055). Pure.
//!
//! A kubelet requests its first certificate as a bootstrap identity and later ones as itself. Each needs a right,
//! which the roles `system:certificates.k8s.io:certificatesigningrequests:nodeclient` and `…:selfnodeclient` grant.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::SignRequest;
use super::decide::{KUBELET, check_kubelet, usages};

/// A right by which a request is approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ApprovalRule {
    /// Subresource of `certificatesigningrequests` that the requester must be allowed to create.
    pub(crate) subresource: &'static str,
    /// Message of the approval.
    message: &'static str,
}

const OWN: ApprovalRule = ApprovalRule {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const ANY: ApprovalRule = ApprovalRule {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

/// The rights to check, in order. Empty for a decided request, and for one that is not a node's.
pub(crate) fn applicable_rules(request: &Value) -> Vec<ApprovalRule> {
    let text = |pointer: &str| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
    let decided = |condition: &Value| {
        matches!(condition.get("type").and_then(Value::as_str), Some("Approved" | "Denied"))
    };
    if text("/spec/signerName") != KUBELET || conditions.into_iter().flatten().any(decided) {
        return Vec::new();
    }
    let parsed = STANDARD.decode(text("/spec/request")).ok().and_then(|pem| SignRequest::parse(&pem).ok());
    let Some(asked) = parsed else { return Vec::new() };
    let spec = request.get("spec").cloned().unwrap_or_default();
    if check_kubelet(&asked, &usages(&spec)).is_err() {
        return Vec::new();
    }
    if text("/spec/username") == asked.common_name { vec![OWN, ANY] } else { vec![ANY] }
}

/// The SubjectAccessReview that asks whether the requester has the right.
pub(crate) fn review(request: &Value, rule: ApprovalRule) -> Value {
    let part = |key: &str| request.pointer(&format!("/spec/{key}")).cloned().unwrap_or_default();
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": part("username"), "uid": part("uid"), "groups": part("groups"), "extra": part("extra"),
        "resourceAttributes": {"group": "certificates.k8s.io", "resource": "certificatesigningrequests",
            "verb": "create", "subresource": rule.subresource, "version": "*"}}})
}

/// The request with the approval.
pub(crate) fn approved(mut request: Value, rule: ApprovalRule, now: &str) -> Value {
    let verdict = json!({"type": "Approved", "status": "True", "reason": "AutoApproved", "message": rule.message,
        "lastUpdateTime": now, "lastTransitionTime": now});
    match request.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        Some(conditions) => conditions.push(verdict),
        None => request["status"] = json!({"conditions": [verdict]}),
    }
    request
}

#[cfg(test)]
mod tests {
    use super::super::decide::tests::pem;
    use super::*;

    fn request(organization: &str, name: &str, names: &[&str], user: &str, usages: &[&str]) -> Value {
        json!({"spec": {"signerName": KUBELET, "username": user, "usages": usages,
            "request": STANDARD.encode(pem(name, &[organization], names))}})
    }

    /// AS-055: recognises exactly what a kubelet requests; its own certificate by one right, that of any node by the
    /// other.
    #[test]
    fn as_055_requests_of_nodes_are_recognised() {
        let usages = ["client auth", "digital signature"];
        let node = "system:node:n1";
        let subresources = |request: &Value| -> Vec<&str> {
            applicable_rules(request).into_iter().map(|rule| rule.subresource).collect()
        };
        let good = request("system:nodes", node, &[], "boot", &usages);
        assert_eq!(subresources(&good), ["nodeclient"]);
        let own = request("system:nodes", node, &[], node, &usages);
        assert_eq!(subresources(&own), ["selfnodeclient", "nodeclient"]);
        for odd in [
            request("system:masters", node, &[], "boot", &usages),
            request("system:nodes", "someone", &[], "boot", &usages),
            request("system:nodes", node, &["n1.example"], "boot", &usages),
            request("system:nodes", node, &[], "boot", &["client auth", "server auth"]),
            request("system:nodes", node, &[], "boot", &["client auth"]),
            json!({"spec": {"signerName": KUBELET, "request": "eA=="}}),
        ] {
            assert_eq!(subresources(&odd), Vec::<&str>::new(), "{odd}");
        }
        let mut other = good.clone();
        other["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client".into();
        assert!(applicable_rules(&other).is_empty(), "never by itself for other clients");
        let decided = approved(good, ANY, "now");
        assert!(applicable_rules(&decided).is_empty());
        assert_eq!(decided["status"]["conditions"][0]["reason"], "AutoApproved");
    }

    #[test]
    fn as_055_the_review_is_about_the_requester() {
        let mut asked = request("system:nodes", "system:node:n1", &[], "boot", &["client auth"]);
        asked["spec"]["groups"] = json!(["g"]);
        let review = review(&asked, ANY);
        assert_eq!(review["spec"]["user"], "boot");
        assert_eq!(review["spec"]["groups"], json!(["g"]));
        assert_eq!(review["spec"]["resourceAttributes"]["subresource"], "nodeclient");
    }
}
