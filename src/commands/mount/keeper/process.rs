//! What the keeper's process does. One thread waits for the server, for signals and for changes of the
//! mount table; whatever could hang runs in a child that nobody waits for.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::super::caller::{close_all_but, null, to_null};
use super::super::link::{Link, Reply, Request};
use super::mountpoint::Mountpoint;
use super::server::{LOOK_AT_SERVER, Server};
use crate::mounts::{self, Attach, Connection, Daemon, Detached, Entry, MountId, StatusProbe};
use crate::sandbox;

/// Between looks at a mount that is detached while files in it are open.
const LOOK: Duration = Duration::from_millis(500);
/// If nothing moves for so many looks while requests wait, the source has stalled.
const STALLED: u32 = 10;
/// Read-ahead of the mount in KiB: one full request.
const READ_AHEAD_KB: &str = "1024";

/// Runs until the server has ended and its mount is gone.
pub(super) fn run(link: Link, server: Pid, caller: Option<BorrowedFd<'_>>) -> ! {
    let kept: Vec<_> = [Some(link.as_fd()), caller].into_iter().flatten().collect();
    close_all_but(&kept);
    let code = match std::panic::catch_unwind(|| Keeper::new(link, server).map(Keeper::keep)) {
        Ok(Ok(())) => 0,
        _ => 1,
    };
    // Without the destructors of what this process shares with its parent.
    //
    // SAFETY: ends the process, and runs no code of it.
    unsafe { libc::_exit(code) }
}

struct Keeper {
    link: Link,
    server: Server,
    /// Becomes readable when a signal arrives.
    signals: UnixStream,
    /// The kernel's mount table, which reports its changes.
    table: File,
    mountpoint: Option<Mountpoint>,
    mount: Option<Mount>,
    /// The caller knows of the mount.
    ready: bool,
    /// When [`Event::Time`] came last.
    looked: Instant,
}

/// The mount that is kept.
struct Mount {
    entry: Entry,
    id: MountId,
    connection: Option<Connection>,
    /// It is in the mount table no more, and lives on while files in it are open.
    detached: Option<Movement>,
}

/// Whether a mount's requests are still answered.
#[derive(Default)]
struct Movement {
    /// As the server last reported.
    served: u64,
    /// What was served and how many requests waited at the last look.
    last: (u64, u64),
    /// So many looks ago.
    unchanged: u32,
}

enum Event {
    Request(Request),
    Signal,
    Time,
    ServerEnded,
}

