//! The CustomTransform cache (KS-110 … KS-118): parsed instructions per resource, and the Bindings they
//! affect.
//!
//! It has three relations. USES: which Binding lists objects of which resource. INSTRUCTIONS: what to remove
//! from objects of a resource. SPECS: the spec of each CustomTransform at the time when it contributed to
//! INSTRUCTIONS. Between calls:
//!
//! * a row of INSTRUCTIONS exists only if USES has one for its resource (KS-110);
//! * a row of SPECS exists exactly if its CustomTransform contributed to an existing row of INSTRUCTIONS
//!   (KS-111).
//!
//! Cost of a call: the CustomTransforms of one resource, or the Bindings that use it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use apis::control::bounded_errors;

use super::path::Path;

/// Group and lower-case plural name of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name.
    pub resource: String,
}

impl GroupResource {
    /// A resource by its two names.
    pub fn new(group: &str, resource: &str) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

/// The paths to remove from objects of one resource.
pub type Instructions = BTreeSet<Path>;

/// The spec of a CustomTransform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The affected resource.
    pub of: GroupResource,
    /// JSONPaths, as written.
    pub remove: Vec<String>,
}

/// Parses an entry of `remove`. A faulty entry is skipped and the others apply (KS-104).
///
/// # Errors
///
/// A line for the user that says what is wrong.
pub fn parse_removal(index: usize, text: &str) -> Result<Path, String> {
    match Path::parse(text) {
        Err(error) => Err(format!("Error in spec.remove[{index}]: {error}")),
        Ok(path) if path.is_root() => {
            Err(format!("Invalid spec.remove[{index}]: it identifies the whole object"))
        }
        Ok(path) if path.is_identity() => {
            Err(format!("Invalid spec.remove[{index}]: it removes what identifies the object"))
        }
        Ok(path) => Ok(path),
    }
}

impl Spec {
    fn paths(&self) -> impl Iterator<Item = Path> {
        self.remove.iter().enumerate().filter_map(|(index, text)| parse_removal(index, text).ok())
    }

    fn texts(&self) -> BTreeSet<String> {
        self.remove.iter().cloned().collect()
    }
}

/// The cache.
#[derive(Debug, Default)]
pub struct Transforms {
    /// USES, by Binding and by resource.
    uses: HashMap<String, BTreeSet<GroupResource>>,
    users: HashMap<GroupResource, BTreeSet<String>>,
    /// INSTRUCTIONS.
    instructions: HashMap<GroupResource, Arc<Instructions>>,
    /// SPECS, and the same by resource.
    specs: HashMap<String, (GroupResource, BTreeSet<String>)>,
    contributors: HashMap<GroupResource, BTreeSet<String>>,
}

/// Names of Bindings that must be processed again.
pub type Affected = BTreeSet<String>;

impl Transforms {
    /// Returns the instructions for objects of `of` in `binding`. From now on `binding` is returned as
    /// affected when they change (KS-112). `current` returns all CustomTransforms for `of` by name, and is
    /// called only if needed. The instructions of several CustomTransforms are united (KS-117).
    ///
    /// The affected Bindings may include `binding` itself: this call may find that the instructions it
    /// received for another resource, in this pass or an earlier one, are outdated.
    pub fn changes_for<'a, I>(
        &mut self,
        of: &GroupResource,
        binding: &str,
        current: impl FnOnce() -> I,
    ) -> (Arc<Instructions>, Affected)
    where
        I: IntoIterator<Item = (&'a str, &'a Spec)>,
    {
        self.uses.entry(binding.to_owned()).or_default().insert(of.clone());
        self.users.entry(of.clone()).or_default().insert(binding.to_owned());
        if let Some(known) = self.instructions.get(of) {
            return (known.clone(), Affected::new());
        }
        let (mut instructions, mut affected) = (Instructions::new(), Affected::new());
        for (name, spec) in current() {
            instructions.extend(spec.paths());
            // The CustomTransform was about another resource. Its own event may come too late to invalidate
            // that resource.
            if let Some((old, _)) = self.specs.get(name).cloned().filter(|(old, _)| old != of) {
                affected.extend(self.invalidate(&old));
            }
            self.specs.insert(name.to_owned(), (of.clone(), spec.texts()));
            self.contributors.entry(of.clone()).or_default().insert(name.to_owned());
        }
        let instructions = Arc::new(instructions);
        self.instructions.insert(of.clone(), instructions.clone());
        (instructions, affected)
    }

    /// Notes that a CustomTransform was created or changed, or deleted (`None`) (KS-113).
    pub fn note(&mut self, name: &str, now: Option<&Spec>) -> Affected {
        let before = self.specs.get(name).cloned();
        let mut affected = Affected::new();
        match (&before, now) {
            (None, None) => return affected,
            (Some((of, texts)), Some(now)) if *of == now.of && *texts == now.texts() => return affected,
            _ => {}
        }
        if let Some((of, _)) = &before {
            affected.extend(self.invalidate(of));
        }
        if let Some(now) = now {
            affected.extend(self.invalidate(&now.of));
        }
        affected
    }

    /// Sets the resources whose objects `binding` lists; empty once it is deleted (KS-114).
    pub fn set_binding_group_resources(&mut self, binding: &str, now: BTreeSet<GroupResource>) {
        let before = self.uses.remove(binding).unwrap_or_default();
        for gone in before.difference(&now) {
            let Some(users) = self.users.get_mut(gone) else { continue };
            users.remove(binding);
            if users.is_empty() {
                self.users.remove(gone);
                self.invalidate(gone);
            }
        }
        for new in now.difference(&before) {
            self.users.entry(new.clone()).or_default().insert(binding.to_owned());
        }
        if !now.is_empty() {
            self.uses.insert(binding.to_owned(), now);
        }
    }

    /// Drops the instructions for `of` and the specs that contributed to them.
    fn invalidate(&mut self, of: &GroupResource) -> Affected {
        if self.instructions.remove(of).is_none() {
            return Affected::new();
        }
        for name in self.contributors.remove(of).unwrap_or_default() {
            self.specs.remove(&name);
        }
        self.users.get(of).cloned().unwrap_or_default()
    }
}

/// The errors and warnings for the status of a CustomTransform (KS-115).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Faulty entries of `remove`.
    pub errors: Vec<String>,
    /// Possible mistakes.
    pub warnings: Vec<String>,
}

/// Computes errors and warnings (KS-115). `sharing` are the names of all CustomTransforms for the same
/// resource.
pub fn verdict(spec: &Spec, sharing: &BTreeMap<&str, &Spec>) -> Verdict {
    let faults = spec.remove.iter().enumerate().filter_map(|(index, text)| parse_removal(index, text).err());
    let errors = bounded_errors(faults.collect());
    let names = || sharing.keys().copied().collect::<Vec<_>>().join(", ");
    let warnings = (sharing.len() > 1).then(|| {
        format!(
            "multiple CustomTransform objects specify the same GroupResource; their names are {}",
            names()
        )
    });
    Verdict { errors, warnings: warnings.into_iter().collect() }
}

#[cfg(test)]
mod tests;
