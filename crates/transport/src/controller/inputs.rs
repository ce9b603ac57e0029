//! The watches of the controller: what they report goes into the state.

use std::sync::Arc;

use apis::{
    constants::{ORIGIN_BINDING_LABEL, PROPERTIES_NAMESPACE},
    control::{Binding, CustomTransform},
    ocm::ManagedCluster,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use runtime::{
    ResourceVersion, Source, Watched,
    feed::{Change, follow},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    shared::Shared,
    state::{Input, State},
    watched::InputObject,
};
use crate::{
    customize::{catalogue::Entry, properties::Inventory},
    wrapped::{KnownEnvelope, WrappedObject},
    write::Writer,
};

/// Follows the Bindings of the WDS.
pub(super) async fn follow_bindings(shared: Arc<Shared>, wds: Client, stop: CancellationToken) {
    follow(&wds, &Source::of::<Binding>(), &stop, |change: Change<Binding>| match change {
        Change::Put(binding) => {
            shared.event(|state| state.put_binding(binding));
        }
        Change::Gone(key) => shared.event(|state| state.gone_binding(key.name.to_string())),
        Change::Synced => shared.listed(Input::Bindings),
    })
    .await;
}

/// Follows the CustomTransforms of the WDS.
pub(super) async fn follow_transforms(shared: Arc<Shared>, wds: Client, stop: CancellationToken) {
    let put = |name: &str, now| shared.event(|state| state.adaptation_mut().put_transform(name, now));
    follow(&wds, &Source::of::<CustomTransform>(), &stop, |change: Change<CustomTransform>| match change {
        Change::Put(transform) => {
            let name = transform.metadata.name.clone().unwrap_or_default();
            put(&name, Some(Entry::new(transform)));
        }
        Change::Gone(key) => put(&key.name, None),
        Change::Synced => shared.listed(Input::Transforms),
    })
    .await;
}

/// Follows the ManagedClusters of the ITS.
pub(super) async fn follow_clusters(shared: Arc<Shared>, its: Client, stop: CancellationToken) {
    let source = Source::of::<ManagedCluster>().metadata();
    follow(&its, &source, &stop, |change: Change<InputObject>| match change {
        Change::Put(InputObject { metadata, .. }) => {
            let name = metadata.name.unwrap_or_default();
            let inventory = Inventory {
                labels: metadata.labels.unwrap_or_default(),
                annotations: metadata.annotations.unwrap_or_default(),
                terminating: metadata.deletion_timestamp.is_some(),
            };
            shared.event(|state| state.put_cluster(&name, Some(inventory)));
        }
        Change::Gone(key) => shared.event(|state| state.put_cluster(&key.name, None)),
        Change::Synced => shared.listed(Input::Clusters),
    })
    .await;
}

/// Follows the ConfigMaps with properties of WECs in the ITS.
pub(super) async fn follow_property_maps(shared: Arc<Shared>, its: Client, stop: CancellationToken) {
    let put = |name: &str, now| shared.event(|state| state.adaptation_mut().put_property_map(name, now));
    let source = Source::of::<ConfigMap>().namespaced(PROPERTIES_NAMESPACE);
    follow(&its, &source, &stop, |change: Change<InputObject>| match change {
        Change::Put(map) => {
            let name = map.metadata.name.clone().unwrap_or_default();
            put(&name, Some(map.properties()));
        }
        Change::Gone(key) => put(&key.name, None),
        Change::Synced => shared.listed(Input::PropertyMaps),
    })
    .await;
}

/// Follows the envelopes of all WDSs in the ITS.
pub(super) async fn follow_envelopes(
    shared: Arc<Shared>,
    its: Client,
    writer: Writer,
    stop: CancellationToken,
) {
    let source = Source::all(writer.gvr().clone()).labels(ORIGIN_BINDING_LABEL);
    follow(&its, &source, &stop, |change: Change<WrappedObject>| match change {
        Change::Put(object) => put_envelope(&shared, writer.payload(), object),
        Change::Gone(key) => shared.event(|state| state.gone_envelope(&key)),
        Change::Synced => {
            shared.event(State::envelopes_listed);
            shared.listed(Input::Envelopes);
        }
    })
    .await;
}

/// Decodes an envelope, without the lock, and puts it into the state. Its payload is in the field `payload`.
pub(super) fn put_envelope(shared: &Shared, payload: &str, object: WrappedObject) {
    let (key, version) = (object.key(), ResourceVersion::new(object.version()));
    let known = shared.with(|state| {
        let envelopes = state.envelopes();
        (!envelopes.is_stale(&key, version)).then(|| envelopes.get(&key))
    });
    let Some(old) = known else { return };
    let WrappedObject { metadata, spec, data } = object;
    // The generation changes exactly when the spec changes, so an equal generation needs no comparison of specs.
    let same_spec = old.filter(|old| {
        metadata.generation.is_some_and(|g| g != 0 && g == old.generation)
            && metadata.uid.as_ref() == Some(&old.uid)
    });
    let seen = match same_spec {
        Some(old) => KnownEnvelope::new(&metadata, old.fingerprint, old.contents.clone(), old.items.clone()),
        None => {
            let content = if payload == "spec" { spec } else { data };
            let whole = Value::Object([(payload.to_owned(), content)].into_iter().collect());
            let unwrapped = shared.config.transport.unwrap(&whole).unwrap_or_default();
            let items = unwrapped.items.iter().map(|item| item.identity.clone()).collect();
            KnownEnvelope::new(&metadata, unwrapped.fingerprint, unwrapped.items.into(), Arc::new(items))
        }
    };
    shared.event(|state| state.put_envelope(key, seen));
}
