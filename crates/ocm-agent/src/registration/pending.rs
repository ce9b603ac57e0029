//! A pending signing request (OCM-036). Pure.

use apis::constants::CLUSTER_NAME_LABEL;
use k8s_openapi::{api::certificates::v1::CertificateSigningRequest, jiff::Timestamp};
use rcgen::PublicKeyData as _;
use serde_json::{Value, json};

use super::identity::{Data, KEY, Names, Subject};
use ocm_shared::{
    csr::{self, CLIENT_SIGNER},
    request::{KeyPair, public_key, request},
};

/// Most requests of a cluster, and of each add-on in it; with more, no new one is created until the hub has deleted some
/// (OCM-038).
pub(super) const MOST_REQUESTS: usize = 10;

/// The request and its key.
pub(super) struct Pending {
    pub(super) name: String,
    pub(super) key: KeyPair,
}

impl Pending {
    /// Finds the request of an earlier run. `kept` has its key, `requests` are the cluster's requests on the
    /// hub. Returns `None` if that key is the one in use (`current`), if the request is gone or refused, or
    /// if it is for another subject.
    pub(super) fn recalled<'a>(
        kept: &Data,
        current: &Data,
        wanted: &Subject,
        mut requests: impl Iterator<Item = &'a CertificateSigningRequest>,
    ) -> Option<Self> {
        let text = kept.get(KEY).filter(|key| current.get(KEY) != Some(key))?;
        let key = KeyPair::from_pem(std::str::from_utf8(&text.0).ok()?).ok()?;
        let own = key.subject_public_key_info();
        let fits = |found: &&CertificateSigningRequest| {
            let status = found.status.as_ref();
            let refused = status
                .and_then(|status| status.conditions.as_deref())
                .unwrap_or_default()
                .iter()
                .any(|c| c.type_ == "Denied" || c.type_ == "Failed");
            let asked = csr::subject(&found.spec.request.0);
            !refused
                && public_key(&found.spec.request.0).is_some_and(|theirs| theirs == own)
                && asked.is_some_and(|(name, _)| name == wanted.common_name)
        };
        let name = requests.find(fits)?.metadata.name.clone()?;
        Some(Self { name, key })
    }
}

/// Returns a new key and the request for a certificate of a cluster's agent.
pub(super) fn fresh(names: &Names) -> Result<(KeyPair, Value), kube::Error> {
    use base64::Engine as _;
    let broken = |error: &dyn std::error::Error| kube::Error::Service(error.to_string().into());
    let subject = names.subject();
    let key = KeyPair::generate().map_err(|error| broken(&error))?;
    let pem = request(&key, &subject.common_name, &subject.organizations, &subject.units, &[])
        .map_err(|error| broken(&error))?;
    let cluster = names.cluster.as_str();
    let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": format!("{cluster}-"), "labels": {CLUSTER_NAME_LABEL: cluster}},
        "spec": {"signerName": CLIENT_SIGNER, "usages": ["digital signature", "key encipherment", "client auth"],
            "request": base64::engine::general_purpose::STANDARD.encode(pem)}});
    Ok((key, body))
}

/// Returns how many requests count against a new one (OCM-038): failed and pending ones, and those of the
/// last minute. So an agent with short-lived certificates, which has many finished requests, is not blocked.
pub(super) fn counted_requests<'a>(
    all: impl Iterator<Item = &'a CertificateSigningRequest>,
    now: Timestamp,
) -> usize {
    let counts = |csr: &&CertificateSigningRequest| {
        let issued = csr.status.as_ref().and_then(|status| status.certificate.as_ref());
        let made = csr.metadata.creation_timestamp.as_ref();
        // One that was made in the far future was made by a clock that was ahead; it must not count until then.
        let recent = made.is_none_or(|made| (-3600..60).contains(&now.duration_since(made.0).as_secs()));
        recent || issued.is_none_or(|certificate| certificate.0.is_empty())
    };
    all.filter(counts).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    /// OCM-A-36: the agent continues with the request for the stored key, and with no other.
    #[test]
    fn ocm_036_a_request_is_known_by_its_key() {
        let names = |cluster: &str| Names { cluster: cluster.into(), agent: "a".into() };
        let one = names("c1");
        let made = |names: &Names, name: &str| {
            let (key, mut body) = fresh(names).unwrap();
            body["metadata"]["name"] = name.into();
            let csr: CertificateSigningRequest = serde_json::from_value(body).unwrap();
            (Data::from([(KEY.to_owned(), ByteString(key.serialize_pem().into_bytes()))]), csr)
        };
        let (kept, mine) = made(&one, "c1-mine");
        let (_, other) = made(&one, "c1-other");
        let (strange, foreign) = made(&names("c2"), "c2-x");
        let denied = |mut csr: CertificateSigningRequest| {
            let status = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "x"}]});
            csr.status = serde_json::from_value(status).unwrap();
            csr
        };
        let (none, refused) = (Data::new(), denied(mine.clone()));
        let cases = [
            ("found", &kept, &none, vec![&other, &mine], Some("c1-mine")),
            ("gone", &kept, &none, vec![&other], None),
            ("nothing kept", &none, &none, vec![&mine], None),
            ("in use", &kept, &kept, vec![&mine], None),
            ("somebody else's", &strange, &none, vec![&foreign], None),
            ("none at all", &kept, &none, vec![], None),
            ("refused", &kept, &none, vec![&refused], None),
        ];
        for (why, kept, current, all, wanted) in cases {
            let found = Pending::recalled(kept, current, &one.subject(), all.into_iter());
            assert_eq!(found.as_ref().map(|found| found.name.as_str()), wanted, "{why}");
            if let Some(found) = found {
                assert_eq!(found.key.serialize_pem().into_bytes(), kept[KEY].0, "{why}");
            }
        }
        let broken = Data::from([(KEY.to_owned(), ByteString(b"no key".to_vec()))]);
        assert!(Pending::recalled(&broken, &none, &one.subject(), [&mine].into_iter()).is_none());
    }

    /// OCM-038: issued certificates do not count, unless all are new.
    #[test]
    fn ocm_038_what_counts_as_a_flood() {
        let csr = |made: i64, certificate: Option<&str>| -> CertificateSigningRequest {
            let created = Timestamp::from_second(made).unwrap().to_string();
            let certificate = certificate.map(|text| ByteString(text.as_bytes().to_vec()));
            serde_json::from_value(json!({"metadata": {"name": "x", "creationTimestamp": created},
                "spec": {"signerName": "s", "request": "", "usages": []}, "status": {"certificate": certificate}}))
            .unwrap()
        };
        let now = Timestamp::from_second(10_000).unwrap();
        for (made, certificate, counts) in [
            (9_000, Some("issued"), false),
            (9_000, Some(""), true),
            (9_000, None, true),
            (9_990, Some("issued"), true),
            (9_990, None, true),
            // A clock that is slow.
            (11_000, Some("issued"), true),
            // A clock that was ahead.
            (99_000, Some("issued"), false),
            (99_000, None, true),
        ] {
            let one = csr(made, certificate);
            assert_eq!(
                counted_requests([&one].into_iter(), now),
                usize::from(counts),
                "{made} {certificate:?}"
            );
        }
    }
}
