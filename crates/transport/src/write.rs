//! Writes to the ITS. Tolerates that other writers change the version of the same object.

use std::collections::BTreeMap;

use apis::constants::{
    ORIGIN_BINDING_LABEL, ORIGIN_GENERATION_ANNOTATION, ORIGIN_OBJECT_GENERATIONS_ANNOTATION,
    ORIGIN_WDS_LABEL,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::failure::{is_clash, is_not_found, message_of};
use runtime::rest::{Gvr, Removal, Rest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{plugin::EnvelopeKind, wrapped::Origin};

/// Why a wrapped object was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The name belongs to an object that is not of this Binding. Names are ambiguous (KS-098), labels are
    /// not.
    #[error("{}", whose(.0))]
    Taken(Origin),
    #[error("{}", message_of(.0))]
    Request(#[from] kube::Error),
    /// The object was written, and was deleted again.
    #[error("another client deleted it at once")]
    Gone,
}

/// Tells a user which Binding a wrapped object belongs to, according to its labels.
pub(crate) fn whose(origin: &Origin) -> String {
    let Origin { wds, binding } = origin;
    match (binding.is_empty(), wds.is_empty()) {
        (true, true) => "belongs to no Binding".to_owned(),
        (true, false) => format!("belongs to an unnamed Binding of WDS {wds}"),
        (false, true) => format!("belongs to Binding {binding} of an unnamed WDS"),
        (false, false) => format!("belongs to Binding {binding} of WDS {wds}"),
    }
}

/// Accepts only an object that carries exactly the labels of `origin`; any other object must not be changed.
fn ours(live: &ObjectMeta, origin: &Origin) -> Result<(), WriteError> {
    let actual = Origin::of(live);
    if actual == *origin { Ok(()) } else { Err(WriteError::Taken(actual)) }
}

/// A response of which only the metadata matter.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) metadata: ObjectMeta,
}

/// Writes wrapped objects of one kind.
#[derive(Clone)]
pub(crate) struct Writer {
    its: Rest,
    kind: EnvelopeKind,
    gvr: Gvr,
}

/// The desired form of a wrapped object.
pub(crate) struct Target<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) origin: &'a Origin,
    pub(crate) generation: &'a str,
    /// Generations of the objects inside, if they are to be written (OCM-139).
    pub(crate) objects: Option<String>,
    pub(crate) payload: &'a str,
}

impl Writer {
    pub(crate) fn new(its: Rest, kind: EnvelopeKind) -> Self {
        Self { its, kind, gvr: Gvr::new(kind.group, kind.version, kind.plural) }
    }