impl Keeper {
    fn new(link: Link, server: Pid) -> Result<Keeper> {
        let _ = rustix::process::setsid();
        sandbox::forget_environment(sandbox::Needs::Unmounting);
        rustix::thread::set_name(c"stfs-keeper")?;
        std::env::set_current_dir("/")?;
        to_null(&null()?)?;
        let (signals, sender) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Keeper {
            link,
            server: Server::new(server)?,
            signals,
            table: File::open("/proc/self/mountinfo")?,
            mountpoint: None,
            mount: None,
            ready: false,
            looked: Instant::now(),
        })
    }

    fn keep(mut self) {
        loop {
            match self.next_event() {
                Event::Request(request) => self.fulfill(request),
                Event::Signal => self.server.terminate(),
                Event::Time => self.look_at_requests(),
                Event::ServerEnded => break,
            }
        }
        self.finish();
    }

    fn next_event(&mut self) -> Event {
        loop {
            let detached = self.mount.as_ref().is_some_and(|m| m.detached.is_some());
            let pause = match detached {
                true => LOOK,
                false => LOOK_AT_SERVER,
            };
            // Since the last look: other events, such as those of a busy mount table, do not put it off.
            let left = pause.saturating_sub(self.looked.elapsed());
            if left.is_zero() {
                self.looked = Instant::now();
                return match self.server.has_ended() {
                    true => Event::ServerEnded,
                    false => Event::Time,
                };
            }
            let timeout = Timespec::try_from(left).ok();
            let mut polled = [
                PollFd::new(&self.link, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.table, PollFlags::PRI),
                // The link stands in for what old kernels lack.
                PollFd::from_borrowed_fd(
                    self.server.end().unwrap_or(self.link.as_fd()),
                    PollFlags::IN,
                ),
            ];
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Err(Errno::INTR) | Ok(0) => continue,
                Err(_) => return Event::ServerEnded,
                Ok(_) => {}
            }
            let [link, signals, table, end] = polled.map(|p| !p.revents().is_empty());
            // The kernel reports a change of the table once.
            if table {
                self.look_at_table();
            }
            if link {
                // What it sent before it ended still counts.
                return match self.link.receive() {
                    Ok((request, _)) => Event::Request(request),
                    Err(_) => Event::ServerEnded,
                };
            }
            if end {
                return Event::ServerEnded;
            }
            if signals {
                let _ = self.signals.read(&mut [0; 16]);
                return Event::Signal;
            }
        }
    }

    fn fulfill(&mut self, request: Request) {
        let reply = match request {
            Request::Attach {
                mountpoint,
                source,
                allow_other,
            } => match self.attach(mountpoint.as_ref(), &source, allow_other) {
                // The reply has been sent, with the descriptor.
                Ok(()) => return,
                Err(e) => Reply::Failed(crate::commands::one_line(&e)),
            },
            Request::Serving => match self.wait_for_an_answer() {
                Ok(()) => Reply::Answers,
                Err(e) => Reply::Failed(crate::commands::one_line(&e)),
            },
            Request::Detach => Reply::Detached(self.detach()),
            Request::Ready => {
                sandbox::keep_to_unmount();
                return self.ready = true;
            }
            Request::Unmounted => return self.forget_mount(),
            Request::Served(bytes) => return self.note_served(bytes),
        };
        let _ = self.link.send(&reply);
    }

    fn attach(&mut self, path: &Path, source: &str, allow_other: bool) -> Result<()> {
        let mountpoint = self.mountpoint.insert(Mountpoint::prepare(path)?);
        let at = &mountpoint.path;
        let before = mounts::top(at)?.map(|e| e.id);
        let attach = Attach {
            source,
            mountpoint: at,
            allow_other,
        };
        let device = attach.mount(self.server.end());
        // Even if that has failed, or has been given up: the mount may exist.
        let number = device
            .as_ref()
            .ok()
            .and_then(|d| Connection::number(d.as_fd()));
        let made = mounts::newest(at, number)?.filter(|e| Some(e.id) != before);
        self.mount = made.map(Mount::new);
        let device = device?;
        let mount = self.mount.as_ref();
        let mount = mount.with_context(|| format!("{}: the mount has gone", at.display()))?;
        let reply = Reply::Attached {
            id: mount.id,
            mountpoint: at.into(),
            detached_stale: mountpoint.detached_stale,
        };
        Ok(self.link.send_with(&reply, Some(device.as_fd()))?)
    }

    /// Asks the mount for its status, in a child, and waits for the answer or the server's end.
    fn wait_for_an_answer(&self) -> Result<()> {
        let Some(mount) = &self.mount else {
            bail!("nothing is mounted");
        };
        let shown = mount.entry.mountpoint.display();
        mount.raise_read_ahead();
        let probe = StatusProbe::send(&mount.entry.mountpoint);
        let reply = probe.reply().context("start a process")?;
        let mut polled = [
            PollFd::from_borrowed_fd(reply, PollFlags::IN),
            PollFd::new(&self.link, PollFlags::IN),
            PollFd::from_borrowed_fd(self.server.end().unwrap_or(reply), PollFlags::IN),
        ];
        while rustix::event::poll(&mut polled, None) == Err(Errno::INTR) {}
        match probe.answer(Instant::now()) {
            Daemon::Answers(status) if self.server.is(&status["pid"]) => Ok(()),
            Daemon::Answers(_) => bail!("{shown}: another mount was made there at the same time"),
            _ => bail!("{shown}: mounted, but does not answer"),
        }
    }

    fn detach(&self) -> Result<(), String> {
        let Some(mount) = &self.mount else {
            return Ok(());
        };
        match mounts::detach(mount.id, false) {
            Ok(Detached::Gone) => Ok(()),
            Ok(Detached::Covered) => Err(format!(
                "{}: another mount is on top, unmount that first",
                mount.entry.mountpoint.display()
            )),
            Err(e) => Err(e.to_string()),
        }
    }

    fn look_at_table(&mut self) {
        if let Some(mount) = &mut self.mount
            && mount.detached.is_none()
            && !mount.id.is_mounted()
        {
            mount.detached = Some(Movement::default());
        }
    }

    /// The server's connection has ended. It is unmounted then, unless somebody has ended the connection
    /// alone: that leaves a dead mount.
    fn forget_mount(&mut self) {
        if !self
            .mount
            .as_ref()
            .is_some_and(|m| m.id.is_surely_mounted())
        {
            self.mount = None;
        }
    }

    fn note_served(&mut self, bytes: u64) {
        if let Some(movement) = self.mount.as_mut().and_then(|m| m.detached.as_mut()) {
            movement.served = bytes;
        }
    }

    /// Ends the connection of a detached mount if its source has stalled: readers would wait for as long.
    fn look_at_requests(&mut self) {
        let Some(mount) = &mut self.mount else { return };
        let (Some(connection), Some(movement)) = (&mount.connection, &mut mount.detached) else {
            return;
        };
        let now = (movement.served, connection.waiting().unwrap_or(0));
        movement.unchanged = match now == movement.last && now.1 > 0 {
            true => movement.unchanged + 1,
            false => 0,
        };
        movement.last = now;
        if movement.unchanged == STALLED {
            connection.abort();
            // The last reader's close waits for the threads that are inside the source.
            self.server.terminate();
        }
        let _ = self.link.send(&Reply::Served);
    }

    /// Takes away what the server has left.
    fn finish(mut self) {
        if let Some(mount) = &self.mount {
            // Readers of a stalled source wait although the server has ended: its threads that are
            // inside the stalled file system have not, and hold the connection.
            if let Some(connection) = &mount.connection {
                connection.abort();
            }
            while let Ok(Detached::Covered) = mounts::detach(mount.id, true) {
                if !self.wait_for_the_table() {
                    break;
                }
            }
        }
        if let Some(mountpoint) = self.mountpoint.take_if(|_| !self.ready) {
            mountpoint.undo();
        }
    }

    /// Waits until the mount table changes; `false` if a signal comes first.
    fn wait_for_the_table(&self) -> bool {
        let mut polled = [
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.table, PollFlags::PRI),
        ];
        while rustix::event::poll(&mut polled, None) == Err(Errno::INTR) {}
        polled[0].revents().is_empty()
    }
}

impl Mount {
    fn new(entry: Entry) -> Mount {
        Mount {
            connection: Connection::open(entry.device),
            id: MountId::of(&entry),
            entry,
            detached: None,
        }
    }

    /// The kernel caps read-ahead at 128 KiB for every FUSE mount; root may raise it afterwards. Without
    /// permission it stays at that, and sequential buffered reads are about a third slower.
    fn raise_read_ahead(&self) {
        let device = self.entry.device;
        let (major, minor) = (libc::major(device), libc::minor(device));
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let _ = std::fs::write(path, READ_AHEAD_KB);
    }
}
