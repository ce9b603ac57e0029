//! Cells of configuration, events, RBAC, admission and certificates. Each list is without name and age.

use serde_json::Value;

use super::fields::{NONE, PrintedObject, UNSET, human_seconds};

pub(super) fn cells(group: &str, plural: &str, o: &PrintedObject<'_>) -> Option<Vec<Value>> {
    Some(match (group, plural) {
        ("", "configmaps") => vec![(o.count("/data") + o.count("/binaryData")).into()],
        ("", "secrets") => vec![o.text("/type").into(), o.count("/data").into()],
        ("", "serviceaccounts") => Vec::new(),
        ("", "resourcequotas") => quota(o),
        ("" | "events.k8s.io", "events") => event(o),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => binding(o),
        ("coordination.k8s.io", "leases") => vec![o.text("/spec/holderIdentity").into()],
        ("certificates.k8s.io", "certificatesigningrequests") => request(o),
        ("apiregistration.k8s.io", "apiservices") => api_service(o),
        ("admissionregistration.k8s.io", _) => admission(plural, o)?,
        _ => return None,
    })
}

fn quota(o: &PrintedObject<'_>) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    let hard = o.get("/status/hard").and_then(Value::as_object).into_iter().flatten();
    for (resource, _) in hard {
        let pointer = resource.replace('~', "~0").replace('/', "~1");
        let used = o.quantity(&format!("/status/used/{pointer}"));
        let text = format!("{resource}: {used}/{}", o.quantity(&format!("/status/hard/{pointer}")));
        if resource.starts_with("limits.") { &mut limits } else { &mut requests }.push(text);
    }
    vec![requests.join(", ").into(), limits.join(", ").into()]
}

/// Cells of an event. Two groups serve events, with different names for the same fields.
fn event(o: &PrintedObject<'_>) -> Vec<Value> {
    let either = |old: &'static str, new: &'static str| if o.has(old) { old } else { new };
    let about = o.at(o.get(either("/involvedObject", "/regarding")).unwrap_or(&Value::Null));
    let (first, last) = (
        either("/firstTimestamp", "/deprecatedFirstTimestamp"),
        either("/lastTimestamp", "/deprecatedLastTimestamp"),
    );
    let first = if o.has(first) { o.since(first) } else { o.since("/eventTime") };
    let mut last = if o.has(last) { o.since(last) } else { first.clone() };
    let mut count = o.int(either("/count", "/deprecatedCount")).max(1);
    if o.has("/series") {
        last = o.since("/series/lastObservedTime");
        count = o.int("/series/count");
    }
    let kind = about.text("/kind").to_lowercase();
    let object = match about.text("/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = o.at(o.get(either("/source", "/deprecatedSource")).unwrap_or(&Value::Null));
    let component = source
        .text_or("/component", o.text_or("/reportingController", o.text("/reportingComponent")))
        .to_owned();
    let source = match source.text_or("/host", o.text("/reportingInstance")) {
        "" => component,
        host => format!("{component}, {host}"),
    };
    let message = o.text(either("/message", "/note")).trim();
    vec![
        last.into(),
        o.text("/type").into(),
        o.text("/reason").into(),
        object.into(),
        about.text("/fieldPath").into(),
        source.into(),
        message.into(),
        first.into(),
        count.into(),
    ]
}

fn binding(o: &PrintedObject<'_>) -> Vec<Value> {
    let (mut users, mut groups, mut accounts) = (Vec::new(), Vec::new(), Vec::new());
    for subject in o.each("/subjects") {
        let name = subject.text("/name").to_owned();
        match subject.text("/kind") {
            "User" => users.push(name),
            "Group" => groups.push(name),
            "ServiceAccount" => accounts.push(format!("{}/{name}", subject.text("/namespace"))),
            _ => {}
        }
    }
    let role = format!("{}/{}", o.text("/roleRef/kind"), o.text("/roleRef/name"));
    vec![role.into(), users.join(", ").into(), groups.join(", ").into(), accounts.join(", ").into()]
}

fn request(o: &PrintedObject<'_>) -> Vec<Value> {
    let is = |condition: &str| o.condition(condition).is_some();
    let mut status = match () {
        () if is("Denied") => "Denied",
        () if is("Approved") => "Approved",
        () => "Pending",
    }
    .to_owned();
    if is("Failed") {
        status.push_str(",Failed");
    }
    if !o.text("/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    let duration = if o.has("/spec/expirationSeconds") {
        human_seconds(o.int("/spec/expirationSeconds"))
    } else {
        NONE.to_owned()
    };
    let signer = o.text_or("/spec/signerName", NONE);
    vec![signer.into(), o.text("/spec/username").into(), duration.into(), status.into()]
}

fn api_service(o: &PrintedObject<'_>) -> Vec<Value> {
    let service = if o.has("/spec/service") {
        format!("{}/{}", o.text("/spec/service/namespace"), o.text("/spec/service/name"))
    } else {
        "Local".to_owned()
    };
    let available = o.each("/status/conditions").find(|c| c.text("/type") == "Available");
    let available = match available {
        None => "Unknown".to_owned(),
        Some(c) if c.text("/status") == "True" => "True".to_owned(),
        Some(c) => format!("{} ({})", c.text("/status"), c.text("/reason")),
    };
    vec![service.into(), available.into()]
}

fn admission(plural: &str, o: &PrintedObject<'_>) -> Option<Vec<Value>> {
    let kind = || {
        if o.has("/spec/paramKind") {
            format!("{}/{}", o.text("/spec/paramKind/apiVersion"), o.text("/spec/paramKind/kind"))
        } else {
            UNSET.to_owned()
        }
    };
    Some(match plural {
        "validatingwebhookconfigurations" | "mutatingwebhookconfigurations" => {
            vec![o.count("/webhooks").into()]
        }
        "validatingadmissionpolicies" => vec![o.count("/spec/validations").into(), kind().into()],
        "mutatingadmissionpolicies" => vec![o.count("/spec/mutations").into(), kind().into()],
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => {
            let param = match (o.text("/spec/paramRef/namespace"), o.text("/spec/paramRef/name")) {
                (_, "") => UNSET.to_owned(),
                ("", name) => name.to_owned(),
                (namespace, name) => format!("{namespace}/{name}"),
            };
            vec![o.text("/spec/policyName").into(), param.into()]
        }
        _ => return None,
    })
}
