//! Values as text, like Go's `fmt` prints them.

use super::value::Value;

/// Larger widths and precisions are refused, as in Go.
const MAX_FIELD: i64 = 1_000_000;

/// The text that an action prints.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Nil => "<no value>".into(),
        Value::Text(text) => text.to_string(),
        value => {
            let mut printer = Printer::new(usize::MAX);
            printer.value(value, 'v', Flags::default());
            printer.out
        }
    }
}

pub(super) fn too_large(limit: usize) -> String {
    format!("the result exceeds {limit} bytes")
}

/// Approximates Go's `unicode.IsPrint`: the characters that the standard library does not escape.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    // After another character, combining marks are not escaped.
    ["a", c.encode_utf8(&mut [0; 4])].concat().escape_debug().nth(1) == Some(c)
}

/// Builds one text of bounded length.
pub(super) struct Printer {
    out: String,
    limit: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

impl Printer {
    pub(super) fn new(limit: usize) -> Self {
        Self { out: String::new(), limit }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    fn finish(&mut self) -> Result<Value, String> {
        self.check()?;
        Ok(Value::text(std::mem::take(&mut self.out)))
    }

    fn check(&self) -> Result<(), String> {
        if self.out.len() > self.limit { Err(too_large(self.limit)) } else { Ok(()) }
    }

    /// Like `fmt.Sprint`: puts a space between two operands if neither is a string.
    pub(super) fn print(&mut self, args: &[Value]) -> Result<Value, String> {
        let mut after_text = true;
        for (index, arg) in args.iter().enumerate() {
            let text = matches!(arg, Value::Text(_));
            if index > 0 && !text && !after_text {
                self.out.push(' ');
            }
            self.value(arg, 'v', Flags::default());
            self.check()?;
            after_text = text;
        }
        self.finish()
    }

    pub(super) fn println(&mut self, args: &[Value]) -> Result<Value, String> {
        for (index, arg) in args.iter().enumerate() {
            if index > 0 {
                self.out.push(' ');
            }
            self.value(arg, 'v', Flags::default());
            self.check()?;
        }
        self.out.push('\n');
        self.finish()
    }

    pub(super) fn printf(&mut self, format: &str, args: &[Value]) -> Result<Value, String> {
        let chars: Vec<char> = format.chars().collect();
        let mut scan = Scan { chars: &chars, at: 0, args, next: 0, reordered: false, just_indexed: false };
        while let Some(c) = scan.take() {
            if c == '%' {
                self.verb(&mut scan);
            } else {
                self.out.push(c);
            }
            self.check()?;
        }
        if !scan.reordered && scan.next < args.len() {
            self.out.push_str("%!(EXTRA ");
            for (index, arg) in args.iter().skip(scan.next).enumerate() {
                if index > 0 {
                    self.out.push_str(", ");
                }
                if matches!(arg, Value::Nil) {
                    self.out.push_str("<nil>");
                } else {
                    self.out.push_str(arg.type_name());
                    self.out.push('=');
                    self.value(arg, 'v', Flags::default());
                }
                self.check()?;
            }
            self.out.push(')');
        }
        self.finish()
    }

    /// Formats one verb, from after its percent sign.
    fn verb(&mut self, scan: &mut Scan<'_>) {
        let mut flags = Flags::default();
        while let Some(c) = scan.peek() {
            match c {
                '#' => flags.sharp = true,
                '0' => flags.zero = true,
                '+' => flags.plus = true,
                '-' => flags.minus = true,
                ' ' => flags.space = true,
                _ => break,
            }
            scan.at += 1;
        }
        let mut good_index = scan.index();
        let mut after_index = scan.just_indexed;
        if scan.peek() == Some('*') {
            scan.at += 1;
            match scan.star() {
                Some(width) => {
                    flags.minus |= width < 0;
                    flags.width = Some(width.unsigned_abs() as usize);
                }
                None => self.out.push_str("%!(BADWIDTH)"),
            }
            after_index = false;
        } else {
            flags.width = scan.digits();
            if after_index && flags.width.is_some() {
                good_index = false;
            }
        }
        if scan.peek() == Some('.') {
            scan.at += 1;
            if after_index {
                good_index = false;
            }
            good_index &= scan.index();
            after_index = scan.just_indexed;
            if scan.peek() == Some('*') {
                scan.at += 1;
                match scan.star() {
                    Some(precision) => flags.precision = usize::try_from(precision).ok(),
                    None => self.out.push_str("%!(BADPREC)"),
                }
                after_index = false;
            } else {
                flags.precision = Some(scan.digits().unwrap_or_default());
            }
        }
        if !after_index {
            good_index &= scan.index();
        }
        let Some(verb) = scan.take() else { return self.out.push_str("%!(NOVERB)") };
        if verb == '%' {
            return self.out.push('%');
        }
        if !good_index {
            return self.out.push_str(&format!("%!{verb}(BADINDEX)"));
        }
        let Some(arg) = scan.args.get(scan.next) else {
            return self.out.push_str(&format!("%!{verb}(MISSING)"));
        };
        scan.next += 1;
        self.value(arg, verb, flags);
    }

    fn value(&mut self, value: &Value, verb: char, flags: Flags) {
        if verb == 'T' {
            return self.pad(value.type_name(), flags);
        }
        match (value, verb) {
            (Value::Nil, 'v') => self.pad("<nil>", flags),
            (Value::Nil, verb) => self.out.push_str(&format!("%!{verb}(<nil>)")),
            (Value::Bool(b), 'v' | 't') => self.pad(if *b { "true" } else { "false" }, flags),
            (Value::Int(n), verb) => self.integer(value, *n < 0, n.unsigned_abs(), verb, flags),
            (Value::Byte(n), 'v') if flags.sharp => {
                self.integer(value, false, u64::from(*n), 'x', flags);
            }
            (Value::Byte(n), verb) => self.integer(value, false, u64::from(*n), verb, flags),
            (Value::Float(n), 'v') => self.float(*n, 'g', flags),
            (Value::Float(n), 'e' | 'E' | 'f' | 'F' | 'g' | 'G') => self.float(*n, verb, flags),
            (Value::Text(text), verb) => self.text(value, text, verb, flags),
            (Value::Map(map), verb) => {
                self.out.push_str(if flags.sharp && verb == 'v' { "map[string]string{" } else { "map[" });
                for (index, (key, element)) in map.iter().enumerate() {
                    if index > 0 {
                        self.out.push_str(if flags.sharp && verb == 'v' { ", " } else { " " });
                    }
                    self.value(&Value::text(key.as_str()), verb, flags);
                    self.out.push(':');
                    self.value(&Value::text(element.as_str()), verb, flags);
                    if self.out.len() > self.limit {
                        return;
                    }
                }
                self.out.push(if flags.sharp && verb == 'v' { '}' } else { ']' });
            }
            _ => self.bad(value, verb),
        }
    }

    fn bad(&mut self, value: &Value, verb: char) {
        self.out.push_str(&format!("%!{verb}({}=", value.type_name()));
        self.value(value, 'v', Flags::default());
        self.out.push(')');
    }

    fn pad(&mut self, text: &str, flags: Flags) {
        let missing = flags.width.unwrap_or_default().saturating_sub(text.chars().count());
        if flags.minus {
            self.out.push_str(text);
            self.out.extend(std::iter::repeat_n(' ', missing));
        } else {
            let filler = if flags.zero { '0' } else { ' ' };
            self.out.extend(std::iter::repeat_n(filler, missing));
            self.out.push_str(text);
        }
    }

    fn text(&mut self, value: &Value, text: &str, verb: char, flags: Flags) {
        let cut: &str = match flags.precision {
            Some(count) => text.char_indices().nth(count).map_or(text, |(at, _)| text.split_at(at).0),
            None => text,
        };
        match verb {
            'v' if flags.sharp => self.pad(&go_quoted(text, Flags { sharp: false, ..flags }), flags),
            'v' | 's' => self.pad(cut, flags),
            'q' => self.pad(&go_quoted(cut, flags), flags),
            'x' | 'X' => {
                let bytes = text.as_bytes();
                let bytes = bytes.get(..flags.precision.unwrap_or(bytes.len())).unwrap_or(bytes);
                self.pad(&hex(bytes, verb == 'X', flags), flags);
            }
            _ => self.bad(value, verb),
        }
    }

    fn integer(&mut self, value: &Value, negative: bool, magnitude: u64, verb: char, flags: Flags) {
        let code = || (!negative).then(|| u32::try_from(magnitude).ok().and_then(char::from_u32)).flatten();
        let (digits, prefix) = match verb {
            'v' | 'd' => (magnitude.to_string(), ""),
            'b' => (format!("{magnitude:b}"), "0b"),
            'o' => (format!("{magnitude:o}"), "0"),
            'O' => (format!("{magnitude:o}"), "0o"),
            'x' => (format!("{magnitude:x}"), "0x"),
            'X' => (format!("{magnitude:X}"), "0X"),
            'c' => return self.pad(&code().unwrap_or('\u{fffd}').to_string(), flags),
            'q' => return self.pad(&go_char(code().unwrap_or('\u{fffd}'), flags), flags),
            'U' => {
                let number = if negative { magnitude.wrapping_neg() } else { magnitude };
                let digits = format!("{number:X}");
                let zeros = flags.precision.unwrap_or(4).max(4).saturating_sub(digits.len());
                let mut text = format!("U+{}{digits}", "0".repeat(zeros));
                if let Some(c) = code().filter(|c| flags.sharp && is_printable(*c)) {
                    text.push_str(&format!(" '{c}'"));
                }
                return self.pad(&text, Flags { zero: false, ..flags });
            }
            _ => return self.bad(value, verb),
        };
        if flags.precision == Some(0) && magnitude == 0 {
            return self.pad("", Flags { zero: false, ..flags });
        }
        let mut least = flags.precision.unwrap_or_default();
        if flags.precision.is_none() && flags.zero && !flags.minus {
            least = flags.width.unwrap_or_default();
            if negative || flags.plus || flags.space {
                least = least.saturating_sub(1);
            }
        }
        let mut number = String::new();
        if negative {
            number.push('-');
        } else if flags.plus {
            number.push('+');
        } else if flags.space {
            number.push(' ');
        }
        let zeros = least.saturating_sub(digits.len());
        if verb == 'O' || flags.sharp && !(prefix == "0" && (zeros > 0 || digits.starts_with('0'))) {
            number.push_str(prefix);
        }
        number.extend(std::iter::repeat_n('0', zeros));
        number.push_str(&digits);
        self.pad(&number, Flags { zero: false, ..flags });
    }

    fn float(&mut self, value: f64, verb: char, flags: Flags) {
        let sign = if value.is_sign_negative() && !value.is_nan() {
            "-"
        } else if flags.plus {
            "+"
        } else if flags.space {
            " "
        } else {
            ""
        };
        if !value.is_finite() {
            let text = if value.is_nan() { "NaN" } else { "Inf" };
            let sign = if sign.is_empty() && value.is_infinite() { "+" } else { sign };
            return self.pad(&format!("{sign}{text}"), Flags { zero: false, ..flags });
        }
        let mut digits = float_digits(value.abs(), verb, flags);
        if verb.is_ascii_uppercase() {
            digits.make_ascii_uppercase();
        }
        if flags.zero && !flags.minus {
            let missing = flags.width.unwrap_or_default().saturating_sub(sign.len() + digits.len());
            let number = format!("{sign}{}{digits}", "0".repeat(missing));
            return self.out.push_str(&number);
        }
        self.pad(&format!("{sign}{digits}"), flags);
    }
}

/// A non-negative number formatted by a verb.
fn float_digits(value: f64, verb: char, mut flags: Flags) -> String {
    // No float has more non-zero digits.
    flags.precision = flags.precision.map(|precision| precision.min(1_100));
    match verb.to_ascii_lowercase() {
        'e' => exponential(&format!("{value:.*e}", flags.precision.unwrap_or(6))),
        'f' => format!("{value:.*}", flags.precision.unwrap_or(6)),
        _ => general(value, flags),
    }
}

/// `%g`: the shorter of both forms.
fn general(value: f64, flags: Flags) -> String {
    let scientific = match flags.precision {
        None => format!("{value:e}"),
        Some(precision) => format!("{value:.*e}", precision.max(1) - 1),
    };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let mut significant: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let count = significant.len();
    if !flags.sharp {
        let kept = significant.trim_end_matches('0').len().max(1);
        significant.truncate(kept);
    } else if flags.precision.is_none() {
        while significant.len() < 6 {
            significant.push('0');
        }
    }
    let most = match flags.precision {
        None => 6,
        Some(precision) => {
            let precision = precision.max(1);
            let whole = usize::try_from(exponent + 1).unwrap_or_default();
            // Trailing zeros beyond the decimal point need no exponent.
            if precision > count && count >= whole { count } else { precision }
        }
    };
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= most {
        let (first, rest) = significant.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        return exponential(&format!("{first}{point}{rest}e{exponent}"));
    }
    match usize::try_from(exponent + 1) {
        Ok(whole) if whole > 0 => {
            let padding = "0".repeat(whole.saturating_sub(significant.len()));
            let padded = format!("{significant}{padding}");
            let (before, after) = padded.split_at(whole);
            let point = if after.is_empty() && !flags.sharp { "" } else { "." };
            format!("{before}{point}{after}")
        }
        _ => format!("0.{}{significant}", "0".repeat(exponent.unsigned_abs() as usize - 1)),
    }
}

/// `1.5e3` as Go prints it: with a sign and at least two digits.
fn exponential(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

fn hex(bytes: &[u8], upper: bool, flags: Flags) -> String {
    let prefix = match (flags.sharp, upper) {
        (true, true) => "0X",
        (true, false) => "0x",
        _ => "",
    };
    let mut out = String::with_capacity(bytes.len() * 2 + 2);
    for (index, byte) in bytes.iter().enumerate() {
        if index > 0 && flags.space {
            out.push(' ');
        }
        if index == 0 || flags.space {
            out.push_str(prefix);
        }
        out.push_str(&if upper { format!("{byte:02X}") } else { format!("{byte:02x}") });
    }
    out
}

/// Quotes as `%q` does.
fn go_quoted(text: &str, flags: Flags) -> String {
    let raw_possible = !text.chars().any(|c| c == '`' || c == '\u{feff}' || (c != '\t' && c.is_control()));
    if flags.sharp && raw_possible {
        return format!("`{text}`");
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| escape(&mut out, c, '"', flags.plus));
    out.push('"');
    out
}

fn go_char(c: char, flags: Flags) -> String {
    let mut out = String::from("'");
    escape(&mut out, c, '\'', flags.plus);
    out.push('\'');
    out
}

fn escape(out: &mut String, c: char, quote: char, ascii_only: bool) {
    match c {
        c if c == quote || c == '\\' => {
            out.push('\\');
            out.push(c);
        }
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{b}' => out.push_str("\\v"),
        c if is_printable(c) && (c.is_ascii() || !ascii_only) => out.push(c),
        c if u32::from(c) < u32::from(' ') || c == '\u{7f}' => {
            out.push_str(&format!("\\x{:02x}", u32::from(c)));
        }
        c if u32::from(c) < 0x10000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
    }
}

/// A format and its arguments.
struct Scan<'a> {
    chars: &'a [char],
    at: usize,
    args: &'a [Value],
    next: usize,
    reordered: bool,
    just_indexed: bool,
}

impl Scan<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn digits(&mut self) -> Option<usize> {
        let mut number: Option<i64> = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            if number.is_some_and(|number| number > MAX_FIELD) {
                return None;
            }
            number = Some(number.unwrap_or_default() * 10 + i64::from(digit));
            self.at += 1;
        }
        number.and_then(|number| usize::try_from(number).ok())
    }

    /// A width or precision given as an argument.
    fn star(&mut self) -> Option<i64> {
        let value = self.args.get(self.next)?;
        self.next += 1;
        value.integer().filter(|number| number.unsigned_abs() <= MAX_FIELD.unsigned_abs())
    }

    /// An explicit argument number, as in `%[2]d`; false if it is invalid.
    fn index(&mut self) -> bool {
        self.just_indexed = false;
        if self.peek() != Some('[') {
            return true;
        }
        self.reordered = true;
        let rest = self.chars.get(self.at..).unwrap_or_default();
        let Some(length) = rest.iter().position(|c| *c == ']') else {
            self.at += 1;
            return false;
        };
        let text: String = rest.iter().take(length).skip(1).collect();
        self.at += length + 1;
        match text.parse::<usize>() {
            Ok(number) if number >= 1 && number <= self.args.len() => {
                self.next = number - 1;
                self.just_indexed = true;
                true
            }
            _ => false,
        }
    }
}
