//! From source text to tokens.

use super::format::is_printable;

/// The kind of token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Left,
    Right,
    Space,
    Pipe,
    Declare,
    Assign,
    LeftParen,
    RightParen,
    Dot,
    Field,
    Variable,
    Identifier,
    Keyword,
    Bool,
    Nil,
    Number,
    Char,
    Quoted,
    Raw,
    Other,
    End,
    /// The text is the error message.
    Error,
}

/// A piece of the source.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// Offset in bytes.
    pub(super) at: usize,
}

const LEFT: &str = "{{";
const RIGHT: &str = "}}";
const KEYWORDS: [&str; 10] =
    ["block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"];

/// All tokens. The last is [`Kind::End`] or [`Kind::Error`].
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { source, at: 0, parens: 0, tokens: Vec::new() };
    if let Err((at, message)) = lexer.run() {
        lexer.tokens.push(Token { kind: Kind::Error, text: message, at });
    }
    lexer.tokens
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    parens: usize,
    tokens: Vec<Token>,
}

type Outcome<T> = Result<T, (usize, String)>;

fn fail<T>(from: usize, message: impl Into<String>) -> Outcome<T> {
    Err((from, message.into()))
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn accept(&mut self, wanted: &str) -> bool {
        let found = self.peek().is_some_and(|c| wanted.contains(c));
        if found {
            self.bump();
        }
        found
    }

    fn run_of(&mut self, wanted: &str) {
        while self.accept(wanted) {}
    }

    fn push(&mut self, kind: Kind, from: usize) {
        let text = self.source.get(from..self.at).unwrap_or_default().to_owned();
        self.tokens.push(Token { kind, text, at: from });
    }

    fn run(&mut self) -> Outcome<()> {
        let mut trim = false;
        loop {
            let text_start = self.at;
            let found = self.rest().find(LEFT).map(|offset| self.at + offset);
            let end = found.unwrap_or(self.source.len());
            let mut text = self.source.get(text_start..end).unwrap_or_default();
            let mut start = text_start;
            if trim {
                let trimmed = text.trim_start_matches(is_space);
                start += text.len() - trimmed.len();
                text = trimmed;
            }
            let marker = found.map(|at| self.source.get(at + LEFT.len()..).unwrap_or_default());
            let trims = marker.is_some_and(|after| {
                after.strip_prefix('-').and_then(|r| r.chars().next()).is_some_and(is_space)
            });
            if trims {
                text = text.trim_end_matches(is_space);
            }
            if !text.is_empty() {
                self.tokens.push(Token { kind: Kind::Text, text: text.to_owned(), at: start });
            }
            let Some(left) = found else {
                self.tokens.push(Token { kind: Kind::End, text: String::new(), at: self.source.len() });
                return Ok(());
            };
            let body = left + LEFT.len() + if trims { 2 } else { 0 };
            if self.source.get(body..).is_some_and(|r| r.starts_with("/*")) {
                trim = self.comment(body)?;
                continue;
            }
            self.at = left + LEFT.len();
            self.push(Kind::Left, left);
            self.at = body;
            self.parens = 0;
            trim = self.action()?;
        }
    }

    /// Skips a comment. Returns whether it trims the text after it.
    fn comment(&mut self, body: usize) -> Outcome<bool> {
        self.at = body;
        let Some(length) = self.rest().find("*/") else { return fail(body, "unclosed comment") };
        self.at += length + 2;
        match self.right() {
            Some(trims) => {
                self.at += if trims { 2 } else { 0 } + RIGHT.len();
                Ok(trims)
            }
            None => fail(body, "comment ends before closing delimiter"),
        }
    }

    /// At a closing delimiter: whether it trims.
    fn right(&self) -> Option<bool> {
        let rest = self.rest();
        let mut chars = rest.chars();
        let trims = chars.next().is_some_and(is_space)
            && chars.next() == Some('-')
            && rest.get(2..).is_some_and(|r| r.starts_with(RIGHT));
        if trims {
            return Some(true);
        }
        rest.starts_with(RIGHT).then_some(false)
    }

    /// Tokens up to and including the closing delimiter. Returns whether it trims the text after it.
    fn action(&mut self) -> Outcome<bool> {
        loop {
            let start = self.at;
            if let Some(trims) = self.right() {
                if self.parens > 0 {
                    return fail(start, "unclosed left paren");
                }
                self.at += if trims { 2 } else { 0 } + RIGHT.len();
                self.push(Kind::Right, self.at - RIGHT.len());
                return Ok(trims);
            }
            let Some(c) = self.bump() else { return fail(start, "unclosed action") };
            match c {
                c if is_space(c) => {
                    while self.right().is_none() && self.peek().is_some_and(is_space) {
                        self.bump();
                    }
                    self.push(Kind::Space, start);
                }
                '=' => self.push(Kind::Assign, start),
                ':' if self.accept("=") => self.push(Kind::Declare, start),
                ':' => return fail(start, "expected :="),
                '|' => self.push(Kind::Pipe, start),
                '"' => self.quoted('"', Kind::Quoted, start, "unterminated quoted string")?,
                '\'' => self.quoted('\'', Kind::Char, start, "unterminated character constant")?,
                '`' => {
                    let Some(length) = self.rest().find('`') else {
                        return fail(start, "unterminated raw quoted string");
                    };
                    self.at += length + 1;
                    self.push(Kind::Raw, start);
                }
                '$' => self.name(Kind::Variable, start)?,
                '.' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => {
                    let kind = if self.at_terminator() { Kind::Dot } else { Kind::Field };
                    self.name(kind, start)?;
                }
                '.' | '+' | '-' | '0'..='9' => {
                    self.at = start;
                    self.number(start)?;
                }
                '(' => {
                    self.parens += 1;
                    self.push(Kind::LeftParen, start);
                }
                ')' if self.parens == 0 => return fail(start, "unexpected right paren"),
                ')' => {
                    self.parens -= 1;
                    self.push(Kind::RightParen, start);
                }
                c if is_word(c) => self.word(start)?,
                c if c.is_ascii_graphic() => self.push(Kind::Other, start),
                c => return fail(start, format!("unrecognized character in action: {}", code(c))),
            }
        }
    }

    fn quoted(&mut self, close: char, kind: Kind, start: usize, unclosed: &str) -> Outcome<()> {
        loop {
            match self.bump() {
                Some('\\') if !matches!(self.peek(), None | Some('\n')) => {
                    self.bump();
                }
                None | Some('\n' | '\\') => return fail(start, unclosed),
                Some(c) if c == close => break,
                Some(_) => {}
            }
        }
        self.push(kind, start);
        Ok(())
    }

    fn name(&mut self, kind: Kind, start: usize) -> Outcome<()> {
        while self.peek().is_some_and(is_word) {
            self.bump();
        }
        if !self.at_terminator() {
            let c = self.peek().unwrap_or_default();
            return fail(start, format!("bad character {}", code(c)));
        }
        self.push(kind, start);
        Ok(())
    }

    fn word(&mut self, start: usize) -> Outcome<()> {
        self.name(Kind::Identifier, start)?;
        if let Some(token) = self.tokens.last_mut() {
            token.kind = match token.text.as_str() {
                word if KEYWORDS.contains(&word) => Kind::Keyword,
                "true" | "false" => Kind::Bool,
                "nil" => Kind::Nil,
                _ => Kind::Identifier,
            };
        }
        Ok(())
    }

    fn number(&mut self, start: usize) -> Outcome<()> {
        self.accept("+-");
        let mut digits = "0123456789_";
        if self.accept("0") {
            if self.accept("xX") {
                digits = "0123456789abcdefABCDEF_";
            } else if self.accept("oO") {
                digits = "01234567_";
            } else if self.accept("bB") {
                digits = "01_";
            }
        }
        self.run_of(digits);
        if self.accept(".") {
            self.run_of(digits);
        }
        let exponent = match digits.len() {
            11 => "eE",
            23 => "pP",
            _ => "",
        };
        if self.accept(exponent) {
            self.accept("+-");
            self.run_of("0123456789_");
        }
        self.accept("i");
        if self.peek().is_some_and(is_word) {
            self.bump();
            let text = self.source.get(start..self.at).unwrap_or_default();
            return fail(start, format!("bad number syntax: {text:?}"));
        }
        self.push(Kind::Number, start);
        Ok(())
    }

    fn at_terminator(&self) -> bool {
        match self.peek() {
            None => true,
            Some(c) => is_space(c) || ".,|:)(".contains(c) || self.rest().starts_with(RIGHT),
        }
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// `U+0041 'A'`
fn code(c: char) -> String {
    let shown = if is_printable(c) { format!(" '{c}'") } else { String::new() };
    format!("U+{:04X}{shown}", u32::from(c))
}
