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
    /// All texts together are too long, or take too much work.
    #[error("template {index}: it takes more than {STEPS} steps to fill in")]
    TooMuch { index: usize },
    /// The result is no Kubernetes object.
    #[error("template {index}: it has no {field}")]
    NoObject { index: usize, field: &'static str },
}

/// Most steps that the texts of one template may take together.
const STEPS: usize = 100_000;

/// Expands the template at `index` of a hook and checks that the result is an object.
pub(crate) fn render(index: usize, template: &Value, vars: &Arc<Vars>) -> Result<Value, RenderError> {
    let mut left = STEPS;
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

fn expand(index: usize, value: &Value, vars: &Arc<Vars>, left: &mut usize) -> Result<Value, RenderError> {
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

fn expand_text(index: usize, text: &str, vars: &Arc<Vars>, left: &mut usize) -> Result<String, RenderError> {
    if !text.contains("{{") {
        return Ok(text.to_owned());
    }
    let limits = Limits { steps: *left, ..Limits::default() };
    let (expanded, steps) = Template::new(text, &limits).expand_counting("text", vars, &limits);
    *left = left.saturating_sub(steps);
    expanded.map_err(|error| {
        let why = error.to_string();
        match undefined(&why) {
            Some(name) => RenderError::Undefined { index, name: name.to_owned() },
            None if *left == 0 => RenderError::TooMuch { index },
            None => RenderError::Broken { index, why },
        }
    })
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
        render(3, &template, &Arc::new(vars))
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

    /// KS-123: the bounds of the engine hold for all texts of a template together.
    #[test]
    fn a_template_has_a_budget() {
        let nested = "{{range $i, $e := (printf \"%1000d\" 1)}}x{{end}}";
        let loops = "{{define \"a\"}}{{template \"a\" .}}{{end}}{{template \"a\" .}}";
        for text in [nested, loops] {
            assert!(rendered(config(json!({"a": text})), &[]).is_err(), "{text}");
        }
        let many: Vec<String> = (0..30_000).map(|_| "{{.v}}{{.v}}{{.v}}{{.v}}".to_owned()).collect();
        let error = rendered(config(json!({"a": many})), &[("v", "1")]).unwrap_err();
        assert_eq!(error, RenderError::TooMuch { index: 3 });
    }
}
