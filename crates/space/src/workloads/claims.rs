//! Volumes of a simulated cluster. A claim is bound to a volume that is made for it, or to the one that it names. Nothing is stored in
//! a volume: it is an object with the size that was asked for.

use serde_json::{Value, json};

use super::object::{
    Kind, SIMULATED, Write, annotation, is_deleting, name, namespace, status_write, text, uid,
};

/// Annotations by which the controllers of a real cluster know a finished binding.
const BOUND: [&str; 2] = ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"];
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Name of the volume that a claim has or gets; `None` if the claim asks for a volume that somebody makes by hand, and names none.
pub(super) fn volume_of(claim: &Value) -> Option<String> {
    match text(claim, "/spec/volumeName") {
        "" if claim.pointer("/spec/storageClassName").and_then(Value::as_str) == Some("") => None,
        "" => Some(format!("pvc-{}", uid(claim))),
        named => Some(named.to_owned()),
    }
}

/// The next write for a claim; `volume` is the volume of [`volume_of`], if it exists.
pub(super) fn decide_claim(claim: &Value, volume: Option<&Value>) -> Option<Write> {
    let wanted = volume_of(claim)?;
    if is_deleting(claim) || matches!(text(claim, "/status/phase"), "Bound" | "Lost") {
        return None;
    }
    let named = text(claim, "/spec/volumeName");
    let Some(volume) = volume else {
        // A volume that the claim names, and that somebody makes by hand.
        return named.is_empty().then(|| Write::Create(Kind::PersistentVolume, made_for(claim, &wanted)));
    };
    if !is_for(volume, claim) {
        let reserved = claim_of(volume) == Some((namespace(claim), name(claim)));
        let free = volume.pointer("/spec/claimRef/uid").is_none()
            && (reserved || volume.pointer("/spec/claimRef").is_none())
            && !is_deleting(volume);
        let patch = json!({"metadata": {"uid": uid(volume)}, "spec": {"claimRef": reference(claim)}});
        return free.then_some(Write::Patch {
            kind: Kind::PersistentVolume,
            namespace: String::new(),
            name: wanted,
            patch,
        });
    }
    if text(volume, "/status/phase") != "Bound" {
        return status_write(Kind::PersistentVolume, volume, json!({"phase": "Bound"}));
    }
    if named.is_empty() {
        let [completed, by_controller] = BOUND;
        let patch = json!({"metadata": {"uid": uid(claim), "annotations": {completed: "yes", by_controller: "yes"}},
            "spec": {"volumeName": wanted}});
        let (namespace, name) = (namespace(claim).to_owned(), name(claim).to_owned());
        return Some(Write::Patch { kind: Kind::PersistentVolumeClaim, namespace, name, patch });
    }
    let of_volume = |path: &str| volume.pointer(path).cloned().unwrap_or_default();
    let status = json!({"phase": "Bound", "accessModes": of_volume("/spec/accessModes"), "capacity": of_volume("/spec/capacity")});
    status_write(Kind::PersistentVolumeClaim, claim, status)
}

/// The next write for a volume whose claim is `claim`, if that exists: one that was made for a claim goes with it, others are released.
pub(super) fn decide_volume(volume: &Value, claim: Option<&Value>) -> Option<Write> {
    let bound = text(volume, "/status/phase") == "Bound";
    if volume.pointer("/spec/claimRef/uid").is_none() || claim.is_some_and(|claim| is_for(volume, claim)) {
        return None;
    }
    // While it is bound, its finalizer holds it.
    if bound {
        return status_write(Kind::PersistentVolume, volume, json!({"phase": "Released"}));
    }
    let ours = annotation(volume, SIMULATED) == "true";
    let goes =
        ours && !is_deleting(volume) && text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete";
    let (name, uid) = (name(volume).to_owned(), uid(volume).to_owned());
    goes.then_some(Write::Delete {
        kind: Kind::PersistentVolume,
        namespace: String::new(),
        name,
        uid,
        at_once: false,
    })
}

/// Namespace and name of the claim that a volume is for.
pub(super) fn claim_of(volume: &Value) -> Option<(&str, &str)> {
    let (namespace, name) = (text(volume, "/spec/claimRef/namespace"), text(volume, "/spec/claimRef/name"));
    (!namespace.is_empty() && !name.is_empty()).then_some((namespace, name))
}

fn is_for(volume: &Value, claim: &Value) -> bool {
    let of = text(volume, "/spec/claimRef/uid");
    !of.is_empty() && of == uid(claim)
}

fn reference(claim: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace(claim), "name": name(claim), "uid": uid(claim)})
}

