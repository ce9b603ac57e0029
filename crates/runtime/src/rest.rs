//! Requests for any resource as plain JSON, for components that learn at run time which resources they
//! handle.
//!
//! Every function that sends a request returns the error of the server as [`Error::Api`], and fails without a
//! request if a name or namespace cannot be a part of a path.

use std::borrow::Cow;

use futures::future::BoxFuture;
use http::{HeaderValue, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client, Error, Resource,
    core::{
        ObjectList, PartialObjectMeta, Status,
        params::{
            DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
            PropagationPolicy,
        },
        request::{Error as BuildError, Request},
    },
};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use crate::{
    Page, Paging,
    escape::path_segment,
    failure::{is_already_exists, is_object_missing},
};

/// Group, version and plural name of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvr {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural name of the resource.
    pub plural: String,
}

impl Gvr {
    /// A resource by its three names.
    pub fn new(group: &str, version: &str, plural: &str) -> Self {
        Self { group: group.into(), version: version.into(), plural: plural.into() }
    }

    /// The resource of a typed kind.
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self::new(&K::group(&()), &K::version(&()), &K::plural(&()))
    }

    /// Returns `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the path of the collection. An empty namespace means all namespaces, or a cluster-scoped
    /// resource. The texts are escaped, so each is exactly one part of the path.
    pub fn path(&self, namespace: &str) -> String {
        let mut path = if self.group.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{}", path_segment(&self.group))
        };
        path = format!("{path}/{}/", path_segment(&self.version));
        if !namespace.is_empty() {
            path = format!("{path}namespaces/{}/", path_segment(namespace));
        }
        path + &path_segment(&self.plural)
    }

    /// A request for the collection, if servers would take the texts literally (see [`checked`]).
    fn request(&self, namespace: &str) -> Result<Request, Error> {
        for text in [&self.group, &self.version, &self.plural] {
            checked("resource", text)?;
        }
        checked("namespace", namespace)?;
        Ok(Request::new(self.path(namespace)))
    }
}

/// Rejects what Kubernetes' own clients reject. Servers undo escapes before they split the path at slashes,
/// so a name with a slash would address another object, which may need other permissions.
fn checked<'t>(what: &str, text: &'t str) -> Result<&'t str, Error> {
    let wrong = match text {
        "." | ".." => format!("may not be '{text}'"),
        _ => match text.chars().find(|c| matches!(c, '/' | '%')) {
            Some(found) => format!("may not contain '{found}'"),
            None => return Ok(text),
        },
    };
    Err(Error::Api(Box::new(Status {
        code: 400,
        reason: "BadRequest".into(),
        message: format!("invalid {what} {text:?}: [{wrong}]"),
        ..Status::default()
    })))
}

/// Escapes a name for a path.
fn named(name: &str) -> Result<Cow<'_, str>, Error> {
    checked("resource name", name).map(path_segment)
}

/// Requests an object's metadata instead of the object.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Options of a DELETE.
#[derive(Clone, Debug, Default)]
pub struct Removal {
    /// Only the object with this UID.
    pub uid: Option<String>,
    /// What happens to dependents.
    pub propagation: Option<PropagationPolicy>,
}

/// A client that sends and receives JSON of any resource.
#[derive(Clone)]
pub struct Rest {
    client: Client,
    manager: Option<String>,
}

impl Rest {
    /// Creates a client whose writes carry no field manager.
    pub fn new(client: Client) -> Self {
        Self { client, manager: None }
    }

    /// Creates a client whose writes carry `manager` as field manager.
    pub fn with_manager(client: Client, manager: &str) -> Self {
        Self { client, manager: Some(manager.into()) }
    }

