//! The keeper: a small process beside the server that makes its mount, asks whether it answers, and takes
//! it away when the server ends, however it ends. The server gives its rights up and never waits on its
//! own mount; the keeper opens neither the model nor anything in the mount.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, WaitOptions};

use super::link::{Link, Reply, Request};
use crate::fs::Fs;
use crate::mounts::{self, MountId};

mod mountpoint;
mod process;
mod server;

pub(super) use mountpoint::check;

/// How long the keeper may take to unmount.
const UNMOUNTING: Duration = Duration::from_secs(5);

/// The server's keeper. It ends when this is dropped.
pub(super) struct Keeper {
    link: Link,
    process: Pid,
    /// The keeper's answers to [`Request::Detach`], once [`Keeper::listen`] reads what it sends.
    detached: Mutex<Option<Receiver<Result<(), String>>>>,
    ending: AtomicBool,
}

/// A mount that exists and that nobody serves yet.
pub(super) struct Attached {
    pub(super) id: MountId,
    /// The descriptor of `/dev/fuse`.
    pub(super) device: OwnedFd,
    /// Where it is, without links.
    pub(super) mountpoint: PathBuf,
    /// Whether a mount there whose daemon had died was detached first.
    pub(super) detached_stale: bool,
}

impl Keeper {
    /// Starts the keeper of this process. Must be called before there is any other thread, and before
    /// any right is given up. The keeper holds `caller` open as long as it lives, and no other descriptor
    /// of this process.
    ///
    /// # Errors
    /// The process cannot be created.
    pub(super) fn start(caller: Option<BorrowedFd<'_>>) -> Result<Keeper> {
        let (link, keepers) = Link::pair().context("create a socket")?;
        let server = rustix::process::getpid();
        // SAFETY: as in `caller::split`: there is no other thread, so nothing that the child uses was
        // being changed. The child never returns from `process::run`.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("fork"),
            0 => process::run(keepers, server, caller),
            child => Ok(Keeper {
                link,
                process: Pid::from_raw(child).context("fork")?,
                detached: Mutex::new(None),
                ending: AtomicBool::new(false),
            }),
        }
    }

    /// Has it mount.
    ///
    /// # Errors
    /// The mountpoint cannot be used, or mounting failed.
    pub(super) fn attach(
        &self,
        mountpoint: &Path,
        source: &str,
        allow_other: bool,
    ) -> Result<Attached> {
        let request = Request::Attach {
            mountpoint: std::path::absolute(mountpoint)?.into(),
            source: source.into(),
            allow_other,
        };
        let (reply, device) = self.ask(&request)?;
        match (reply, device) {
            (
                Reply::Attached {
                    id,
                    mountpoint,
                    detached_stale,
                },
                Some(device),
            ) => Ok(Attached {
                id,
                device,
                mountpoint: mountpoint.into(),
                detached_stale,
            }),
            (Reply::Failed(why), _) => Err(anyhow!(why)),
            (reply, _) => bail!("the keeper answered {reply:?}; please report this"),
        }
    }

    /// Waits until the mount answers a request.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn wait_for_an_answer(&self) -> Result<()> {
        match self.ask(&Request::Serving)?.0 {
            Reply::Answers => Ok(()),
            Reply::Failed(why) => Err(anyhow!(why)),
            reply => bail!("the keeper answered {reply:?}; please report this"),
        }
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Option<OwnedFd>)> {
        let lost = "the process that keeps the mount has ended";
        self.link.send(request).context(lost)?;
        self.link.receive().context(lost)
    }

    /// Reports that the caller knows of the mount.
    pub(super) fn ready(&self) {
        let _ = self.link.send(&Request::Ready);
    }

    /// Answers the keeper's questions from now on.
    ///
    /// # Errors
    /// A thread cannot start.
    pub(super) fn listen(self: &Arc<Self>, fs: Arc<Fs>) -> Result<()> {
        let (sender, detached) = channel();
        *self.detached.lock().unwrap_or_else(PoisonError::into_inner) = Some(detached);
        let keeper = self.clone();
        let listen = move || {
            while let Ok((reply, _)) = keeper.link.receive::<Reply>() {
                match reply {
                    Reply::Served => drop(keeper.link.send(&Request::Served(fs.bytes_served()))),
                    Reply::Detached(result) => drop(sender.send(result)),
                    _ => {}
                }
            }
            if !keeper.ending.load(Ordering::Acquire) {
                log::warn!(
                    "the process that unmounts when this one ends has been killed; if this one is killed, too, 'stfs umount' what remains"
                );
            }
        };
        let thread = std::thread::Builder::new().name("stfs-keeper".into());
        thread.spawn(listen).context("start a thread")?;
        Ok(())
    }

    /// Has it detach the mount, busy or not. Does nothing if it has been detached already.
    ///
    /// # Errors
    /// Unmounting failed.
    pub(super) fn detach(&self, id: MountId) -> Result<()> {
        let detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.link.send(&Request::Detach);
        let answers = detached.as_ref().filter(|_| sent.is_ok());
        match answers.and_then(|d| d.recv_timeout(UNMOUNTING).ok()) {
            Some(result) => result.map_err(|why| anyhow!(why)),
            // It has been killed. This works unless the server has given that right up.
            None => Ok(mounts::detach(id, false).map(drop)?),
        }
    }

    /// Reports that the mount has been unmounted from outside.
    pub(super) fn unmounted(&self) {
        let _ = self.link.send(&Request::Unmounted);
    }

    /// Has the keeper unmount what is left, and waits until it has ended.
    pub(super) fn end(&self) {
        if self.ending.swap(true, Ordering::AcqRel) {
            return;
        }
        self.link.close();
        let deadline = Timespec::try_from(UNMOUNTING).ok();
        // Its end of the connection is closed when it ends.
        let mut closed = [PollFd::new(&self.link, PollFlags::RDHUP)];
        let poll = || rustix::event::poll(&mut closed, deadline.as_ref());
        if rustix::io::retry_on_intr(poll).is_ok_and(|n| n > 0) {
            let _ = rustix::process::waitpid(Some(self.process), WaitOptions::empty());
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}
