//! Names that only a hostile pickle has. Finding them defends nothing, because no name can do anything
//! here: it is a service to those who would give the file to Python next.

use super::Ref;
use crate::text::printable;

/// Modules of which nothing is ever part of a checkpoint.
const MODULES: &[&str] = &[
    "os",
    "posix",
    "nt",
    "sys",
    "subprocess",
    "commands",
    "pty",
    "runpy",
    "socket",
    "ctypes",
    "importlib",
    "shutil",
    "webbrowser",
    "pip",
    "code",
    "bdb",
    "pdb",
    "pydoc",
    "timeit",
    "pickle",
    "_pickle",
    "cPickle",
];
/// Builtins that run code or reach outside the process.
const BUILTINS: &[&str] = &[
    "eval",
    "exec",
    "execfile",
    "compile",
    "open",
    "__import__",
    "apply",
    "breakpoint",
    "input",
];
/// The names of the module of builtins.
const BUILTINS_MODULES: &[&str] = &["builtins", "__builtin__", "__builtins__"];

/// The most that are listed.
const MOST: usize = 100;
/// How many characters of a hostile text are shown.
pub(super) const SHOWN: usize = 80;

/// Whether a name is one of those.
pub(super) fn is_one(module: &str, name: &str) -> bool {
    let top = module.split('.').next().unwrap_or_default();
    if MODULES.contains(&top) {
        return true;
    }
    // Protocol 4 reads a name with dots as attributes: `torch.serialization` and `os.system`.
    let mut before = match module.contains('.') {
        true => "",
        false => module,
    };
    for (place, component) in name.split('.').enumerate() {
        if place > 0 && MODULES.contains(&before)
            || BUILTINS_MODULES.contains(&before) && BUILTINS.contains(&component)
        {
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
}

struct Payload {
    value: Ref,
    name: String,
    /// The byte at which it is named.
    at: u64,
    /// The byte at which it is first called, and the first text of the arguments.
    call: Option<(u64, Option<String>)>,
}

impl Payloads {
    /// Notes that a name is one of those.
    pub fn named(&mut self, value: Ref, name: &str, at: u64) {
        if self.found.len() < MOST && self.of(value).is_none() {
            let (name, call) = (shown(name), None);
            self.found.push(Payload {
                value,
                name,
                at,
                call,
            });
        }
    }

    fn of(&mut self, value: Ref) -> Option<&mut Payload> {
        self.found.iter_mut().find(|p| p.value == value)
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

/// The first characters of a text: as many as are shown.
pub(super) fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(SHOWN);
    end.map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// The first characters of a hostile text, such that a terminal shows them as they are.
pub(super) fn shown(text: &str) -> String {
    let start = cut(text);
    match start.len() == text.len() {
        true => printable(text).into_owned(),
        false => format!("{}…", printable(start)),
    }
}