    /// The field that holds the objects.
    pub(crate) fn payload(&self) -> &'static str {
        self.kind.payload
    }

    pub(crate) fn gvr(&self) -> &Gvr {
        &self.gvr
    }

    /// The kind, for messages.
    pub(crate) fn kind(&self) -> &str {
        self.kind.kind
    }

    /// Creates the object. If an object of the same origin exists under this name, updates that.
    pub(crate) async fn create(&self, target: &Target<'_>) -> Result<ObjectMeta, WriteError> {
        let metadata = metadata_of(target);
        match self
            .its
            .create::<Answer>(&self.gvr, target.namespace, self.body(&metadata, target.payload))
            .await
        {
            Ok(answer) => Ok(answer.metadata),
            Err(error) if is_clash(&error) => {
                let live: Answer = self.its.get(&self.gvr, target.namespace, target.name).await?;
                ours(&live.metadata, target.origin)?;
                if live.metadata.deletion_timestamp.is_some() {
                    // The object is being deleted, and everything written to it would be deleted with it.
                    return Err(error.into());
                }
                self.update(target, live.metadata.resource_version, live.metadata.finalizers).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces payload, labels and annotations; finalizers stay (KS-090). The agent's own writes change the
    /// version but not the spec, so a conflict is answered with another read.
    pub(crate) async fn update(
        &self,
        target: &Target<'_>,
        mut version: Option<String>,
        mut finalizers: Option<Vec<String>>,
    ) -> Result<ObjectMeta, WriteError> {
        let mut attempts = 0;
        loop {
            let mut metadata = metadata_of(target);
            metadata.resource_version = version.take();
            metadata.finalizers = finalizers.take().filter(|f| !f.is_empty());
            let body = self.body(&metadata, target.payload);
            match self.its.replace::<Answer>(&self.gvr, target.namespace, target.name, body).await {
                Ok(answer) => return Ok(answer.metadata),
                Err(error) if is_clash(&error) && attempts < 8 => {
                    attempts += 1;
                    let live: Answer = self.its.get(&self.gvr, target.namespace, target.name).await?;
                    ours(&live.metadata, target.origin)?;
                    if live.metadata.deletion_timestamp.is_some() {
                        return Err(error.into());
                    }
                    version = live.metadata.resource_version;
                    finalizers = live.metadata.finalizers;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deletes the object with this UID. Succeeds if that object is gone, whatever has its name now (KS-098).
    pub(crate) async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<(), kube::Error> {
        let removal = Removal { uid: Some(uid.to_owned()), ..Removal::default() };
        match self.its.delete(&self.gvr, namespace, name, &removal).await {
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) if is_clash(&error) => {
                let live = self.its.find::<Answer>(&self.gvr, namespace, name).await?;
                if live.is_some_and(|live| live.metadata.uid.as_deref() == Some(uid)) {
                    return Err(error);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Reads the whole object; `None` if it does not exist.
    pub(crate) async fn read(&self, namespace: &str, name: &str) -> Result<Option<Value>, kube::Error> {
        self.its.find(&self.gvr, namespace, name).await
    }

    /// Returns whether the object with this UID exists.
    pub(crate) async fn is_there(&self, namespace: &str, name: &str, uid: &str) -> Result<bool, kube::Error> {
        let live = self.its.find::<Answer>(&self.gvr, namespace, name).await?;
        Ok(live.is_some_and(|live| live.metadata.uid.as_deref() == Some(uid)))
    }

    /// Returns the wrapped objects of one origin that exist on the server, including those whose creation was
    /// never answered (KS-086).
    ///
    /// Costs one LIST of metadata.
    pub(crate) async fn of(&self, origin: &Origin) -> Result<Vec<ObjectMeta>, kube::Error> {
        let Origin { wds, binding } = origin;
        // A text that is not a label value was never written as a label.
        if [wds, binding].iter().any(|value| !machinery::names::label_value(value).is_empty()) {
            return Ok(Vec::new());
        }
        let selector = format!("{ORIGIN_BINDING_LABEL}={binding},{ORIGIN_WDS_LABEL}={wds}");
        self.its.list_metadata(&self.gvr, "", &selector).await
    }

    /// Writes only the annotation with the Binding's generation (KS-091), and only to the object with this
    /// UID.
    pub(crate) async fn refresh(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        generation: &str,
    ) -> Result<ObjectMeta, kube::Error> {
        let patch =
            json!({"metadata": {"uid": uid, "annotations": {ORIGIN_GENERATION_ANNOTATION: generation}}});
        Ok(self.its.merge::<Answer>(&self.gvr, namespace, name, &patch).await?.metadata)
    }

    fn body(&self, metadata: &ObjectMeta, payload: &str) -> Vec<u8> {
        let EnvelopeKind { group, version, kind, payload: field, .. } = self.kind;
        let metadata = serde_json::to_string(metadata).unwrap_or_default();
        let slash = if group.is_empty() { "" } else { "/" };
        let mut body = Vec::with_capacity(payload.len() + metadata.len() + 128);
        for part in [
            r#"{"apiVersion":""#,
            group,
            slash,
            version,
            r#"","kind":""#,
            kind,
            r#"","metadata":"#,
            &metadata,
            r#",""#,
            field,
            r#"":"#,
            payload,
            "}",
        ] {
            body.extend_from_slice(part.as_bytes());
        }
        body
    }
}

/// KS-144.
fn metadata_of(target: &Target<'_>) -> ObjectMeta {
    let generation = (ORIGIN_GENERATION_ANNOTATION.to_owned(), target.generation.to_owned());
    let objects =
        target.objects.iter().map(|all| (ORIGIN_OBJECT_GENERATIONS_ANNOTATION.to_owned(), all.clone()));
    ObjectMeta {
        name: Some(target.name.to_owned()),
        namespace: Some(target.namespace.to_owned()),
        labels: Some(BTreeMap::from([
            (ORIGIN_BINDING_LABEL.to_owned(), target.origin.binding.clone()),
            (ORIGIN_WDS_LABEL.to_owned(), target.origin.wds.clone()),
        ])),
        annotations: Some(objects.chain([generation]).collect()),
        ..ObjectMeta::default()
    }
}
