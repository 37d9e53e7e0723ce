//! A log that takes nothing: nobody waits for it. A log that is asked for too much: it is spared.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use safetensors::Dtype;

use crate::common::mount::{BIN, Background, umount, wait_for};
use crate::common::sys::{kill, mkfifo};
use crate::common::{ModelDir, Ran, stfs, tensor};
use crate::{as_root, mount_logging_to, small_model};

/// How long anything may take meanwhile. On an idle machine that is milliseconds; what waits for the log
/// waits until its reader goes on, which none does here.
const SOON: Duration = Duration::from_secs(20);

/// Bytes of the tensor that is cut short.
const LARGE: usize = 4 << 20;

/// A model that has something to say when it is mounted, and logs a line for each read of `large`.
fn talkative() -> ModelDir {
    let large = tensor("large", Dtype::U8, &[LARGE]);
    let dir = ModelDir::sharded(&[
        ("1.safetensors", &[tensor("small", Dtype::F32, &[8])]),
        ("2.safetensors", &[large]),
    ]);
    dir.file("config.json", "{\"tie_word_embeddings\": tru");
    dir
}

fn truncate(model: &ModelDir) {
    let shard = File::options()
        .write(true)
        .open(model.join("2.safetensors"));
    shard.unwrap().set_len(4096).unwrap();
}

/// Fills a pipe.
fn fill(writer: impl AsFd) {
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags - OFlags::NONBLOCK).unwrap();
}

/// A pipe that is full, and whose reader does not read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    (reader, writer)
}

/// A daemon in the foreground. It ends with the test.
struct Daemon {
    child: Child,
    root: PathBuf,
}

