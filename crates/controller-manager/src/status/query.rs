//! A StatusCollector as a query: validation, and evaluation for one WEC (KS-170 … KS-178). Pure.

use std::collections::BTreeSet;

use apis::control::{NamedAggregator, NamedExpression, StatusCollectorSpec};
use machinery::cel::{CompileError, EvalError, Expression, Scope, Value, Variable};
use machinery::json::{DEPTH_MAX, depth};
use serde_json::{Value as Json, json};

use super::sight::Sight;

/// The variables of expressions (KS-176).
const VARIABLES: [Variable; 4] = [
    Variable::texts("inventory"),
    Variable::map("obj"),
    Variable::map("returned"),
    Variable::map("propagation"),
];
/// The time of a report that never arrived.
const NEVER: &str = "0001-01-01T00:00:00Z";
/// Number of rows if the collector sets no limit (KS-183).
const DEFAULT_LIMIT: usize = 20;

/// How the values of a group are aggregated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregator {
    Count,
    Sum,
    Avg,
    Min,
    Max,
}

impl Aggregator {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "COUNT" => Self::Count,
            "SUM" => Self::Sum,
            "AVG" => Self::Avg,
            "MIN" => Self::Min,
            "MAX" => Self::Max,
            _ => return None,
        })
    }
}

/// An aggregated column.
#[derive(Debug)]
struct Field {
    aggregator: Aggregator,
    subject: Option<Expression>,
}

/// The columns.
#[derive(Debug)]
enum Columns {
    /// One value for each WEC.
    Select(Vec<Expression>),
    /// One row for each group of WECs.
    Combine { groups: Vec<Expression>, fields: Vec<Field> },
}

/// A valid, compiled StatusCollector.
#[derive(Debug)]
pub struct Query {
    names: Vec<String>,
    filter: Option<Expression>,
    columns: Columns,
    limit: usize,
    uses_object: bool,
}

/// The result of validating a StatusCollector.
#[derive(Debug, Default)]
pub struct Verdict {
    /// `None` if the collector is invalid; it then counts as missing (KS-171).
    pub query: Option<Query>,
    /// Errors and warnings.
    pub errors: Vec<String>,
}

/// The row of one WEC.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// The filter excludes the WEC.
    Dropped,
    /// The values. For a plain selection there is one for each column; otherwise those of the groups,
    /// followed by one for each aggregation (null where it has no subject). The errors are those of single
    /// columns, whose values are null.
    Kept { cells: Vec<Value>, errors: Vec<CellError> },
    /// Only errors, because the filter or any part of an aggregation failed.
    Broken(Vec<CellError>),
}

impl Row {
    /// Returns the errors.
    pub fn errors(&self) -> &[CellError] {
        match self {
            Self::Dropped => &[],
            Self::Kept { errors, .. } | Self::Broken(errors) => errors,
        }
    }
}

/// An error of one column for one WEC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellError {
    /// Index of the column; `None` for the filter.
    pub column: Option<usize>,
    /// The error.
    pub error: String,
}

impl Query {
    /// Validates and compiles a StatusCollector (KS-170).
    pub fn compile(spec: &StatusCollectorSpec) -> Verdict {
        let mut errors = Vec::new();
        let combines = !spec.group_by.is_empty() || !spec.combined_fields.is_empty();
        if !spec.select.is_empty() && combines {
            errors.push("groupBy and combinedFields must be empty if select is not".to_owned());
        }
        if !spec.group_by.is_empty() && spec.combined_fields.is_empty() {
            errors.push("groupBy must be empty if combinedFields is".to_owned());
        }
        if !errors.is_empty() {
            return Verdict { query: None, errors };
        }
        let mut compiler = Compiler { errors, uses_object: false };
        let query = compiler.query(spec);
        compiler.names_and_limit(spec);
        let Compiler { mut errors, .. } = compiler;
        let query = errors.is_empty().then_some(query);
        if query.is_some() && spec.select.is_empty() && !combines {
            errors.push(
                "warning: there are no columns, as neither select nor combinedFields is set".to_owned(),
            );
        }
        Verdict { query, errors }
    }

