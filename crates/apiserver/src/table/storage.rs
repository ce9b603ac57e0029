//! Cells of volumes and their drivers. Each list is without name and age.

use serde_json::Value;

use super::fields::{PrintedObject, UNSET};

pub(super) fn cells(group: &str, plural: &str, o: &PrintedObject<'_>) -> Option<Vec<Value>> {
    Some(match (group, plural) {
        ("", "persistentvolumeclaims") => claim(o),
        ("", "persistentvolumes") => volume(o),
        ("storage.k8s.io", "storageclasses") => vec![
            o.text("/provisioner").into(),
            o.text_or("/reclaimPolicy", "Delete").into(),
            o.text_or("/volumeBindingMode", "Immediate").into(),
            o.flag("/allowVolumeExpansion").into(),
        ],
        ("storage.k8s.io", "volumeattributesclasses") => vec![o.text("/driverName").into()],
        ("storage.k8s.io", "csinodes") => vec![o.count("/spec/drivers").into()],
        ("storage.k8s.io", "csidrivers") => {
            let audiences = o.texts("/spec/tokenRequests", "/audience").join(",");
            let audiences = if audiences.is_empty() { UNSET.to_owned() } else { audiences };
            let modes = o.texts("/spec/volumeLifecycleModes", "").join(",");
            let attach = o.get("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true);
            vec![
                attach.into(),
                o.flag("/spec/podInfoOnMount").into(),
                o.flag("/spec/storageCapacity").into(),
                audiences.into(),
                o.flag("/spec/requiresRepublish").into(),
                if modes.is_empty() { "<none>".into() } else { modes.into() },
            ]
        }
        ("storage.k8s.io", "volumeattachments") => vec![
            o.text("/spec/attacher").into(),
            o.text("/spec/source/persistentVolumeName").into(),
            o.text("/spec/nodeName").into(),
            o.flag("/status/attached").into(),
        ],
        _ => return None,
    })
}

fn access_modes(o: &PrintedObject<'_>, pointer: &str) -> String {
    let given = o.texts(pointer, "");
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let modes: Vec<&str> =
        short.into_iter().filter(|(mode, _)| given.contains(mode)).map(|(_, s)| s).collect();
    modes.join(",")
}

fn phase<'a>(o: &PrintedObject<'a>) -> &'a str {
    if o.has("/metadata/deletionTimestamp") { "Terminating" } else { o.text("/status/phase") }
}

fn storage_class<'a>(o: &PrintedObject<'a>) -> &'a str {
    let annotation = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    o.text_or(annotation, o.text("/spec/storageClassName"))
}

fn claim(o: &PrintedObject<'_>) -> Vec<Value> {
    let bound = !o.text("/spec/volumeName").is_empty();
    let if_bound = |text: String| if bound { text } else { String::new() };
    vec![
        phase(o).into(),
        o.text("/spec/volumeName").into(),
        if_bound(o.quantity("/status/capacity/storage")).into(),
        if_bound(access_modes(o, "/status/accessModes")).into(),
        storage_class(o).into(),
        o.text_or("/spec/volumeAttributesClassName", UNSET).into(),
        o.text_or("/spec/volumeMode", UNSET).into(),
    ]
}

fn volume(o: &PrintedObject<'_>) -> Vec<Value> {
    let claim = if o.has("/spec/claimRef") {
        format!("{}/{}", o.text("/spec/claimRef/namespace"), o.text("/spec/claimRef/name"))
    } else {
        String::new()
    };
    vec![
        o.quantity("/spec/capacity/storage").into(),
        access_modes(o, "/spec/accessModes").into(),
        o.text("/spec/persistentVolumeReclaimPolicy").into(),
        phase(o).into(),
        claim.into(),
        storage_class(o).into(),
        o.text_or("/spec/volumeAttributesClassName", UNSET).into(),
        o.text("/status/reason").into(),
        o.text_or("/spec/volumeMode", UNSET).into(),
    ]
}
