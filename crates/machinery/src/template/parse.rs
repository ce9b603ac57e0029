//! From tokens to trees.

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use super::{
    TemplateError,
    functions::function,
    lex::{Kind, Token, tokens},
    literal,
    tree::{Branch, Command, Expr, List, Node, Number, Pipe, Term},
};

/// Most nesting levels of blocks and parentheses.
const MAX_NESTING: usize = 100;

/// The templates of a source: its own body, and templates by name.
pub(super) struct Parsed {
    pub(super) body: List,
    pub(super) defined: BTreeMap<String, List>,
}

/// Parses a whole source.
pub(super) fn parse(source: &str) -> Result<Parsed, TemplateError> {
    let mut parser = Parser {
        tokens: tokens(source),
        next: 0,
        seen: Cell::new(0),
        action: None,
        variables: vec!["$".into()],
        ranges: 0,
        nesting: 0,
        defined: BTreeMap::new(),
    };
    match parser.source() {
        Ok(body) => Ok(Parsed { body, defined: parser.defined }),
        Err(fault) => Err(parser.placed(fault)),
    }
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    /// Offset of the last token that was read; Go reports errors there.
    seen: Cell<usize>,
    /// Offset of the action that is being parsed.
    action: Option<usize>,
    variables: Vec<Arc<str>>,
    ranges: usize,
    nesting: usize,
    defined: BTreeMap<String, List>,
}

enum Item {
    Node(Node),
    End(usize),
    Else(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    If,
    With,
    Range,
}

impl Control {
    fn context(self) -> &'static str {
        match self {
            Self::If => "if",
            Self::With => "with",
            Self::Range => "range",
        }
    }

    fn node(self, branch: Branch) -> Node {
        match self {
            Self::If => Node::If(branch),
            Self::With => Node::With(branch),
            Self::Range => Node::Range(branch),
        }
    }
}

impl Parser {
    fn source(&mut self) -> Result<List, TemplateError> {
        let mut body = List::new();
        loop {
            if self.peek().kind == Kind::End {
                return Ok(body);
            }
            if self.peek().kind == Kind::Left {
                let mark = self.next;
                self.take();
                let token = self.take_solid();
                if token.kind == Kind::Keyword && token.text == "define" {
                    self.definition()?;
                    continue;
                }
                self.next = mark;
            }
            match self.item()? {
                Item::Node(node) => body.push(node),
                Item::End(at) => return Err(TemplateError::parse(at, "unexpected {{end}}")),
                Item::Else(at) => return Err(TemplateError::parse(at, "unexpected {{else}}")),
            }
        }
    }

    /// The error at the position that Go reports.
    fn placed(&self, fault: TemplateError) -> TemplateError {
        match self.tokens.get(self.seen.get()).or(self.tokens.last()) {
            Some(last) if last.kind == Kind::Error => {
                TemplateError { at: last.at, action: self.action, ..fault }
            }
            Some(last) => TemplateError { at: last.at, ..fault },
            None => fault,
        }
    }

    /// The next token. At the end, the last token again.
    fn peek(&self) -> Token {
        self.seen.set(self.seen.get().max(self.next));
        self.tokens.get(self.next).or(self.tokens.last()).cloned().unwrap_or(Token {
            kind: Kind::End,
            text: String::new(),
            at: 0,
        })
    }

    fn take(&mut self) -> Token {
        let token = self.peek();
        self.next += 1;
        token
    }

    /// Takes the next token that is not a space.
    fn take_solid(&mut self) -> Token {
        loop {
            let token = self.take();
            if token.kind != Kind::Space {
                return token;
            }
        }
    }

    fn peek_solid(&mut self) -> Token {
        let token = self.take_solid();
        self.next -= 1;
        token
    }

    fn expect(&mut self, kinds: &[Kind], context: &str) -> Result<Token, TemplateError> {
        let token = self.take_solid();
        if kinds.contains(&token.kind) { Ok(token) } else { Err(unexpected(&token, context)) }
    }

