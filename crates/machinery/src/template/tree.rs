//! Parsed templates. Every node has its position, for errors.

use std::{fmt, sync::Arc};

/// Nodes in order.
pub(super) type List = Vec<Node>;

#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template { at: usize, name: String, argument: Option<Pipe> },
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Branch {
    pub(super) pipe: Pipe,
    pub(super) body: List,
    pub(super) otherwise: Option<List>,
}

#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) at: usize,
    /// Variables that the pipeline sets, with their dollar signs.
    pub(super) variables: Vec<Arc<str>>,
    /// Assigns instead of declaring.
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command>,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) at: usize,
    pub(super) args: Vec<Expr>,
}

#[derive(Debug)]
pub(super) struct Expr {
    pub(super) at: usize,
    pub(super) term: Term,
}

#[derive(Debug)]
pub(super) enum Term {
    Dot,
    Nil,
    Bool(bool),
    Number(Number, String),
    Text(Arc<str>, String),
    Function(&'static str),
    /// `.a.b`
    Field(Vec<String>),
    /// `$x.a.b`
    Variable(Arc<str>, Vec<String>),
    Pipe(Pipe),
    /// `(…).a.b`
    Chain(Box<Expr>, Vec<String>),
}

/// A constant, with the type that it gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
    /// Does not fit into an int. An error only if it is used.
    TooLarge,
}

fn fields(f: &mut fmt::Formatter<'_>, names: &[String]) -> fmt::Result {
    names.iter().try_for_each(|name| write!(f, ".{name}"))
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.term {
            Term::Dot => f.write_str("."),
            Term::Nil => f.write_str("nil"),
            Term::Bool(b) => write!(f, "{b}"),
            Term::Number(_, text) | Term::Text(_, text) => f.write_str(text),
            Term::Function(name) => f.write_str(name),
            Term::Field(names) => fields(f, names),
            Term::Variable(name, names) => {
                f.write_str(name)?;
                fields(f, names)
            }
            Term::Pipe(pipe) => write!(f, "({pipe})"),
            Term::Chain(expr, names) => {
                write!(f, "{expr}")?;
                fields(f, names)
            }
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, arg) in self.args.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{arg}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.variables.is_empty() {
            let sign = if self.assigns { "=" } else { ":=" };
            write!(f, "{} {sign} ", self.variables.join(", "))?;
        }
        for (index, command) in self.commands.iter().enumerate() {
            if index > 0 {
                f.write_str(" | ")?;
            }
            write!(f, "{command}")?;
        }
        Ok(())
    }
}
