//! What the server of a mount and its keeper tell each other.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// From the server to its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Mount. Answered with [`Reply::Attached`] or [`Reply::Failed`].
    Attach {
        /// Absolute.
        mountpoint: OsString,
        source: String,
        allow_other: bool,
    },
    /// The mount is being served. Answered with [`Reply::Answers`] or [`Reply::Failed`].
    Serving,
    /// The caller knows of the mount: from now on a mountpoint that was created stays.
    Ready,
    /// The mount has been unmounted from outside, so another one may have got its number.
    Unmounted,
    /// Detach the mount. Answered with [`Reply::Detached`].
    Detach,
    /// So many bytes have been served.
    Served(u64),
}

/// From the keeper to its server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Mounted; the descriptor of `/dev/fuse` comes with it.
    Attached {
        /// The mountpoint without links.
        mountpoint: OsString,
        /// A mount there whose daemon had died was detached first.
        detached_stale: bool,
    },
    /// The mount answers a request.
    Answers,
    /// Detached, or why not.
    Detached(Result<(), String>),
    /// A request could not be fulfilled.
    Failed(String),
    /// How many bytes have been served? Answered with [`Request::Served`].
    Served,
}

/// The longest message, in bytes: a path of 4,096 bytes takes four times that.
const LONGEST: usize = 64 << 10;

/// One end of the connection between a server and its keeper.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// Both ends.
    pub(super) fn pair() -> io::Result<(Link, Link)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Link(a), Link(b)))
    }

    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.send_with(message, None)
    }

    /// Sends a message together with a descriptor.
    pub(super) fn send_with(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|d| [d]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let data = [IoSlice::new(&bytes)];
        // Never waits for a receiver that has stopped.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.0, &data, &mut control, flags)?;
        Ok(())
    }

    /// The next message, and the descriptor that came with it. An error if the other end is closed.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Option<OwnedFd>)> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut data = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(&self.0, &mut data, &mut control, flags)
        })?;
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        match bytes.get(..received.bytes) {
            Some([]) | None => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(bytes) => Ok((serde_json::from_slice(bytes)?, descriptor)),
        }
    }

    /// Sends nothing any more: the other end's next [`Link::receive`] fails.
    pub(super) fn close(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
