//! Fills in the variables of a hook's templates (SP-014 to SP-016).
//!
//! Each text of a template is expanded by itself. So a value can never end the text in which it stands, and an action
//! that begins in one text cannot end in another.

use std::sync::Arc;

use machinery::template::{Limits, Template};
use serde_json::{Map, Value};

use super::Vars;

/// A template that cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RenderError {
    /// A variable that nobody defines.
    #[error("template {index}: variable {name} is not defined; give it in vars or globalVars")]
    Undefined { index: usize, name: String },
    /// The text is no template, or fails.
    #[error("template {index}: {why}")]
    Broken { index: usize, why: String },
    /// All texts of the hook together take too much work.
    #[error("template {index}: this hook takes more than {STEPS} steps to fill in")]
    TooMuch { index: usize },
    /// The object is larger than an API server takes.
    #[error("template {index}: it becomes larger than {OBJECT_BYTES} bytes")]
    TooLarge { index: usize },
    /// All objects of the hook together are too large.
    #[error("template {index}: the objects of this hook become larger than {HOOK_BYTES} bytes together")]
    TooLargeTogether { index: usize },
    /// The result is no Kubernetes object.
    #[error("template {index}: it has no {field}")]
    NoObject { index: usize, field: &'static str },
}

/// Most steps that the texts of one hook may take together.
const STEPS: usize = 1_000_000;
/// Most steps that one text may take.
const STEPS_OF_A_TEXT: usize = 100_000;
/// Most bytes of the texts of one object: no API server takes a larger request.
const OBJECT_BYTES: usize = 3 * 1024 * 1024;
/// Most bytes of the texts of all objects of one hook.
const HOOK_BYTES: usize = 16 * 1024 * 1024;

/// What the templates of one hook may still cost.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    steps: usize,
    bytes: usize,
}

impl Budget {
    /// The budget of a whole hook.
    pub(crate) fn of_a_hook() -> Self {
        Self { steps: STEPS, bytes: HOOK_BYTES }
    }
}

/// Fills in all templates of a hook, and drops the results: only one object is in memory at a time. Returns the first error.
pub(crate) fn check_all(templates: &[Value], vars: &Arc<Vars>) -> Result<(), RenderError> {
    let mut budget = Budget::of_a_hook();
    templates
        .iter()
        .enumerate()
        .try_for_each(|(index, template)| render(index, template, vars, &mut budget).map(drop))
}

/// What the texts of one object may still cost.
struct Left<'a> {
    hook: &'a mut Budget,
    bytes: usize,
}

impl Left<'_> {
    /// Counts the bytes of a text, expanded or not.
    fn count(&mut self, index: usize, bytes: usize) -> Result<(), RenderError> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(RenderError::TooLarge { index })?;
        let left = self.hook.bytes.checked_sub(bytes);
        self.hook.bytes = left.ok_or(RenderError::TooLargeTogether { index })?;
        Ok(())
    }
}

/// Expands the template at `index` of a hook and checks that the result is an object. What it costs is taken from `budget`.
pub(crate) fn render(
    index: usize,
    template: &Value,
    vars: &Arc<Vars>,
    budget: &mut Budget,
) -> Result<Value, RenderError> {
    let mut left = Left { hook: budget, bytes: OBJECT_BYTES };
    let object = expand(index, template, vars, &mut left)?;
    let lacks = |path: &str| object.pointer(path).and_then(Value::as_str).is_none_or(str::is_empty);
    for (path, field) in
        [("/apiVersion", "apiVersion"), ("/kind", "kind"), ("/metadata/name", "metadata.name")]
    {
        if lacks(path) {
            return Err(RenderError::NoObject { index, field });
        }
    }
    Ok(object)
}

