//! Forwards bytes between a client's connection and an endpoint's connection.
//!
//! Memory for pending writes is bounded: the relay reads from a connection again only after it has
//! written all earlier bytes. All connections share one buffer. A connection borrows a pipe only
//! while the pipe holds bytes, so an idle connection has neither a buffer nor a pipe.
//!
//! When a sender closes its direction (FIN), the relay closes this direction towards the receiver.
//! The opposite direction continues. If one connection is reset, the relay resets the other
//! connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::descriptors::{DescriptorPermit, Free};
use super::limits::{Carriage, Limits};
use super::shares::ClientPlace;
use super::traffic::{CountedConnection, add};

/// Size of the shared buffer, and of one read, in bytes.
const CHUNK: usize = 64 * 1024;

/// Size of one read, in bytes, while [`Limits::waiting`] large reads wait in memory for slow
/// receivers.
const FEW_BYTES: usize = 4 * 1024;

/// Requested size of a pipe in bytes. The kernel may allow less.
const PIPE: usize = 256 * 1024;

/// Largest number of empty pipes that the pump keeps for reuse.
const SPARE_PIPES: usize = 32;

/// Number of descriptors that one pipe needs.
const OF_PIPE: u32 = 2;

/// Number of bytes that one connection may forward before other tasks get their turn.
const TURN: usize = 1024 * 1024;

/// Number of bytes in a read through a pipe below which [`Carriage::Adaptive`] returns to the
/// buffer.
const FEW: usize = 16 * 1024;

/// Buffers and pipes that all connections share.
pub(crate) struct Pump {
    carriage: Carriage,
    buffer: RefCell<Box<[u8]>>,
    /// Empty pipes, ready for reuse.
    spare: RefCell<Vec<Pipe>>,
    /// Number of pipes that may still be created. Each pipe takes its descriptors from `free`.
    room: Free,
    free: Free,
    /// Permits for further large reads that may wait in memory for slow receivers.
    waiting: Free,
}

/// Both ends of a pipe, with the permits for the pipe and its descriptors.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _room: DescriptorPermit,
    _held: DescriptorPermit,
}

/// Medium through which the next read moves bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    Buffer,
    Pipe,
}

/// Result of a read from a connection.
enum Transfer {
    /// Number of bytes that were read and completely written.
    All(usize),
    /// Bytes that wait in memory, with the permit for a large read.
    Bytes(Vec<u8>, Option<DescriptorPermit>),
    /// A pipe, and the number of bytes that wait in it.
    Piped(Pipe, usize),
    /// No bytes: the peer has closed this direction.
    End,
}

impl Pump {
    /// Creates a pump with these limits. Its pipes take their descriptors from `free`.
    pub(crate) fn new(limits: &Limits, free: Free) -> Self {
        Self {
            carriage: limits.carriage,
            buffer: RefCell::new(vec![0; CHUNK].into()),
            spare: RefCell::new(Vec::new()),
            room: Free::new(Some(limits.pipes)),
            free,
            waiting: Free::new(Some(limits.waiting)),
        }
    }

    /// Closes all unused pipes, which frees their descriptors.
    pub(crate) fn close_spare(&self) {
        self.spare.borrow_mut().clear();
    }

    /// Forwards bytes in both directions until both have ended, and counts the bytes that it reads.
    /// An error resets both connections.
    pub(crate) async fn run(
        &self,
        client: &TcpStream,
        server: &TcpStream,
        counted: &CountedConnection,
        place: &ClientPlace<Rc<CutSignal>>,
    ) {
        let both = tokio::try_join!(
            self.carry(client, server, counted.bytes_in(), place),
            self.carry(server, client, counted.bytes_out(), place)
        );
        if both.is_err() {
            reset(client);
            reset(server);
        }
    }

    async fn carry(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        sum: &AtomicU64,
        place: &ClientPlace<Rc<CutSignal>>,
    ) -> io::Result<()> {
        let mut way = match self.carriage {
            Carriage::Splice => Medium::Pipe,
            Carriage::Copy | Carriage::Adaptive => Medium::Buffer,
        };
        let mut turn = 0;
        loop {
            from.readable().await?;
            place.note_use();
            let mut moved = None;
            let tried = from.try_io(Interest::READABLE, || {
                let now = match way {
                    Medium::Buffer => self.read(from, to, sum)?,
                    Medium::Pipe => self.splice(from, to, sum)?,
                };
                // A read that does not fill the buffer has emptied the socket, so no second read is
                // needed.
                let is_empty = matches!(now, Transfer::All(count) if count < CHUNK);
                moved = Some(now);
                if is_empty && way == Medium::Buffer {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(())
                }
            });
            let moved = moved.map_or_else(|| tried.map(|()| Transfer::All(0)), Ok);
            let count = match moved {
                Ok(Transfer::All(count)) => count,
                Ok(Transfer::Bytes(bytes, _leave)) => {
                    let mut left = bytes.as_slice();
                    while !left.is_empty() {
                        writable(from, to).await?;
                        match to.try_write(left) {
                            Ok(count) => left = left.get(count..).unwrap_or_default(),
                            Err(error) => would_block(error)?,
                        }
                    }
                    CHUNK
                }
                Ok(Transfer::Piped(pipe, mut left)) => {
                    while left > 0 {
                        writable(from, to).await?;
                        match to.try_io(Interest::WRITABLE, || drain(&pipe, to, left)) {
                            Ok(count) => left = left.saturating_sub(count),
                            Err(error) => would_block(error)?,
                        }
                    }
                    self.give_back(pipe);
                    CHUNK
                }
                Ok(Transfer::End) => {
                    // Ignores `NotConnected`: the connection may have ended already.
                    let ended = SockRef::from(to).shutdown(Shutdown::Write);
                    return ended.or_else(|error| match error.kind() {
                        io::ErrorKind::NotConnected => Ok(()),
                        _ => Err(error),
                    });
                }
                Err(error) => {
                    would_block(error)?;
                    continue;
                }
            };
            if self.carriage == Carriage::Adaptive {
                way = match way {
                    Medium::Buffer if count >= CHUNK => Medium::Pipe,
                    Medium::Pipe if count < FEW => Medium::Buffer,
                    way => way,
                };
            }
            turn += count;
            if turn >= TURN {
                turn = 0;
                yield_now().await;
            }
        }
    }