    /// Names of the columns, in order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Most rows in the answer (KS-183).
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of group columns and the aggregations; `None` for a plain selection.
    pub fn aggregations(&self) -> Option<(usize, Vec<Aggregator>)> {
        match &self.columns {
            Columns::Select(_) => None,
            Columns::Combine { groups, fields } => {
                Some((groups.len(), fields.iter().map(|field| field.aggregator).collect()))
            }
        }
    }

    /// Returns whether the answer depends on the workload object (KS-187).
    pub fn uses_object(&self) -> bool {
        self.uses_object
    }

    /// Evaluates the row of one WEC (KS-175, KS-177). `scope` has the variables; see [`subject_scope`] and
    /// [`bind_report`]. Expressions that want to see more of the object than `sight` are errors.
    pub fn row(&self, scope: &Scope, sight: Sight) -> Row {
        match self.filter.as_ref().map(|filter| evaluate(filter, scope, sight)) {
            None | Some(Ok(Value::Bool(true))) => {}
            Some(Ok(Value::Bool(false) | Value::Null)) => return Row::Dropped,
            Some(Ok(other)) => {
                let type_name = other.type_name();
                return Row::broken(format!(
                    "filter expression has type {type_name} but expected bool or null"
                ));
            }
            Some(Err(error)) => return Row::broken(error),
        }
        match &self.columns {
            Columns::Select(columns) => {
                let (cells, errors) = cells(columns.iter().map(Some), scope, sight);
                Row::Kept { cells, errors }
            }
            Columns::Combine { groups, fields } => {
                let subjects = fields.iter().map(|field| field.subject.as_ref());
                let (cells, mut errors) = cells(groups.iter().map(Some).chain(subjects), scope, sight);
                for (column, cell) in cells.iter().take(groups.len()).enumerate() {
                    if matches!(cell, Value::List(_) | Value::Map(_)) {
                        let error = "groupBy expression must evaluate to an atomic value".to_owned();
                        errors.push(CellError { column: Some(column), error });
                    }
                }
                if errors.is_empty() { Row::Kept { cells, errors } } else { Row::Broken(errors) }
            }
        }
    }
}

impl Row {
    fn broken(error: String) -> Self {
        Self::Broken(vec![CellError { column: None, error }])
    }
}

/// KubeStellar's error text for an expression that has no value.
fn unevaluated(error: &EvalError) -> String {
    format!("failed to evaluate expression: {error}")
}

/// KubeStellar's error text for a text that is not an expression.
fn uncompiled(error: &CompileError) -> String {
    let step = match error {
        CompileError::Parse(_) => "parse",
        CompileError::Check(_) => "check",
    };
    format!("failed to {step} expression: {error}")
}

/// Evaluates an expression, unless it wants to see too much.
fn evaluate(expression: &Expression, scope: &Scope, sight: Sight) -> Result<Value, String> {
    match sight.refusal(expression) {
        Some(why) => Err(why.to_owned()),
        None => expression.evaluate(scope).map_err(|error| unevaluated(&error)),
    }
}

fn cells<'e>(
    columns: impl Iterator<Item = Option<&'e Expression>>,
    scope: &Scope,
    sight: Sight,
) -> (Vec<Value>, Vec<CellError>) {
    let mut errors = Vec::new();
    let mut cell = |(column, expression): (usize, Option<&Expression>)| {
        let value = expression.map_or(Ok(Value::Null), |it| evaluate(it, scope, sight));
        value.and_then(not_too_deep).unwrap_or_else(|error| {
            errors.push(CellError { column: Some(column), error });
            Value::Null
        })
    };
    let cells = columns.enumerate().map(&mut cell).collect();
    (cells, errors)
}

/// Levels of objects and lists around a value in a CombinedStatus.
const NESTING: usize = 7;

/// Accepts a value that fits into a CombinedStatus; API servers reject objects that are nested more deeply.
fn not_too_deep(value: Value) -> Result<Value, String> {
    const MOST: usize = DEPTH_MAX - NESTING;
    match &value {
        Value::List(json) | Value::Map(json) if depth(json) > MOST => {
            Err(format!("the value is nested {} levels deep, of at most {MOST}", depth(json)))
        }
        _ => Ok(value),
    }
}

/// Binds the variable that is the same for all WECs: the workload object without its status; empty if there
/// is none.
pub fn subject_scope(object: Option<&Json>) -> Scope<'static> {
    let mut scope = Scope::root();
    scope.bind("obj", object.unwrap_or(&json!({})));
    scope
}

