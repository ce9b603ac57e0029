//! Template expansion of a Binding's objects for each destination, with its results cached. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    content::{Content, Wrapee},
    customize::properties::Properties,
    identity::Identity,
};

/// The input and the result of an expansion.
pub(super) struct Expansion {
    of: Arc<Content>,
    properties: Properties,
    result: Result<Arc<Content>, Vec<String>>,
}

/// The last expansions, by destination and original.
#[derive(Default)]
pub(super) struct Expansions(HashMap<String, HashMap<Arc<Identity>, Expansion>>);

impl Expansions {
    /// Returns the results for a destination.
    pub(super) fn of(&self, destination: &str) -> Option<&HashMap<Arc<Identity>, Expansion>> {
        self.0.get(destination)
    }

    /// Returns the cached result for this content with these properties.
    fn known(
        &self,
        destination: &str,
        content: &Arc<Content>,
        properties: &Properties,
    ) -> Option<Result<Arc<Content>, Vec<String>>> {
        let known = self.0.get(destination)?.get(&content.identity)?;
        let same = Arc::ptr_eq(&known.of, content)
            && (Arc::ptr_eq(&known.properties, properties) || known.properties == *properties);
        same.then(|| known.result.clone())
    }
}

/// Expands all of `contents` for all destinations, unless the result is cached.
pub(super) fn expand_all(
    known: &Expansions,
    contents: &[Arc<Content>],
    properties: &BTreeMap<String, Properties>,
) -> Expansions {
    let one = |destination: &str, content: &Arc<Content>, properties: &Properties| {
        let result = known
            .known(destination, content, properties)
            .unwrap_or_else(|| expand(destination, content, properties));
        Expansion { of: content.clone(), properties: properties.clone(), result }
    };
    let each = properties.iter().map(|(destination, properties)| {
        let all = contents
            .iter()
            .map(|content| (content.identity.clone(), one(destination, content, properties)))
            .collect();
        (destination.clone(), all)
    });
    Expansions(each.collect())
}

/// An object that cannot be delivered to a destination, and lines that say why.
pub(super) type Problem = (Arc<Identity>, Vec<String>);

/// Selects what is delivered to one destination and reports the objects that cannot be (KS-126). An object
/// cannot be delivered if its expansion failed, or if it expanded to an object that exists already: the two
/// would overwrite each other, and neither the Binding nor the cluster would show why.
pub(super) fn tailored(
    destination: &str,
    wrapees: &[Wrapee],
    results: Option<&HashMap<Arc<Identity>, Expansion>>,
) -> (Vec<Wrapee>, Vec<Problem>) {
    let (mut own, mut problems) = (Vec::with_capacity(wrapees.len()), Vec::new());
    let mut origins: HashMap<Arc<Identity>, &Wrapee> = HashMap::with_capacity(wrapees.len());
    for wrapee in wrapees {
        let original = &wrapee.content.identity;
        let content = match results.and_then(|results| results.get(original)).map(|it| &it.result) {
            None => &wrapee.content,
            Some(Ok(content)) => content,
            Some(Err(lines)) => {
                problems.push((original.clone(), lines.clone()));
                continue;
            }
        };
        let first = *origins.entry(content.identity.clone()).or_insert(wrapee);
        // An object that is listed twice is not a template error.
        if first.content.identity != *original {
            let (first, both) = (&first.content.identity, &content.identity);
            let line =
                format!("template: {destination}/{original}: it and {first} would both be {both} there");
            problems.push((original.clone(), vec![line]));
            continue;
        }
        own.push(Wrapee { content: content.clone(), create_only: wrapee.create_only });
    }
    (own, problems)
}

fn expand(
    destination: &str,
    content: &Arc<Content>,
    properties: &Properties,
) -> Result<Arc<Content>, Vec<String>> {
    let Some(templated) = &content.templated else { return Ok(content.clone()) };
    let object = templated.expand(destination, &content.identity, properties)?;
    content.customised(&object).map(Arc::new).ok_or_else(|| {
        vec![format!("template: {destination}/{}: expansion leaves no name or kind", content.identity)]
    })
}