fn expand(index: usize, value: &Value, vars: &Arc<Vars>, left: &mut Left<'_>) -> Result<Value, RenderError> {
    Ok(match value {
        Value::String(text) => Value::String(expand_text(index, text, vars, left)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| expand(index, item, vars, left)).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let mut expanded = Map::new();
            for (key, field) in fields {
                let key = expand_text(index, key, vars, left)?;
                expanded.insert(key, expand(index, field, vars, left)?);
            }
            Value::Object(expanded)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

fn expand_text(
    index: usize,
    text: &str,
    vars: &Arc<Vars>,
    left: &mut Left<'_>,
) -> Result<String, RenderError> {
    if !text.contains("{{") {
        left.count(index, text.len())?;
        return Ok(text.to_owned());
    }
    let limits = Limits { steps: left.hook.steps.min(STEPS_OF_A_TEXT), ..Limits::default() };
    let (expanded, steps) = Template::new(text, &limits).expand_counting("text", vars, &limits);
    left.hook.steps = left.hook.steps.saturating_sub(steps);
    let expanded = expanded.map_err(|error| {
        let why = error.to_string();
        match undefined(&why) {
            Some(name) => RenderError::Undefined { index, name: name.to_owned() },
            None if left.hook.steps == 0 => RenderError::TooMuch { index },
            None => RenderError::Broken { index, why },
        }
    })?;
    left.count(index, expanded.len())?;
    Ok(expanded)
}

/// The variable that a template asks for in vain, by the error of Go's template engine.
fn undefined(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once("map has no entry for key \"")?;
    Some(rest.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: Value, vars: &[(&str, &str)]) -> Result<Value, RenderError> {
        let vars = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        render(3, &template, &Arc::new(vars), &mut Budget::of_a_hook())
    }

    fn config(data: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data})
    }

    /// SP-014: variables, functions and conditions, in keys and values at any depth; other values stay as they are.
    #[test]
    fn sp_014_every_text_is_expanded() {
        let template = json!({"apiVersion": "v1", "kind": "Job", "metadata": {"name": "{{.Name}}-job"},
            "spec": {"n": 3, "ok": true, "{{.Name}}": ["a", "{{if eq .Name \"w\"}}yes{{else}}no{{end}}", {"x": "{{printf \"%q\" .Name}}"}]}});
        let expected = json!({"apiVersion": "v1", "kind": "Job", "metadata": {"name": "w-job"},
            "spec": {"n": 3, "ok": true, "w": ["a", "yes", {"x": "\"w\""}]}});
        assert_eq!(rendered(template, &[("Name", "w")]), Ok(expected));
    }

    /// SP-016: no value can break or add structure.
    #[test]
    fn sp_016_values_stay_texts() {
        let evil = "\"}, \"kind\": \"Secret\", \\ \n {{.Name}}";
        let object = rendered(config(json!({"a": "{{.Evil}}"})), &[("Evil", evil)]).unwrap();
        assert_eq!(object, config(json!({"a": evil})));
    }

    /// SP-015: a variable that nobody defines is named.
    #[test]
    fn sp_015_an_undefined_variable_is_an_error() {
        let error = rendered(config(json!({"a": "x{{.ITSName}}"})), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "template 3: variable ITSName is not defined; give it in vars or globalVars"
        );
    }

    /// SP-014: what the engine refuses is reported with the template's number.
    #[test]
    fn sp_014_broken_templates_are_reported() {
        for (text, part) in [
            ("{{.a", "unclosed action"),
            ("{{nofunc .a}}", "function \"nofunc\" not defined"),
            ("{{range .a}}{{end}}", "range"),
        ] {
            let error = rendered(config(json!({"a": text})), &[("a", "1")]).unwrap_err().to_string();
            assert!(error.starts_with("template 3: ") && error.contains(part), "{error}");
        }
        let error = rendered(json!({"apiVersion": "v1", "kind": "ConfigMap"}), &[]).unwrap_err();
        assert_eq!(error.to_string(), "template 3: it has no metadata.name");
    }

    /// KS-123: the bounds of the engine hold for each text, and a bound for all texts of a hook together.
    #[test]
    fn a_hook_has_a_budget_of_steps() {
        let nested = "{{range $i, $e := (printf \"%1000d\" 1)}}x{{end}}";
        let loops = "{{define \"a\"}}{{template \"a\" .}}{{end}}{{template \"a\" .}}";
        for text in [nested, loops] {
            assert!(rendered(config(json!({"a": text})), &[]).is_err(), "{text}");
        }
        let many: Vec<String> = (0..30_000).map(|_| "{{.v}}{{.v}}{{.v}}{{.v}}".to_owned()).collect();
        let template = config(json!({"a": many}));
        assert!(rendered(template.clone(), &[("v", "1")]).is_ok());
        let vars = Arc::new(Vars::from([("v".to_owned(), "1".to_owned())]));
        let error = check_all(&vec![template; 10], &vars).unwrap_err();
        assert!(matches!(error, RenderError::TooMuch { .. }), "{error}");
    }

    /// SP-014: neither one object nor all objects of a hook can fill the memory, however small the templates are.
    #[test]
    fn sp_014_a_hook_has_a_budget_of_bytes() {
        let vars = Arc::new(Vars::from([("v".to_owned(), "x".repeat(500_000))]));
        let of = |texts: usize| config(json!({"a": vec!["{{.v}}"; texts]}));
        let check = |templates: &[Value]| check_all(templates, &vars);
        assert_eq!(check(&[of(6)]), Ok(()));
        assert_eq!(check(&[of(1), of(7)]), Err(RenderError::TooLarge { index: 1 }));
        assert_eq!(check(&vec![of(5); 6]), Ok(()));
        assert_eq!(check(&vec![of(5); 7]), Err(RenderError::TooLargeTogether { index: 6 }));
        let plain = config(json!({"a": "x".repeat(OBJECT_BYTES)}));
        assert_eq!(check(&[plain]), Err(RenderError::TooLarge { index: 0 }), "without any action");
    }
}
