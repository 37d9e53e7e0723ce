//! Mounting: options, the session, its read-ahead, its end.

use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::FuseFs;
use super::gate::SPARE;
use crate::error::{Error, Result};
use crate::fs::Fs;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Let other users see the mount (file permissions still count).
    pub allow_other: bool,
    /// Request threads that may wait for source files. A cold page blocks its thread, so this is sized
    /// for disks, not for cores.
    pub threads: usize,
}

/// Read-ahead of the mount in KiB, if it may be set: one full request.
const READ_AHEAD_KB: &str = "1024";

/// The session's thread, which ends with the mount.
type SessionThread = JoinHandle<std::io::Result<()>>;

/// A live mount. Dropping it unmounts.
pub struct Mounted {
    /// Taken by the caller that waits for it.
    session: Option<SessionThread>,
    place: MountPlace,
}

/// Where a mount is, and which of the mounts at that path it is.
#[derive(Debug, Clone)]
pub struct MountPlace {
    path: PathBuf,
    /// `st_dev` of the mount; 0 if unknown.
    device: u64,
}

/// Mounts `fs` at `mountpoint`, an existing empty directory, as `fuse.stfs` with the model's path as
/// its source: always ro, nosuid, nodev, noexec, default_permissions.
///
/// # Errors
/// The error of the kernel or of fusermount3, with advice.
pub fn mount(fs: Arc<Fs>, mountpoint: &Path, options: &MountOptions) -> Result<Mounted> {
    let mountpoint = std::fs::canonicalize(mountpoint)
        .map_err(|e| Error::io(format!("mountpoint {}", mountpoint.display()), e))?;
    check_device()?;
    let source = fs.layout.model.catalog.model.to_string();
    let config = config(&source, options);
    let filesystem = FuseFs::new(fs, options.threads.max(1));
    let session = Session::new(filesystem, &mountpoint, &config)
        .map_err(|e| explain(e, &mountpoint, options))?;
    let session = thread_of(session.spawn().map_err(|e| no_threads(&e))?);
    let device = match first_answer(&mountpoint, &session) {
        Ok(Some(device)) => device,
        unanswered => {
            // First, because nothing answers a request to it any more.
            let detached = unmount(&mountpoint, true);
            let ended = unanswered.and_then(|_| joined(session));
            detached?;
            let ended = ended.err();
            return Err(no_threads(&ended.unwrap_or(Errno::CANCELED.into())));
        }
    };
    raise_read_ahead(device);
    Ok(Mounted {
        session: Some(session),
        place: MountPlace {
            path: mountpoint,
            device,
        },
    })
}