    fn enter(&mut self, at: usize) -> Result<(), TemplateError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(TemplateError::parse(at, format!("more than {MAX_NESTING} levels of nesting")));
        }
        Ok(())
    }

    fn item(&mut self) -> Result<Item, TemplateError> {
        let token = self.take();
        match token.kind {
            Kind::Text => Ok(Item::Node(Node::Text(token.text))),
            Kind::Left => {
                self.action = Some(token.at);
                let item = self.action()?;
                self.action = None;
                Ok(item)
            }
            _ => Err(unexpected(&token, "input")),
        }
    }

    fn action(&mut self) -> Result<Item, TemplateError> {
        let token = self.take_solid();
        if token.kind == Kind::Keyword {
            let node = match token.text.as_str() {
                "end" => {
                    self.expect(&[Kind::Right], "end")?;
                    return Ok(Item::End(token.at));
                }
                "else" => {
                    // The enclosing `if` or `with` parses `else if` and `else with`.
                    let next = self.peek_solid();
                    if !(next.kind == Kind::Keyword && matches!(next.text.as_str(), "if" | "with")) {
                        self.expect(&[Kind::Right], "else")?;
                    }
                    return Ok(Item::Else(token.at));
                }
                "if" => self.control(Control::If, token.at)?,
                "with" => self.control(Control::With, token.at)?,
                "range" => self.control(Control::Range, token.at)?,
                "break" => self.leave_range(&token, Node::Break)?,
                "continue" => self.leave_range(&token, Node::Continue)?,
                "template" => self.template()?,
                "block" => self.block()?,
                _ => return Err(unexpected(&token, "command")),
            };
            return Ok(Item::Node(node));
        }
        self.next -= 1;
        let pipe = self.pipeline("command", &Kind::Right)?;
        Ok(Item::Node(Node::Action(pipe)))
    }

    fn leave_range(&mut self, token: &Token, node: Node) -> Result<Node, TemplateError> {
        let context = format!("{{{{{}}}}}", token.text);
        self.expect(&[Kind::Right], &context)?;
        if self.ranges == 0 {
            return Err(TemplateError::parse(token.at, format!("{context} outside {{{{range}}}}")));
        }
        Ok(node)
    }

    /// Parses items up to `end` or `else`.
    fn items(&mut self) -> Result<(List, Item), TemplateError> {
        let mut list = List::new();
        loop {
            let token = self.peek();
            if token.kind == Kind::End {
                return Err(TemplateError::parse(token.at, "unexpected EOF"));
            }
            match self.item()? {
                Item::Node(node) => list.push(node),
                end => return Ok((list, end)),
            }
        }
    }

    fn control(&mut self, control: Control, at: usize) -> Result<Node, TemplateError> {
        self.enter(at)?;
        let scope = self.variables.len();
        let pipe = self.pipeline(control.context(), &Kind::Right)?;
        if control == Control::Range {
            self.ranges += 1;
        }
        let (body, end) = self.items()?;
        if control == Control::Range {
            self.ranges -= 1;
        }
        let otherwise = match end {
            Item::Else(_) => {
                let next = self.peek_solid();
                let chained =
                    next.kind == Kind::Keyword && next.text == control.context() && control != Control::Range;
                if chained {
                    self.take_solid();
                    Some(vec![self.control(control, next.at)?])
                } else {
                    let (list, end) = self.items()?;
                    if let Item::Else(at) = end {
                        return Err(TemplateError::parse(at, "expected end; found {{else}}"));
                    }
                    Some(list)
                }
            }
            _ => None,
        };
        self.variables.truncate(scope);
        self.nesting -= 1;
        Ok(control.node(Branch { pipe, body, otherwise }))
    }

    /// A name and its position.
    fn name(&mut self, context: &str) -> Result<(usize, String), TemplateError> {
        let token = self.expect(&[Kind::Quoted, Kind::Raw], context)?;
        let name =
            literal::text(&token.text).ok_or_else(|| TemplateError::parse(token.at, "invalid syntax"))?;
        Ok((token.at, name))
    }

    fn template(&mut self) -> Result<Node, TemplateError> {
        let (at, name) = self.name("template clause")?;
        let mut argument = None;
        if self.peek_solid().kind == Kind::Right {
            self.take_solid();
        } else {
            argument = Some(self.pipeline("template clause", &Kind::Right)?);
        }
        Ok(Node::Template { at, name, argument })
    }

    fn block(&mut self) -> Result<Node, TemplateError> {
        let (at, name) = self.name("block clause")?;
        let argument = self.pipeline("block clause", &Kind::Right)?;
        self.body_of(&name, at, "block clause")?;
        Ok(Node::Template { at, name, argument: Some(argument) })
    }

    fn definition(&mut self) -> Result<(), TemplateError> {
        let (at, name) = self.name("define clause")?;
        self.expect(&[Kind::Right], "define clause")?;
        self.body_of(&name, at, "define clause")
    }

    /// Parses the body of a named template, which does not see surrounding variables.
    fn body_of(&mut self, name: &str, at: usize, context: &str) -> Result<(), TemplateError> {
        self.enter(at)?;
        let variables = std::mem::replace(&mut self.variables, vec!["$".into()]);
        let ranges = std::mem::take(&mut self.ranges);
        let (list, end) = self.items()?;
        if let Item::Else(at) = end {
            return Err(TemplateError::parse(at, format!("unexpected {{{{else}}}} in {context}")));
        }
        (self.variables, self.ranges) = (variables, ranges);
        self.nesting -= 1;
        match self.defined.get(name) {
            Some(old) if !is_blank(old) => {
                if !is_blank(&list) {
                    return Err(TemplateError::parse(
                        at,
                        format!("template: multiple definition of template {name:?}"),
                    ));
                }
            }
            _ => {
                self.defined.insert(name.to_owned(), list);
            }
        }
        Ok(())
    }

    fn pipeline(&mut self, context: &str, end: &Kind) -> Result<Pipe, TemplateError> {
        let mut pipe = Pipe { at: self.peek_solid().at, ..Pipe::default() };
        while self.peek_solid().kind == Kind::Variable {
            let mark = self.next;
            let variable = self.take_solid();
            let sign = self.take_solid();
            let comma = sign.kind == Kind::Other && sign.text == ",";
            if !(comma || matches!(sign.kind, Kind::Assign | Kind::Declare)) {
                self.next = mark;
                break;
            }
            let name: Arc<str> = variable.text.into();
            pipe.variables.push(name.clone());
            self.variables.push(name);
            if !comma {
                pipe.assigns = sign.kind == Kind::Assign;
                break;
            }
            if context != "range" || pipe.variables.len() > 1 {
                return Err(TemplateError::parse(sign.at, format!("too many declarations in {context}")));
            }
            if !matches!(self.peek_solid().kind, Kind::Variable | Kind::Right | Kind::RightParen) {
                return Err(TemplateError::parse(sign.at, "range can only initialize variables"));
            }
        }
        loop {
            let token = self.take_solid();
            if token.kind == *end {
                check_pipeline(&pipe, context, token.at)?;
                return Ok(pipe);
            }
            if !starts_operand(&token.kind) {
                return Err(unexpected(&token, context));
            }
            self.next -= 1;
            let command = self.command()?;
            pipe.commands.push(command);
        }
    }

    fn command(&mut self) -> Result<Command, TemplateError> {
        let at = self.peek_solid().at;
        let mut args = Vec::new();
        loop {
            self.peek_solid();
            while self.peek().kind == Kind::Space {
                self.take();
            }
            if let Some(operand) = self.operand()? {
                args.push(operand);
            }
            let token = self.take();
            match token.kind {
                Kind::Space => {}
                Kind::Right | Kind::RightParen => {
                    self.next -= 1;
                    break;
                }
                Kind::Pipe => break,
                _ => return Err(unexpected(&token, "operand")),
            }
        }
        if args.is_empty() {
            return Err(TemplateError::parse(at, "empty command"));
        }
        Ok(Command { at, args })
    }

    fn operand(&mut self) -> Result<Option<Expr>, TemplateError> {
        let Some(mut expr) = self.term()? else { return Ok(None) };
        let mut names = Vec::new();
        let at = self.peek().at;
        while self.peek().kind == Kind::Field {
            names.push(field_name(&self.take()));
        }
        if names.is_empty() {
            return Ok(Some(expr));
        }
        match &mut expr.term {
            Term::Field(fields) | Term::Variable(_, fields) => {
                fields.append(&mut names);
                expr.at = at;
            }
            Term::Pipe(_) | Term::Function(_) => {
                let start = expr.at;
                return Ok(Some(Expr { at: start, term: Term::Chain(Box::new(expr), names) }));
            }
            _ => {
                return Err(TemplateError::parse(
                    at,
                    format!("unexpected . after term {:?}", expr.to_string()),
                ));
            }
        }
        Ok(Some(expr))
    }

    fn term(&mut self) -> Result<Option<Expr>, TemplateError> {
        let token = self.take_solid();
        let invalid = || TemplateError::parse(token.at, format!("illegal number syntax: {:?}", token.text));
        let term = match token.kind {
            Kind::Identifier => match function(&token.text) {
                Some(name) => Term::Function(name),
                None => {
                    return Err(TemplateError::parse(
                        token.at,
                        format!("function {:?} not defined", token.text),
                    ));
                }
            },
            Kind::Dot => Term::Dot,
            Kind::Nil => Term::Nil,
            Kind::Bool => Term::Bool(token.text == "true"),
            Kind::Variable => {
                if !self.variables.iter().any(|known| **known == *token.text) {
                    return Err(TemplateError::parse(
                        token.at,
                        format!("undefined variable {:?}", token.text),
                    ));
                }
                Term::Variable(token.text.as_str().into(), Vec::new())
            }
            Kind::Field => Term::Field(vec![field_name(&token)]),
            Kind::Char => {
                let c = literal::character(&token.text).ok_or_else(|| {
                    TemplateError::parse(token.at, format!("malformed character constant: {}", token.text))
                })?;
                Term::Number(Number::Int(i64::from(u32::from(c))), token.text)
            }
            Kind::Number if token.text.contains('i') => {
                return Err(TemplateError::parse(token.at, "complex numbers are not supported"));
            }
            Kind::Number => Term::Number(literal::number(&token.text).ok_or_else(invalid)?, token.text),
            Kind::Quoted | Kind::Raw => {
                let text = literal::text(&token.text)
                    .ok_or_else(|| TemplateError::parse(token.at, "invalid syntax"))?;
                Term::Text(text.into(), token.text)
            }
            Kind::LeftParen => {
                self.enter(token.at)?;
                let pipe = self.pipeline("parenthesized pipeline", &Kind::RightParen)?;
                self.nesting -= 1;
                Term::Pipe(pipe)
            }
            _ => {
                self.next -= 1;
                return Ok(None);
            }
        };
        Ok(Some(Expr { at: token.at, term }))
    }
}

