//! System calls that a serving process never makes: a filter that refuses them with EPERM, for this process and
//! whatever it could become. It is a list of what is refused and not of what is allowed, because the C
//! library and the driver begin to use new calls with every version.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::Measure;

/// Calls that are refused whatever their arguments are.
const NEVER: &[c_long] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes' memory and descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    // The C library uses tgkill, which has the process in an argument.
    libc::SYS_tkill,
    libc::SYS_kcmp,
    // Mounts, namespaces and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Other users.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    // The kernel and the machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

/// The same, of x86-64 alone; the last two are those that start a process.
#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_fork,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[c_long] = &[];

/// Calls of x86-64 and aarch64 that not every machine has.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const NEVER_ON_SOME: &[c_long] = &[libc::SYS_kexec_file_load];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const NEVER_ON_SOME: &[c_long] = &[];

/// Calls that change files, their permissions or what a path leads to. The driver makes files; nothing else does.
const CHANGES: &[c_long] = &[
    libc::SYS_mknodat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat2,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    // A descriptor that is open for reading is enough for these.
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
    // Newer than the list of libc; the same numbers on x86-64, aarch64 and RISC-V.
    FCHMODAT2,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
];

const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;

/// Calls of x86-64 and aarch64 that not every machine has.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const CHANGES_ON_SOME: &[c_long] = &[libc::SYS_renameat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CHANGES_ON_SOME: &[c_long] = &[];

/// The same, older calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
const CHANGES_HERE: &[c_long] = &[
    libc::SYS_mknod,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_link,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_creat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const CHANGES_HERE: &[c_long] = &[];

/// Calls whose arguments lie in memory, where a filter cannot look. ENOSYS has the C library use the older ones.
const UNREADABLE: &[c_long] = &[libc::SYS_clone3, libc::SYS_openat2];

/// A thread may be started; a process, or anything in a namespace of its own, may not.
const THREAD: u64 = libc::CLONE_THREAD as u64;

/// An open that makes a file.
const CREATING: &[i32] = &[libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Calls by their numbers, each with the rules of which one must hold for it to be refused; without rules it is
/// always refused.
type Refused = BTreeMap<c_long, Vec<SeccompRule>>;

/// Installs the filter for this thread and all that it starts.
pub fn filter(gpu: bool) -> Measure {
    install(gpu).map_err(|e| e.to_string())?;
    Ok(None)
}

fn install(gpu: bool) -> seccompiler::Result<()> {
    let here = TargetArch::try_from(std::env::consts::ARCH)?;
    let program = |refused: Refused, errno: i32| -> seccompiler::Result<BpfProgram> {
        let refuse = SeccompAction::Errno(errno.unsigned_abs());
        let filter = SeccompFilter::new(with_x32(refused), SeccompAction::Allow, refuse, here)?;
        Ok(filter.try_into()?)
    };
    let unreadable = UNREADABLE.iter().map(|&call| (call, Vec::new())).collect();
    seccompiler::apply_filter(&program(unreadable, libc::ENOSYS)?)?;
    seccompiler::apply_filter(&program(refused(gpu)?, libc::EPERM)?)
}

fn refused(gpu: bool) -> Result<Refused, BackendError> {
    let lists: &[&[c_long]] = match gpu {
        true => &[NEVER, NEVER_ON_SOME, NEVER_HERE],
        false => &[
            NEVER,
            NEVER_ON_SOME,
            NEVER_HERE,
            CHANGES,
            CHANGES_ON_SOME,
            CHANGES_HERE,
        ],
    };
    let always = lists.iter().flat_map(|list| list.iter());
    let mut refused: Refused = always.map(|&call| (call, Vec::new())).collect();
    let mut if_any = |call: c_long, rules: Vec<SeccompRule>| refused.insert(call, rules);
    let own = u64::from(std::process::id());
    if_any(libc::SYS_clone, vec![rule([masked(0, THREAD, 0)?])?]);
    if_any(libc::SYS_socket, sockets(gpu || syslog_is_a_stream())?);
    if_any(libc::SYS_kill, vec![rule([is_not(0, own)?])?]);
    if_any(libc::SYS_tgkill, vec![rule([is_not(0, own)?])?]);
    if_any(
        libc::SYS_prlimit64,
        vec![rule([is_not(0, 0)?, is_not(0, own)?])?],
    );
    // Typing into the terminal that a mount in the foreground has.
    let typing = [libc::TIOCSTI, libc::TIOCLINUX];
    let typing = typing.map(|request| rule([masked(1, u64::from(u32::MAX), request)?]));
    if_any(
        libc::SYS_ioctl,
        typing.into_iter().collect::<Result<_, _>>()?,
    );
    if !gpu {
        if_any(libc::SYS_openat, creating(2)?);
        #[cfg(target_arch = "x86_64")]
        if_any(libc::SYS_open, creating(1)?);
    }
    Ok(refused)
}

/// Refused: sockets of other families than Unix's, and of those, unless they are needed, all but datagrams.
/// Syslog takes those; what takes orders from root (a container engine, a message bus) takes streams.
fn sockets(streams: bool) -> Result<Vec<SeccompRule>, BackendError> {
    let kind = |kind: i32| rule([masked(1, 0xf, kind.unsigned_abs().into())?]);
    let mut rules = vec![rule([is_not(0, libc::AF_UNIX.unsigned_abs().into())?])?];
    if !streams {
        rules.push(kind(libc::SOCK_STREAM)?);
        rules.push(kind(libc::SOCK_SEQPACKET)?);
    }
    Ok(rules)
}

/// Whether the machine's syslog wants a stream, as some do: it must be possible to connect to it again.
fn syslog_is_a_stream() -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect("/dev/log"));
    connected.is_err_and(|e| e.raw_os_error() == Some(libc::EPROTOTYPE))
}

/// Opening a file so that it is made if it does not exist; the flags are argument `flags`.
fn creating(flags: u8) -> Result<Vec<SeccompRule>, BackendError> {
    let bits = CREATING.iter().map(|bit| u64::from(bit.unsigned_abs()));
    bits.map(|bit| rule([masked(flags, bit, bit)?])).collect()
}

/// All of the conditions.
fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn is_not(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    let equal = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, equal, value)
}

/// On x86-64 a kernel may also take each call under a second number, for programs with short pointers. A few
/// of those numbers are not the first one's.
#[cfg(target_arch = "x86_64")]
fn with_x32(mut refused: Refused) -> Refused {
    const X32: c_long = 0x4000_0000;
    const OTHER: &[(c_long, c_long)] = &[
        (libc::SYS_ioctl, 514),
        (libc::SYS_execve, 520),
        (libc::SYS_ptrace, 521),
        (libc::SYS_rt_sigqueueinfo, 524),
        (libc::SYS_kexec_load, 528),
        (libc::SYS_rt_tgsigqueueinfo, 536),
        (libc::SYS_process_vm_readv, 539),
        (libc::SYS_process_vm_writev, 540),
        (libc::SYS_execveat, 545),
    ];
    let other = |call: &c_long| {
        OTHER
            .iter()
            .find(|(first, _)| first == call)
            .map(|(_, x32)| *x32)
    };
    let again = |(call, rules): (&c_long, &Vec<SeccompRule>)| {
        let numbers = [Some(*call), other(call)].into_iter().flatten();
        numbers
            .map(|n| (n | X32, rules.clone()))
            .collect::<Vec<_>>()
    };
    let x32: Vec<_> = refused.iter().flat_map(again).collect();
    refused.extend(x32);
    refused
}

#[cfg(not(target_arch = "x86_64"))]
fn with_x32(refused: Refused) -> Refused {
    refused
}
