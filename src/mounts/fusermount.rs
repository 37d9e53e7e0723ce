//! fusermount3, the set-user-ID program that mounts and unmounts for ordinary users.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::error::{Error, Result};

/// The program, searched for as libfuse does.
pub(super) fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FUSERMOUNT_PATH").map(PathBuf::from) {
        return path.exists().then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path)
        .chain([PathBuf::from("/bin"), PathBuf::from("/sbin")])
        .collect();
    ["fusermount3", "fusermount"]
        .iter()
        .flat_map(|name| dirs.iter().map(move |dir| dir.join(name)))
        .find(|program| program.is_file())
}

/// Has the program mount at `mountpoint`. Returns the descriptor of `/dev/fuse` that it sends. Gives up
/// when `abandoned` becomes readable; the mount may have been made then.
pub(super) fn mount(
    options: &str,
    mountpoint: &Path,
    abandoned: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let program = program().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let (socket, childs) = UnixStream::pair()?;
    let child = Command::new(&program)
        .args(["-o", options, "--"])
        .arg(mountpoint)
        // The number of the descriptor that it answers on.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(childs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("run {}: {e}", program.display())))?;
    let device = match is_readable(&socket, abandoned) {
        true => receive(&socket),
        false => None,
    };
    drop(socket);
    finish(child, device, &program)
}

/// Waits for the program to end; without a device, the error is what it printed.
fn finish(mut child: Child, device: Option<OwnedFd>, program: &Path) -> io::Result<OwnedFd> {
    if device.is_none() {
        // Usually it has ended already. Not if it hangs, or if this process was told to give up.
        std::thread::sleep(std::time::Duration::from_millis(20));
        if child.try_wait()?.is_none() {
            child.kill()?;
        }
    }
    let output = child.wait_with_output()?;
    device.ok_or_else(|| io::Error::other(why(&output, program)))
}

/// What it printed, or how it ended if it printed nothing.
fn why(output: &Output, program: &Path) -> String {
    let printed = String::from_utf8_lossy(&output.stderr);
    match printed.trim() {
        "" => format!(
            "{} printed no reason ({}), and did not mount",
            program.display(),
            output.status
        ),
        reason => reason.to_string(),
    }
}

/// Waits until `socket` is readable or closed; `false`: `abandoned` was readable first.
fn is_readable(socket: &UnixStream, abandoned: Option<BorrowedFd<'_>>) -> bool {
    let abandoned = abandoned.unwrap_or(socket.as_fd());
    let mut polled = [
        PollFd::new(socket, PollFlags::IN),
        PollFd::from_borrowed_fd(abandoned, PollFlags::IN),
    ];
    while rustix::event::poll(&mut polled, None) == Err(rustix::io::Errno::INTR) {}
    !polled[0].revents().is_empty()
}

/// The descriptor in the message, if there is a message with one.
fn receive(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Has the program unmount what is mounted at `mountpoint`. `lazy` detaches a busy mount at once.
pub(super) fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let program = program().unwrap_or_else(|| "fusermount3".into());
    let mut command = Command::new(&program);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let out = command
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io("run fusermount3 ('apt install fuse3')", e))?;
    let what = format!("unmount {}", mountpoint.display());
    match out.status.success() {
        true => Ok(()),
        // The same error as umount(2) gives root.
        false if String::from_utf8_lossy(&out.stderr).contains("busy") => {
            Err(Error::io(what, io::Error::from_raw_os_error(libc::EBUSY)))
        }
        false => Err(Error::other(
            libc::EPERM,
            format!("{what}: {}", why(&out, &program)),
        )),
    }
}
