use super::*;
use crate::error::ApiError;

/// Objects by "plural/namespace/name".
#[derive(Clone)]
struct Objects(HashMap<&'static str, Value>);

impl Lookup for Objects {
    fn get(&self, _: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.0.get(format!("{plural}/{namespace}/{name}").as_str()).cloned()
    }
    fn list(&self, _: &str, _: &str, _: Option<&str>) -> Vec<Value> {
        Vec::new()
    }
}

fn objects() -> Objects {
    let object = |uid: &str| json!({"metadata": {"uid": uid}});
    Objects(HashMap::from([
        ("serviceaccounts/ns/robot", object("u-sa")),
        ("secrets/ns/s", object("u-s")),
        ("pods/ns/p", json!({"metadata": {"uid": "u-p"}, "spec": {"serviceAccountName": "other"}})),
    ]))
}

fn issuer() -> Issuer {
    // An elliptic key, because making an RSA key takes long in a debug build.
    let key = KeyPair::generate().unwrap().serialize_pem();
    Issuer::new(&key, "https://server/spaces/s", &[]).unwrap()
}

fn request(issuer: &Issuer, objects: &Objects, body: Value) -> Result<Value, ApiError> {
    issuer.request(objects, "ns", "robot", body, jiff::Timestamp::now())
}

fn token(answer: &Value) -> &str {
    answer["status"]["token"].as_str().unwrap()
}

#[test]
fn as_052_a_token_request_is_answered_with_a_token() {
    let issuer = issuer();
    let answer = request(&issuer, &objects(), json!({"spec": {"audiences": ["golden"]}})).unwrap();
    assert_eq!(answer["metadata"]["name"], "robot");
    assert_eq!(answer["metadata"]["uid"], "u-sa");
    assert_eq!(
        answer["spec"],
        json!({"audiences": ["golden"], "boundObjectRef": null, "expirationSeconds": 3600})
    );
    let part = |n: usize| -> Value {
        let text = token(&answer).split('.').nth(n).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
    };
    assert_eq!(part(0).as_object().unwrap().keys().collect::<Vec<_>>(), ["alg", "kid"]);
    let claims = part(1);
    assert_eq!(claims["aud"], json!(["golden"]));
    assert_eq!(claims["sub"], "system:serviceaccount:ns:robot");
    assert_eq!(
        claims["kubernetes.io"],
        json!({"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "u-sa"}})
    );
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3600);
}

#[test]
fn as_052_token_requests_are_refused_with_the_texts_of_kubernetes() {
    let issuer = issuer();
    let refused = |body: Value| {
        let error = request(&issuer, &objects(), body).unwrap_err();
        (error.code, error.message)
    };
    assert_eq!(
        refused(json!({"spec": {"expirationSeconds": 10}})),
        (422, "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes".into())
    );
    assert_eq!(
        refused(json!({"spec": {"expirationSeconds": 8_589_934_592_i64}})).1,
        "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 8589934592: may not specify a duration larger than 2^32 seconds"
    );
    assert_eq!(
        refused(json!({"metadata": {"name": "other"}})).1,
        "TokenRequest.authentication.k8s.io \"robot\" is invalid: metadata.name: Invalid value: \"other\": must match the service account name if specified"
    );
    let bound = |kind: &str, name: &str, uid: &str| json!({"spec": {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}}});
    assert_eq!(refused(bound("Pod", "none", "")), (404, "pods \"none\" not found".into()));
    assert_eq!(refused(bound("Pod", "p", "")).0, 400);
    assert_eq!(
        refused(bound("ConfigMap", "x", "")),
        (400, "cannot bind token to object of type /v1, Kind=ConfigMap".into())
    );
    assert_eq!(
        refused(bound("Secret", "s", "1")),
        (409, "Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference (1) does not match the UID in record. The object might have been deleted and then recreated".into())
    );
    let error = issuer.request(&objects(), "ns", "nope", json!({}), jiff::Timestamp::now()).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (404, "serviceaccounts \"nope\" not found"));
}

