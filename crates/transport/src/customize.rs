//! Seams for what a later stage fills in: CustomTransforms (§4.5) and template expansion (§4.6).

use std::sync::Arc;

use serde_json::Value;

use crate::content::Content;

/// What happens to a Binding of which an object could not be customised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Nothing new is propagated, what was propagated stays (KS-096).
    Freeze,
    /// The object is left out, the others are delivered.
    Omit,
}

/// Adapts objects: once for all destinations, and for each destination.
pub trait Customizer: Send + Sync + 'static {
    /// Number that changes whenever [`Customizer::transform`] would do something else for this group and resource.
    fn revision(&self, _binding: &str, _group: &str, _resource: &str) -> u64 {
        0
    }

    /// Applies the CustomTransforms for `group`/`resource` to a cleaned object (KS-104).
    fn transform(&self, _binding: &str, _group: &str, _resource: &str, _object: &mut Value) {}

    /// The object as it is to be in one destination. Called only for objects that ask for it (KS-124).
    fn customize(&self, destination: &str, content: &Arc<Content>) -> Result<Arc<Content>, String>;

    /// What an error of [`Customizer::customize`] means.
    fn on_error(&self) -> OnError {
        OnError::Freeze
    }
}

/// Knows no templates: an object that asks for expansion is an error of that object, and not delivered unexpanded.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTemplates;

impl Customizer for NoTemplates {
    fn customize(&self, destination: &str, content: &Arc<Content>) -> Result<Arc<Content>, String> {
        Err(format!("template: {destination}/{}: template expansion is not supported yet", content.identity))
    }

    fn on_error(&self) -> OnError {
        OnError::Omit
    }
}
