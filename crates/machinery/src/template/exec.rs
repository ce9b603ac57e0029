//! Execution of parsed templates, within limits.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Limits, Stage, TemplateError,
    format::{Printer, plain},
    functions::{self, Function},
    parse::Parsed,
    tree::{Branch, Command, Expr, List, Node, Number, Pipe, Term},
    value::Value,
};

/// Why a list of nodes ends early.
pub(super) enum Flow {
    TemplateError(Box<TemplateError>),
    Break,
    Continue,
}

type Executed = Result<(), Flow>;

/// Executes the body of `parsed`. Returns the number of steps.
pub(super) fn execute(
    parsed: &Parsed,
    name: &str,
    data: Arc<BTreeMap<String, String>>,
    limits: &Limits,
) -> (Result<String, TemplateError>, usize) {
    let root = Value::Map(data);
    let mut executor = Executor {
        parsed,
        name,
        limits,
        current: None,
        variables: vec![("$".into(), root.clone())],
        templates: 0,
        nesting: 0,
        last: None,
        steps: limits.steps,
        out: String::new(),
    };
    let walked = executor.walk(&root, &parsed.body);
    let steps = limits.steps - executor.steps;
    match walked {
        Err(Flow::TemplateError(fault)) => (Err(*fault), steps),
        _ => (Ok(executor.out), steps),
    }
}

/// Most nesting levels of blocks, parentheses and templates; bounds the stack.
const MAX_NESTING: usize = 250;

struct Executor<'a> {
    parsed: &'a Parsed,
    name: &'a str,
    limits: &'a Limits,
    /// The template that is being executed; `None` for the body.
    current: Option<&'a str>,
    variables: Vec<(Arc<str>, Value)>,
    templates: usize,
    nesting: usize,
    /// What was evaluated last.
    last: Option<Last<'a>>,
    steps: usize,
    out: String,
}

