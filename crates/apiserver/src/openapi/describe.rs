//! Short descriptions, for `kubectl explain`.

/// The description of a field by its name, if the name means the same in all types.
pub(super) fn field(name: &str) -> Option<&'static str> {
    Some(match name {
        "apiVersion" => {
            "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values."
        }
        "kind" => {
            "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase."
        }
        "metadata" => {
            "Standard object metadata: name, namespace, labels, annotations and what the server keeps about the object."
        }
        "spec" => "The desired state of the object.",
        "status" => "The observed state of the object, written by the system.",
        "items" => "The objects of the list.",
        "name" => "Name, unique among its kind within a namespace.",
        "namespace" => "Namespace within which the name is unique.",
        "labels" => "Keys and values to organize and select objects by.",
        "annotations" => "Keys and values for tools to keep data with the object; not for selection.",
        "finalizers" => "Must be empty before the object is deleted.",
        "ownerReferences" => "Objects this one depends on; it is deleted when all of them are gone.",
        "resourceVersion" => {
            "Opaque value that tells when the object changed, for optimistic locking and watches."
        }
        "uid" => "Unique in time and space, set by the server.",
        "creationTimestamp" => "When the object was created, set by the server.",
        "deletionTimestamp" => "When the object is to be deleted, set by the server.",
        "managedFields" => "Which manager owns which fields, kept for server-side apply.",
        "selector" => "Which objects are meant, by their labels.",
        "template" => "What objects made from this one look like.",
        "replicas" => "Number of wanted instances.",
        "conditions" => "Latest observations of the state of the object.",
        "containers" => "Containers of the pod; at least one.",
        "initContainers" => {
            "Containers that run to completion, one after the other, before the others start."
        }
        "image" => "Name of the container image.",
        "imagePullPolicy" => "When to pull the image: Always, IfNotPresent or Never.",
        "command" => "Entrypoint of the container, instead of that of the image.",
        "args" => "Arguments of the entrypoint.",
        "env" => "Environment variables.",
        "ports" => "Ports that are exposed.",
        "resources" => "Compute resources that are requested and limited.",
        "volumes" => "Volumes that containers can mount.",
        "volumeMounts" => "Where volumes are mounted in the container.",
        "serviceAccountName" => "ServiceAccount the pod runs as.",
        "nodeName" => "Node the pod is bound to.",
        "nodeSelector" => "Labels a node must have.",
        "data" => "Entries by key.",
        "binaryData" => "Binary entries by key, base64.",
        "stringData" => "Entries as plain text, written into data.",
        "immutable" => "If true, the data cannot be changed.",
        "rules" => "What is granted or matched.",
        "subjects" => "Who is meant: users, groups and service accounts.",
        "roleRef" => "The role that is granted; it cannot be changed.",
        "message" => "Text for humans with details.",
        "reason" => "One word in CamelCase for the cause.",
        "lastTransitionTime" => "When the condition last changed from one status to another.",
        "observedGeneration" => "The generation of the object that this status is about.",
        _ => return None,
    })
}

/// The description of a kind.
pub(super) fn kind(group: &str, version: &str, kind: &str) -> String {
    let api_version = crate::descriptor::api_version(group, version);
    match kind.strip_suffix("List") {
        Some(item) if !item.is_empty() => format!("{kind} is a list of {item} objects of {api_version}."),
        _ => format!("{kind} is a kind of {api_version}."),
    }
}
