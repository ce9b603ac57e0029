//! Operations on values by type: field sets, differences, merges and removals.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::{Elem, PathSet, Scalar, atomic_map, compare_scalars};
use crate::schema::ListType;
use crate::schema::graph::{Graph, Id, Node, Type};

/// Up to this many elements of a list are compared one by one instead of by an index.
const LINEAR_SEARCH_MAX: usize = 16;

/// A node of the type graph; `None` for a value whose type is deduced from its form.
pub(crate) type TypeRef = Option<Id>;

/// A type graph, with the operations that field ownership needs.
#[derive(Clone, Copy)]
pub(crate) struct Types<'g>(pub(crate) &'g Graph);

/// How a value is owned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Owned as a whole.
    Leaf,
    Map,
    /// A keyed list or a set.
    List(ListType),
}

/// The difference between two values.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) removed: PathSet,
    pub(crate) modified: PathSet,
    pub(crate) added: PathSet,
}

impl Comparison {
    fn attach(&mut self, elem: &Elem, child: Difference) {
        let Difference { removed, modified, added, below } = child;
        self.removed.attach(elem.clone(), removed, below.removed);
        self.modified.attach(elem.clone(), modified, below.modified);
        self.added.attach(elem.clone(), added, below.added);
    }
}

#[derive(Default)]
struct Difference {
    removed: bool,
    modified: bool,
    added: bool,
    below: Comparison,
}

