//! The text form of label selectors. The grammar accepts some oddities (`x in (,a)`, a key called `in`) that clients
//! rely on, and tests of other programs compare its errors, so both are preserved.

use std::collections::BTreeSet;

use super::{LabelOp, LabelRequirement, SelectorError};
use crate::{
    field::{Error, Path},
    names,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Word,
    /// `in` or `notin`, which are words where a key or value is expected.
    Set(LabelOp),
    Compare(LabelOp),
    Not,
    Comma,
    Open,
    Close,
    End,
    Unknown,
}

struct Lexed<'a> {
    token: Token,
    text: &'a str,
}

const END: Lexed<'static> = Lexed { token: Token::End, text: "" };

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        "(" => Token::Open,
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "=" => Token::Compare(LabelOp::Equals),
        "==" => Token::Compare(LabelOp::DoubleEquals),
        "!=" => Token::Compare(LabelOp::NotEquals),
        ">" => Token::Compare(LabelOp::GreaterThan),
        "<" => Token::Compare(LabelOp::LessThan),
        _ => return None,
    })
}

fn lex(text: &str) -> Vec<Lexed<'_>> {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while let Some(first) = rest.chars().next() {
        let (token, len) = if is_special(first) {
            let two = rest.get(..2).and_then(symbol).map(|t| (t, 2));
            two.or_else(|| rest.get(..1).and_then(symbol).map(|t| (t, 1))).unwrap_or((Token::Unknown, 1))
        } else {
            let len =
                rest.find(|c| is_special(c) || matches!(c, ' ' | '\t' | '\r' | '\n')).unwrap_or(rest.len());
            let token = match rest.get(..len) {
                Some("in") => Token::Set(LabelOp::In),
                Some("notin") => Token::Set(LabelOp::NotIn),
                _ => Token::Word,
            };
            (token, len)
        };
        let (word, after) = rest.split_at_checked(len).unwrap_or((rest, ""));
        out.push(Lexed { token, text: word });
        rest = after.trim_start_matches([' ', '\t', '\r', '\n']);
    }
    out
}

struct Parser<'a> {
    tokens: Vec<Lexed<'a>>,
    at: usize,
}

type Result<T> = std::result::Result<T, String>;

impl<'a> Parser<'a> {
    /// The next token. Set operators count as words.
    fn peek(&self) -> (Token, &'a str) {
        let lexed = self.tokens.get(self.at).unwrap_or(&END);
        let token = if matches!(lexed.token, Token::Set(_)) { Token::Word } else { lexed.token };
        (token, lexed.text)
    }

    fn next(&mut self) -> (Token, &'a str) {
        let out = self.peek();
        self.at += 1;
        out
    }

    fn selector(&mut self) -> Result<Vec<LabelRequirement>> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::End, _) => return Ok(requirements),
                (Token::Word | Token::Not, _) => {}
                (_, text) => {
                    return Err(format!("found '{text}', expected: !, identifier, or 'end of string'"));
                }
            }
            let requirement = self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?;
            requirements.push(requirement);
            match self.next() {
                (Token::End, _) => return Ok(requirements),
                (Token::Comma, _) => match self.peek() {
                    (Token::Word | Token::Not, _) => {}
                    (_, text) => return Err(format!("found '{text}', expected: identifier after ','")),
                },
                (_, text) => return Err(format!("found '{text}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<LabelRequirement> {
        let (mut token, mut key) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.next();
        }
        if token != Token::Word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check_key(key)?;
        if negated {
            return new_requirement(key, LabelOp::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return new_requirement(key, LabelOp::Exists, BTreeSet::new());
        }
        let op = self.operator()?;
        let values = if matches!(op, LabelOp::In | LabelOp::NotIn) { self.set()? } else { self.value()? };
        new_requirement(key, op, values)
    }

    fn operator(&mut self) -> Result<LabelOp> {
        let lexed = self.tokens.get(self.at).unwrap_or(&END);
        self.at += 1;
        match lexed.token {
            Token::Set(op) | Token::Compare(op) => Ok(op),
            _ => Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", lexed.text)),
        }
    }

    fn value(&mut self) -> Result<BTreeSet<String>> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([String::new()]));
        }
        match self.next() {
            (Token::Word, text) => Ok(BTreeSet::from([text.to_owned()])),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }

    fn set(&mut self) -> Result<BTreeSet<String>> {
        let (token, text) = self.next();
        if token != Token::Open {
            return Err(format!("found '{text}' expected: '('"));
        }
        match self.peek() {
            (Token::Close, _) => {
                self.at += 1;
                Ok(BTreeSet::from([String::new()]))
            }
            (Token::Word | Token::Comma, first) => {
                let values = self.list()?;
                match self.next().0 {
                    Token::Close => Ok(values),
                    _ => Err(format!("found '{first}', expected: ')'")),
                }
            }
            (_, text) => Err(format!("found '{text}', expected: ',', ')' or identifier")),
        }
    }

    /// Parses values up to the closing parenthesis. A missing value between commas is the empty value.
    fn list(&mut self) -> Result<BTreeSet<String>> {
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                (Token::Word, text) => {
                    values.insert(text.to_owned());
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, text) => return Err(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    match self.peek().0 {
                        Token::Close => {
                            values.insert(String::new());
                            return Ok(values);
                        }
                        Token::Comma => {
                            self.at += 1;
                            values.insert(String::new());
                        }
                        _ => {}
                    }
                }
                (_, text) => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
        }
    }
}

fn check_key(key: &str) -> Result<()> {
    let errors = names::qualified_name(key);
    if errors.is_empty() {
        return Ok(());
    }
    Err(Error::invalid_str(&Path::root(), key, &errors.join("; ")).to_string())
}

fn new_requirement(key: &str, op: LabelOp, values: BTreeSet<String>) -> Result<LabelRequirement> {
    let path = Path::field("values");
    let mut errors = Vec::new();
    if matches!(op, LabelOp::GreaterThan | LabelOp::LessThan) {
        for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
            let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.push(Error::invalid_str(&path.index(i), value, detail).to_string());
        }
    }
    for (i, value) in values.iter().enumerate() {
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            let at = path.index(i).key(key);
            errors.push(Error::invalid_str(&at, value, &wrong.join("; ")).to_string());
        }
    }
    match errors.as_slice() {
        [] => Ok(LabelRequirement { key: key.to_owned(), op, values }),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

pub(super) fn parse(text: &str) -> std::result::Result<Vec<LabelRequirement>, SelectorError> {
    Parser { tokens: lex(text), at: 0 }.selector().map_err(SelectorError)
}
