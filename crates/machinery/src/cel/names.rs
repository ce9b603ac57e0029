//! Names that expressions may use without declaration.

use kube_cel::cel::common::ast::Expr;

/// Whether this is an operator, a function or a method.
pub(super) fn is_function(name: &str) -> bool {
    // Names of operators begin with another character.
    !name.starts_with(|c: char| c.is_ascii_alphabetic()) || FUNCTIONS.contains(&name)
}

/// Whether this is a function whose name has a dot.
pub(super) fn is_qualified(name: &str) -> bool {
    QUALIFIED.contains(&name)
}

/// The type that an expression names.
pub(super) fn type_name(expr: &Expr) -> Option<&'static str> {
    let (full, last) = match expr {
        Expr::Ident(name) => (false, name),
        Expr::Select(select) if !select.test => match &select.operand.expr {
            Expr::Select(inner) if inner.field == "protobuf" && !inner.test => match &inner.operand.expr {
                Expr::Ident(root) if root == "google" => (true, &select.field),
                _ => return None,
            },
            _ => return None,
        },
        _ => return None,
    };
    TYPES.into_iter().find(|known| match known.strip_prefix("google.protobuf.") {
        Some(short) => full && short == last,
        None => !full && known == last,
    })
}

/// All names of functions, for tests.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.into_iter().chain(QUALIFIED)
}

/// Types that can be used as values.
pub(super) const TYPES: [&str; 12] = [
    "bool",
    "bytes",
    "double",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// Functions and methods.
const FUNCTIONS: [&str; 92] = [
    "add",
    "asApproximateFloat",
    "asInteger",
    "bool",
    "bytes",
    "charAt",
    "cidr",
    "compareTo",
    "contains",
    "containsCIDR",
    "containsIP",
    "distinct",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "family",
    "find",
    "findAll",
    "first",
    "flatten",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getEscapedPath",
    "getFullYear",
    "getHost",
    "getHostname",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getPort",
    "getQuery",
    "getScheme",
    "getSeconds",
    "hasValue",
    "indexOf",
    "int",
    "ip",
    "isCIDR",
    "isGlobalUnicast",
    "isGreaterThan",
    "isIP",
    "isInteger",
    "isLessThan",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isQuantity",
    "isSemver",
    "isSorted",
    "isURL",
    "isUnspecified",
    "join",
    "last",
    "lastIndexOf",
    "lowerAscii",
    "major",
    "masked",
    "matches",
    "max",
    "min",
    "minor",
    "or",
    "orValue",
    "patch",
    "prefixLength",
    "quantity",
    "replace",
    "reverse",
    "semver",
    "sign",
    "size",
    "slice",
    "sort",
    "split",
    "startsWith",
    "string",
    "sub",
    "substring",
    "sum",
    "timestamp",
    "trim",
    "type",
    "uint",
    "upperAscii",
    "url",
    "validate",
    "value",
];

/// Functions whose names have a dot.
const QUALIFIED: [&str; 44] = [
    "base64.decode",
    "base64.encode",
    "format.byte",
    "format.date",
    "format.datetime",
    "format.dns1035Label",
    "format.dns1035LabelPrefix",
    "format.dns1123Label",
    "format.dns1123LabelPrefix",
    "format.dns1123Subdomain",
    "format.dns1123SubdomainPrefix",
    "format.labelValue",
    "format.named",
    "format.qualifiedName",
    "format.uri",
    "format.uuid",
    "ip.isCanonical",
    "jsonpatch.escapeKey",
    "lists.range",
    "math.abs",
    "math.bitAnd",
    "math.bitNot",
    "math.bitOr",
    "math.bitShiftLeft",
    "math.bitShiftRight",
    "math.bitXor",
    "math.ceil",
    "math.floor",
    "math.greatest",
    "math.isFinite",
    "math.isInf",
    "math.isNaN",
    "math.least",
    "math.round",
    "math.sign",
    "math.sqrt",
    "math.trunc",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "strings.quote",
];

/// The part before the dot of qualified functions and types.
pub(crate) const NAMESPACES: [&str; 24] = [
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
