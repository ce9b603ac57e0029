//! What components do with texts that clients wrote: templates and JSONPath.

use std::collections::BTreeMap;
use std::sync::Arc;

use machinery::jsonpath::JsonPath;
use machinery::template::{Limits, Template};
use serde_json::json;

use crate::operations::list;
use crate::{Call, Operation, Plan};

fn plan(function: impl FnOnce() -> Result<(), String> + 'static) -> Plan {
    Plan { before: vec![], measured: Call::function(function), after: vec![] }
}

/// Expands a template over properties `k0`, `k1` and so on.
fn expanding(source: String, properties: usize) -> Plan {
    let data: BTreeMap<String, String> =
        (0..properties).map(|n| (format!("k{n}"), format!("value {n}"))).collect();
    let data = Arc::new(data);
    plan(move || {
        let limits = Limits::default();
        let expanded = Template::new(&source, &limits).expand("t", &data, &limits);
        expanded.map(drop).map_err(|error| error.to_string())
    })
}

/// Searches a list of `count` maps.
fn searching(path: String, count: usize) -> Plan {
    let one = |n: usize| json!({"name": format!("n{n}"), "value": n, "inner": {"name": "x"}});
    let root = json!({"list": list(count, one)});
    plan(move || {
        let path = JsonPath::relaxed(&path).map_err(|error| error.to_string())?;
        if path.find(&root).is_empty() { Err("nothing was found".into()) } else { Ok(()) }
    })
}

pub(crate) fn all() -> Vec<Operation> {
    vec![
        Operation {
            name: "template: all properties",
            size: 1000,
            plan: |n| expanding("{{range $k, $v := .}}{{$k}}={{$v}}\n{{end}}".into(), n),
        },
        Operation {
            name: "template: many actions",
            size: 400,
            plan: |n| {
                let action = |n: usize| format!("{{{{.k{n}}}}} {{{{len .k{n}}}}}\n");
                expanding((0..n).map(action).collect(), n)
            },
        },
        Operation {
            name: "template: many definitions",
            size: 300,
            plan: |n| {
                let define =
                    |n: usize| format!("{{{{define \"t{n}\"}}}}x{{{{end}}}}{{{{template \"t{n}\"}}}}");
                expanding((0..n).map(define).collect(), 1)
            },
        },
        Operation {
            name: "JSONPath: filter",
            size: 2000,
            plan: |n| searching("{.list[?(@.name==\"n1\")].value}".into(), n),
        },
        Operation {
            name: "JSONPath: everything below",
            size: 2000,
            plan: |n| searching("{..name}".into(), n),
        },
        Operation {
            name: "JSONPath: many indexes",
            size: 400,
            plan: |n| {
                let indexes: Vec<String> = (0..n).map(|n| n.to_string()).collect();
                searching(format!("{{.list[{}].value}}", indexes.join(",")), n)
            },
        },
    ]
}

/// The data of these operations is what it seems.
#[test]
fn functions_of_the_growth_table_do_something() {
    let broken = searching("{.nothing}".into(), 3).measured.function.map(|function| function());
    assert_eq!(broken, Some(Err("nothing was found".to_owned())));
}
