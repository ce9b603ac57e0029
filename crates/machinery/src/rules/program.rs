//! Compiled rules, and what is known of them without running them.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use kube_cel::cel::{Context, Program};

use super::unary::without_pairs;
use super::value::unescape;
use crate::cel::{Fault, Metered, Outcome, show, unread};
use crate::schema::graph::{Graph, Id, Type};

/// Longer rules are refused.
const MAX_SOURCE: usize = 16 * 1024;
/// What reads an expression calls itself once or more for each of these, nested or in a row.
const MAX_LINKS: usize = 4_000;
/// Enough to read any expression that is not too long.
const READER_STACK: usize = 256 << 20;

/// Reads an expression by `read`, which may go deep: on a thread of its own unless the text is simple. `read` gets the
/// text as the reader understands it right.
pub(crate) fn guarded<T: Send>(
    source: &str,
    read: impl FnOnce(&str) -> Result<T, String> + Send,
) -> Result<T, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("expression is longer than {MAX_SOURCE} bytes"));
    }
    let links = source.bytes().filter(|byte| !byte.is_ascii_alphanumeric() && *byte != b' ').count();
    if links > MAX_LINKS {
        return Err(format!("expression has more than {MAX_LINKS} operators"));
    }
    let source = &*without_pairs(source);
    if links < 24 {
        return read(source);
    }
    std::thread::scope(|scope| {
        let reader =
            std::thread::Builder::new().stack_size(READER_STACK).spawn_scoped(scope, || read(source));
        let reader = reader.map_err(|error| error.to_string())?;
        reader.join().unwrap_or_else(|_| Err("the expression can't be read".to_owned()))
    })
}

/// Rules without a known variable are not rules.
const VARIABLES: [&str; 2] = ["self", "oldSelf"];

/// One compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) program: Program,
    metered: Metered,
    facts: Facts,
}

/// What an expression does, as far as it can be seen.
#[derive(Debug, Default)]
struct Facts {
    uses_old: bool,
}

impl Expression {
    /// A rule over `self` and `oldSelf`.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        Self::compile_over(source, &VARIABLES)
    }

    /// An expression over these variables.
    pub(super) fn compile_over(source: &str, variables: &[&str]) -> Result<Self, String> {
        // All that goes through it calls itself as deep as it is nested.
        let read = |source: &str| {
            let program = Program::compile(source).map_err(|e| unread(source, e))?;
            let mut facts = Facts::default();
            let mut scope = variables.iter().map(|name| (*name).to_owned()).collect();
            let unknown = facts.scan(&program.expression().expr, &mut scope);
            let depth = depth(&program.expression().expr);
            let metered = Metered::new(program.expression().clone(), depth);
            Ok((Self { program, metered, facts }, unknown))
        };
        let (this, unknown) = guarded(source, read).map_err(|e| format!("compilation failed: {e}"))?;
        if let Some(name) = unknown {
            let why = format!("undeclared reference to '{name}' (in container '')");
            return Err(format!("compilation failed: {}", show(source, vec![Fault::new(1, 1, why)])));
        }
        Ok(this)
    }

    /// Runs it in a scope below [`crate::cel::environment`], for at most `budget`.
    pub(super) fn run(&self, context: &Context, budget: u64) -> Outcome {
        self.metered.run(context, budget)
    }

    /// How deep it is nested; operators in a row are, too.
    pub(super) fn depth(&self) -> usize {
        self.metered.depth()
    }

    /// It asks for the former value.
    pub(super) fn uses_old(&self) -> bool {
        self.facts.uses_old
    }

    /// The first field that a rule asks of `self` and that no object of this type can have.
    pub(super) fn undefined_field(&self, graph: &Graph, id: Id) -> Option<String> {
        let mut missing = None;
        fields(&self.program.expression().expr, graph, id, &mut missing);
        missing
    }
}