impl Daemon {
    fn start(model: &ModelDir, args: &[&str], stderr: impl Into<Stdio>) -> Daemon {
        let root = model.join("m");
        let child = Command::new(BIN)
            .args(["mount", "-f"])
            .args(args)
            .args([model.path(), &root])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let daemon = Daemon { child, root };
        let until = Instant::now() + SOON;
        while !daemon.root.join("tensors/small/raw").exists() {
            assert!(Instant::now() < until, "it does not mount");
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    /// Many reads that fail, each with a line for the log, and then one that does not.
    fn read(&self) {
        let start = Instant::now();
        let large = File::open(self.root.join("tensors/large/raw")).unwrap();
        for i in 0..1000 {
            let mut byte = [0];
            let at = LARGE as u64 - 1 - i * 4096;
            assert!(large.read_exact_at(&mut byte, at).is_err());
        }
        let small = std::fs::read(self.root.join("tensors/small/raw"));
        assert_eq!(small.unwrap().len(), 32);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }

    /// Ends it with a signal.
    fn end(mut self) {
        let start = Instant::now();
        kill(self.child.id() as i32, libc::SIGTERM);
        let status = wait_for(&mut self.child).expect("it ends");
        assert!(status.success(), "{status}");
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert!(std::fs::read_dir(&self.root).unwrap().next().is_none());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            stfs([Path::new("umount"), "--lazy".as_ref(), &self.root]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn in_the_foreground_a_full_standard_error_delays_nothing() {
    let model = talkative();
    let (reader, writer) = full_pipe();
    let daemon = Daemon::start(&model, &["-v"], writer);
    truncate(&model);
    daemon.read();
    daemon.end();
    drop(reader);
}

#[test]
fn in_the_background_a_full_standard_error_delays_nothing() {
    let model = talkative();
    let (reader, writer) = full_pipe();
    let (root, log) = (model.join("m"), model.join("log"));
    let start = Instant::now();
    let ran = mount_logging_to(&log, model.path(), &root)
        .stdout(Stdio::null())
        .stderr(writer)
        .status();
    let small = std::fs::read(root.join("tensors/small/raw"));
    let unmounted = umount(&root);
    assert!(ran.unwrap().success() && start.elapsed() < SOON);
    assert_eq!(small.unwrap().len(), 32);
    unmounted.ok();
    // The note that found no reader is in the log.
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("not used: config.json"), "{text}");
    drop(reader);
}

#[test]
fn a_fifo_whose_reader_stops_delays_nothing() {
    let model = talkative();
    let fifo = model.join("fifo");
    mkfifo(&fifo).unwrap();
    let mut reader = File::options().read(true).write(true).open(&fifo).unwrap();
    fill(&reader);
    let daemon = Daemon::start(
        &model,
        &["--log-file", fifo.to_str().unwrap()],
        Stdio::null(),
    );
    truncate(&model);
    daemon.read();
    let mut sink = vec![0; 1 << 20];
    let n = reader.read(&mut sink).unwrap();
    assert!(n >= 4096, "{n}");
    // It is read again: what was queued arrives.
    let mut text = String::new();
    while !text.contains("truncated") {
        let n = reader.read(&mut sink).unwrap();
        text += &String::from_utf8_lossy(&sink[..n]);
    }
    daemon.end();
}

#[test]
fn a_stopped_syslog_delays_nothing() {
    let model = small_model();
    let path = model.join("log.socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send_to(&[b'x'; 1024], &path).is_ok() {}
    let start = Instant::now();
    let ran = as_root(
        &model,
        r#"
        mkdir "$DIR/dev" "$DIR/m" && mount -t tmpfs tmpfs "$DIR/dev"
        mknod "$DIR/dev/fuse" c 10 229 && mknod -m 666 "$DIR/dev/null" c 1 3
        ln -s "$MODEL/log.socket" "$DIR/dev/log"
        mount --bind "$DIR/dev" /dev
        "$BIN/stfs" mount "$MODEL" "$DIR/m" </dev/null
        for i in 1 2 3; do cat "$DIR/m/tensors/b.weight/raw" >/dev/null; done
        pid=$("$BIN/stfs" mounts | awk -v m="$DIR/m" '$2 == m {print $3}')
        "$BIN/stfs" umount "$DIR/m"
        i=0
        while grep -qs '^State:[[:space:]]*[^Z]' "/proc/$pid/status"; do
            i=$((i + 1)); [ $i -lt 200 ] || { echo "$pid goes on" >&2; exit 1; }; sleep 0.1
        done
        "#,
    );
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(start.elapsed() < 2 * SOON, "{:?}", start.elapsed());
    drop(socket);
}

/// A frozen file system holds what writes to it, and not even SIGKILL ends that.
#[test]
fn a_log_file_on_a_frozen_file_system_delays_nothing() {
    let model = talkative();
    let shard = model.join("2.safetensors");
    let script = r#"
        truncate -s 16M "$DIR/image" && mkdir "$DIR/log" "$DIR/m"
        mkfs.ext4 -q -F "$DIR/image"
        mount -o loop "$DIR/image" "$DIR/log" || { echo no loop device; exit 0; }
        "$BIN/stfs" mount --log-file "$DIR/log/log" "$MODEL" "$DIR/m" </dev/null 2>/dev/null
        pid=$("$BIN/stfs" mounts | awk -v m="$DIR/m" '$2 == m {print $3}')
        fsfreeze -f "$DIR/log"
        trap 'fsfreeze -u "$DIR/log"; end; umount "$DIR/log"' EXIT
        truncate -s 4096 SHARD
        for i in 1 2 3 4 5 6 7 8 9; do cat "$DIR/m/tensors/large/raw" >/dev/null 2>&1 || true; done
        timeout 20 cat "$DIR/m/tensors/small/raw" >/dev/null
        kill -TERM $pid
        i=0
        while [ -d "/proc/$pid" ] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$pid/status"; do
            i=$((i + 1)); [ $i -lt 200 ] || { echo "$pid goes on" >&2; exit 1; }; sleep 0.1
        done
        # Its threads have all ended: it is not only its leader that has.
        [ "$(ls "/proc/$pid/task" 2>/dev/null | wc -l)" -le 1 ]
    "#;
    let ran = as_root(&model, &script.replace("SHARD", shard.to_str().unwrap()));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
}

#[test]
fn a_log_file_that_nothing_reads_is_an_error() {
    let model = small_model();
    let (fifo, socket) = (model.join("fifo"), model.join("socket"));
    mkfifo(&fifo).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    for place in [&fifo, &socket, model.path()] {
        let ran = mount_logging_to(place, model.path(), &model.join("m")).output();
        let ran = Ran::of(ran.unwrap());
        ran.fails(&["open log file", place.to_str().unwrap()]);
        assert!(!model.join("m").exists());
    }
}

#[test]
fn a_log_file_may_be_a_device_a_pipe_or_new() {
    let model = small_model();
    let new = model.join("new");
    for log in ["/dev/null", new.to_str().unwrap()] {
        let m = Background::new(model.path(), &["--log-file", log]);
        drop(m);
    }
    let text = std::fs::read_to_string(&new).unwrap();
    assert!(
        text.contains("2 tensors") && text.contains("unmounted"),
        "{text}"
    );
    let mode = new.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}");
    // A pipe by its name in /dev, which is read.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let daemon = {
        let model = talkative();
        let daemon = Daemon::start(&model, &["--log-file", "/dev/stderr"], writer);
        daemon.end();
        model
    };
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(text.contains("INFO unmounted"), "{text}");
    drop(daemon);
}

#[test]
fn one_reader_of_a_truncated_shard_does_not_fill_the_disk() {
    let model = talkative();
    let log = model.join("log");
    let daemon = Daemon::start(
        &model,
        &["--log-file", log.to_str().unwrap()],
        Stdio::null(),
    );
    truncate(&model);
    daemon.read();
    daemon.end();
    let text = std::fs::read_to_string(&log).unwrap();
    let about: Vec<&str> = text.lines().filter(|l| l.contains("truncated")).collect();
    // The first few in full, each with its own numbers, then how many there were.
    assert!((3..10).contains(&about.len()), "{text}");
    assert_ne!(about[0], about[1]);
    let counts = about.iter().filter(|l| l.contains(" more like this: "));
    assert_eq!(counts.count(), 1, "{text}");
}

#[test]
fn a_mount_that_fails_has_written_its_log() {
    let ran = as_root(
        &talkative(),
        r#"
        mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3
        code=0
        "$BIN/stfs" mount --log-file "$DIR/log" "$MODEL" "$DIR/m" </dev/null || code=$?
        cat "$DIR/log"
        exit $code
        "#,
    );
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.contains("not used: config.json"), "{ran:?}");
    // The note, and then the reason.
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(
        lines.len() == 2 && lines[1].contains("/dev/fuse"),
        "{ran:?}"
    );
}
