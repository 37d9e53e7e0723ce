//! Progress bars: on a terminal and nowhere else, and gone when the program is.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::mount::{BIN, wait_for};
use crate::common::{ModelDir, Ran, stfs, sys};

/// Eight tensors of zeros, each of that many MiB, which take no space on the disk.
fn zeros(mib: u64) -> ModelDir {
    let dir = ModelDir::new();
    let size = mib << 20;
    let entry = |i| {
        let offsets = [i * size, (i + 1) * size];
        let entry = json!({"dtype": "F8_E4M3", "shape": [size], "data_offsets": offsets});
        (format!("t{i}"), entry)
    };
    let header: serde_json::Map<_, _> = (0..8).map(entry).collect();
    let header = serde_json::to_string(&header).unwrap();
    dir.raw_shard("model.safetensors", header, &[]);
    let file = File::options()
        .write(true)
        .open(dir.join("model.safetensors"))
        .unwrap();
    let head = file.metadata().unwrap().len();
    file.set_len(head + 8 * size).unwrap();
    dir
}

/// A terminal of 80 columns: the program's end, and ours.
pub fn terminal() -> (OwnedFd, File) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: both descriptors have room to be written to, and the size is read during the call.
    let made = unsafe {
        libc::openpty(
            &mut ours,
            &mut theirs,
            std::ptr::null_mut(),
            std::ptr::null(),
            &size,
        )
    };
    assert_eq!(made, 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: they have just been opened, and nothing else closes them.
    unsafe { (OwnedFd::from_raw_fd(theirs), File::from_raw_fd(ours)) }
}

/// What comes out of a terminal, piece by piece, until its other end is closed.
fn pieces(mut terminal: File) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = terminal.read(&mut buf) {
            let _ = send.send(String::from_utf8_lossy(&buf[..n]).into_owned());
        }
    });
    receive
}

/// A run whose standard error is a terminal; `interrupt`: with Ctrl-C as soon as there is a bar.
fn on_a_terminal(args: &[&Path], interrupt: bool) -> Ran {
    let (theirs, ours) = terminal();
    let mut command = Command::new(BIN);
    command
        .args(args)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(theirs);
    let mut child = command.spawn().unwrap();
    // It holds the program's end of the terminal.
    drop(command);
    let pieces = pieces(ours);
    let mut shown = String::new();
    let until = Instant::now() + Duration::from_secs(60);
    let mut interrupted = false;
    while let Ok(piece) = pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
        shown.push_str(&piece);
        if interrupt && !interrupted && has_bar(&shown) {
            sys::kill(child.id() as i32, libc::SIGINT);
            interrupted = true;
        }
    }
    let Some(status) = wait_for(&mut child) else {
        let _ = child.kill();
        panic!("it goes on: {shown:?}");
    };
    Ran {
        err: shown,
        ..Ran::of(std::process::Output {
            status,
            stdout: Vec::new(),
            stderr: Vec::new(),
        })
    }
}

/// Whether there is a bar in the text: so many bytes of so many.
fn has_bar(text: &str) -> bool {
    text.contains("B/") && text.contains(" left")
}

/// The terminal is as it was: the bar's line is clear, and the cursor is visible.
#[track_caller]
fn is_tidy(shown: &str) {
    let left = shown.rsplit("\x1b[2K").next().unwrap_or_default();
    assert!(!has_bar(left), "{shown:?}");
    assert!(
        shown.rfind("\x1b[?25l") <= shown.rfind("\x1b[?25h"),
        "{shown:?}"
    );
}

fn commands<'a>(model: &'a Path, sums: &'a Path) -> [Vec<&'a Path>; 3] {
    let word = Path::new;
    [
        vec![word("stat"), model],
        vec![word("diff"), model, model],
        vec![word("verify"), word("--checksum"), sums, model],
    ]
}

#[test]
fn a_bar_on_a_terminal_and_none_in_a_pipe() {
    let model = zeros(32);
    let sums = model.join("sums");
    for args in commands(model.path(), &sums) {
        let ran = on_a_terminal(&args, false);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(has_bar(&ran.err), "{args:?}: {ran:?}");
        is_tidy(&ran.err);
        let _ = std::fs::remove_file(&sums);
        let ran = stfs(&args);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!ran.err.contains(['\r', '\x1b']), "{ran:?}");
        assert!(!has_bar(&ran.err), "{ran:?}");
    }
}

#[test]
fn an_interrupt_takes_the_bar_away_and_leaves_no_checksums() {
    let model = zeros(1024);
    let sums = model.join("sums");
    for args in commands(model.path(), &sums) {
        let ran = on_a_terminal(&args, true);
        assert!(has_bar(&ran.err), "{args:?}: {ran:?}");
        assert_eq!(ran.code, 128 + libc::SIGINT, "{ran:?}");
        is_tidy(&ran.err);
        let left: Vec<_> = std::fs::read_dir(model.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["model.safetensors"], "{args:?}");
    }
}
