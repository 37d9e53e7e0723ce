//! The log file, in a process of its own. A file system that stalls holds whatever writes to a file in it,
//! or has one open when it ends, and not even SIGKILL ends that: such a process must not be the daemon. This
//! one copies lines, and nothing waits for it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The process's answers about a line.
const WRITTEN: u8 = b'.';
const FAILED: u8 = b'!';

/// The connection to the process. It ends when this is dropped.
pub(super) struct FileWriter(UnixStream);

impl FileWriter {
    /// Starts the process.
    ///
    /// # Errors
    /// It cannot start.
    pub(super) fn start(file: &File) -> io::Result<FileWriter> {
        let (ours, theirs) = UnixStream::pair()?;
        let (file, socket) = (file.as_raw_fd(), theirs.as_raw_fd());
        // SAFETY: the child calls `copy_lines` alone, which makes system calls and allocates nothing, so
        // it does not matter what other threads were doing.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => copy_lines(file, socket),
            _ => Ok(FileWriter(ours)),
        }
    }

    /// Writes a line, which ends with the only newline in it, and waits until it is in the file.
    ///
    /// # Errors
    /// It could not be written, or the process has been killed.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        self.0.write_all(line.as_bytes())?;
        let mut answer = [0];
        self.0.read_exact(&mut answer)?;
        match answer {
            [WRITTEN] => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Has `write` fail instead of waiting longer.
    pub(super) fn wait_at_most(&self, limit: Duration) -> bool {
        self.0.set_read_timeout(Some(limit)).is_ok()
    }
}

/// What the process does, until the other end of `socket` is closed.
fn copy_lines(file: libc::c_int, socket: libc::c_int) -> ! {
    crate::sandbox::overwrite_environment();
    let [file, socket] = give_up_the_rest(file, socket);
    let mut buffer = [0u8; 16 << 10];
    let mut failed = false;
    loop {
        // SAFETY: reads into the buffer, at most as much as it holds.
        let n = unsafe { libc::read(socket, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Some(bytes) = usize::try_from(n).ok().and_then(|n| buffer.get(..n)) else {
            exit();
        };
        match bytes.last() {
            None => exit(),
            Some(end) => {
                failed |= !write_all(file, bytes);
                // The next line is sent once this one is answered.
                if *end == b'\n' {
                    write_all(socket, &[if failed { FAILED } else { WRITTEN }]);
                    failed = false;
                }
            }
        }
    }
}

/// Leaves nothing open but these two, and nothing allowed but to read, write and exit.
fn give_up_the_rest(file: libc::c_int, socket: libc::c_int) -> [libc::c_int; 2] {
    // Above the numbers that they are given below.
    const FIRST: libc::c_int = 10;
    // SAFETY: the calls take numbers and strings that end with a NUL. No value of this process uses the
    // descriptors that are closed: it runs nothing but `copy_lines`.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            // It ends when there is nothing left to write.
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"stfs-log".as_ptr());
        libc::chdir(c"/".as_ptr());
        let file = libc::fcntl(file, libc::F_DUPFD, FIRST);
        let socket = libc::fcntl(socket, libc::F_DUPFD, FIRST);
        if libc::dup2(file, 0) < 0 || libc::dup2(socket, 1) < 0 {
            exit();
        }
        // Before Linux 5.9 nothing is closed.
        libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT);
    }
    [0, 1]
}

fn write_all(fd: libc::c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: writes from the slice, at most as much as it holds.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(n).ok().and_then(|n| bytes.get(n..)) {
            Some(rest) if n > 0 => bytes = rest,
            _ => return false,
        }
    }
    true
}

fn exit() -> ! {
    loop {
        // SAFETY: ends the process, which has one thread. Nothing else may end it in strict mode.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}