/// Binds the variables of one WEC (KS-176). `status` is what it reports, and `updated` is the time of the
/// last change of that.
pub fn bind_report(scope: &mut Scope, wec: &str, status: Option<&Json>, updated: Option<&str>) {
    scope.bind("inventory", &json!({"name": wec}));
    scope.bind("returned", &json!({"status": status.filter(|it| !it.is_null()).unwrap_or(&json!({}))}));
    scope.bind_time("propagation", "lastReturnedUpdateTimestamp", updated.unwrap_or(NEVER));
}

/// Compiles expressions and collects their errors.
struct Compiler {
    errors: Vec<String>,
    uses_object: bool,
}

impl Compiler {
    /// Compiles an expression; `fault` makes an error text of a compile error.
    fn expression(&mut self, source: &str, fault: impl Fn(String) -> String) -> Option<Expression> {
        match Expression::compile(source, &VARIABLES) {
            Ok(compiled) => {
                self.uses_object |= compiled.mentions("obj");
                Some(compiled)
            }
            Err(error) => {
                self.errors.push(fault(uncompiled(&error)));
                None
            }
        }
    }

    fn list(&mut self, columns: &[NamedExpression], what: &str) -> Vec<Expression> {
        let mut compiled = Vec::new();
        for NamedExpression { name, def } in columns {
            let fault = |error| format!("{what} expression ({name}) invalid: {error}");
            compiled.extend(self.expression(def, fault));
        }
        compiled
    }

    /// Compiles the query. The result may be used only if there are no errors.
    fn query(&mut self, spec: &StatusCollectorSpec) -> Query {
        // An empty filter counts as no filter.
        let filter = spec.filter.as_deref().filter(|filter| !filter.is_empty());
        let filter = filter.and_then(|filter| {
            self.expression(filter, |error| format!("filter expression invalid: {error}"))
        });
        let select = self.list(&spec.select, "select");
        let groups = self.list(&spec.group_by, "groupBy");
        let fields: Vec<Field> = spec.combined_fields.iter().filter_map(|field| self.field(field)).collect();
        let plain = spec.select.iter().chain(&spec.group_by).map(|column| &column.name);
        let names = plain.chain(spec.combined_fields.iter().map(|column| &column.name)).cloned().collect();
        let columns = if spec.combined_fields.is_empty() {
            Columns::Select(select)
        } else {
            Columns::Combine { groups, fields }
        };
        let limit = usize::try_from(spec.limit).ok().filter(|limit| *limit > 0).unwrap_or(DEFAULT_LIMIT);
        Query { names, filter, columns, limit, uses_object: self.uses_object }
    }

    fn field(&mut self, field: &NamedAggregator) -> Option<Field> {
        let name = &field.name;
        let subject = field.subject.as_deref().and_then(|subject| {
            self.expression(subject, |error| {
                format!("combinedField expression ({name}) subject invalid: {error}")
            })
        });
        let aggregator = Aggregator::named(&field.type_);
        let fault = match (aggregator, field.subject.is_some()) {
            (None, _) => format!("unsupported aggregation type {}", field.type_),
            (Some(Aggregator::Count), true) => "subject must be nil for COUNT type".to_owned(),
            (Some(Aggregator::Count), false) | (Some(_), true) => {
                return aggregator.map(|aggregator| Field { aggregator, subject });
            }
            (Some(_), false) => "subject must be set".to_owned(),
        };
        self.errors.push(format!("combinedField expression ({name}) invalid: {fault}"));
        None
    }

