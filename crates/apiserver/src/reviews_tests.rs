use super::*;
use crate::authn::{AuthnConfig, parse_token_file};

struct Nothing;

impl Lookup for Nothing {
    fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Value> {
        None
    }
    fn list(&self, _: &str, _: &str, _: Option<&str>) -> Vec<Value> {
        Vec::new()
    }
}

fn ask(review: Review, namespace: &str, object: Value) -> Result<Value, ApiError> {
    let tokens = parse_token_file("T,alice,u-1,devs").unwrap();
    let authenticator = Authenticator::new(AuthnConfig { tokens, ..AuthnConfig::default() }).unwrap();
    let cx = ReviewContext {
        user: &UserInfo::internal("bob", &["devs"]),
        authorizer: &Authorizer::always_allow(),
        authenticator: &authenticator,
        lookup: &Nothing,
        namespace,
        now: "2026-01-01T00:00:00Z",
    };
    answer(&cx, review, object)
}

fn refusal(review: Review, object: Value) -> String {
    let error = ask(review, "n", object).unwrap_err();
    assert_eq!(error.code, 422);
    assert_eq!(error.status()["details"]["group"], AUTHZ);
    assert_eq!(error.status()["details"].get("kind"), None);
    error.message
}

#[test]
fn as_065_access_reviews_are_answered() {
    let spec = json!({"resourceAttributes": {"verb": "list", "resource": "pods"}});
    let answer = ask(Review::SelfSubjectAccess, "", json!({"spec": spec})).unwrap();
    assert_eq!(answer["status"], json!({"allowed": true}));
    assert_eq!(answer["metadata"], json!({}));
    assert_eq!(answer["spec"], spec);
}

#[test]
fn as_065_access_reviews_are_refused_with_the_texts_of_kubernetes() {
    assert_eq!(
        refusal(Review::SelfSubjectAccess, json!({})),
        ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
    );
    assert_eq!(
        refusal(
            Review::SelfSubjectAccess,
            json!({"spec": {"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/"}}})
        ),
        ".authorization.k8s.io \"\" is invalid: spec.nonResourceAttributes: Invalid value: {\"Path\":\"/\",\"Verb\":\"\"}: cannot be specified in combination with resourceAttributes"
    );
    let managed = json!([{"apiVersion": "authorization.k8s.io/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}, "manager": "golden", "operation": "Update", "time": "T"}]);
    assert_eq!(
        refusal(
            Review::SelfSubjectAccess,
            json!({"metadata": {"name": "x", "managedFields": managed}, "spec": {"nonResourceAttributes": {"path": "/"}}})
        ),
        ".authorization.k8s.io \"\" is invalid: metadata: Invalid value: {\"name\":\"x\",\"managedFields\":[{\"manager\":\"golden\",\"operation\":\"Update\",\"apiVersion\":\"authorization.k8s.io/v1\",\"time\":\"T\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:spec\":{}}}]}: must be empty"
    );
    assert_eq!(
        refusal(Review::SubjectAccess, json!({"spec": {"resourceAttributes": {}}})),
        ".authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of user or group must be specified"
    );
    let both = json!({"rawSelector": "a=b", "requirements": [{"key": "x", "operator": "Near"}]});
    assert_eq!(
        refusal(
            Review::SubjectAccess,
            json!({"spec": {"user": "x", "resourceAttributes": {"fieldSelector": both}}})
        ),
        ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements"
    );
    assert_eq!(
        refusal(
            Review::LocalSubjectAccess,
            json!({"metadata": {"namespace": "n"}, "spec": {"user": "x", "resourceAttributes": {"namespace": "x"}}})
        ),
        ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: Invalid value: \"x\": must match metadata.namespace"
    );
}

#[test]
fn as_065_token_reviews() {
    let review = |spec: Value| ask(Review::Token, "", json!({"spec": spec}));
    let good = review(json!({"token": "T"})).unwrap();
    assert_eq!(
        good["status"],
        json!({"authenticated": true, "user": {"username": "alice", "uid": "u-1", "groups": ["devs", "system:authenticated"]}})
    );
    assert_eq!(
        review(json!({"token": "U"})).unwrap()["status"],
        json!({"user": {}, "error": "invalid bearer token"})
    );
    let error = review(json!({})).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (400, "token is required for TokenReview in authentication")
    );
}

#[test]
fn as_065_who_am_i_and_what_may_i() {
    let me = ask(Review::SelfSubject, "", json!({})).unwrap();
    assert_eq!(me["metadata"], json!({"creationTimestamp": "2026-01-01T00:00:00Z"}));
    assert_eq!(
        me["status"],
        json!({"userInfo": {"username": "bob", "groups": ["devs", "system:authenticated"]}})
    );
    let rules = ask(Review::SelfSubjectRules, "", json!({"spec": {"namespace": "n"}})).unwrap();
    assert_eq!(
        rules["status"],
        json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}], "incomplete": false,
        })
    );
    let error = ask(Review::SelfSubjectRules, "", json!({})).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "no namespace on request"));
}
