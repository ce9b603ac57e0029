//! The resources that a hosted controller uses, as discovery describes them.

use kube::{Client, Error, api::ApiResource};
use runtime::failure::is_not_found;
use runtime::rest::Gvr;

/// A resource as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Group, version and plural.
    pub gvr: Gvr,
    /// Kind.
    pub kind: String,
    /// False for cluster-scoped resources.
    pub namespaced: bool,
    /// Whether the resource has a `/status` subresource.
    pub has_status: bool,
}

impl Served {
    /// `plural` or `plural.group`.
    pub fn group_resource(&self) -> String {
        group_resource(&self.gvr.group, &self.gvr.plural)
    }

    /// `Kind.v1` or `Kind.group/v1`: the key of its objects in a request (MC-112).
    pub fn wire_name(&self) -> String {
        format!("{}.{}", self.kind, self.gvr.api_version())
    }

    /// The same resource in the version of an `apiVersion`.
    pub fn at(&self, api_version: &str) -> Self {
        let version = api_version.rsplit_once('/').map_or(api_version, |(_, version)| version);
        Self { gvr: Gvr::new(&self.gvr.group, version, &self.gvr.plural), ..self.clone() }
    }

    /// The same for informers.
    pub fn api_resource(&self) -> ApiResource {
        ApiResource {
            group: self.gvr.group.clone(),
            version: self.gvr.version.clone(),
            api_version: self.gvr.api_version(),
            kind: self.kind.clone(),
            plural: self.gvr.plural.clone(),
        }
    }

    /// Returns the namespace for a path to an object of this resource; empty for cluster-scoped resources.
    pub fn place<'a>(&self, namespace: &'a str) -> &'a str {
        if self.namespaced { namespace } else { "" }
    }
}

/// `plural` or `plural.group`.
pub fn group_resource(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// A resource by the two names that specs give it.
pub fn gvr(api_version: &str, resource: &str) -> Gvr {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Gvr::new(group, version, resource)
}

/// Asks the server for a resource; `None` if it is not served. One request.
///
/// # Errors
///
/// If discovery fails for another reason than 404.
pub async fn discover(client: &Client, gvr: &Gvr) -> Result<Option<Served>, Error> {
    let answer = if gvr.group.is_empty() {
        client.list_core_api_resources(&gvr.version).await
    } else {
        client.list_api_group_resources(&gvr.api_version()).await
    };
    let list = match answer {
        Ok(list) => list.resources,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let status = format!("{}/status", gvr.plural);
    let has_status = list.iter().any(|one| one.name == status);
    Ok(list.into_iter().find(|one| one.name == gvr.plural).map(|found| Served {
        gvr: gvr.clone(),
        kind: found.kind,
        namespaced: found.namespaced,
        has_status,
    }))
}
