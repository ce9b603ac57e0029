//! Rights to decide about CertificateSigningRequests (spec 7.4).

use crate::common::{Answer, TestServer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

fn request(name: &str, signer: &str, organization: &str) -> Value {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "someone");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    json!({"metadata": {"name": name},
        "spec": {"signerName": signer, "usages": ["client auth"], "request": STANDARD.encode(pem)}})
}

fn certificate() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let made = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
    STANDARD.encode(made.pem())
}

fn rule(resources: Value, verbs: Value, names: Value) -> Value {
    json!({"apiGroups": ["certificates.k8s.io"], "resources": resources, "verbs": verbs, "resourceNames": names})
}

/// A user Jane who may write subresources of requests, and some other things.
struct Jane(TestServer);

impl Jane {
    async fn start() -> Self {
        let server = TestServer::start_with_roles().await;
        server.post(ROLES, json!({"metadata": {"name": "jane"}, "rules": []})).await.expect(201);
        let binding = json!({"metadata": {"name": "jane"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "jane"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        server.post(bindings, binding).await.expect(201);
        Self(server)
    }

    async fn may(&self, signers: &[Value]) {
        let sub = ["certificatesigningrequests/approval", "certificatesigningrequests/status"];
        let mut rules = vec![rule(json!(sub), json!(["update", "patch"]), json!([]))];
        rules.extend(signers.iter().cloned());
        self.0.patch("merge", &format!("{ROLES}/jane"), json!({"rules": rules})).await.expect(200);
    }

    async fn patch(&self, path: &str, status: Value) -> Answer {
        let headers = [("content-type", "application/merge-patch+json"), ("impersonate-user", "jane")];
        let body = json!({"status": status}).to_string();
        self.0.send("PATCH", &format!("{REQUESTS}/{path}"), &headers, body).await
    }
}

fn approved() -> Value {
    json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": ""}]})
}

/// AS-054: approving needs `approve` on the signer, by its name or its domain, in addition to the right to
/// `/approval`.
#[tokio::test]
async fn as_054_approval_takes_a_right_to_the_signer() {
    let jane = Jane::start().await;
    let cases = [
        (None, false),
        (Some(rule(json!(["signers"]), json!(["sign"]), json!(["example.com/a"]))), false),
        (Some(rule(json!(["signers"]), json!(["approve"]), json!(["example.com/b"]))), false),
        (Some(rule(json!(["signers"]), json!(["approve"]), json!(["*/*"]))), false),
        (Some(rule(json!(["signers"]), json!(["approve"]), json!(["example.com/a"]))), true),
        (Some(rule(json!(["signers"]), json!(["approve"]), json!(["example.com/*"]))), true),
        (Some(rule(json!(["signers"]), json!(["approve"]), json!([]))), true),
    ];
    for (index, (right, allowed)) in cases.into_iter().enumerate() {
        let name = format!("r{index}");
        jane.0.post(REQUESTS, request(&name, "example.com/a", "x")).await.expect(201);
        let shown = format!("{right:?}");
        jane.may(right.as_slice()).await;
        let answer = jane.patch(&format!("{name}/approval"), approved()).await;
        if allowed {
            assert_eq!(answer.status, 200, "{shown}");
            assert_eq!(answer.body["status"]["conditions"][0]["type"], "Approved");
            continue;
        }
        assert_eq!(answer.status, 403, "{shown}");
        assert_eq!(
            answer.message(),
            format!(
                "certificatesigningrequests.certificates.k8s.io \"{name}\" is forbidden: user not permitted to \
                 approve requests with signerName \"example.com/a\""
            )
        );
        let kept = jane.0.get(&format!("{REQUESTS}/{name}")).await.expect(200);
        assert!(kept.body["status"].get("conditions").is_none(), "{shown}");
    }
}

/// AS-054: setting a certificate or condition through `/status` needs `sign`; other writes need only the right to the
/// subresource.
#[tokio::test]
async fn as_054_signing_takes_a_right_to_the_signer() {
    let jane = Jane::start().await;
    jane.0.post(REQUESTS, request("r", "example.com/a", "x")).await.expect(201);
    jane.may(&[rule(json!(["signers"]), json!(["approve"]), json!(["example.com/a"]))]).await;
    jane.patch("r/approval", approved()).await.expect(200);
    let signed = json!({"certificate": certificate()});
    let failed = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "F", "message": ""}]});
    for status in [&signed, &failed] {
        let answer = jane.patch("r/status", status.clone()).await.expect(403);
        assert!(
            answer
                .message()
                .ends_with("user not permitted to sign requests with signerName \"example.com/a\""),
            "{}",
            answer.message()
        );
    }
    jane.patch("r/status", json!({})).await.expect(200);
    jane.may(&[rule(json!(["signers"]), json!(["sign"]), json!(["example.com/a"]))]).await;
    let answer = jane.patch("r/status", signed.clone()).await.expect(200);
    assert_eq!(answer.body["status"]["certificate"], signed["certificate"]);
    // Users in `system:masters` need no rule.
    jane.0.post(REQUESTS, request("s", "example.com/a", "x")).await.expect(201);
    jane.0.patch("merge", &format!("{REQUESTS}/s/approval"), json!({"status": approved()})).await.expect(200);
    jane.0.patch("merge", &format!("{REQUESTS}/s/status"), json!({"status": signed})).await.expect(200);
}

/// AS-054: a request for `system:masters` by the client signer is refused on create.
#[tokio::test]
async fn as_054_nobody_asks_for_the_masters_group() {
    let server = TestServer::start().await;
    let client = "kubernetes.io/kube-apiserver-client";
    let answer = server.post(REQUESTS, request("r", client, "system:masters")).await.expect(403);
    assert_eq!(
        answer.message(),
        "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: use of \
         kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    );
    server.post(REQUESTS, request("r", client, "others")).await.expect(201);
    server.post(REQUESTS, request("s", "example.com/a", "system:masters")).await.expect(201);
}

/// AS-055: the legacy signer is refused by this version of the API.
#[tokio::test]
async fn as_055_the_legacy_signer_is_refused() {
    let server = TestServer::start().await;
    let answer = server.post(REQUESTS, request("r", "kubernetes.io/legacy-unknown", "x")).await.expect(422);
    assert!(
        answer.message().contains(
            "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed \
             via this API version"
        ),
        "{}",
        answer.message()
    );
}
