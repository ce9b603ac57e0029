//! Evaluation of steps on values.

use std::{cmp::Ordering, rc::Rc};

use serde_json::Value;

use super::{Filter, Operand, Step, Test};

/// Most values that one search visits.
const VISITS_MAX: usize = 100_000;

/// A value and its path.
#[derive(Clone)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    way: Option<Rc<Link<'a>>>,
}

struct Link<'a> {
    place: StepRef<'a>,
    before: Option<Rc<Link<'a>>>,
}

#[derive(Clone, Copy)]
enum StepRef<'a> {
    Member(&'a str),
    Element(usize),
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathStep {
    Member(String),
    Element(usize),
}

impl<'a> Node<'a> {
    fn below(&self, place: StepRef<'a>, value: &'a Value) -> Self {
        Self { value, way: Some(Rc::new(Link { place, before: self.way.clone() })) }
    }

    fn member(&self, name: &str) -> Option<Self> {
        let (key, value) = self.value.as_object()?.get_key_value(name)?;
        Some(self.below(StepRef::Member(key), value))
    }

    fn element(&self, index: usize) -> Option<Self> {
        let value = self.value.as_array()?.get(index)?;
        Some(self.below(StepRef::Element(index), value))
    }

    fn children(&self) -> Vec<Self> {
        match self.value {
            Value::Object(map) => map.iter().map(|(k, v)| self.below(StepRef::Member(k), v)).collect(),
            Value::Array(list) => {
                list.iter().enumerate().map(|(i, v)| self.below(StepRef::Element(i), v)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The path from the root.
    pub(super) fn paths(&self) -> Vec<PathStep> {
        let mut out = Vec::new();
        let mut link = self.way.as_deref();
        while let Some(Link { place, before }) = link {
            out.push(match place {
                StepRef::Member(name) => PathStep::Member((*name).to_owned()),
                StepRef::Element(index) => PathStep::Element(*index),
            });
            link = before.as_deref();
        }
        out.reverse();
        out
    }
}

pub(super) fn find<'a>(root: &'a Value, steps: &[Step]) -> Vec<Node<'a>> {
    let mut budget = VISITS_MAX;
    walk(vec![Node { value: root, way: None }], steps, &mut budget)
}

/// Deletes the value at a path. Returns whether there was one.
pub(super) fn delete(root: &mut Value, place: &[PathStep]) -> bool {
    let Some((last, way)) = place.split_last() else { return false };
    let mut at = root;
    for step in way {
        let next = match step {
            PathStep::Member(name) => at.get_mut(name),
            PathStep::Element(index) => at.get_mut(index),
        };
        let Some(next) = next else { return false };
        at = next;
    }
    match (last, at) {
        (PathStep::Member(name), Value::Object(map)) => map.remove(name).is_some(),
        (PathStep::Element(index), Value::Array(list)) if *index < list.len() => {
            list.remove(*index);
            true
        }
        _ => false,
    }
}

fn walk<'a>(mut nodes: Vec<Node<'a>>, steps: &[Step], budget: &mut usize) -> Vec<Node<'a>> {
    for step in steps {
        let mut next = Vec::new();
        for node in &nodes {
            if !spend(budget, 1) {
                break;
            }
            take(node, step, budget, &mut next);
        }
        nodes = next;
    }
    nodes
}

fn spend(budget: &mut usize, cost: usize) -> bool {
    let enough = *budget >= cost;
    *budget = budget.saturating_sub(cost);
    enough
}

fn take<'a>(node: &Node<'a>, step: &Step, budget: &mut usize, out: &mut Vec<Node<'a>>) {
    match step {
        Step::Field(name) => out.extend(node.member(name)),
        Step::Index(index) => out.extend(element_at(node, *index)),
        Step::Slice { start, end, step } => slice(node, (*start, *end, *step), budget, out),
        Step::Wildcard => {
            let children = node.children();
            if spend(budget, children.len()) {
                out.extend(children);
            }
        }
        Step::Descend => descend(node, budget, out),
        Step::Filter(filter) => {
            for child in node.children() {
                if spend(budget, 1) && passes(&child, filter, budget) {
                    out.push(child);
                }
            }
        }
        Step::Union(members) => {
            for member in members {
                out.extend(walk(vec![node.clone()], member, budget));
            }
        }
    }
}

fn element_at<'a>(node: &Node<'a>, index: i64) -> Option<Node<'a>> {
    let len = i64::try_from(node.value.as_array()?.len()).ok()?;
    let index = if index < 0 { len.checked_add(index)? } else { index };
    node.element(usize::try_from(index).ok()?)
}

fn slice<'a>(
    node: &Node<'a>,
    (start, end, step): (Option<i64>, Option<i64>, i64),
    budget: &mut usize,
    out: &mut Vec<Node<'a>>,
) {
    let Some(len) = node.value.as_array().and_then(|l| i64::try_from(l.len()).ok()) else { return };
    let place = |given: i64| if given < 0 { len.saturating_add(given) } else { given }.clamp(0, len);
    let (from, to) = (place(start.unwrap_or(0)), place(end.unwrap_or(len)));
    let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
    for index in range.step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        if spend(budget, 1) {
            out.extend(node.element(index));
        }
    }
}

/// The node and all nodes below it, parents first.
fn descend<'a>(node: &Node<'a>, budget: &mut usize, out: &mut Vec<Node<'a>>) {
    let mut stack = vec![node.clone()];
    while let Some(node) = stack.pop() {
        if !spend(budget, 1) {
            return;
        }
        stack.extend(node.children().into_iter().rev());
        out.push(node);
    }
}

fn passes(node: &Node<'_>, filter: &Filter, budget: &mut usize) -> bool {
    let left = operand(node, &filter.left, budget);
    if filter.test == Test::Exists {
        return left.is_some();
    }
    let right = operand(node, &filter.right, budget);
    let (Some(left), Some(right)) = (left, right) else { return false };
    let order = compare(left, right);
    match filter.test {
        Test::Exists => true,
        Test::Equal => order == Some(Ordering::Equal),
        Test::NotEqual => order != Some(Ordering::Equal),
        Test::Less => order == Some(Ordering::Less),
        Test::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Test::Greater => order == Some(Ordering::Greater),
        Test::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

fn operand<'a>(node: &Node<'a>, operand: &'a Operand, budget: &mut usize) -> Option<&'a Value> {
    match operand {
        Operand::Literal(value) => Some(value),
        Operand::Path(steps) => {
            let start = Node { value: node.value, way: None };
            walk(vec![start], steps, budget).into_iter().next().map(|n| n.value)
        }
    }
}

/// The order of numbers and of strings. Other values compare only if they are equal.
fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
        },
        (a, b) => (a == b).then_some(Ordering::Equal),
    }
}