impl<'g> Types<'g> {
    fn node(self, place: TypeRef) -> Option<&'g Node> {
        place.map(|id| self.0.resolve(id).1)
    }

    pub(crate) fn form(self, place: TypeRef, value: &Value) -> Form {
        match value {
            Value::Object(_) => match place {
                Some(id) if atomic_map(self.0, id) => Form::Leaf,
                _ => Form::Map,
            },
            Value::Array(_) => match place {
                Some(id) if self.0.resolve(id).1.kind == Type::Array => match self.0.list_type(id) {
                    ListType::Atomic => Form::Leaf,
                    other => Form::List(other),
                },
                _ => Form::Leaf,
            },
            _ => Form::Leaf,
        }
    }

    /// The type of a field, and whether it is declared by name.
    pub(crate) fn field(self, place: TypeRef, name: &str) -> (TypeRef, bool) {
        match self.node(place) {
            Some(node) => match node.field(name) {
                Some(field) => (Some(field.node), true),
                None => (node.additional, false),
            },
            None => (None, false),
        }
    }

    pub(crate) fn items(self, place: TypeRef) -> TypeRef {
        self.node(place).and_then(|n| n.items)
    }

    /// Whether fields that are not declared are allowed here.
    pub(crate) fn allows_unknown(self, place: TypeRef) -> bool {
        self.node(place).is_none_or(|node| {
            node.kind == Type::Any
                || node.preserve
                || node.open
                || node.additional.is_some()
                || (node.fields.is_empty() && node.additional.is_none())
        })
    }

    /// The path step of a list element.
    ///
    /// # Errors
    /// The element lacks a key, or is not a scalar.
    pub(crate) fn elem(self, place: TypeRef, list: ListType, item: &Value) -> Result<Elem, String> {
        if list == ListType::Set {
            return match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null".to_owned())
                }
                scalar => Ok(Elem::Value(Scalar(scalar.clone()))),
            };
        }
        let map = match item {
            Value::Object(map) => map,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let Some(keys) = self.keys(place) else { return Err("not a keyed list".to_owned()) };
        let element = self.items(place);
        let mut named = Vec::with_capacity(keys.len());
        for key in keys {
            match map.get(key).or_else(|| self.default_of(element, key)) {
                Some(value) => named.push((key.as_str().into(), Scalar(value.clone()))),
                None => {
                    return Err(format!(
                        "associative list with keys has an element that omits key field {key:?} \
                         (and doesn't have default value)"
                    ));
                }
            }
        }
        named.sort();
        Ok(Elem::Key(named))
    }

    /// The key fields of a keyed list.
    fn keys(self, place: TypeRef) -> Option<&'g [String]> {
        match place.map(|id| self.0.node(id)) {
            Some(node) if !node.list_keys.is_empty() => Some(&node.list_keys),
            _ => self.node(place).map(|node| node.list_keys.as_slice()),
        }
    }

    fn default_of(self, element: TypeRef, key: &str) -> Option<&'g Value> {
        let field = self.node(element)?.field(key)?;
        self.0.node(field.node).default.as_ref()
    }

    /// Whether two elements of a list have the same path step.
    fn same_name(self, place: TypeRef, list: ListType, a: &Value, b: &Value) -> bool {
        if list == ListType::Set {
            return compare_scalars(a, b).is_eq();
        }
        let element = self.items(place);
        self.keys(place).is_some_and(|keys| {
            keys.iter().all(|key| {
                let of = |item| Value::get(item, key.as_str()).or_else(|| self.default_of(element, key));
                matches!((of(a), of(b)), (Some(a), Some(b)) if compare_scalars(a, b).is_eq())
            })
        })
    }

    /// The elements of a list by path step, in order. Of duplicates the first counts; elements without a step are left
    /// out.
    fn index(self, place: TypeRef, list: ListType, items: &[Value]) -> Vec<(Elem, usize)> {
        items
            .iter()
            .enumerate()
            .filter_map(|(at, item)| Some((self.elem(place, list, item).ok()?, at)))
            .collect()
    }

    /// The fields that an applied value sets.
    pub(crate) fn field_set(self, place: TypeRef, value: &Value) -> PathSet {
        let mut out = PathSet::default();
        match (self.form(place, value), value) {
            (Form::Map, Value::Object(map)) => {
                for (key, one) in map {
                    let (child, declared) = self.field(place, key);
                    let below = self.field_set(child, one);
                    let empty = one.as_object().is_some_and(Map::is_empty);
                    let leaf = self.is_leaf(child, one);
                    out.attach(Elem::Field(key.as_str().into()), leaf || empty || !declared, below);
                }
            }
            (Form::List(list), Value::Array(items)) => {
                let element = self.items(place);
                for item in items {
                    if let Ok(elem) = self.elem(place, list, item) {
                        out.attach(elem, true, self.field_set(element, item));
                    }
                }
            }
            _ => {}
        }
        out
    }

    fn is_leaf(self, place: TypeRef, value: &Value) -> bool {
        value.is_null() || self.form(place, value) == Form::Leaf
    }

    /// The difference between two objects.
    pub(crate) fn compare(self, place: TypeRef, old: &Value, new: &Value) -> Comparison {
        self.differ(place, Some(old), Some(new)).below
    }

    fn differ(self, place: TypeRef, old: Option<&Value>, new: Option<&Value>) -> Difference {
        let mut out = Difference::default();
        let (Some(shown), other) = (new.or(old), if new.is_some() { old } else { None }) else { return out };
        // A null has the type of the other side.
        let shown = if shown.is_null() { other.unwrap_or(shown) } else { shown };
        let form = self.form(place, shown);
        let same_form = other.is_none_or(|o| o.is_null() || self.form(place, o) == form);
        let leaf = form == Form::Leaf || (empty(old) && empty(new));
        if leaf || !same_form {
            match (old, new) {
                (None, _) => out.added = true,
                (_, None) => out.removed = true,
                (Some(old), Some(new)) => out.modified = old != new,
            }
            if leaf && same_form {
                return out;
            }
        }
        if !same_form {
            // The form has changed: all old fields are removed and all new ones added.
            let gone = self.differ(place, old, None);
            let come = self.differ(place, None, new);
            out.below.removed = gone.below.removed;
            out.below.added = come.below.added;
            return out;
        }
        match form {
            Form::Map => self.differ_maps(place, old, new, &mut out.below),
            Form::List(list) => self.differ_lists(place, list, old, new, &mut out.below),
            Form::Leaf => {}
        }
        // An added or removed node is a member itself.
        out.added |= old.is_none();
        out.removed |= new.is_none();
        out
    }

    fn differ_maps(self, place: TypeRef, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        for (key, was) in old.into_iter().flatten() {
            let is = new.and_then(|n| n.get(key));
            if is == Some(was) {
                continue;
            }
            let difference = self.differ(self.field(place, key).0, Some(was), is);
            out.attach(&Elem::Field(key.as_str().into()), difference);
        }
        for (key, is) in new.into_iter().flatten() {
            if old.is_none_or(|o| !o.contains_key(key)) {
                let difference = self.differ(self.field(place, key).0, None, Some(is));
                out.attach(&Elem::Field(key.as_str().into()), difference);
            }
        }
    }

    fn differ_lists(
        self,
        place: TypeRef,
        list: ListType,
        old: Option<&Value>,
        new: Option<&Value>,
        out: &mut Comparison,
    ) {
        let none: &[Value] = &[];
        let old = old.and_then(Value::as_array).map_or(none, Vec::as_slice);
        let new = new.and_then(Value::as_array).map_or(none, Vec::as_slice);
        let element = self.items(place);
        let (old, new) = self.without_common_ends(place, list, old, new);
        // Live objects may have duplicates; they are compared together.
        let mut sides: BTreeMap<Elem, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (elem, at) in self.index(place, list, old) {
            sides.entry(elem).or_default().0.extend(old.get(at));
        }
        for (elem, at) in self.index(place, list, new) {
            sides.entry(elem).or_default().1.extend(new.get(at));
        }
        for (elem, (was, is)) in sides {
            let difference = if was.len() < 2 && is.len() < 2 {
                self.differ(element, was.first().copied(), is.first().copied())
            } else if was == is {
                continue;
            } else {
                Difference {
                    added: was.is_empty(),
                    removed: is.is_empty(),
                    modified: !was.is_empty() && !is.is_empty(),
                    ..Difference::default()
                }
            };
            out.attach(&elem, difference);
        }
    }

    /// The differing middle parts of two lists if they are small; else the whole lists. Elements with the same name,
    /// which live objects may have, are never separated.
    fn without_common_ends<'v>(
        self,
        place: TypeRef,
        list: ListType,
        old: &'v [Value],
        new: &'v [Value],
    ) -> (&'v [Value], &'v [Value]) {
        let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let (olds, news) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
        let tail = olds.iter().rev().zip(news.iter().rev()).take_while(|(a, b)| a == b).count();
        let inner = |list: &'v [Value]| list.get(..list.len().saturating_sub(tail)).unwrap_or_default();
        let (olds, news) = (inner(olds), inner(news));
        let mut common = old.iter().take(head).chain(old.iter().rev().take(tail));
        let named_so =
            |one: &Value| olds.iter().chain(news).any(|other| self.same_name(place, list, one, other));
        if olds.len() + news.len() > LINEAR_SEARCH_MAX || common.any(named_so) {
            (old, new)
        } else {
            (olds, news)
        }
    }

    /// Merges an applied value over a live one.
    pub(crate) fn merge(
        self,
        place: TypeRef,
        live: Option<&Value>,
        applied: Option<&Value>,
    ) -> Option<Value> {
        let Some(applied) = applied else { return live.cloned() };
        let Some(live) = live else { return Some(applied.clone()) };
        let form = self.form(place, if applied.is_null() { live } else { applied });
        if form == Form::Leaf || self.form(place, live) != form || (empty(Some(live)) && empty(Some(applied)))
        {
            return Some(applied.clone());
        }
        match form {
            Form::Map => Some(self.merge_maps(place, live, applied)),
            Form::List(list) => Some(Value::Array(self.merge_lists(place, list, live, applied))),
            Form::Leaf => None,
        }
    }

    fn merge_maps(self, place: TypeRef, live: &Value, applied: &Value) -> Value {
        let mut out = Map::new();
        let applied = applied.as_object();
        for (key, one) in live.as_object().into_iter().flatten() {
            let with = applied.and_then(|a| a.get(key));
            if let Some(merged) = self.merge(self.field(place, key).0, Some(one), with) {
                out.insert(key.clone(), merged);
            }
        }
        for (key, one) in applied.into_iter().flatten() {
            if !out.contains_key(key) {
                out.insert(key.clone(), one.clone());
            }
        }
        Value::Object(out)
    }

    /// Applied elements keep their applied order. Elements that are only live keep their positions between them.
    fn merge_lists(self, place: TypeRef, list: ListType, live: &Value, applied: &Value) -> Vec<Value> {
        let none: &[Value] = &[];
        let left = live.as_array().map_or(none, Vec::as_slice);
        let right = applied.as_array().map_or(none, Vec::as_slice);
        let element = self.items(place);
        let lefts = self.index(place, list, left);
        let rights = self.index(place, list, right);
        let in_left: BTreeMap<&Elem, usize> = lefts.iter().rev().map(|(e, at)| (e, *at)).collect();
        let in_right: BTreeMap<&Elem, usize> = rights.iter().rev().map(|(e, at)| (e, *at)).collect();
        let mut shared = rights.iter().map(|(e, _)| e).filter(|e| in_left.contains_key(e));
        let mut next = shared.next();
        let mut out = Vec::with_capacity(lefts.len().max(rights.len()));
        let (mut l, mut r) = (0, 0);
        loop {
            let (here, there) = (lefts.get(l), rights.get(r));
            if let (Some((elem, _)), Some((wanted, at))) = (here, there) {
                if elem == wanted {
                    out.extend(self.merge(
                        element,
                        in_left.get(elem).and_then(|i| left.get(*i)),
                        right.get(*at),
                    ));
                    (l, r) = (l + 1, r + 1);
                    next = shared.next();
                    continue;
                }
                if in_right.contains_key(elem) && next.is_some_and(|n| n != elem) {
                    // Shared, but not the next applied one.
                    l += 1;
                    continue;
                }
            }
            if let Some((elem, at)) = here {
                if !in_right.contains_key(elem) {
                    out.extend(left.get(*at).cloned());
                    l += 1;
                    continue;
                }
                if there.is_none() {
                    // Already merged with its applied element.
                    l += 1;
                    continue;
                }
            }
            let Some((elem, at)) = there else { break };
            out.extend(self.merge(element, in_left.get(elem).and_then(|i| left.get(*i)), right.get(*at)));
            r += 1;
            if next == Some(elem) {
                next = shared.next();
            }
        }
        out
    }

    /// Removes the members of the set; `None` if nothing is left.
    pub(crate) fn remove(self, place: TypeRef, value: &Value, set: &PathSet) -> Option<Value> {
        if set.is_empty() {
            return Some(value.clone());
        }
        match (self.form(place, value), value) {
            (Form::Map, Value::Object(map)) => {
                let mut out = Map::new();
                for (key, one) in map {
                    let elem = Elem::Field(key.as_str().into());
                    if set.has(&elem) {
                        continue;
                    }
                    // An emptied field stays as null: the field itself was not removed, and may be owned.
                    let kept = match set.below(&elem) {
                        Some(below) => {
                            self.remove(self.field(place, key).0, one, below).unwrap_or(Value::Null)
                        }
                        None => one.clone(),
                    };
                    out.insert(key.clone(), kept);
                }
                (!out.is_empty()).then_some(Value::Object(out))
            }
            (Form::List(list), Value::Array(items)) => {
                let element = self.items(place);
                let mut out = Vec::with_capacity(items.len());
                for item in items {
                    let Ok(elem) = self.elem(place, list, item) else {
                        out.push(item.clone());
                        continue;
                    };
                    if set.has(&elem) {
                        continue;
                    }
                    match set.below(&elem) {
                        Some(below) => out.extend(self.remove(element, item, below)),
                        None => out.push(item.clone()),
                    }
                }
                (!out.is_empty()).then_some(Value::Array(out))
            }
            // A value that is owned as a whole is removed as a whole.
            (Form::Leaf, Value::Object(_) | Value::Array(_)) => None,
            _ => Some(value.clone()),
        }
    }
}

/// Whether a value is absent, null or an empty container.
fn empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}