    fn names_and_limit(&mut self, spec: &StatusCollectorSpec) {
        let plain = spec.select.iter().chain(&spec.group_by).map(|column| &column.name);
        let mut seen = BTreeSet::new();
        for name in plain.chain(spec.combined_fields.iter().map(|column| &column.name)) {
            if !seen.insert(name) {
                self.errors.push(format!("column name {name:?} is used more than once"));
            }
        }
        if spec.limit < 0 {
            self.errors.push(format!("limit must not be negative, but is {}", spec.limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(spec: Json) -> StatusCollectorSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn errors(of: Json) -> Vec<String> {
        let verdict = Query::compile(&spec(of));
        assert_eq!(verdict.query.is_none(), !verdict.errors.is_empty());
        verdict.errors
    }

    #[test]
    fn ks_170_faults_and_their_order() {
        let column = |name: &str, def: &str| json!({"name": name, "def": def});
        let count = json!({"name": "n", "type": "COUNT"});
        assert_eq!(
            errors(json!({"select": [column("a", "1 +")], "groupBy": [column("b", "1")], "limit": -1})),
            [
                "groupBy and combinedFields must be empty if select is not",
                "groupBy must be empty if combinedFields is",
            ],
            "faults of structure keep the rest from being looked at"
        );
        assert_eq!(
            errors(json!({"select": [column("a", "1")], "combinedFields": [count], "limit": 1})),
            ["groupBy and combinedFields must be empty if select is not"]
        );
        let found =
            errors(json!({"filter": "returned. ==", "select": [column("a", "nobody.x")], "limit": 1}));
        let start =
            "filter expression invalid: failed to parse expression: ERROR: <input>:1:11: Syntax error: ";
        assert!(found[0].starts_with(start), "{found:?}");
        assert_eq!(
            found[1..],
            [
                "select expression (a) invalid: failed to check expression: ERROR: <input>:1:1: undeclared reference to \
              'nobody' (in container '')\n | nobody.x\n | ^"
            ]
        );
        let found = errors(json!({"groupBy": [column("g", "(")], "combinedFields": [
            {"name": "a", "type": "SUM", "subject": "*"}, {"name": "b", "type": "COUNT", "subject": "1"},
            {"name": "c", "type": "MAX"}, {"name": "d", "type": "MEDIAN", "subject": "1"}], "limit": 1}));
        let starts = [
            "groupBy expression (g) invalid: failed to parse expression: ERROR",
            "combinedField expression (a) subject invalid: failed to parse expression: ERROR",
            "combinedField expression (b) invalid: subject must be nil for COUNT type",
            "combinedField expression (c) invalid: subject must be set",
            "combinedField expression (d) invalid: unsupported aggregation type MEDIAN",
        ];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        for (error, start) in found.iter().zip(starts) {
            assert!(error.starts_with(start), "{error}");
        }
        assert_eq!(
            errors(json!({"select": [column("a", "1"), column("a", "2")], "limit": -3})),
            ["column name \"a\" is used more than once", "limit must not be negative, but is -3"]
        );
    }

    #[test]
    fn ks_170_odd_is_not_invalid() {
        let verdict = Query::compile(&spec(json!({"limit": 1})));
        assert!(verdict.query.is_some());
        assert!(verdict.errors[0].starts_with("warning: "));
        let verdict =
            Query::compile(&spec(json!({"filter": "", "select": [{"name": "a", "def": "1"}], "limit": 0})));
        assert!(verdict.errors.is_empty());
        assert_eq!(verdict.query.unwrap().limit(), 20, "KS-183");
    }

    fn row(of: Json) -> Row {
        let query = Query::compile(&spec(of)).query.unwrap();
        let object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2}});
        let scope = subject_scope(Some(&object));
        let mut scope = scope.inner();
        bind_report(&mut scope, "atlas", Some(&json!({"n": 1, "l": [1]})), Some("2026-01-02T03:04:05Z"));
        query.row(&scope, Sight::Whole)
    }

    fn filtered(filter: &str) -> Row {
        row(json!({"filter": filter, "select": [{"name": "a", "def": "inventory.name"}], "limit": 1}))
    }

    #[test]
    fn ks_177_ks_185_what_filters_say() {
        let kept = Row::Kept { cells: vec![Value::String("atlas".into())], errors: vec![] };
        assert_eq!(filtered("returned.status.n < obj.spec.replicas"), kept);
        assert_eq!(filtered("false"), Row::Dropped);
        assert_eq!(filtered("null"), Row::Dropped);
        let broken = |error: &str| Row::Broken(vec![CellError { column: None, error: error.into() }]);
        assert_eq!(filtered("'yes'"), broken("filter expression has type string but expected bool or null"));
        assert_eq!(
            filtered("returned.status.n"),
            broken("filter expression has type int but expected bool or null")
        );
        let missing = |key: &str| broken(&format!("failed to evaluate expression: no such key: {key}"));
        assert_eq!(filtered("returned.status.none"), missing("none"));
        assert_eq!(filtered("inventory.foo == ''"), missing("foo"));
    }

    #[test]
    fn ks_176_variables_have_these_values() {
        for yes in [
            "inventory == {'name': 'atlas'}",
            "!has(obj.status) && obj.metadata.name == 'web'",
            "returned.status == {'n': 1, 'l': [1]}",
            "propagation.lastReturnedUpdateTimestamp == timestamp('2026-01-02T03:04:05Z')",
        ] {
            assert!(matches!(filtered(yes), Row::Kept { .. }), "{yes}");
        }
        let query = Query::compile(&spec(json!({"select": [
            {"name": "a", "def": "obj"}, {"name": "b", "def": "returned"},
            {"name": "c", "def": "propagation.lastReturnedUpdateTimestamp"}], "limit": 1})));
        let scope = subject_scope(None);
        let mut scope = scope.inner();
        bind_report(&mut scope, "atlas", None, None);
        let Row::Kept { cells, .. } = query.query.unwrap().row(&scope, Sight::Whole) else { panic!() };
        let never = Value::Timestamp("0001-01-01T00:00:00Z".into());
        assert_eq!(cells, [Value::Map(json!({})), Value::Map(json!({"status": {}})), never]);
    }

    /// KS-199: a value that would nest the CombinedStatus more deeply than an API server accepts becomes an
    /// error.
    #[test]
    fn ks_199_a_value_may_be_too_deep() {
        let query =
            Query::compile(&spec(json!({"select": [{"name": "a", "def": "returned.status"}], "limit": 1})));
        let query = query.query.unwrap();
        for levels in [DEPTH_MAX - NESTING, DEPTH_MAX - NESTING + 1] {
            let status = (1..levels).fold(json!({}), |inner, _| json!({"a": inner}));
            let scope = subject_scope(None);
            let mut scope = scope.inner();
            bind_report(&mut scope, "atlas", Some(&status), None);
            let row = query.row(&scope, Sight::Whole);
            let Row::Kept { cells, errors } = &row else { panic!() };
            let reported = "the value is nested 114 levels deep, of at most 113";
            let error = CellError { column: Some(0), error: reported.into() };
            let fits = levels + NESTING <= DEPTH_MAX;
            assert_eq!(*errors, if fits { vec![] } else { vec![error] });
            assert_eq!(cells[0] == Value::Null, !fits);
            let name: crate::identity::ClusterName = "atlas".into();
            let answer = super::super::combine::combine("c", &query, [(&name, &row)].into_iter());
            let whole = depth(&json!({"results": [answer]}));
            assert!(whole <= DEPTH_MAX && (!fits || whole == DEPTH_MAX), "{levels}: {whole}");
        }
    }

    #[test]
    fn ks_178_a_cell_that_fails_is_null_and_reported() {
        let found = row(
            json!({"select": [{"name": "a", "def": "returned.status.none"}, {"name": "b", "def": "1"}], "limit": 1}),
        );
        let error = "failed to evaluate expression: no such key: none".to_owned();
        let errors = vec![CellError { column: Some(0), error }];
        assert_eq!(found, Row::Kept { cells: vec![Value::Null, Value::Int(1)], errors });
    }

    #[test]
    fn ks_179_groups_are_atomic_and_errors_exclude_the_row() {
        let by = |group: &str, subject: &str| {
            row(json!({"groupBy": [{"name": "g", "def": group}],
                "combinedFields": [{"name": "n", "type": "COUNT"}, {"name": "s", "type": "SUM", "subject": subject}], "limit": 1}))
        };
        let cells = vec![Value::String("atlas".into()), Value::Null, Value::Int(1)];
        assert_eq!(by("inventory.name", "returned.status.n"), Row::Kept { cells, errors: vec![] });
        let error = "groupBy expression must evaluate to an atomic value".to_owned();
        assert_eq!(by("returned.status.l", "1"), Row::Broken(vec![CellError { column: Some(0), error }]));
        let error = "failed to evaluate expression: no such key: none".to_owned();
        assert_eq!(by("1", "returned.status.none"), Row::Broken(vec![CellError { column: Some(2), error }]));
    }
}