fn check_pipeline(pipe: &Pipe, context: &str, at: usize) -> Result<(), TemplateError> {
    if pipe.commands.is_empty() {
        return Err(TemplateError::parse(at, format!("missing value for {context}")));
    }
    for (index, command) in pipe.commands.iter().enumerate().skip(1) {
        let constant = command.args.first().is_some_and(|first| {
            matches!(first.term, Term::Bool(_) | Term::Dot | Term::Nil | Term::Number(..) | Term::Text(..))
        });
        if constant {
            let stage = index + 1;
            return Err(TemplateError::parse(
                command.at,
                format!("non executable command in pipeline stage {stage}"),
            ));
        }
    }
    Ok(())
}

fn starts_operand(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Bool
            | Kind::Char
            | Kind::Dot
            | Kind::Field
            | Kind::Identifier
            | Kind::Number
            | Kind::Nil
            | Kind::Raw
            | Kind::Quoted
            | Kind::Variable
            | Kind::LeftParen
    )
}

fn field_name(token: &Token) -> String {
    token.text.trim_start_matches('.').to_owned()
}

fn unexpected(token: &Token, context: &str) -> TemplateError {
    let shown = match token.kind {
        Kind::Error => return TemplateError::parse(token.at, token.text.clone()),
        Kind::End => return TemplateError::parse(token.at, "unexpected EOF"),
        Kind::Keyword | Kind::Dot | Kind::Nil => format!("<{}>", token.text),
        _ if token.text.len() > 10 => format!("{:?}...", token.text.chars().take(10).collect::<String>()),
        _ => format!("{:?}", token.text),
    };
    TemplateError::parse(token.at, format!("unexpected {shown} in {context}"))
}

/// A template may be defined again if one of both definitions is only white space.
fn is_blank(list: &List) -> bool {
    list.iter().all(|node| matches!(node, Node::Text(text) if text.trim().is_empty()))
}
