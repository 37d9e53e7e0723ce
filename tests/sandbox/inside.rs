//! What a process that has entered the sandbox can do, and what it cannot.

use std::fs::File;
use std::io;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;

use stfs::sandbox::{self, Options};

use crate::{SECRET, alone};

/// Enters the sandbox, and checks that all of it took effect if this machine has it.
fn enter(gpu: bool) {
    let report = sandbox::enter(Options {
        on: true,
        gpu,
        core_dumps: false,
    });
    let missing: Vec<_> = report.missing().collect();
    // libtest's own thread waits for this one.
    let real = |m: &&(&str, &str)| m.0 != "all_threads";
    assert!(!missing.iter().any(|m| real(&m)), "{missing:?}");
}

/// The errno of a failure.
#[track_caller]
fn errno<T: std::fmt::Debug>(r: io::Result<T>) -> i32 {
    r.expect_err("should have failed")
        .raw_os_error()
        .expect("an errno")
}

/// The errno of a system call that must fail.
fn refused(call: libc::c_long, arguments: [libc::c_long; 5]) -> i32 {
    let [a, b, c, d, e] = arguments;
    // SAFETY: each call below is given numbers and null pointers alone, and is refused before it looks at
    // them; if it were not, the kernel would find nothing at address 0.
    let r = unsafe { libc::syscall(call, a, b, c, d, e) };
    assert_eq!(r, -1, "call {call} was not refused");
    io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn nothing_is_started_and_nobody_becomes_anybody_else() {
    alone!({
        enter(false);
        assert_eq!(errno(Command::new("/bin/true").status()), libc::EPERM);
        let pid = std::process::id().into();
        let calls = [
            (libc::SYS_execve, [0; 5]),
            (libc::SYS_execveat, [0; 5]),
            (libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0]),
            (libc::SYS_clone, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0]),
            (libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0]),
            (libc::SYS_setns, [0; 5]),
            (libc::SYS_setuid, [0; 5]),
            (libc::SYS_setresgid, [0; 5]),
            (libc::SYS_setgroups, [0; 5]),
            (libc::SYS_ptrace, [libc::PTRACE_TRACEME.into(), 0, 0, 0, 0]),
            (libc::SYS_process_vm_readv, [pid, 0, 0, 0, 0]),
            (libc::SYS_mount, [0; 5]),
            (libc::SYS_umount2, [0; 5]),
            (libc::SYS_fsopen, [0; 5]),
            (libc::SYS_bpf, [0; 5]),
            (libc::SYS_init_module, [0; 5]),
            (libc::SYS_io_uring_setup, [0; 5]),
            (libc::SYS_userfaultfd, [0; 5]),
            (libc::SYS_keyctl, [0; 5]),
            (libc::SYS_kill, [1, 0, 0, 0, 0]),
            (libc::SYS_tkill, [1, 0, 0, 0, 0]),
            (libc::SYS_kexec_file_load, [0; 5]),
            (libc::SYS_prlimit64, [1, 0, 0, 0, 0]),
            (libc::SYS_ioctl, [0, libc::TIOCSTI as libc::c_long, 0, 0, 0]),
        ];
        for (call, arguments) in calls {
            assert_eq!(refused(call, arguments), libc::EPERM, "call {call}");
        }
        assert_eq!(refused(libc::SYS_clone3, [0; 5]), libc::ENOSYS);
        #[cfg(target_arch = "x86_64")]
        for call in [libc::SYS_fork, libc::SYS_vfork] {
            assert_eq!(refused(call, [0; 5]), libc::EPERM);
        }
    });
}

#[test]
fn nothing_is_opened_but_what_serving_needs() {
    alone!({
        let mut open_before = File::open("/etc/passwd").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let stream = directory.path().join("stream");
        let _listens = std::os::unix::net::UnixListener::bind(&stream).unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let own = File::open(directory.path().join("file")).unwrap();
        enter(false);
        for path in [
            "/etc/passwd",
            "/etc/hostname",
            "/bin/sh",
            "/proc/1/environ",
            "/proc/1/mem",
        ] {
            assert_eq!(errno(File::open(path)), libc::EACCES, "{path}");
        }
        assert_eq!(errno(std::fs::read_dir("/")), libc::EACCES);
        assert_eq!(
            errno(
                File::options()
                    .write(true)
                    .open(directory.path().join("file"))
            ),
            libc::EACCES
        );
        let changes = [
            File::create(directory.path().join("new")).map(drop),
            std::fs::create_dir(directory.path().join("new")),
            std::fs::remove_file(directory.path().join("file")),
            std::fs::rename(
                directory.path().join("file"),
                directory.path().join("other"),
            ),
            std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")),
            std::fs::set_permissions(
                directory.path(),
                std::os::unix::fs::PermissionsExt::from_mode(0o777),
            ),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            assert_eq!(errno(change), libc::EPERM, "change {i}");
        }
        // Of a file that is open, as every model file is.
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
        assert_eq!(errno(own.set_permissions(executable)), libc::EPERM);
        let none = [own.as_raw_fd().into(), 0, 0, 0, 0];
        for call in [libc::SYS_fsetxattr, libc::SYS_fremovexattr] {
            assert_eq!(refused(call, none), libc::EPERM, "call {call}");
        }
        for call in [452, 463, 466, 469] {
            assert_eq!(refused(call, [-1, 0, 0, 0, 0]), libc::EPERM, "call {call}");
        }
        assert_eq!(errno(TcpStream::connect(address)), libc::EPERM);
        assert_eq!(errno(UnixStream::connect(&stream)), libc::EPERM);
        for domain in [
            libc::AF_INET,
            libc::AF_INET6,
            libc::AF_NETLINK,
            libc::AF_PACKET,
            libc::AF_VSOCK,
        ] {
            let arguments = [domain.into(), libc::SOCK_DGRAM.into(), 0, 0, 0];
            assert_eq!(refused(libc::SYS_socket, arguments), libc::EPERM);
        }
        // What was open stays open, and a stat of a path is answered.
        let mut text = String::new();
        open_before.read_to_string(&mut text).unwrap();
        assert!(text.contains("root"));
        assert!(std::fs::metadata("/etc/passwd").is_ok());
    });
}