fn made_for(claim: &Value, volume: &str) -> Value {
    let spec = |path: &str| claim.pointer(path).cloned().unwrap_or_default();
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": volume, "annotations": {SIMULATED: "true", PROVISIONED_BY: "kubestellar.io/simulated"}},
        "spec": {
            "capacity": {"storage": spec("/spec/resources/requests/storage")},
            "accessModes": spec("/spec/accessModes"),
            "volumeMode": spec("/spec/volumeMode"),
            "storageClassName": text(claim, "/spec/storageClassName"),
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": reference(claim),
            "hostPath": {"path": format!("/var/lib/kubestellar-simulated/{volume}"), "type": "DirectoryOrCreate"},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: &Value) -> Value {
        let mut spec = spec.clone();
        spec["accessModes"] = json!(["ReadWriteOnce"]);
        spec["resources"] = json!({"requests": {"storage": "1Gi"}});
        json!({"metadata": {"name": "data", "namespace": "shop", "uid": "u1"}, "spec": spec, "status": {"phase": "Pending"}})
    }

    /// Does what a write says to the pair of claim and volume.
    fn apply(write: Write, claim: &mut Value, volume: &mut Option<Value>) {
        match write {
            Write::Create(Kind::PersistentVolume, made) => *volume = Some(made),
            Write::Status(Kind::PersistentVolume, new) => *volume = Some(new),
            Write::Status(Kind::PersistentVolumeClaim, new) => *claim = new,
            Write::Patch { kind: Kind::PersistentVolumeClaim, patch, .. } => {
                claim["spec"]["volumeName"] = patch["spec"]["volumeName"].clone();
            }
            Write::Patch { kind: Kind::PersistentVolume, patch, .. } => {
                if let Some(volume) = volume {
                    volume["spec"]["claimRef"] = patch["spec"]["claimRef"].clone();
                }
            }
            Write::Delete { kind: Kind::PersistentVolume, .. } => *volume = None,
            other => panic!("{other:?}"),
        }
    }

    fn settled(mut claim: Value, mut volume: Option<Value>) -> (Value, Option<Value>) {
        for _ in 0..9 {
            let Some(write) = decide_claim(&claim, volume.as_ref()) else { return (claim, volume) };
            apply(write, &mut claim, &mut volume);
        }
        panic!("it never settles: {claim} {volume:?}");
    }

    /// A claim of a simulated cluster gets a volume of its size, which goes with it.
    #[test]
    fn a_claim_is_bound_to_a_volume() {
        let (bound, volume) = settled(claim(&json!({"storageClassName": "fast"})), None);
        assert_eq!((text(&bound, "/status/phase"), text(&bound, "/spec/volumeName")), ("Bound", "pvc-u1"));
        assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
        let volume = volume.unwrap();
        assert_eq!((text(&volume, "/status/phase"), annotation(&volume, SIMULATED)), ("Bound", "true"));
        assert_eq!(decide_volume(&volume, Some(&bound)), None);
        let (mut gone, mut left) = (bound, Some(volume));
        while let Some(write) = left.as_ref().and_then(|volume| decide_volume(volume, None)) {
            apply(write, &mut gone, &mut left);
        }
        assert!(left.is_none(), "{left:?}");
    }

    /// A volume that somebody made is bound by name, stays when it is released, and nobody else's is taken.
    #[test]
    fn volumes_made_by_hand() {
        let own = |reference: Value| json!({"metadata": {"name": "disk", "uid": "v"}, "spec": {"capacity": {"storage": "2Gi"}, "claimRef": reference}});
        let named = claim(&json!({"volumeName": "disk", "storageClassName": ""}));
        assert_eq!(decide_claim(&named, None), None, "not there yet");
        assert_eq!(decide_claim(&claim(&json!({"storageClassName": ""})), None), None, "nobody says which");
        let mut free = own(Value::Null);
        free["spec"].as_object_mut().unwrap().remove("claimRef");
        for volume in [free, own(json!({"namespace": "shop", "name": "data"}))] {
            let (bound, volume) = settled(named.clone(), Some(volume));
            assert_eq!(text(&bound, "/status/phase"), "Bound");
            let Some(Write::Status(_, released)) = decide_volume(&volume.unwrap(), None) else {
                panic!("not released")
            };
            assert_eq!(text(&released, "/status/phase"), "Released");
            assert_eq!(decide_volume(&released, None), None, "it stays");
        }
        for taken in [
            json!({"namespace": "shop", "name": "data", "uid": "u0"}),
            json!({"namespace": "bank", "name": "data"}),
        ] {
            assert_eq!(decide_claim(&named, Some(&own(taken))), None);
        }
    }
}