    /// The underlying client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The text of an answer. Not generic, and boxed, so that what it takes to send a request is compiled once, here.
    fn answer(
        &self,
        request: Result<http::Request<Vec<u8>>, BuildError>,
    ) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async move { self.client.request_text(request.map_err(Error::BuildRequest)?).await })
    }

    fn post_params(&self) -> PostParams {
        PostParams { field_manager: self.manager.clone(), ..PostParams::default() }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: self.manager.clone(), ..PatchParams::default() }
    }

    /// Reads one object.
    ///
    /// # Errors
    ///
    /// The server's error, also if the object does not exist.
    pub async fn get<T: DeserializeOwned>(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<T, Error> {
        let request = gvr.request(namespace)?.get(&named(name)?, &GetParams::default());
        decoded(&self.answer(request).await?)
    }

    /// Reads one object. Returns `None` if the server says that this object does not exist, or if no object
    /// can have this name.
    ///
    /// # Errors
    ///
    /// The server's error, also if the resource is not served.
    pub async fn find<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, Error> {
        if checked("namespace", namespace).and(checked("resource name", name)).is_err() {
            return Ok(None);
        }
        match self.get(gvr, namespace, name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_object_missing(&error, name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a whole collection as one list object.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn list<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        labels: &str,
    ) -> Result<T, Error> {
        let mut params = ListParams::default();
        if !labels.is_empty() {
            params = params.labels(labels);
        }
        let request = gvr.request(namespace)?.list(&params);
        decoded(&self.answer(request).await?)
    }

    /// Reads the next page of a collection; see [`Paging`].
    ///
    /// # Errors
    ///
    /// The server's error, or that the response is not a list (KS-089).
    pub async fn page(&self, gvr: &Gvr, namespace: &str, paging: &Paging) -> Result<Page, Error> {
        let request = gvr.request(namespace)?.list(&paging.params());
        decoded(&self.answer(request).await?)
    }

    /// Reads the metadata of a whole collection, page by page.
    ///
    /// # Errors
    ///
    /// The server's error, or that a response is not a list.
    pub async fn list_metadata(
        &self,
        gvr: &Gvr,
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<ObjectMeta>, Error> {
        let (mut paging, mut found) = (Paging::new(500), Vec::new());
        loop {
            let request = gvr.request(namespace)?.list_metadata(&paging.params().labels(labels));
            let answer = match self.answer(request).await {
                Err(error) if paging.begins_anew(&error) => {
                    found.clear();
                    continue;
                }
                answer => answer?,
            };
            let page: ObjectList<PartialObjectMeta> = decoded(&answer)?;
            found.extend(page.items.into_iter().map(|item| item.metadata));
            if !paging.goes_on(page.metadata.continue_.as_deref().unwrap_or_default()) {
                return Ok(found);
            }
        }
    }

    /// Sends a POST of an encoded object and returns the created object.
    ///
    /// # Errors
    ///
    /// The server's error; a 409 with reason `AlreadyExists` if the name is taken.
    pub async fn create<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        body: Vec<u8>,
    ) -> Result<T, Error> {
        let request = gvr.request(namespace)?.create(&self.post_params(), body);
        decoded(&self.answer(request).await?)
    }

    /// Sends a POST of an object. Returns false if an object of its name exists already.
    ///
    /// # Errors
    ///
    /// Any other error of the server.
    pub async fn create_missing(&self, gvr: &Gvr, namespace: &str, object: &Value) -> Result<bool, Error> {
        match self.create::<IgnoredAny>(gvr, namespace, object.to_string().into_bytes()).await {
            Ok(_) => Ok(true),
            Err(error) if is_already_exists(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates an object unless it exists, and reads first. Use this where the object exists most of the
    /// time: a read needs fewer permissions and costs the server less.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn ensure(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<bool, Error> {
        if self.find::<IgnoredAny>(gvr, namespace, name).await?.is_some() {
            return Ok(false);
        }
        self.create_missing(gvr, namespace, object).await
    }

    /// Sends a PUT of an encoded object and returns the stored object.
    ///
    /// # Errors
    ///
    /// The server's error; a conflict if the object's resourceVersion is not the current one.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        body: Vec<u8>,
    ) -> Result<T, Error> {
        let request = gvr.request(namespace)?.replace(&named(name)?, &self.post_params(), body);
        decoded(&self.answer(request).await?)
    }

    /// Sends a PUT of the status subresource and returns the stored object.
    ///
    /// # Errors
    ///
    /// The server's error; a conflict if the object's resourceVersion is not the current one.
    pub async fn replace_status<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        body: Vec<u8>,
    ) -> Result<T, Error> {
        let request =
            gvr.request(namespace)?.replace_subresource("status", &named(name)?, &self.post_params(), body);
        decoded(&self.answer(request).await?)
    }

    /// Sends a JSON merge patch and returns the stored object.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn merge<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<T, Error> {
        let request =
            gvr.request(namespace)?.patch(&named(name)?, &self.patch_params(), &Patch::Merge(patch));
        decoded(&self.answer(request).await?)
    }

    /// Sends a JSON merge patch and returns only the metadata of the stored object, which saves decoding the
    /// rest.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn merge_metadata<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<T, Error> {
        let request =
            gvr.request(namespace)?.patch_metadata(&named(name)?, &self.patch_params(), &Patch::Merge(patch));
        decoded(&self.answer(request).await?)
    }

    /// Sends a JSON merge patch of the status subresource and returns the stored object.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn merge_status<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<T, Error> {
        let request = self.status_patch(gvr, namespace, name, patch)?;
        decoded(&self.answer(Ok(request)).await?)
    }

    /// Like [`Rest::merge_status`], but returns only the metadata of the stored object, which saves decoding
    /// the rest.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn merge_status_metadata<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<T, Error> {
        let mut request = self.status_patch(gvr, namespace, name, patch)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(METADATA_ONLY));
        decoded(&self.answer(Ok(request)).await?)
    }

    fn status_patch(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<http::Request<Vec<u8>>, Error> {
        let patch = Patch::Merge(patch);
        gvr.request(namespace)?
            .patch_subresource("status", &named(name)?, &self.patch_params(), &patch)
            .map_err(Error::BuildRequest)
    }

    /// Sends a JSON patch of the status subresource; `operations` is the list of operations.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn json_patch_status<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        operations: Value,
    ) -> Result<T, Error> {
        let patch: json_patch::Patch = serde_json::from_value(operations).map_err(Error::SerdeError)?;
        let request = gvr.request(namespace)?.patch_subresource(
            "status",
            &named(name)?,
            &self.patch_params(),
            &Patch::Json::<()>(patch),
        );
        decoded(&self.answer(request).await?)
    }

    /// Sends a server-side apply with the field manager `manager`.
    ///
    /// # Errors
    ///
    /// The server's error; a conflict if another manager owns a field.
    pub async fn apply<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        object: &Value,
        manager: &str,
        force: bool,
    ) -> Result<T, Error> {
        let params = PatchParams { field_manager: Some(manager.into()), force, ..PatchParams::default() };
        self.apply_with(gvr, namespace, name, object, &params).await
    }

    /// Returns what [`Rest::apply`] with `force` would make of the object, and changes nothing.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub async fn apply_dry_run<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        object: &Value,
        manager: &str,
    ) -> Result<T, Error> {
        let params = PatchParams {
            field_manager: Some(manager.into()),
            force: true,
            dry_run: true,
            ..PatchParams::default()
        };
        self.apply_with(gvr, namespace, name, object, &params).await
    }

    async fn apply_with<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        object: &Value,
        params: &PatchParams,
    ) -> Result<T, Error> {
        let request = gvr.request(namespace)?.patch(&named(name)?, params, &Patch::Apply(object));
        decoded(&self.answer(request).await?)
    }

    /// Sends a DELETE and ignores the body of the response.
    ///
    /// # Errors
    ///
    /// The server's error, also if the object does not exist.
    pub async fn delete(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        removal: &Removal,
    ) -> Result<(), Error> {
        self.remove(gvr, namespace, name, removal).await.map(|_| ())
    }

    /// Sends a DELETE. Returns true if the object is gone, and false if finalizers still hold it.
    ///
    /// # Errors
    ///
    /// The server's error, except that the object does not exist.
    pub async fn remove(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        removal: &Removal,
    ) -> Result<bool, Error> {
        #[derive(serde::Deserialize)]
        struct Answer {
            #[serde(default)]
            kind: String,
        }
        let params = DeleteParams {
            propagation_policy: removal.propagation.clone(),
            preconditions: removal
                .uid
                .as_ref()
                .map(|uid| Preconditions { uid: Some(uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        let request = gvr.request(namespace)?.delete(&named(name)?, &params);
        let answer: Answer = decoded(&self.answer(request).await?)?;
        Ok(answer.kind == "Status")
    }
}

/// Takes the items out of a list of `gvr`.
fn decoded<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(Error::SerdeError)
}

/// The items of a list of `gvr`, taken out of it.
///
/// # Errors
///
/// [`Error::Service`] if the response is not a list. Objects that are missing from a list count as deleted,
/// so a response without items or without a version must not be taken for an empty list (KS-089).
pub fn items(list: &mut Value, gvr: &Gvr) -> Result<Vec<Value>, Error> {
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let is_list = version.is_some_and(|version| !version.is_empty());
    match list.get_mut("items").filter(|_| is_list).map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        // An empty list, as servers written in Go encode it.
        Some(Value::Null) => Ok(Vec::new()),
        _ => Err(Error::Service(format!("the answer is no list of {}", gvr.plural).into())),
    }
}

#[cfg(test)]
mod tests;