/// AS-052, AS-061: the claims of a requested token, and when it becomes invalid.
#[test]
fn as_061_a_token_lives_as_long_as_account_and_bound_object() {
    let issuer = issuer();
    let bound = json!({"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}}});
    let answer = request(&issuer, &objects(), bound).unwrap();
    let accepted = issuer.verify(token(&answer), &[], &objects()).unwrap();
    assert_eq!(accepted.user.name, "system:serviceaccount:ns:robot");
    assert_eq!(accepted.user.uid, "u-sa");
    assert_eq!(accepted.user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
    assert!(accepted.user.extra[CREDENTIAL_ID][0].starts_with("JTI="));
    assert_eq!(accepted.audiences, ["https://server/spaces/s"]);
    for gone in ["serviceaccounts/ns/robot", "secrets/ns/s"] {
        let mut fewer = objects();
        fewer.0.remove(gone);
        assert!(issuer.verify(token(&answer), &[], &fewer).is_err());
        fewer.0.insert(gone, json!({"metadata": {"uid": "another"}}));
        assert!(issuer.verify(token(&answer), &[], &fewer).is_err());
    }
}

#[test]
fn as_061_audience_signature_and_time_count() {
    let issuer = issuer();
    let other = request(&issuer, &objects(), json!({"spec": {"audiences": ["other"]}})).unwrap();
    assert!(issuer.verify(token(&other), &[], &objects()).is_err());
    assert!(issuer.verify(token(&other), &["other".into()], &objects()).is_ok());
    let good = request(&issuer, &objects(), json!({})).unwrap();
    assert!(self::issuer().verify(token(&good), &[], &objects()).is_err());
    assert!(issuer.verify("eyJhbGciOiJSUzI1NiJ9.e30.AAAA", &[], &objects()).is_err());
    let long_ago = jiff::Timestamp::from_second(1_000_000_000).unwrap();
    let old = issuer.request(&objects(), "ns", "robot", json!({}), long_ago).unwrap();
    assert!(issuer.verify(token(&old), &[], &objects()).is_err());
}

/// AS-061: headers that ask for more than a signature by a known key are refused although the signature is right.
#[test]
fn as_061_doubtful_headers_are_refused() {
    let issuer = issuer();
    let good = token(&request(&issuer, &objects(), json!({})).unwrap()).to_owned();
    let mut parts = good.split('.');
    let mut part = || String::from_utf8(URL_SAFE_NO_PAD.decode(parts.next().unwrap()).unwrap()).unwrap();
    let (header, claims) = (part(), part());
    let keys = issuer.keys().unwrap();
    let signed = |header: &str, claims: &str| {
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &keys.encoding, keys.public.algorithm).unwrap();
        issuer.verify(&format!("{message}.{signature}"), &[], &objects()).map_err(|error| error.to_string())
    };
    let with = |text: &str, field: &str| format!("{{{field},{}", text.trim_start_matches('{'));
    assert!(signed(&header, &claims).is_ok());
    assert!(
        signed(&with(&header, "\"jku\":\"https://evil\""), &claims).is_ok(),
        "what is not read does no harm"
    );
    for field in ["\"crit\":[\"exp\"]", "\"crit\":[]", "\"crit\":null", "\"b64\":false", "\"x\":1,\"x\":2"] {
        assert!(signed(&with(&header, field), &claims).is_err(), "{field}");
    }
    for (old, new) in [("ES256", "none"), ("ES256", "HS256"), ("ES256", "ES384"), ("ES256", "RS256")] {
        assert!(signed(&header.replace(old, new), &claims).is_err(), "{new}");
    }
    for field in ["\"sub\":\"system:serviceaccount:kube-system:admin\"", "\"other\":1,\"other\":1"] {
        assert!(signed(&header, &with(&claims, field)).is_err(), "{field}");
    }
    let long = format!("\"x\":\"{}\"", "x".repeat(TOKEN_MAX));
    assert!(signed(&header, &with(&claims, &long)).unwrap_err().contains("too long"));
}

#[test]
fn as_053_secret_tokens_live_with_their_secret() {
    let issuer = issuer();
    let token = issuer.secret_token("ns", "robot", "u-sa", "t").unwrap();
    let mut with_secret = objects();
    assert!(issuer.verify(&token, &[], &with_secret).is_err());
    with_secret.0.insert("secrets/ns/t", json!({"data": {"token": STANDARD.encode(&token)}}));
    assert_eq!(issuer.verify(&token, &[], &with_secret).unwrap().user.uid, "u-sa");
}

#[test]
fn as_009_issuer_documents() {
    let made = Issuer::lazy(Issuer::generate_key, "https://server/", &["a".into()]);
    assert_eq!(
        made.openid_configuration(),
        json!({
            "issuer": "https://server/", "jwks_uri": "https://server/openid/v1/jwks",
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        })
    );
    let keys = made.jwks().unwrap();
    let key = &keys["keys"][0];
    assert_eq!(
        (&key["use"], &key["kty"], &key["alg"], &key["e"]),
        (&json!("sig"), &json!("RSA"), &json!("RS256"), &json!("AQAB"))
    );
    let answer = request(&made, &objects(), json!({})).unwrap();
    assert!(made.verify(token(&answer), &[], &objects()).is_ok());
}

/// AS-052: keys as `--service-account-signing-key-file` and `--service-account-key-file` have them: EC (SEC 1) and RSA (PKCS#1)
/// private keys, public keys, certificates.
#[test]
fn as_052_keys_of_files_sign_and_verify() {
    const EC: &str = include_str!("keys/ec.key");
    const RSA: &str = include_str!("keys/rsa.key");
    let other = |key: &str| Issuer::new(key, "https://other", &["shared".to_owned()]).unwrap();
    let ours = |files: &str| {
        let keys = VerifyingKey::all_from_pem(files).unwrap();
        Issuer::new(&KeyPair::generate().unwrap().serialize_pem(), "https://own", &["shared".to_owned()])
            .unwrap()
            .trusting(vec!["https://other".to_owned()], keys)
    };
    for (private, files) in [
        (EC, include_str!("keys/ec.crt")),
        (EC, EC),
        (RSA, include_str!("keys/rsa.pub")),
        (RSA, RSA),
        (RSA, concat!(include_str!("keys/ec.crt"), include_str!("keys/rsa.pub"))),
    ] {
        let answer = request(&other(private), &objects(), json!({"spec": {}})).unwrap();
        let token = token(&answer);
        let accepted = ours(files).verify(token, &[], &objects()).unwrap();
        assert_eq!(accepted.user.name, "system:serviceaccount:ns:robot");
        let stranger = ours(if private == EC { RSA } else { EC });
        assert!(stranger.verify(token, &[], &objects()).is_err(), "signed by a key that is not known");
        let own = Issuer::new(private, "https://own", &["shared".to_owned()]).unwrap();
        assert!(own.verify(token, &[], &objects()).is_err(), "of an issuer that is not known");
    }
    let published = ours(RSA).jwks().unwrap();
    assert_eq!(published["keys"].as_array().unwrap().len(), 2);
    assert!(VerifyingKey::all_from_pem("").is_err() && VerifyingKey::all_from_pem("nonsense").is_err());
    let at = ours(EC).keys_at("https://host:1/openid/v1/jwks".to_owned()).openid_configuration();
    assert_eq!(at["jwks_uri"], "https://host:1/openid/v1/jwks");
}