    /// Reads once into the shared buffer, and writes as many bytes as `to` accepts.
    fn read(&self, from: &TcpStream, to: &TcpStream, sum: &AtomicU64) -> io::Result<Transfer> {
        let mut buffer = self.buffer.borrow_mut();
        let leave = self.waiting.try_take(1);
        let most = if leave.is_some() { CHUNK } else { FEW_BYTES };
        let count = rustix::io::read(from, buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 {
            return Ok(Transfer::End);
        }
        add(sum, count);
        let bytes = buffer.get(..count).unwrap_or_default();
        let written = match to.try_write(bytes) {
            Ok(written) => written,
            Err(error) => would_block(error).map(|()| 0)?,
        };
        Ok(match bytes.get(written..) {
            Some(left) if !left.is_empty() => Transfer::Bytes(left.to_vec(), leave),
            // If a read fills the buffer, the socket may contain more bytes.
            _ if count == most => Transfer::All(CHUNK),
            _ => Transfer::All(count),
        })
    }

    /// Reads once into a pipe, and writes as many bytes as `to` accepts. Without a pipe, uses the
    /// buffer.
    fn splice(&self, from: &TcpStream, to: &TcpStream, sum: &AtomicU64) -> io::Result<Transfer> {
        let Some(pipe) = self.borrow() else {
            return self.read(from, to, sum);
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let count = match splice(from, None, &pipe.write, None, PIPE, flags) {
            Ok(count) => count,
            Err(error) => {
                self.give_back(pipe);
                return Err(error.into());
            }
        };
        if count == 0 {
            self.give_back(pipe);
            return Ok(Transfer::End);
        }
        add(sum, count);
        let written = to.try_io(Interest::WRITABLE, || drain(&pipe, to, count));
        let written = match written {
            Ok(written) => written,
            Err(error) => would_block(error).map(|()| 0)?,
        };
        if written < count {
            return Ok(Transfer::Piped(pipe, count - written));
        }
        self.give_back(pipe);
        Ok(Transfer::All(count))
    }

    /// Returns a spare or new pipe, or `None` at the limit of pipes or of descriptors.
    fn borrow(&self) -> Option<Pipe> {
        if let Some(pipe) = self.spare.borrow_mut().pop() {
            return Some(pipe);
        }
        let room = self.room.try_take(1)?;
        let held = self.free.try_take(OF_PIPE)?;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // If the kernel refuses this size, the pipe keeps its default size.
        let _ = fcntl_setpipe_size(&write, PIPE);
        Some(Pipe {
            read,
            write,
            _room: room,
            _held: held,
        })
    }

    /// Takes back an empty pipe for reuse.
    fn give_back(&self, pipe: Pipe) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_PIPES {
            spare.push(pipe);
        }
    }
}

/// Moves at most `count` bytes from a pipe to a connection. Returns the number of moved bytes.
fn drain(pipe: &Pipe, to: &TcpStream, count: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(splice(&pipe.read, None, to, None, count, flags)?)
}

/// Waits until `to` accepts bytes or `from` fails. During this wait, no other call would notice a
/// failure of `from`.
async fn writable(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    tokio::select! {
        biased;
        writable = to.writable() => writable,
        failed = from.ready(Interest::ERROR) => {
            failed?;
            Err(from.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()))
        }
    }
}

/// Returns success for `WouldBlock` and `Interrupted`, and other errors unchanged.
fn would_block(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// Makes the kernel reset a connection when it is closed.
pub(crate) fn reset(connection: &TcpStream) {
    // A connection that has ended needs no reset.
    let _ = connection.set_zero_linger();
}

/// A signal that ends all connections that wait for it.
#[derive(Debug, Default)]
pub(crate) struct CutSignal {
    is_over: Cell<bool>,
    over: Notify,
}

impl CutSignal {
    /// Sends the signal, which ends all connections that wait for it now or later.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
        self.over.notify_waiters();
    }

    pub(crate) async fn until_end(&self) {
        let over = self.over.notified();
        if !self.is_over.get() {
            over.await;
        }
    }
}
