//! Names that only a hostile pickle has. Finding them protects nothing here, where no name can do
//! anything. It warns users who would load the file in Python next.

use std::collections::HashMap;

use super::Ref;
use crate::catalog::container::pytorch::describe::shown;

/// Whether nothing of this module is ever part of a checkpoint.
fn is_module(name: &str) -> bool {
    matches!(
        name,
        "os" | "posix"
            | "nt"
            | "sys"
            | "subprocess"
            | "commands"
            | "pty"
            | "runpy"
            | "socket"
            | "ctypes"
            | "importlib"
            | "shutil"
            | "webbrowser"
            | "pip"
            | "code"
            | "bdb"
            | "pdb"
            | "pydoc"
            | "timeit"
            | "pickle"
            | "_pickle"
            | "cPickle"
    )
}

/// Whether a name is the module of builtins.
fn is_builtins(name: &str) -> bool {
    matches!(name, "builtins" | "__builtin__" | "__builtins__")
}

/// Whether a builtin runs code or reaches outside the process.
fn is_builtin(name: &str) -> bool {
    matches!(
        name,
        "eval"
            | "exec"
            | "execfile"
            | "compile"
            | "open"
            | "__import__"
            | "apply"
            | "breakpoint"
            | "input"
    )
}

/// The most that are listed.
const MOST: usize = 100;

#[cfg(test)]
thread_local! {
    /// How many bytes of names `is_one` was asked about.
    pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether a name, whose module ends at `dot`, is one of those.
pub(super) fn is_one(full: &str, dot: usize) -> bool {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + full.len());
    let (module, name) = full.split_at_checked(dot).unwrap_or((full, ""));
    let name = name.strip_prefix('.').unwrap_or_default();
    let (top, rest) = module.split_once('.').unwrap_or((module, ""));
    // Python writes the builtin `open` as `io.open`, where it is defined.
    if is_module(top) || matches!(full, "io.open" | "_io.open") {
        return true;
    }
    // Protocol 4 reads a name with dots as attributes: `torch.serialization` and `os.system`.
    let mut before = if rest.is_empty() { module } else { "" };
    for (place, component) in name.split('.').enumerate() {
        if place > 0 && is_module(before) || is_builtins(before) && is_builtin(component) {
            return true;
        }
        before = component;
    }
    false
}

/// The hostile names of a pickle.
#[derive(Default)]
pub(super) struct Payloads {
    found: Vec<Payload>,
    /// The place of each among them. Every call of anything asks.
    places: HashMap<Ref, usize>,
}

struct Payload {
    name: String,
    /// The byte at which it is named.
    at: u64,
    /// The byte at which it is first called, and the first text of the arguments.
    call: Option<(u64, Option<String>)>,
}

impl Payloads {
    /// Notes that a name that was not met before is one of those.
    pub fn named(&mut self, value: Ref, name: &str, at: u64) {
        if self.found.len() < MOST {
            let (name, call) = (shown(name), None);
            self.places.insert(value, self.found.len());
            self.found.push(Payload { name, at, call });
        }
    }

    fn of(&mut self, value: Ref) -> Option<&mut Payload> {
        let place = self.places.get(&value)?;
        self.found.get_mut(*place)
    }

    /// Whether the first call of `value` is still to be noted.
    #[inline]
    pub fn awaits_call(&mut self, value: Ref) -> bool {
        !self.found.is_empty() && self.of(value).is_some_and(|p| p.call.is_none())
    }

    /// Notes a call.
    pub fn called(&mut self, value: Ref, argument: Option<&str>, at: u64) {
        if let Some(payload) = self.of(value) {
            payload.call = Some((at, argument.map(shown)));
        }
    }

    /// A problem for each.
    pub fn problems(&self, of: &str) -> Vec<String> {
        let problem = |payload: &Payload| {
            let name = &payload.name;
            let does = match &payload.call {
                Some((at, Some(argument))) => format!("calls {name}(\"{argument}\") at byte {at}"),
                Some((at, None)) => format!("calls {name}() at byte {at}"),
                None => format!("names {name} at byte {}", payload.at),
            };
            let now = today(name);
            format!("is hostile: its pickle {does} of {of}{now}; nothing was executed")
        };
        self.found.iter().map(problem).collect()
    }
}

/// What Python 3 takes a name for, if that is another module. It writes `subprocess` as Python 2's
/// `commands` in protocols 0 to 2.
fn today(name: &str) -> String {
    let function = name.strip_prefix("commands.");
    function.map_or_else(String::new, |f| format!(" (Python 3 calls subprocess.{f})"))
}