/// The position that Go reports for errors found after an evaluation.
#[derive(Clone, Copy)]
enum Last<'a> {
    Expr(&'a Expr),
    Function(usize, &'static str),
}

impl<'a> Executor<'a> {
    /// An error at what was evaluated last.
    fn fault_of_last(&self, message: impl Into<String>) -> Flow {
        match self.last {
            Some(Last::Expr(expr)) => self.fault(expr.at, &expr.to_string(), message),
            Some(Last::Function(at, name)) => self.fault(at, name, message),
            None => self.fault(0, "", message),
        }
    }

    fn fault(&self, at: usize, context: &str, message: impl Into<String>) -> Flow {
        Flow::TemplateError(Box::new(TemplateError {
            at,
            action: None,
            stage: self.current.map_or(Stage::Body, |name| Stage::Defined(name.to_owned())),
            context: context.to_owned(),
            message: message.into(),
        }))
    }

    /// Pays for a node, command or loop, and for `bytes` of output.
    fn spend(&mut self, at: usize, context: &str, bytes: usize) -> Executed {
        let cost = 1 + bytes / 64;
        match self.steps.checked_sub(cost) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => {
                let most = self.limits.steps;
                Err(self.fault(at, context, format!("takes more than the {most} steps that are allowed")))
            }
        }
    }

    fn deeper(&mut self, at: usize, context: &str) -> Executed {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.fault(at, context, format!("exceeded maximum nesting ({MAX_NESTING})")));
        }
        Ok(())
    }

    fn write(&mut self, at: usize, context: &str, text: &str) -> Executed {
        self.spend(at, context, text.len())?;
        if self.out.len() + text.len() > self.limits.output {
            let most = self.limits.output;
            return Err(self.fault(at, context, format!("the output exceeds {most} bytes")));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn walk(&mut self, dot: &Value, list: &'a List) -> Executed {
        for node in list {
            match node {
                Node::Text(text) => self.write(0, "", text)?,
                Node::Action(pipe) => self.action(dot, pipe)?,
                Node::If(branch) => self.conditional(dot, branch, false)?,
                Node::With(branch) => self.conditional(dot, branch, true)?,
                Node::Range(branch) => self.range(dot, branch)?,
                Node::Template { at, name, argument } => {
                    self.template(dot, *at, name, argument.as_ref())?;
                }
                Node::Break => return Err(Flow::Break),
                Node::Continue => return Err(Flow::Continue),
            }
        }
        Ok(())
    }

    fn action(&mut self, dot: &Value, pipe: &'a Pipe) -> Executed {
        let value = self.pipeline(dot, pipe)?;
        if !pipe.variables.is_empty() {
            return Ok(());
        }
        match &value {
            Value::Text(text) => self.write(pipe.at, "", text),
            value => self.write(pipe.at, "", &plain(value)),
        }
    }

    fn conditional(&mut self, dot: &Value, branch: &'a Branch, with: bool) -> Executed {
        self.deeper(branch.pipe.at, "")?;
        let mark = self.variables.len();
        let value = self.pipeline(dot, &branch.pipe)?;
        let walked = if value.truth() {
            self.walk(if with { &value } else { dot }, &branch.body)
        } else {
            branch.otherwise.as_ref().map_or(Ok(()), |list| self.walk(dot, list))
        };
        self.variables.truncate(mark);
        self.nesting -= 1;
        walked
    }

    fn range(&mut self, dot: &Value, branch: &'a Branch) -> Executed {
        let (at, pipe) = (branch.pipe.at, &branch.pipe);
        self.deeper(at, "")?;
        let (outer, nesting) = (self.variables.len(), self.nesting);
        let value = self.pipeline(dot, pipe)?;
        let mut any = false;
        match &value {
            Value::Map(map) => {
                for (key, element) in map.iter() {
                    any = true;
                    let index = Value::text(key.as_str());
                    if !self.iteration(branch, index, Value::text(element.as_str()), nesting)? {
                        break;
                    }
                }
            }
            Value::Int(_) | Value::Byte(_) if pipe.variables.len() > 1 => {
                let value = plain(&value);
                let message = format!("can't use {value} to iterate over more than one variable");
                return Err(self.fault_of_last(message));
            }
            Value::Int(_) | Value::Byte(_) => {
                for number in 0..value.integer().unwrap_or_default() {
                    any = true;
                    if !self.iteration(branch, Value::Nil, Value::Int(number), nesting)? {
                        break;
                    }
                }
            }
            Value::Nil => {}
            other => {
                let message = format!("range can't iterate over {}", plain(other));
                return Err(self.fault_of_last(message));
            }
        }
        let walked = match &branch.otherwise {
            Some(list) if !any => self.walk(dot, list),
            _ => Ok(()),
        };
        self.variables.truncate(outer);
        self.nesting -= 1;
        walked
    }

    /// Executes one iteration of a range; false after a break.
    fn iteration(
        &mut self,
        branch: &'a Branch,
        index: Value,
        element: Value,
        nesting: usize,
    ) -> Result<bool, Flow> {
        let pipe = &branch.pipe;
        self.spend(pipe.at, "", 0)?;
        let mark = self.variables.len();
        match pipe.variables.as_slice() {
            [one] => self.assign(pipe, one, element.clone())?,
            [first, second] => {
                self.assign(pipe, first, index)?;
                self.assign(pipe, second, element.clone())?;
            }
            _ => {}
        }
        let walked = self.walk(&element, &branch.body);
        // Break and continue skip the clean-up of the blocks between.
        self.variables.truncate(mark);
        match walked {
            Ok(()) => Ok(true),
            Err(Flow::Continue) => {
                self.nesting = nesting;
                Ok(true)
            }
            Err(Flow::Break) => {
                self.nesting = nesting;
                Ok(false)
            }
            fault @ Err(Flow::TemplateError(_)) => fault.map(|()| false),
        }
    }

    fn template(&mut self, dot: &Value, at: usize, name: &'a str, argument: Option<&'a Pipe>) -> Executed {
        let shown = argument.map_or_else(String::new, |pipe| format!(" {pipe}"));
        let context = format!("{{{{template {name:?}{shown}}}}}");
        self.spend(at, &context, 0)?;
        let body = match self.parsed.defined.get(name) {
            Some(body) => body,
            None if name == self.name => &self.parsed.body,
            None => return Err(self.fault(at, &context, format!("template {name:?} not defined"))),
        };
        if self.templates == self.limits.depth {
            let most = self.limits.depth;
            return Err(self.fault(at, &context, format!("exceeded maximum template depth ({most})")));
        }
        self.deeper(at, &context)?;
        let dot = argument.map_or(Ok(Value::Nil), |pipe| self.pipeline(dot, pipe))?;
        let variables = std::mem::replace(&mut self.variables, vec![("$".into(), dot.clone())]);
        let current = self.current.replace(name);
        self.templates += 1;
        let walked = self.walk(&dot, body);
        self.templates -= 1;
        self.nesting -= 1;
        (self.variables, self.current) = (variables, current);
        walked
    }

    fn assign(&mut self, pipe: &Pipe, name: &Arc<str>, value: Value) -> Executed {
        if !pipe.assigns {
            self.variables.push((name.clone(), value));
            return Ok(());
        }
        match self.variables.iter_mut().rev().find(|(known, _)| known == name) {
            Some((_, slot)) => {
                *slot = value;
                Ok(())
            }
            None => Err(self.fault_of_last(format!("undefined variable: {name}"))),
        }
    }

    fn pipeline(&mut self, dot: &Value, pipe: &'a Pipe) -> Result<Value, Flow> {
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(dot, command, value)?);
        }
        let value = value.unwrap_or(Value::Nil);
        for name in &pipe.variables {
            self.assign(pipe, name, value.clone())?;
        }
        Ok(value)
    }

    /// Evaluates a command. `last` is the value of the previous command of the pipeline.
    fn command(&mut self, dot: &Value, command: &'a Command, last: Option<Value>) -> Result<Value, Flow> {
        let Some((first, args)) = command.args.split_first() else { return Ok(Value::Nil) };
        self.spend(command.at, "", 0)?;
        let given = !args.is_empty() || last.is_some();
        match &first.term {
            Term::Function(name) => self.call(dot, command, name, args, last),
            Term::Field(names) | Term::Variable(_, names) | Term::Chain(_, names)
                if given && !names.is_empty() =>
            {
                // Evaluated first, because a missing key is the more useful error.
                self.expression(dot, first)?;
                let name = names.last().map(String::as_str).unwrap_or_default();
                Err(self.fault(
                    first.at,
                    &first.to_string(),
                    format!("{name} is not a method but has arguments"),
                ))
            }
            _ if given => Err(self.fault(
                first.at,
                &first.to_string(),
                format!("can't give argument to non-function {first}"),
            )),
            Term::Nil => Err(self.fault(first.at, "nil", "nil is not a command")),
            _ => self.expression(dot, first),
        }
    }

    fn expression(&mut self, dot: &Value, expr: &'a Expr) -> Result<Value, Flow> {
        self.last = Some(Last::Expr(expr));
        match &expr.term {
            Term::Dot => Ok(dot.clone()),
            Term::Nil => Ok(Value::Nil),
            Term::Bool(b) => Ok(Value::Bool(*b)),
            Term::Number(Number::Int(n), _) => Ok(Value::Int(*n)),
            Term::Number(Number::Float(n), _) => Ok(Value::Float(*n)),
            Term::Number(Number::TooLarge, text) => {
                Err(self.fault(expr.at, text, format!("{text} overflows int")))
            }
            Term::Text(text, _) => Ok(Value::Text(text.clone())),
            Term::Field(names) => self.fields(dot.clone(), names),
            Term::Variable(name, names) => {
                let found = self.variables.iter().rev().find(|(known, _)| known == name);
                match found.map(|(_, value)| value.clone()) {
                    Some(value) => self.fields(value, names),
                    None => {
                        Err(self.fault(expr.at, &expr.to_string(), format!("undefined variable: {name}")))
                    }
                }
            }
            Term::Function(name) => self.invoke(dot, expr.at, expr, name, &[], None),
            Term::Pipe(pipe) => {
                self.deeper(expr.at, "")?;
                let value = self.pipeline(dot, pipe)?;
                self.nesting -= 1;
                Ok(value)
            }
            Term::Chain(inner, names) => {
                let value = self.expression(dot, inner)?;
                self.fields(value, names)
            }
        }
    }

    fn fields(&self, mut value: Value, names: &[String]) -> Result<Value, Flow> {
        for name in names {
            let problem = match &value {
                Value::Map(map) => match map.get(name) {
                    Some(found) => {
                        value = Value::text(found.as_str());
                        continue;
                    }
                    None => format!("map has no entry for key {name:?}"),
                },
                Value::Nil => format!("nil data; no entry for key {name:?}"),
                other => format!("can't evaluate field {name} in type {}", other.type_name()),
            };
            return Err(self.fault_of_last(problem));
        }
        Ok(value)
    }

    fn call(
        &mut self,
        dot: &Value,
        command: &'a Command,
        name: &'static str,
        args: &'a [Expr],
        last: Option<Value>,
    ) -> Result<Value, Flow> {
        self.invoke(dot, command.at, command, name, args, last)
    }

    fn invoke(
        &mut self,
        dot: &Value,
        at: usize,
        context: &dyn std::fmt::Display,
        name: &'static str,
        args: &'a [Expr],
        last: Option<Value>,
    ) -> Result<Value, Flow> {
        let Some(function) = Function::named(name) else {
            return Err(self.fault(at, name, format!("{name:?} is not a defined function")));
        };
        self.last = Some(Last::Function(at, name));
        let given = args.len() + usize::from(last.is_some());
        if let Some(problem) = function.wrong_number(given) {
            return Err(self.fault(at, name, problem));
        }
        if let Some(stop_at) = function.short_circuit() {
            // `and` and `or` evaluate only as many arguments as they need.
            let mut value = Value::Nil;
            for arg in args {
                value = self.expression(dot, arg)?;
                if value.truth() == stop_at {
                    return Ok(value);
                }
            }
            return Ok(last.unwrap_or(value));
        }
        let mut values = Vec::with_capacity(given);
        for arg in args {
            let value = self.expression(dot, arg)?;
            if name == "printf" && values.is_empty() {
                self.check_format(&value, Some(arg))?;
            }
            values.push(value);
        }
        if let Some(last) = last {
            if name == "printf" && values.is_empty() {
                self.check_format(&last, None)?;
            }
            values.push(last);
        }
        let size = values.iter().map(|v| if let Value::Text(text) = v { text.len() } else { 0 }).sum();
        self.spend(at, name, size)?;
        let mut printer = Printer::new(self.limits.output);
        let applied = match values.first() {
            Some(callee) if name == "call" => {
                let shown = args.first().map(ToString::to_string);
                Err(functions::not_callable(callee, shown))
            }
            _ => functions::apply(function, &values, &mut printer),
        };
        let value = applied.map_err(|problem| {
            self.fault(at, &context.to_string(), format!("error calling {name}: {problem}"))
        })?;
        if let Value::Text(text) = &value {
            self.spend(at, name, text.len())?;
        }
        Ok(value)
    }

    /// Checks that a format is text. For constants Go has another error.
    fn check_format(&self, format: &Value, arg: Option<&Expr>) -> Executed {
        let constant = arg.filter(|arg| matches!(arg.term, Term::Bool(_) | Term::Number(..) | Term::Nil));
        Err(self.fault_of_last(match (format, constant) {
            (Value::Text(_), _) => return Ok(()),
            (Value::Nil, Some(_)) => "cannot assign nil to string".to_owned(),
            (_, Some(constant)) => format!("expected string; found {constant}"),
            (Value::Nil, None) => "invalid value; expected string".to_owned(),
            (other, None) => format!("wrong type for value; expected string; got {}", other.type_name()),
        }))
    }
}
