//! Carries bytes between two connections, both ways beside each other, until both are over.
//!
//! What waits to be written is bounded: from a connection nothing is read before all that was read
//! from it is written. A connection that is idle holds neither a buffer nor a pipe: there is one
//! buffer for all, and pipes are lent while there is something in them.
//!
//! The end of one direction (FIN) is passed on, and the other direction goes on. A connection that
//! is reset resets the other one.

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

use super::counted::{Carrying, add};
use super::descriptors::{Free, Held};
use super::limits::{Carriage, Limits};
use super::shares::Place;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// How much is read at once where much waits to be written. A direction that waits holds no more.
const FEW_BYTES: usize = 4 * 1024;

/// How much a pipe is to hold. The kernel may allow less.
const PIPE: usize = 256 * 1024;

/// How many pipes are kept for whoever needs one next.
const SPARE_PIPES: usize = 32;

/// Which descriptors a pipe takes.
const OF_PIPE: u32 = 2;

/// Others have their turn after so many bytes.
const TURN: usize = 1024 * 1024;

/// A pipe that moves less than this at once is not worth it.
const FEW: usize = 16 * 1024;

/// What all connections carry bytes with.
pub(crate) struct Pump {
    carriage: Carriage,
    buffer: RefCell<Box<[u8]>>,
    /// Those that nobody needs now.
    spare: RefCell<Vec<Pipe>>,
    /// How many more there may be, and how many descriptors.
    room: Free,
    free: Free,
    /// How many more large reads may wait to be written.
    waiting: Free,
}

/// Both ends of a pipe that is empty.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _room: Held,
    _held: Held,
}

/// By which way the next bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Buffer,
    Pipe,
}

/// What a read came to.
enum Moved {
    /// Everything that was read, which was so much, is written.
    All(usize),
    /// So much of what was read waits in memory, with the leave to be as much.
    Bytes(Vec<u8>, Option<Held>),
    /// Or in a pipe, so many bytes.
    Piped(Pipe, usize),
    /// There is nothing more to come.
    End,
}

impl Pump {
    /// One within these limits, for pipes of these descriptors.
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

    /// Closes the pipes that nobody needs now: somebody else needs their descriptors.
    pub(crate) fn close_spare(&self) {
        self.spare.borrow_mut().clear();
    }

    /// Carries bytes both ways until both are over, and counts them as they are read. What fails
    /// resets both.
    pub(crate) async fn run(
        &self,
        client: &TcpStream,
        server: &TcpStream,
        counted: &Carrying,
        place: &Place<Rc<Cut>>,
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
        place: &Place<Rc<Cut>>,
    ) -> io::Result<()> {
        let mut way = match self.carriage {
            Carriage::Splice => Way::Pipe,
            Carriage::Copy | Carriage::Adaptive => Way::Buffer,
        };
        let mut turn = 0;
        loop {
            from.readable().await?;
            place.note_use();
            let mut moved = None;
            let tried = from.try_io(Interest::READABLE, || {
                let now = match way {
                    Way::Buffer => self.read(from, to, sum)?,
                    Way::Pipe => self.splice(from, to, sum)?,
                };
                // A buffer that is not filled has emptied the socket: it need not be asked for that.
                let is_empty = matches!(now, Moved::All(count) if count < CHUNK);
                moved = Some(now);
                if is_empty && way == Way::Buffer {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(())
                }
            });
            let moved = moved.map_or_else(|| tried.map(|()| Moved::All(0)), Ok);
            let count = match moved {
                Ok(Moved::All(count)) => count,
                Ok(Moved::Bytes(bytes, _leave)) => {
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
                Ok(Moved::Piped(pipe, mut left)) => {
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
                Ok(Moved::End) => {
                    // It may be over already.
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
                    Way::Buffer if count >= CHUNK => Way::Pipe,
                    Way::Pipe if count < FEW => Way::Buffer,
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

    /// Reads once, and writes what can be written.
    fn read(&self, from: &TcpStream, to: &TcpStream, sum: &AtomicU64) -> io::Result<Moved> {
        let mut buffer = self.buffer.borrow_mut();
        let leave = self.waiting.try_take(1);
        let most = if leave.is_some() { CHUNK } else { FEW_BYTES };
        let count = rustix::io::read(from, buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 {
            return Ok(Moved::End);
        }
        add(sum, count);
        let bytes = buffer.get(..count).unwrap_or_default();
        let written = match to.try_write(bytes) {
            Ok(written) => written,
            Err(error) => would_block(error).map(|()| 0)?,
        };
        Ok(match bytes.get(written..) {
            Some(left) if !left.is_empty() => Moved::Bytes(left.to_vec(), leave),
            // One that is filled has not emptied the socket.
            _ if count == most => Moved::All(CHUNK),
            _ => Moved::All(count),
        })
    }

    /// The same through a pipe.
    fn splice(&self, from: &TcpStream, to: &TcpStream, sum: &AtomicU64) -> io::Result<Moved> {
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
            return Ok(Moved::End);
        }
        add(sum, count);
        let written = to.try_io(Interest::WRITABLE, || drain(&pipe, to, count));
        let written = match written {
            Ok(written) => written,
            Err(error) => would_block(error).map(|()| 0)?,
        };
        if written < count {
            return Ok(Moved::Piped(pipe, count - written));
        }
        self.give_back(pipe);
        Ok(Moved::All(count))
    }

    /// A pipe, if there may be one more.
    fn borrow(&self) -> Option<Pipe> {
        if let Some(pipe) = self.spare.borrow_mut().pop() {
            return Some(pipe);
        }
        let room = self.room.try_take(1)?;
        let held = self.free.try_take(OF_PIPE)?;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Less is enough.
        let _ = fcntl_setpipe_size(&write, PIPE);
        Some(Pipe {
            read,
            write,
            _room: room,
            _held: held,
        })
    }

    /// Takes back a pipe that is empty.
    fn give_back(&self, pipe: Pipe) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_PIPES {
            spare.push(pipe);
        }
    }
}

/// Writes what is in a pipe.
fn drain(pipe: &Pipe, to: &TcpStream, count: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(splice(&pipe.read, None, to, None, count, flags)?)
}

/// Waits until something can be written; or until the connection that it comes from fails, of which
/// nothing else would tell meanwhile.
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

/// Lets it pass that there is nothing to do yet.
fn would_block(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// Has a connection reset when it is closed.
pub(crate) fn reset(connection: &TcpStream) {
    // One that is gone needs none.
    let _ = connection.set_zero_linger();
}

/// What ends connections.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    is_over: Cell<bool>,
    over: Notify,
}

impl Cut {
    /// Ends those that there are.
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
