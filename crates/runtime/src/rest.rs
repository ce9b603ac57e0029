//! Requests for any resource as plain JSON: for components that learn at run time what they handle.

use std::borrow::Cow;

use futures::future::BoxFuture;
use http::{HeaderValue, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client, Error,
    core::{
        ObjectList, PartialObjectMeta, Status,
        params::{
            DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
            PropagationPolicy,
        },
        request::{Error as BuildError, Request},
    },
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use crate::{
    Page,
    failure::{is_already_exists, is_object_missing},
};

/// Group, version and plural of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvr {
    /// API group, empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural resource name.
    pub plural: String,
}

impl Gvr {
    /// A resource by its three names.
    pub fn new(group: &str, version: &str, plural: &str) -> Self {
        Self { group: group.into(), version: version.into(), plural: plural.into() }
    }

    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Path of the collection. An empty namespace means all namespaces, or a cluster-scoped resource. Whatever the texts
    /// are, they are parts of the path and nothing more.
    pub fn path(&self, namespace: &str) -> String {
        let mut path =
            if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", part(&self.group)) };
        path = format!("{path}/{}/", part(&self.version));
        if !namespace.is_empty() {
            path = format!("{path}namespaces/{}/", part(namespace));
        }
        path + &part(&self.plural)
    }

    /// A request about the collection, if servers would take the texts for what they are (see [`checked`]).
    fn request(&self, namespace: &str) -> Result<Request, Error> {
        for text in [&self.group, &self.version, &self.plural] {
            checked("resource", text)?;
        }
        checked("namespace", namespace)?;
        Ok(Request::new(self.path(namespace)))
    }
}

/// What a part of a path may consist of as it is; the rest is escaped.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':').remove(b'@');

fn part(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, PLAIN).into()
}

/// Refuses what Kubernetes' own clients refuse: servers undo escapes before they look for slashes, so a name with one would
/// be an address of something else, to which other rights apply.
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

/// A name as it goes into a path.
fn named(name: &str) -> Result<Cow<'_, str>, Error> {
    checked("resource name", name).map(part)
}

/// Asks for an object's metadata in place of the object.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// How a DELETE is to be done.
#[derive(Clone, Debug, Default)]
pub struct Removal {
    /// Only this incarnation.
    pub uid: Option<String>,
    /// What happens to dependents.
    pub propagation: Option<PropagationPolicy>,
}

/// A client that speaks JSON about any resource.
#[derive(Clone)]
pub struct Rest {
    client: Client,
    manager: Option<String>,
}

impl Rest {
    /// Requests without a field manager of their own.
    pub fn new(client: Client) -> Self {
        Self { client, manager: None }
    }

    /// Requests whose writes carry `manager` as field manager.
    pub fn with_manager(client: Client, manager: &str) -> Self {
        Self { client, manager: Some(manager.into()) }
    }

    /// The client below.
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