fn config(source: &str, options: &MountOptions) -> Config {
    let root = is_root();
    // fusermount3 splits options at commas; mount(2) takes the source by itself.
    let source = match root {
        true => source.to_string(),
        false => source.replace('\\', "\\\\").replace(',', "\\,"),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::DefaultPermissions,
        MountOption::FSName(source),
        // Not MountOption::Subtype: fuser leaves that out when it mounts as root.
        MountOption::CUSTOM("subtype=stfs".into()),
    ];
    config.acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.n_threads = Some(options.threads.max(1) + SPARE);
    // Each thread gets its own queue. For that it opens /dev/fuse again: `check_device` has shown that it
    // may.
    config.clone_fd = true;
    config
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports what is wrong with /dev/fuse in more detail than fuser would.
fn check_device() -> Result<()> {
    let device = Path::new("/dev/fuse");
    if !device.exists() {
        return Err(Error::other(
            libc::ENODEV,
            "/dev/fuse is missing: load the kernel module ('modprobe fuse'); in a container, run it with '--device /dev/fuse --cap-add SYS_ADMIN'",
        ));
    }
    match std::fs::File::options().read(true).write(true).open(device) {
        Ok(_) => {}
        Err(e) if is_root() => {
            return Err(Error::io(
                "/dev/fuse cannot be opened, even by root: in a container, run it with '--device /dev/fuse --cap-add SYS_ADMIN'",
                e,
            ));
        }
        // fusermount3 opens it with the caller's own rights, too.
        Err(e) => {
            return Err(Error::io(
                "/dev/fuse may not be opened by this user: have root run 'chmod 666 /dev/fuse' (what udev does by default), or mount as root",
                e,
            ));
        }
    }
    if !is_root() && fusermount().is_none() {
        return Err(Error::other(
            libc::ENOENT,
            "fusermount3 is missing, and only root can mount without it: install it ('apt install fuse3', 'dnf install fuse3')",
        ));
    }
    Ok(())
}

/// The program that mounts and unmounts for ordinary users, searched for where fuser does.
fn fusermount() -> Option<PathBuf> {
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

fn explain(e: std::io::Error, mountpoint: &Path, options: &MountOptions) -> Error {
    let text = e.to_string();
    let advice = if text.contains("user_allow_other") && options.allow_other {
        "; --allow-other needs the line 'user_allow_other' in /etc/fuse.conf"
    } else if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        || text.contains("ermission")
        || text.contains("not permitted")
        || text.contains("EPERM")
    {
        "; in a container, mounting needs '--device /dev/fuse --cap-add SYS_ADMIN' (and, under AppArmor, '--security-opt apparmor:unconfined')"
    } else {
        ""
    };
    Error::other(
        e.raw_os_error().unwrap_or(libc::EIO),
        format!("mount at {}: {}{advice}", mountpoint.display(), text.trim()),
    )
}

/// The kernel caps read-ahead at 128 KiB for every FUSE mount; root may raise it afterwards. Without
/// permission it stays at that, and sequential buffered reads are about a third slower.
fn raise_read_ahead(device: u64) {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(e) = std::fs::write(&path, READ_AHEAD_KB) {
        log::debug!("{path}: {e}; read-ahead stays at the kernel's 128 KiB");
    }
}

/// The mount's device number (0 if unknown), once it answers; `None` if the session ends instead, as it
/// does if it cannot start all of its threads.
fn first_answer(mountpoint: &Path, session: &SessionThread) -> std::io::Result<Option<u64>> {
    let (answered, answer) = channel();
    let path = mountpoint.to_path_buf();
    // On a thread of its own: without a session nothing answers, and a request cannot be taken back.
    std::thread::Builder::new()
        .name("stfs-first".into())
        .spawn(move || answered.send(std::fs::metadata(path).map_or(0, |m| m.dev())))?;
    loop {
        let device = answer.recv_timeout(Duration::from_millis(20));
        match device {
            Ok(device) if !session.is_finished() => return Ok(Some(device)),
            Err(RecvTimeoutError::Timeout) if !session.is_finished() => {}
            _ => return Ok(None),
        }
    }
}

fn no_threads(e: &std::io::Error) -> Error {
    Error::other(
        e.raw_os_error().unwrap_or(libc::EIO),
        format!(
            "start the request threads: {e}; raise the limit ('ulimit -n', 'ulimit -u') or use fewer (--threads)"
        ),
    )
}

fn joined(session: SessionThread) -> std::io::Result<()> {
    session
        .join()
        .unwrap_or_else(|_| Err(std::io::Error::other("its thread panicked")))
}

/// Takes the session's thread without fuser's cleanup, which would unmount the path even after the
/// mount has gone, and so unmount whatever has been mounted there since.
fn thread_of(session: BackgroundSession) -> SessionThread {
    // Never dropped: this keeps one descriptor of /dev/fuse open until the process ends.
    let session = ManuallyDrop::new(session);
    // SAFETY: `session` is neither used again nor dropped, so the handle that is copied out of it has
    // one owner, the caller.
    unsafe { std::ptr::read(&session.guard) }
}

impl Mounted {
    /// Where it is mounted.
    pub fn place(&self) -> &MountPlace {
        &self.place
    }

    /// Waits until it is unmounted from outside.
    ///
    /// # Errors
    /// The session ended with an error. The mount is detached then.
    pub fn wait(mut self) -> Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        match joined(session) {
            Ok(()) => Ok(()),
            // The last close raced with a thread that was reading the next request: an end like any
            // other, for which that thread gets this instead of ENODEV.
            Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            Err(e) => {
                if let Err(e) = self.place.unmount() {
                    log::error!("{e}");
                }
                Err(Error::io("serve the mount", e))
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.as_ref().is_some_and(|s| !s.is_finished())
            && let Err(e) = self.place.unmount()
        {
            log::error!("{e}");
        }
    }
}

impl MountPlace {
    /// The mountpoint, absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Detaches this mount, busy or not. Does nothing if its path now has another mount or none: then
    /// this one was detached already, and lives only as long as files in it are open.
    ///
    /// # Errors
    /// Unmounting failed.
    pub fn unmount(&self) -> Result<()> {
        match crate::mounts::top(&self.path)? {
            Some(top) if top.device == self.device => unmount(&self.path, true),
            _ => Ok(()),
        }
    }
}

/// Unmounts whatever is mounted at `mountpoint`: by umount(2) where permitted, else through
/// fusermount3. `lazy` detaches a busy mount at once.
///
/// # Errors
/// It is busy, not mounted, or not ours to unmount.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let flags = match lazy {
        true => UnmountFlags::DETACH,
        false => UnmountFlags::empty(),
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(e) => {
            return Err(Error::io(
                format!("unmount {}", mountpoint.display()),
                e.into(),
            ));
        }
    }
    let program = fusermount().unwrap_or_else(|| "fusermount3".into());
    let mut command = std::process::Command::new(program);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let out = command
        .arg("--")
        .arg(mountpoint)
        .output()
        .map_err(|e| Error::io("run fusermount3 ('apt install fuse3')", e))?;
    let output = String::from_utf8_lossy(&out.stderr);
    let what = format!("unmount {}", mountpoint.display());
    match out.status.success() {
        true => Ok(()),
        // The same error as umount(2) gives root.
        false if output.contains("busy") => Err(Error::io(
            what,
            std::io::Error::from_raw_os_error(libc::EBUSY),
        )),
        false => Err(Error::other(
            libc::EPERM,
            format!("{what}: {}", output.trim()),
        )),
    }
}
