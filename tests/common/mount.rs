//! The program itself: runs of it, and mounts that last as long as a value does.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::model::open_to_all;

/// The program under test.
pub const BIN: &str = env!("CARGO_BIN_EXE_stfs");

/// The result of a run of the program: exit code, standard output, standard error.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// From a finished process. If a signal ended it, the code is that of a shell.
    pub fn of(output: Output) -> Ran {
        use std::os::unix::process::ExitStatusExt;
        let code = output.status.code();
        Ran {
            code: code.unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The run, which must have succeeded with nothing on standard error.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        self
    }

    /// The one line on standard error of a run that must have failed with exit code 1; it must
    /// contain all of these words.
    #[track_caller]
    pub fn fails(self, words: &[&str]) -> String {
        assert_eq!((self.code, self.out.as_str()), (1, ""), "{self:?}");
        let line = self.err.strip_suffix('\n').unwrap_or_default();
        assert!(
            line.starts_with("stfs: ") && !line.contains('\n'),
            "{self:?}"
        );
        for word in words {
            assert!(line.contains(word), "lacks {word:?}: {line}");
        }
        line.to_string()
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// The program with these arguments, for a minute at most: a hang is exit code 124.
pub fn command<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", BIN]).args(args);
    command.stdin(Stdio::null());
    command
}

/// Runs the program.
pub fn stfs<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    Ran::of(command(args).output().expect("run stfs under timeout(1)"))
}

/// How long a process may take to end, or a mount to be idle. On an idle machine that is milliseconds.
const AT_LAST: Duration = Duration::from_secs(60);

/// Runs `stfs umount`, again while the mount is in use: `stfs mounts` of a test beside this one asks every
/// mount for its status, and uses it while it waits for the answer.
pub fn umount(at: &Path) -> Ran {
    let until = Instant::now() + AT_LAST;
    loop {
        let ran = stfs([Path::new("umount"), at]);
        if !ran.err.contains("is in use") || Instant::now() > until {
            return ran;
        }
    }
}

/// A real mount of the real program. When the value is dropped, also by a panic, it is unmounted
/// and its process waited for.
pub struct Mounted {
    root: PathBuf,
    child: Option<Child>,
    /// The line that the program printed once the mount was ready.
    pub line: String,
    dir: TempDir,
}

impl Mounted {
    /// Mounts a model.
    pub fn new(model: &Path) -> Mounted {
        Mounted::with(model, &[])
    }

    /// Mounts a model with more arguments. Returns when the mount is ready.
    pub fn with(model: &Path, args: &[&str]) -> Mounted {
        Mounted::by(Command::new(BIN), model, args)
    }

    /// The same by a command that runs the program with the arguments that are added to it.
    pub fn by(mut program: Command, model: &Path, args: &[&str]) -> Mounted {
        let dir = TempDir::with_prefix("stfs-mount-").expect("make a temporary directory");
        open_to_all(dir.path());
        let root = dir.path().join("m");
        let log = dir.path().join("log");
        let mut child = program
            .args(["mount", "-f"])
            .args(args)
            .args([model, &root])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("make a log file"))
            .spawn()
            .expect("run stfs");
        // The program prints the line once the mount is ready. If it ends without a line, mounting
        // has failed.
        let mut line = String::new();
        let out = child.stdout.take().expect("its standard output");
        BufReader::new(out).read_line(&mut line).expect("read it");
        let mounted = Mounted {
            root,
            child: Some(child),
            line,
            dir,
        };
        assert!(
            mounted.line.starts_with("stfs: "),
            "stfs did not mount {}. These tests mount for real: they need /dev/fuse, and root or \
             fusermount3. It said: {}",
            model.display(),
            mounted.log()
        );
        mounted
    }

    /// The mountpoint.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the mountpoint.
    pub fn join(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file's bytes.
    #[track_caller]
    pub fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.join(path)).unwrap_or_else(|e| panic!("read {path}: {e}"))
    }

    /// A file's JSON.
    #[track_caller]
    pub fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.read(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// A directory's names, in the order in which it lists them.
    #[track_caller]
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        entries
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect()
    }

    /// What the daemon has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The log once it contains this: it is written by another thread than the one that answers.
    #[track_caller]
    pub fn logged(&self, text: &str) -> String {
        wait_for_text(&self.dir.path().join("log"), text)
    }

    /// The daemon's process id.
    pub fn pid(&self) -> i32 {
        self.child.as_ref().expect("is running").id() as i32
    }

    /// What `stfs mounts --json` reports about this mount.
    pub fn status(&self) -> Value {
        let here = self.root.to_str().expect("UTF-8");
        let until = Instant::now() + AT_LAST;
        loop {
            let all = stfs(["mounts", "--json"]).ok().json();
            let mut all = all.as_array().expect("an array").iter();
            let status = all.find(|m| m["mountpoint"] == here);
            let status = status.expect("the mount is listed");
            // On a busy machine the daemon may take longer than `stfs mounts` waits for it.
            if !status["pid"].is_null() || Instant::now() > until {
                return status.clone();
            }
        }
    }

    /// Waits for the daemon, which something else has asked to end.
    pub fn wait(mut self) -> ExitStatus {
        let mut child = self.child.take().expect("is running");
        child.wait().expect("wait for stfs")
    }

    /// Hands the process over to the caller.
    pub fn into_parts(mut self) -> (Child, PathBuf, TempDir) {
        let child = self.child.take().expect("is running");
        let dir = std::mem::replace(&mut self.dir, TempDir::new().expect("a directory"));
        (child, self.root.clone(), dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        // Lazily, because a parallel test that starts a process also holds this test's open files
        // between fork and exec.
        let umount = match self.line.is_empty() {
            true => None, // it never mounted, and has ended or is about to
            false => Some(stfs([Path::new("umount"), "--lazy".as_ref(), &self.root])),
        };
        let status = wait_for(&mut child);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !std::thread::panicking() && umount.is_some() {
            assert!(umount.as_ref().is_some_and(|u| u.code == 0), "{umount:?}");
            let log = self.log();
            assert!(
                status.is_some(),
                "the daemon goes on; is a file still open? {log}"
            );
            assert!(
                status.is_some_and(|s| s.success()),
                "the daemon failed: {log}"
            );
        }
    }
}