    /// One object.
    pub async fn get<T: DeserializeOwned>(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<T, Error> {
        let request = gvr.request(namespace)?.get(&named(name)?, &GetParams::default());
        decoded(&self.answer(request).await?)
    }

    /// One object, or `None` when the server says that this object does not exist, or there can't be one by this name.
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

    /// A whole collection as one list object.
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

    /// One page of a collection: at most `limit` objects, or all; `more` is what the page before said, empty for the first.
    ///
    /// # Errors
    /// Also when the answer is no list (KS-089).
    pub async fn page(
        &self,
        gvr: &Gvr,
        namespace: &str,
        limit: Option<u32>,
        more: &str,
    ) -> Result<Page, Error> {
        let continue_token = (!more.is_empty()).then(|| more.to_owned());
        let params = ListParams { limit, continue_token, ..ListParams::default() };
        let request = gvr.request(namespace)?.list(&params);
        decoded(&self.answer(request).await?)
    }

    /// The metadata of a whole collection, page by page.
    pub async fn list_metadata(
        &self,
        gvr: &Gvr,
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<ObjectMeta>, Error> {
        let mut params = ListParams::default().labels(labels).limit(500);
        let mut found = Vec::new();
        loop {
            let request = gvr.request(namespace)?.list_metadata(&params);
            let page: ObjectList<PartialObjectMeta> = decoded(&self.answer(request).await?)?;
            found.extend(page.items.into_iter().map(|item| item.metadata));
            match page.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => params.continue_token = Some(more),
                None => return Ok(found),
            }
        }
    }

    /// POST of an encoded object.
    pub async fn create<T: DeserializeOwned>(
        &self,
        gvr: &Gvr,
        namespace: &str,
        body: Vec<u8>,
    ) -> Result<T, Error> {
        let request = gvr.request(namespace)?.create(&self.post_params(), body);
        decoded(&self.answer(request).await?)
    }

    /// POST of an object. False if there is one of its name already.
    pub async fn create_missing(&self, gvr: &Gvr, namespace: &str, object: &Value) -> Result<bool, Error> {
        match self.create::<IgnoredAny>(gvr, namespace, object.to_string().into_bytes()).await {
            Ok(_) => Ok(true),
            Err(error) if is_already_exists(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The same for what is there most of the time: looks first, which needs less of a right and of the server.
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

    /// PUT of an encoded object.
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

    /// PUT of the status subresource.
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

    /// JSON merge patch.
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

    /// JSON merge patch that is answered with the object's metadata only: what the rest is like is not read again.
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

    /// JSON merge patch of the status subresource.
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

    /// [`Rest::merge_status`] that is answered with the object's metadata only: what the rest is like is not read again.
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

    /// JSON patch of the status subresource; `operations` is the list of operations.
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

    /// Server-side apply under `manager`.
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
        let request = gvr.request(namespace)?.patch(&named(name)?, &params, &Patch::Apply(object));
        decoded(&self.answer(request).await?)
    }

    /// DELETE; the answer's body is not looked at.
    pub async fn delete(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        removal: &Removal,
    ) -> Result<(), Error> {
        self.remove(gvr, namespace, name, removal).await.map(|_| ())
    }

    /// DELETE. True when the object is gone, false when finalizers still hold it.
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

/// What an answer says.
fn decoded<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(Error::SerdeError)
}

/// The items of a list of `gvr`, taken out of it.
///
/// # Errors
/// [`Error::Service`] when the answer is no list: what is missing from one is taken for gone, so that an answer without
/// items, or without a version, must not pass for an empty one (KS-089).
pub fn items(list: &mut Value, gvr: &Gvr) -> Result<Vec<Value>, Error> {
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let is_list = version.is_some_and(|version| !version.is_empty());
    match list.get_mut("items").filter(|_| is_list).map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        // An empty list, as servers written in Go put it.
        Some(Value::Null) => Ok(Vec::new()),
        _ => Err(Error::Service(format!("the answer is no list of {}", gvr.plural).into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_follow_group_and_namespace() {
        let cases = [
            (Gvr::new("", "v1", "namespaces"), "", "/api/v1/namespaces"),
            (Gvr::new("", "v1", "configmaps"), "shop", "/api/v1/namespaces/shop/configmaps"),
            (Gvr::new("apps", "v1", "deployments"), "shop", "/apis/apps/v1/namespaces/shop/deployments"),
        ];
        for (gvr, namespace, path) in cases {
            assert_eq!(gvr.path(namespace), path);
        }
    }

    /// OCM-086: a name is one part of a path, or no name: nothing else can be addressed by it.
    #[test]
    fn ocm_086_names_address_nothing_else() {
        let maps = Gvr::new("", "v1", "configmaps");
        for (name, path) in [
            ("system:a", Some("system:a")),
            ("a.b-c", Some("a.b-c")),
            ("a?dryRun=All", Some("a%3FdryRun%3DAll")),
            ("a#b c", Some("a%23b%20c")),
            ("\u{fc}", Some("%C3%BC")),
            ("a/status", None),
            ("a%2fstatus", None),
            (".", None),
            ("..", None),
        ] {
            assert_eq!(super::named(name).ok().as_deref(), path, "{name}");
            assert_eq!(maps.request(name).is_ok(), path.is_some(), "{name}");
        }
        let refused = super::named("a/b").expect_err("no name");
        assert_eq!(
            crate::failure::message_of(&refused),
            "invalid resource name \"a/b\": [may not contain '/']"
        );
        assert_eq!(maps.path("a/b?c"), "/api/v1/namespaces/a%2Fb%3Fc/configmaps");
        assert!(maps.request("").is_ok());
    }

    #[test]
    fn ks_089_what_is_no_list_is_not_an_empty_one() {
        let gvr = Gvr::new("apps", "v1", "deployments");
        let version = json!({"resourceVersion": "7"});
        for (answer, items) in [
            (json!({}), None),
            (json!({"items": []}), None),
            (json!({"metadata": {}, "items": []}), None),
            (json!({"metadata": {"resourceVersion": ""}, "items": []}), None),
            (json!({"metadata": version}), None),
            (json!({"metadata": version, "items": {}}), None),
            (json!({"metadata": version, "items": []}), Some(0)),
            (json!({"metadata": version, "items": null}), Some(0)),
            (json!({"metadata": version, "items": [{}]}), Some(1)),
        ] {
            assert_eq!(
                super::items(&mut answer.clone(), &gvr).ok().map(|items| items.len()),
                items,
                "{answer}"
            );
        }
    }
}
