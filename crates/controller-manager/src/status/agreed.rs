//! What objects agree with already.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::decision::{Reported, executing_count};
use crate::{binding::world::Request, identity::ObjectId};

/// What was wanted of each object when it was last found or brought there, and the version that it had then. As long as
/// both are the same there is nothing to do about it, and it need not be read: so the echo of an own write costs no request.
#[derive(Default)]
pub(super) struct Agreed(Mutex<HashMap<ObjectId, Agreement>>);

struct Agreement {
    version: Box<str>,
    wanted: Wanted,
}

/// All that a plan follows from, but for the object itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    reported: Reported,
    count: Option<String>,
}

impl Wanted {
    pub(super) fn new(request: &Request, reported: &Reported) -> Self {
        Self { reported: reported.clone(), count: executing_count(request) }
    }
}

impl Agreed {
    /// Whether the object in this version is as wanted.
    pub(super) fn is(&self, id: &ObjectId, version: &str, wanted: &Wanted) -> bool {
        let known = self.0.lock();
        known.get(id).is_some_and(|it| *it.version == *version && it.wanted == *wanted)
    }

    /// Takes note that the object in this version is as wanted.
    pub(super) fn put(&self, id: &ObjectId, version: &str, wanted: Wanted) {
        self.0.lock().insert(id.clone(), Agreement { version: version.into(), wanted });
    }

    /// Nothing is wanted of it, or it is gone.
    pub(super) fn forget(&self, id: &ObjectId) {
        self.0.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::identity::GroupResource;

    /// KS-156: as long as neither the object nor what is wanted of it changes there is nothing to do.
    #[test]
    fn ks_156_another_version_and_another_wish_are_looked_at() {
        let agreed = Agreed::default();
        let id = ObjectId::new(Arc::new(GroupResource::new("apps", "deployments")), "n", "web");
        let clusters = |names: &[&str]| Request {
            singleton: true,
            clusters: names.iter().map(|name| (*name).into()).collect(),
            ..Request::default()
        };
        let copied = |replicas| Reported::Copied(Arc::new(json!({"replicas": replicas})));
        let wanted = Wanted::new(&clusters(&["a"]), &copied(1));
        assert!(!agreed.is(&id, "7", &wanted));
        agreed.put(&id, "7", wanted.clone());
        assert!(agreed.is(&id, "7", &wanted));
        assert!(agreed.is(&id, "7", &Wanted::new(&clusters(&["b"]), &copied(1))), "the same from elsewhere");
        assert!(!agreed.is(&id, "8", &wanted));
        assert!(!agreed.is(&id, "7", &Wanted::new(&clusters(&["a"]), &copied(2))));
        assert!(!agreed.is(&id, "7", &Wanted::new(&clusters(&["a", "b"]), &copied(1))));
        agreed.forget(&id);
        assert!(!agreed.is(&id, "7", &wanted));
    }
}