/// A file's text, once it contains this.
#[track_caller]
pub fn wait_for_text(path: &Path, text: &str) -> String {
    let until = Instant::now() + AT_LAST;
    loop {
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found.contains(text) {
            return found;
        }
        assert!(Instant::now() < until, "lacks {text:?}: {found}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for a process to end.
pub fn wait_for(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + AT_LAST;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("wait") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// A mount that the program made in the background. When the value is dropped, it is unmounted, and
/// its process is ended if it still runs.
pub struct Background {
    /// What `stfs mount` printed.
    pub ran: Ran,
    /// The mountpoint.
    pub root: PathBuf,
    pid: i32,
    _dir: TempDir,
}

impl Background {
    /// Mounts in the background. Returns when the mount is ready.
    #[track_caller]
    pub fn new(model: &Path, args: &[&str]) -> Background {
        let dir = TempDir::with_prefix("stfs-mount-").expect("make a temporary directory");
        open_to_all(dir.path());
        let root = dir.path().join("m");
        let mount: Vec<&Path> = ["mount"].iter().chain(args).map(Path::new).collect();
        let ran = stfs(mount.into_iter().chain([model, &root])).ok();
        let status = super::sys::getxattr(&root, "user.stfs.status").expect("it answers");
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        Background {
            ran,
            root,
            pid: status["pid"].as_i64().expect("a process id") as i32,
            _dir: dir,
        }
    }

    /// The daemon's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the daemon to end. Returns whether it did.
    pub fn ended(&self) -> bool {
        soon(|| has_ended(self.pid))
    }

    /// Kills the daemon and the process that would unmount after it. What remains is a stale mount.
    #[track_caller]
    pub fn kill_with_keeper(&self) {
        let keeper = keeper_of(self.pid);
        super::sys::kill(keeper, libc::SIGKILL);
        // Otherwise the daemon could end first.
        assert!(soon(|| has_ended(keeper)));
        super::sys::kill(self.pid, libc::SIGKILL);
        assert!(self.ended());
    }
}

/// Waits until something is the case. Returns whether it is.
pub fn soon(is: impl Fn() -> bool) -> bool {
    let until = Instant::now() + AT_LAST;
    while !is() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Whether a process has ended. A zombie has, too: in a container without an init it may never be reaped.
pub fn has_ended(pid: i32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(s) => s.rsplit(") ").next().is_some_and(|s| s.starts_with('Z')),
        Err(_) => true,
    }
}

/// The process that unmounts when this daemon ends.
#[track_caller]
pub fn keeper_of(daemon: i32) -> i32 {
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let children = std::fs::read_to_string(children).expect("the daemon lives");
    let keeper = children.split_whitespace().next().expect("it has a child");
    keeper.parse().expect("a process id")
}

/// Whether something is mounted at a path, an absolute one without links.
pub fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    table.contains(&format!(" {} ", at.display()))
}

impl Drop for Background {
    fn drop(&mut self) {
        let umount = stfs([Path::new("umount"), "--lazy".as_ref(), &self.root]);
        if umount.code == 0 && !self.ended() {
            super::sys::kill(self.pid, libc::SIGKILL);
            assert!(std::thread::panicking(), "the daemon goes on");
        }
    }
}
