//! The fields of the messages of the built-in kinds, from a data file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

const DATA: &str = include_str!("../../data/protobuf.json");

/// Index of a message in the [`Table`].
pub(super) type Id = u16;

/// The type of one value on the wire, which determines its JSON form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    String,
    Bool,
    Int32,
    Int64,
    Double,
    /// Base64 text in JSON.
    Bytes,
    /// A message of seconds; RFC 3339 text in JSON.
    Time,
    /// The same with microseconds.
    MicroTime,
    Quantity,
    IntOrString,
    /// A message with bytes of JSON: raw extensions, field sets, free-form schema values.
    Json,
    /// A message with a list of strings; in JSON the list itself.
    Strings,
    /// A schema, or a list of schemas.
    SchemaOrArray(Id),
    SchemaOrBool(Id),
    SchemaOrStrings(Id),
    Message(Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    One,
    List,
    /// Keys are strings.
    Map,
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Name in JSON.
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) r#type: Type,
    pub(super) repeat: Repeat,
    /// Absent and zero differ. Other single fields are always written.
    pub(super) pointer: bool,
    /// The zero value is left out of JSON.
    pub(super) omit_zero: bool,
    /// The message's fields are members of the surrounding JSON object.
    pub(super) inline: bool,
}

/// All messages of the built-in kinds, shared by the whole process.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By apiVersion, then kind.
    kinds: Box<[(&'static str, &'static str, Id)]>,
    /// Fields by number.
    messages: Box<[Box<[Field]>]>,
}

impl Table {
    /// Loads the table once. The data is part of the program; if it cannot be read, which any test shows, no kind is
    /// known.
    pub(super) fn get() -> &'static Self {
        static TABLE: LazyLock<Table> = LazyLock::new(|| match parse(DATA) {
            Ok(table) => table,
            Err(error) => {
                tracing::error!(%error, "the protobuf table is unreadable");
                Table::default()
            }
        });
        &TABLE
    }

    /// The message of a kind. Options of requests have the apiVersion of the resource that they are sent to.
    pub(super) fn kind(&self, api_version: &str, kind: &str) -> Option<Id> {
        let find = |version: &str| {
            let at = self.kinds.binary_search_by(|(v, k, _)| (*v, *k).cmp(&(version, kind))).ok()?;
            self.kinds.get(at).map(|(_, _, id)| *id)
        };
        find(api_version).or_else(|| find("*"))
    }

    pub(super) fn fields(&self, id: Id) -> &[Field] {
        self.messages.get(usize::from(id)).map(AsRef::as_ref).unwrap_or_default()
    }

    pub(super) fn field(&self, id: Id, number: u32) -> Option<&Field> {
        let fields = self.fields(id);
        fields.get(fields.binary_search_by_key(&number, |f| f.number).ok()?)
    }

    /// The field with a JSON name.
    pub(super) fn named(&self, id: Id, name: &str) -> Option<&Field> {
        self.fields(id).iter().find(|f| f.name == name)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, Id)> {
        self.kinds.iter().copied()
    }
}

/// Number, JSON name, type, flags: `p` pointer, `o` omitted when zero, `i` inline.
type Row = (u32, &'static str, &'static str, &'static str);

#[derive(Deserialize)]
struct Data {
    /// `apiVersion kind` to message name.
    #[serde(borrow)]
    kinds: BTreeMap<&'static str, &'static str>,
    #[serde(borrow)]
    messages: BTreeMap<&'static str, Vec<Row>>,
}

#[derive(Debug, thiserror::Error)]
enum TableError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("unknown type {0:?}")]
    Type(String),
}

fn parse(text: &'static str) -> Result<Table, TableError> {
    let data: Data = serde_json::from_str(text)?;
    let names: Vec<&str> = data.messages.keys().copied().collect();
    let id = |name: &str| -> Result<Id, TableError> {
        let at = names.binary_search(&name).ok().and_then(|at| Id::try_from(at).ok());
        at.ok_or_else(|| TableError::Type(name.to_owned()))
    };
    let messages = data.messages.values().map(|rows| {
        let fields = rows.iter().map(|row| field(row, &id)).collect::<Result<Vec<_>, _>>()?;
        Ok(fields.into_boxed_slice())
    });
    let messages = messages.collect::<Result<Vec<_>, TableError>>()?.into_boxed_slice();
    let mut kinds = Vec::with_capacity(data.kinds.len());
    for (key, message) in &data.kinds {
        let (version, kind) = key.split_once(' ').ok_or_else(|| TableError::Type((*key).to_owned()))?;
        kinds.push((version, kind, id(message)?));
    }
    kinds.sort_unstable();
    Ok(Table { kinds: kinds.into_boxed_slice(), messages })
}

fn field(row: &Row, id: &dyn Fn(&str) -> Result<Id, TableError>) -> Result<Field, TableError> {
    const SCHEMA: &str = "apiextensions.v1.JSONSchemaProps";
    let &(number, name, spec, flags) = row;
    let (repeat, base) = match spec.split_once(' ') {
        Some(("list", base)) => (Repeat::List, base),
        Some(("map", base)) => (Repeat::Map, base),
        _ => (Repeat::One, spec),
    };
    let r#type = match base {
        "string" => Type::String,
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "double" => Type::Double,
        "bytes" => Type::Bytes,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "quantity" => Type::Quantity,
        "intstr" => Type::IntOrString,
        "json" => Type::Json,
        "strings" => Type::Strings,
        "schema|array" => Type::SchemaOrArray(id(SCHEMA)?),
        "schema|bool" => Type::SchemaOrBool(id(SCHEMA)?),
        "schema|strings" => Type::SchemaOrStrings(id(SCHEMA)?),
        message => Type::Message(id(message)?),
    };
    let has = |flag: char| flags.contains(flag);
    Ok(Field { name, number, r#type, repeat, pointer: has('p'), omit_zero: has('o'), inline: has('i') })
}
