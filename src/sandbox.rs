//! What a serving process gives up once its mount is made. It reads files that anyone may have written,
//! and often runs as root: an attacker who takes it over should find a process that can open nothing, start
//! nothing and become nobody else.
//!
//! Each measure stands for itself. A kernel or a container that refuses one does not stop the mount: the
//! [`Report`] says which took effect, and `stfs mounts` shows it. `doc/SECURITY.md` has the promises.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde_json::{Map, Value, json};

mod calls;
mod driver;
mod environment;
mod paths;
mod privileges;

pub use driver::may_be_there as gpu_may_be_there;
pub use environment::{Needs, forget as forget_environment, overwrite as overwrite_environment};
pub use privileges::keep_to_unmount;

/// What to give up.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// No new privileges, no capabilities, Landlock, and the filter of system calls. Off, only the
    /// environment, the umask and the core dumps are dealt with.
    pub on: bool,
    /// Leave what CUDA needs: it is loaded when the first tensor is, long after the sandbox is entered.
    pub gpu: bool,
    /// Leave a crash its core dump, which holds weights, and let the same user's debuggers attach.
    pub core_dumps: bool,
}

/// Which of the measures took effect.
#[derive(Debug, Clone)]
pub struct Report {
    options: Options,
    /// A name, and the number that says more about it (Landlock's version) or why it failed.
    measures: Vec<(&'static str, Measure)>,
}

type Measure = Result<Option<u32>, String>;

/// Enters the sandbox. Most of it holds for the calling thread and for those that it starts from now on, so
/// there must be no other: one that there is counts as a failure of the sandbox.
///
/// Everything that is opened by path afterwards must be in the lists of `sandbox/paths.rs`; what is open
/// stays open, whatever it is.
pub fn enter(options: Options) -> Report {
    let alone = alone();
    if options.on && options.gpu {
        driver::load_modules();
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    forget_environment(match options.gpu {
        true => Needs::Gpu,
        false => Needs::Serving,
    });
    let mut measures = Vec::new();
    if options.on {
        // Before capabilities are given up: the rules name paths that only root may look at. And before the
        // filter, which would refuse it.
        let landlock = paths::restrict(options.gpu);
        measures = vec![
            ("all_threads", alone),
            ("no_new_privs", privileges::never_gain()),
            ("landlock", landlock),
            ("no_capabilities", privileges::drop_capabilities()),
            ("seccomp", calls::filter(options.gpu)),
        ];
    }
    if !options.core_dumps {
        measures.push(("no_core_dumps", forbid_core_dumps().map_err(words)));
    }
    let report = Report { options, measures };
    for (name, why) in report.missing() {
        log::warn!("sandbox: {name} is missing: {why}");
    }
    report
}

/// Whether there is no other thread. One that was joined may be a moment from its end.
fn alone() -> Measure {
    // Without /proc nobody can say.
    let threads = || std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    for _ in 0..100 {
        if threads() == 1 {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{} threads were there before it", threads()))
}

/// Both are needed: a limit does not stop a core dump that is piped to a program.
fn forbid_core_dumps() -> io::Result<Option<u32>> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none)?;
    let behavior = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(behavior)?;
    Ok(None)
}

fn words(e: io::Error) -> String {
    e.to_string()
}

impl Report {
    /// The measures that did not take effect, and why.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let measures = self.measures.iter();
        measures.filter_map(|(name, measure)| Some((*name, measure.as_ref().err()?.as_str())))
    }

    /// For the mount's status: `state` is `on`, `partial` or `off`, a measure is true, false or the version
    /// that the kernel has of it, and `missing` has the reasons.
    pub fn json(&self) -> Value {
        let missing: Map<String, Value> = self
            .missing()
            .map(|(n, why)| (n.into(), why.into()))
            .collect();
        let state = match (self.options.on, missing.is_empty()) {
            (false, _) => "off",
            (true, true) => "on",
            (true, false) => "partial",
        };
        let mut object = Map::new();
        object.insert("state".into(), state.into());
        for (name, measure) in &self.measures {
            let value = match measure {
                Ok(Some(version)) => json!(version),
                outcome => json!(outcome.is_ok()),
            };
            object.insert((*name).into(), value);
        }
        object.insert("gpu".into(), self.options.gpu.into());
        object.insert("core_dumps".into(), self.options.core_dumps.into());
        object.insert("missing".into(), missing.into());
        object.into()
    }
}