#[test]
fn what_serving_needs_is_there() {
    alone!({
        let cores = std::thread::available_parallelism().unwrap();
        let fuse = std::path::Path::new("/dev/fuse").exists();
        enter(false);
        assert_eq!(std::thread::available_parallelism().unwrap(), cores);
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        for path in [
            "/proc/self/status",
            "/proc/1/status",
            "/proc/self/mountinfo",
            "/proc/self/cgroup",
            "/proc/meminfo",
            "/dev/null",
        ] {
            assert!(
                !std::fs::read(path).unwrap().is_empty() || path == "/dev/null",
                "{path}"
            );
        }
        if fuse {
            let device = File::options()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .unwrap();
            // Landlock refuses an ioctl of a device with EACCES. This one fails, but not so: there is no
            // session to clone.
            let mut none = u32::MAX;
            // SAFETY: FUSE_DEV_IOC_CLONE reads the number, which lives until the call returns.
            let r = unsafe { libc::ioctl(device.as_raw_fd(), 0x8004_e500, &raw mut none) };
            assert_eq!(r, -1);
            assert_eq!(
                io::Error::last_os_error().raw_os_error(),
                Some(libc::EINVAL)
            );
        }
        // Syslog, again after a restart of its daemon.
        UnixDatagram::unbound().unwrap();
        // An abort still ends the process, and a thread's panic is caught.
        assert!(std::thread::spawn(|| panic!("on purpose")).join().is_err());
    });
}

#[test]
fn the_callers_environment_is_gone_and_no_core_is_left() {
    alone!({
        assert!(std::env::vars().any(|(_, value)| value == SECRET));
        enter(false);
        assert!(std::env::vars().all(|(_, value)| value != SECRET));
        assert!(std::env::var_os("PATH").is_none());
        let all = std::fs::read("/proc/self/environ").unwrap();
        assert!(!all.windows(SECRET.len()).any(|w| w == SECRET.as_bytes()));
        assert!(
            all.iter().all(|&b| b == 0),
            "{}",
            String::from_utf8_lossy(&all)
        );
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let core = limits
            .lines()
            .find(|l| l.starts_with("Max core file size"))
            .unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }, 0);
    });
}

#[test]
fn with_a_gpu_the_driver_finds_what_it_opens() {
    alone!({
        let shared = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        enter(true);
        assert_eq!(
            std::env::var("LD_LIBRARY_PATH").as_deref(),
            Ok("/nonexistent")
        );
        for path in ["/proc/modules", "/proc/devices", "/etc/ld.so.cache"] {
            assert!(
                std::fs::read(path).is_ok() || !std::path::Path::new(path).exists(),
                "{path}"
            );
        }
        assert!(std::fs::read_dir("/sys/devices").is_ok());
        std::fs::write(shared.path(), "x").unwrap();
        let made = shared.path().with_extension("made");
        std::fs::write(&made, "x").unwrap();
        std::fs::remove_file(&made).unwrap();
        drop(std::os::unix::net::UnixListener::bind_addr(
            &<std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
                format!("stfs-sandbox-{}", std::process::id()),
            )
            .unwrap(),
        )
        .unwrap());
        // Neither programs nor other files nor the network.
        assert_eq!(errno(Command::new("/bin/true").status()), libc::EPERM);
        assert_eq!(errno(File::open("/etc/passwd")), libc::EACCES);
        assert_eq!(errno(File::create("/tmp/stfs-sandbox")), libc::EACCES);
        let inet = [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0, 0, 0];
        assert_eq!(refused(libc::SYS_socket, inet), libc::EPERM);
    });
}
