//! Creates children that no rule declares, where that is allowed (MC-149), and never looks at them again.

use runtime::mapper::Mapper;
use serde_json::Value;

use crate::{apply, map::group, object, resource::Served, writes::Writer};

/// Creates the children that do not exist. The parent owns them where the API allows it: in its namespace, or
/// anywhere if it is cluster-scoped. Elsewhere the garbage collector would delete them at once because of the
/// owner reference, as happens with the original. One request for each child, and discovery for a new kind.
pub async fn make(
    writer: &Writer,
    mapper: &Mapper,
    parent: &Value,
    children: &[Value],
) -> Result<(), String> {
    let mut errors = Vec::new();
    for child in children {
        if let Err(why) = make_one(writer, mapper, parent, child).await {
            let what = object::display(object::namespace(child), object::name(child));
            errors.push(format!("creating undeclared {} {what}: {why}", object::kind(child)));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

async fn make_one(writer: &Writer, mapper: &Mapper, parent: &Value, child: &Value) -> Result<(), String> {
    let (version, kind) = (object::api_version(child), object::kind(child));
    let found = mapper.by_kind(version, kind).await.map_err(|error| runtime::failure::message_of(&error))?;
    let found = found.ok_or_else(|| format!("{version} has no kind {kind}"))?;
    let served = Served { gvr: found.gvr, kind: found.kind, namespaced: found.namespaced, has_status: false };
    let (body, owned) = placed(child, parent, served.namespaced)?;
    let body = match (owned, writer.strategy().is_server_side()) {
        (true, false) => apply::create(&body, parent),
        (true, true) => group::owned(body, parent),
        (false, _) => body,
    };
    // An existing object is left alone, whoever created it.
    writer.create_own(&served, &body).await.map(drop).map_err(|refused| refused.text)
}

/// Returns the body with its namespace, and whether `parent` can own it.
fn placed(child: &Value, parent: &Value, namespaced: bool) -> Result<(Value, bool), String> {
    let mut body = child.clone();
    let (asked, own) = (object::namespace(child).to_owned(), object::namespace(parent));
    let namespace = match (namespaced, asked.is_empty()) {
        (false, _) => String::new(),
        (true, false) => asked,
        (true, true) if own.is_empty() => return Err("metadata.namespace is required".into()),
        (true, true) => own.to_owned(),
    };
    let owned = own.is_empty() || own == namespace;
    if let Some(meta) = object::metadata_mut(&mut body) {
        if namespace.is_empty() {
            meta.remove("namespace");
        } else {
            meta.insert("namespace".into(), namespace.into());
        }
    }
    Ok((body, owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// MC-149: the namespace of an undeclared child, and whether its parent can own it there.
    #[test]
    fn mc_149_places_of_undeclared_children() {
        let place = |parent: &str, asked: &str, namespaced: bool| {
            let parent = json!({"metadata": {"namespace": parent}});
            let child = json!({"metadata": {"name": "s", "namespace": asked}});
            placed(&child, &parent, namespaced)
                .map(|(body, owned)| (object::namespace(&body).to_owned(), owned))
        };
        let at = |namespace: &str, owned: bool| Ok((namespace.to_owned(), owned));
        assert_eq!(place("n", "", true), at("n", true));
        assert_eq!(place("n", "n", true), at("n", true));
        assert_eq!(place("n", "m", true), at("m", false));
        assert_eq!(place("n", "", false), at("", false));
        assert_eq!(place("", "m", true), at("m", true));
        assert_eq!(place("", "", false), at("", true));
        assert!(place("", "", true).is_err());
    }
}