impl Facts {
    /// Looks at all, and finds the first variable that nobody declared.
    fn scan(&mut self, expr: &Expr, scope: &mut Vec<String>) -> Option<String> {
        let all = |this: &mut Self, list: &[IdedExpr], scope: &mut Vec<String>| {
            list.iter().find_map(|one| this.scan(&one.expr, scope))
        };
        match expr {
            Expr::Unspecified => None,
            Expr::Ident(name) => {
                self.uses_old |= name == "oldSelf";
                let known = scope.contains(name) || name.starts_with('@') || NAMES.contains(&name.as_str());
                (!known).then(|| name.clone())
            }
            Expr::Literal(_) => None,
            Expr::Select(select) => self.scan(&select.operand.expr, scope),
            Expr::Call(call) => {
                let target = call.target.as_ref();
                // `optional.of`, `math.abs`: the target is a name, not a variable.
                let namespace =
                    target.is_some_and(|t| matches!(&t.expr, Expr::Ident(n) if NAMES.contains(&n.as_str())));
                let found = if namespace { None } else { target.and_then(|t| self.scan(&t.expr, scope)) };
                found.or_else(|| all(self, &call.args, scope))
            }
            Expr::List(list) => all(self, &list.elements, scope),
            Expr::Map(map) => map.entries.iter().find_map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    let key = self.scan(&entry.key.expr, scope);
                    key.or_else(|| self.scan(&entry.value.expr, scope))
                }
                EntryExpr::StructField(field) => self.scan(&field.value.expr, scope),
            }),
            // There are no types to make values of, and the evaluator can't.
            Expr::Struct(one) => Some(one.type_name.clone()),
            Expr::Comprehension(inner) => {
                let range = self.scan(&inner.iter_range.expr, scope);
                let init = range.or_else(|| self.scan(&inner.accu_init.expr, scope));
                let before = scope.len();
                scope.push(inner.iter_var.clone());
                scope.extend(inner.iter_var2.clone());
                scope.push(inner.accu_var.clone());
                let parts = [&inner.loop_cond, &inner.loop_step, &inner.result];
                let found = init.or_else(|| parts.into_iter().find_map(|p| self.scan(&p.expr, scope)));
                scope.truncate(before);
                found
            }
        }
    }
}

/// Names that functions and types have before the dot.
pub(crate) const NAMES: [&str; 24] = [
    "optional",
    "math",
    "sets",
    "base64",
    "lists",
    "format",
    "strings",
    "cel",
    "ip",
    "cidr",
    "semver",
    "url",
    "quantity",
    "jsonpatch",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
];

/// Walks chains of selections that start at `self`; gives the type at their end, where it is known.
fn fields(expr: &Expr, graph: &Graph, id: Id, missing: &mut Option<String>) -> Option<Id> {
    let mut visit = |one: &Expr| drop_place(fields(one, graph, id, missing));
    match expr {
        Expr::Ident(name) if VARIABLES.contains(&name.as_str()) => Some(id),
        Expr::Select(select) => {
            let at = fields(&select.operand.expr, graph, id, missing)?;
            let node = graph.resolve(at).1;
            let declared = node.field(&unescape(&select.field));
            if let Some(field) = declared {
                return (node.kind == Type::Object && &*field.name != "metadata").then_some(field.node);
            }
            if node.kind == Type::Object
                && !node.fields.is_empty()
                && node.additional.is_none()
                && !node.preserve
            {
                missing.get_or_insert_with(|| select.field.clone());
            }
            None
        }
        Expr::Call(call) => {
            call.target.iter().for_each(|t| visit(&t.expr));
            call.args.iter().for_each(|a| visit(&a.expr));
            None
        }
        Expr::List(list) => {
            list.elements.iter().for_each(|e| visit(&e.expr));
            None
        }
        Expr::Comprehension(inner) => {
            // A loop over `self` may bind its own `self`; then nothing is known.
            if VARIABLES.contains(&inner.iter_var.as_str()) {
                return None;
            }
            for part in
                [&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result]
            {
                visit(&part.expr);
            }
            None
        }
        _ => None,
    }
}

fn drop_place(_: Option<Id>) {}

/// How deep an expression is nested.
fn depth(expr: &Expr) -> usize {
    let of = |one: &IdedExpr| depth(&one.expr);
    1 + match expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => 0,
        Expr::Select(select) => of(&select.operand),
        Expr::Call(call) => {
            call.target.iter().map(|it| of(it)).chain(call.args.iter().map(of)).max().unwrap_or(0)
        }
        Expr::List(list) => list.elements.iter().map(of).max().unwrap_or(0),
        Expr::Map(map) => {
            let entries = map.entries.iter().map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => of(&entry.key).max(of(&entry.value)),
                EntryExpr::StructField(field) => of(&field.value),
            });
            entries.max().unwrap_or(0)
        }
        Expr::Comprehension(inner) => {
            let parts =
                [&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result];
            parts.into_iter().map(of).max().unwrap_or(0)
        }
    }
}
