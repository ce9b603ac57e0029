//! Methods that a caller adds to the functions of expressions.

use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::pay_for;
use super::convert::from_json;
use super::environment::own_environment;
use super::value::Value;

/// Methods that a caller gives to expressions: `target.name(arguments)`.
///
/// An expression pays for the values that a method is called on, and for its result. What a method does beyond reading
/// the one and making the other must be cheap.
pub struct Library {
    context: Context<'static>,
    names: Vec<&'static str>,
}

impl Default for Library {
    /// A library without methods.
    fn default() -> Self {
        Self { context: own_environment(), names: Vec::new() }
    }
}

impl Library {
    /// Adds a method. `run` gets the value that the method is called on and the arguments; its error becomes the error
    /// of the expression.
    #[must_use]
    pub fn method<F>(mut self, name: &'static str, run: F) -> Self
    where
        F: Fn(Value, &[Value]) -> Result<serde_json::Value, String> + Send + Sync + 'static,
    {
        let call = move |This(this): This<Cel>, Arguments(args): Arguments| -> Result<Cel, ExecutionError> {
            let failed = |why: String| ExecutionError::function_error(name, why);
            pay_for(&this)?;
            let read = |value: &Cel| Value::of(value.clone()).ok_or(ExecutionError::NoSuchOverload);
            let args: Vec<Value> = args.iter().map(read).collect::<Result<_, _>>()?;
            let answer = from_json(&run(read(&this)?, &args).map_err(failed)?);
            pay_for(&answer)?;
            Ok(answer)
        };
        self.context.add_function(name, call);
        self.names.push(name);
        self
    }

    /// All functions, with the methods.
    pub(super) fn context(&self) -> &Context<'static> {
        &self.context
    }

    /// Names of the methods.
    pub(super) fn names(&self) -> &[&'static str] {
        &self.names
    }
}
