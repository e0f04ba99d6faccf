//! Tests of the protocol logic with the bytes that a kernel could send.

use std::collections::VecDeque;

use proptest::prelude::*;

use netlink_packet_core::NLM_F_ECHO;

use super::*;
use crate::Malformed;

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;

/// A scripted kernel. For each send, the script has a list of results that the socket then
/// receives.
#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Vec<io::Result<Vec<u8>>>>,
    queue: VecDeque<io::Result<Vec<u8>>>,
    sent: Vec<Vec<u8>>,
    /// Maximum number of bytes that a send may have, or `None` for no limit. A larger send gets
    /// `EMSGSIZE`.
    takes: Option<usize>,
}

impl Link for Script {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.takes.is_some_and(|takes| bytes.len() > takes) {
            return Err(io::Error::from_raw_os_error(EMSGSIZE));
        }
        self.sent.push(bytes.to_vec());
        self.queue
            .extend(self.answers.pop_front().unwrap_or_default());
        Ok(())
    }

    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        self.takes = self.takes.map(|takes| takes.max(bytes));
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let datagram = self
            .queue
            .pop_front()
            .unwrap_or(Err(ErrorKind::WouldBlock.into()))?;
        buffer.extend_from_slice(&datagram);
        Ok(datagram.len())
    }
}

fn exchange(answers: impl IntoIterator<Item = Vec<io::Result<Vec<u8>>>>) -> Exchange<Script> {
    let script = Script {
        answers: answers.into_iter().collect(),
        ..Script::default()
    };
    Exchange::new(script, Protocol::Route)
}

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = message::header(kind, flags).to_vec();
    bytes.extend_from_slice(payload);
    let length = as_u32(bytes.len());
    message::patch(&mut bytes, 0, &length.to_ne_bytes());
    message::set_sequence(&mut bytes, 0, sequence);
    bytes
}

/// Returns an `NLMSG_ERROR` for `sequence`. As with `NETLINK_CAP_ACK`, the message contains only
/// the header of the request.
fn verdict(sequence: u32, errno: i32) -> Vec<u8> {
    let mut payload = (-errno).to_ne_bytes().to_vec();
    payload.extend(message(20, 5, sequence, &[]));
    message(NLMSG_ERROR, 0x100, sequence, &payload)
}

fn done(flags: u16, sequence: u32, error: i32) -> Vec<u8> {
    message(NLMSG_DONE, flags, sequence, &error.to_ne_bytes())
}

fn batch(count: usize) -> Batch {
    let mut batch = Batch::new();
    for index in 0..count {
        batch.push(20, 0, |writer| writer.attr_u32(1, as_u32(index)));
    }
    batch
}

fn sequences(sent: &[u8]) -> Vec<(u32, bool)> {
    Messages::new(sent)
        .map(|message| message.unwrap())
        .map(|message| (message.sequence, message.flags & NLM_F_ACK != 0))
        .collect()
}

fn refused(errno: i32) -> Reply {
    Reply::Refused(Refusal {
        errno,
        message: None,
        request: Vec::new(),
    })
}

#[test]
fn only_the_last_message_of_a_batch_requests_an_acknowledgement() {
    let mut exchange = exchange([vec![Ok(verdict(2, EEXIST)), Ok(verdict(3, 0))]]);
    assert_eq!(
        exchange.execute(&batch(3)).unwrap(),
        [Reply::Done, refused(EEXIST), Reply::Done]
    );
    assert_eq!(
        sequences(&exchange.link.sent[0]),
        [(1, false), (2, false), (3, true)]
    );
}

#[test]
fn a_send_has_at_most_512_messages_and_128_kib() {
    let mut many = exchange([vec![Ok(verdict(512, 0))], vec![Ok(verdict(600, 0))]]);
    assert_eq!(many.execute(&batch(600)).unwrap(), vec![Reply::Done; 600]);
    assert_eq!(
        many.link
            .sent
            .iter()
            .map(|sent| sequences(sent).len())
            .collect::<Vec<_>>(),
        [512, 88]
    );

    let mut large = Batch::new();
    for _ in 0..3 {
        large.push(20, 0, |writer| writer.attr(1, &vec![0; 60_000]));
    }
    let mut exchange = exchange([vec![Ok(verdict(2, 0))], vec![Ok(verdict(3, 0))]]);
    assert_eq!(exchange.execute(&large).unwrap(), vec![Reply::Done; 3]);
}

#[test]
fn a_socket_with_a_small_buffer_gets_smaller_sends() {
    let mut small = exchange([]);
    small.link.takes = Some(100);
    // Ten messages of 24 bytes are 240 bytes, and the fake socket accepts at most 100. Each rejected
    // send halves the batch: 240 and 120 bytes are rejected, later sends have at most 60 bytes. No
    // replies arrive.
    assert_eq!(small.execute(&batch(10)).unwrap(), vec![Reply::Unknown; 10]);
    assert!(
        small
            .link
            .sent
            .iter()
            .all(|sent| sequences(sent).len() == 2)
    );
    assert_eq!(small.link.sent.len(), 5);

    small.link.takes = Some(20);
    let replies = small.execute(&batch(2)).unwrap();
    assert_eq!(
        replies.iter().map(Reply::errno).collect::<Vec<_>>(),
        [Some(EMSGSIZE); 2]
    );
}

#[test]
fn an_oversized_message_is_refused_and_the_rest_is_sent() {
    let mut batch = batch(1);
    batch.push(20, 0, |writer| {
        writer.nest(1, |writer| writer.attr(2, &vec![0; 65_532]));
    });
    batch.push(20, 0, |writer| writer.attr_u32(1, 2));
    batch.push(20, 0, |writer| writer.attr(2, &vec![0; 70_000]));
    let mut exchange = exchange([vec![Ok(verdict(3, 0))]]);
    let replies = exchange.execute(&batch).unwrap();
    assert_eq!(
        replies.iter().map(Reply::errno).collect::<Vec<_>>(),
        [None, Some(EMSGSIZE), None, Some(EMSGSIZE)]
    );
    assert_eq!(sequences(&exchange.link.sent[0]), [(1, false), (3, true)]);
}

#[test]
fn late_replies_are_not_attributed_to_later_requests() {
    let mut exchange = exchange([
        vec![
            Err(io::Error::from_raw_os_error(ENOBUFS)),
            Ok(verdict(1, EEXIST)),
        ],
        // The socket receives three kinds of replies: a late reply to the first send (sequence
        // number 2), replies with unknown sequence numbers (0, 77), and replies to this send.
        vec![
            Ok(verdict(2, EBUSY)),
            Ok(verdict(0, EBUSY)),
            Ok(verdict(77, EBUSY)),
            Ok(verdict(4, 0)),
        ],
    ]);
    assert_eq!(
        exchange.execute(&batch(2)).unwrap(),
        [refused(EEXIST), Reply::Unknown]
    );
    assert_eq!(
        exchange.execute(&batch(2)).unwrap(),
        [Reply::Done, Reply::Done]
    );
}

#[test]
fn lost_replies_make_unacknowledged_messages_unknown() {
    let enobufs = || Err(io::Error::from_raw_os_error(ENOBUFS));
    let mut exchange = exchange([vec![Ok(verdict(1, EEXIST)), enobufs(), Ok(verdict(3, 0))]]);
    assert_eq!(
        exchange.execute(&batch(3)).unwrap(),
        [refused(EEXIST), Reply::Unknown, Reply::Done]
    );
}

#[test]
fn sequence_numbers_wrap_around() {
    let mut exchange = exchange([vec![Ok(verdict(u32::MAX, EEXIST)), Ok(verdict(1, 0))]]);
    exchange.sequence = u32::MAX;
    assert_eq!(
        exchange.execute(&batch(3)).unwrap(),
        [refused(EEXIST), Reply::Done, Reply::Done]
    );
}

#[test]
fn a_batch_without_permission_fails_with_one_error() {
    let mut exchange = exchange([vec![Ok(verdict(1, EPERM))]]);
    assert!(matches!(
        exchange.execute(&batch(3)),
        Err(Error::Permission { .. })
    ));
}

#[test]
fn a_refusal_has_the_kernels_text_and_the_request() {
    let request = message(20, 5, 1, b"lineno 7");
    let mut payload = (-4103_i32).to_ne_bytes().to_vec();
    payload.extend(&request);
    payload.extend([10_u16.to_ne_bytes(), 1_u16.to_ne_bytes()].concat());
    payload.extend(b"taken\0\0\0");
    let mut exchange = exchange([vec![Ok(message(NLMSG_ERROR, 0x200, 1, &payload))]]);
    let replies = exchange.execute(&batch(1)).unwrap();
    let [Reply::Refused(refusal)] = replies.as_slice() else {
        panic!("{replies:?}")
    };
    assert_eq!(
        (refusal.errno, refusal.request.as_slice()),
        (4103, b"lineno 7".as_slice())
    );
    assert_eq!(refusal.to_string(), "error 4103: taken");
}

#[test]
fn single_and_multipart_replies_are_read() {
    let mut single = exchange([vec![Ok(message(9, 0, 1, b"one.")), Ok(verdict(1, 0))]]);
    let answer = single.request(8, 0, &|_| ()).unwrap();
    assert_eq!(answer.iter().collect::<Vec<_>>(), [(9, b"one.".as_slice())]);

    // The first part has two messages in one datagram. A message with an odd length is padded.
    let mut part = message(9, 2, 1, b"first");
    part.resize(align(part.len()), 0);
    part.extend(message(9, 2, 1, b"second"));
    let mut multi = exchange([vec![
        Ok(part),
        Ok(message(9, 2, 1, b"third")),
        Ok(done(2, 1, 0)),
    ]]);
    let answer = multi.request(8, 0, &|_| ()).unwrap();
    let payloads: Vec<_> = answer.iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, [b"first".as_slice(), b"second", b"third"]);
    assert_eq!(answer.len(), 3);
}

#[test]
fn an_interrupted_dump_is_retried_from_the_start() {
    let mut exchange = exchange([
        vec![Ok(message(9, 2, 1, b"old.")), Ok(done(2 | 16, 1, 0))],
        vec![Ok(message(9, 2 | 16, 2, b"old.")), Ok(done(2, 2, 0))],
        vec![Ok(message(9, 2, 3, b"new.")), Ok(done(2, 3, 0))],
    ]);
    let dump = exchange.dump(8, 0, &|_| ()).unwrap();
    assert_eq!(dump.iter().collect::<Vec<_>>(), [(9, b"new.".as_slice())]);
    assert_eq!(exchange.link.sent.len(), 3);
}

/// Payloads that end with a dot, and the number of payloads that do not.
type DotPayloads = (Vec<Vec<u8>>, usize);

fn pick(all: &mut DotPayloads, message: &message::ReceivedMessage<'_>) -> Result<(), Malformed> {
    match message.payload {
        b"bad." => {
            return Err(Malformed::Message {
                length: 4,
                available: 4,
            });
        }
        dotted if dotted.ends_with(b".") => all.0.push(dotted.to_vec()),
        _ => all.1 += 1,
    }
    Ok(())
}

#[test]
fn an_interrupted_streamed_dump_returns_no_partial_result() {
    let mut exchange = exchange([
        vec![
            Ok(message(9, 2, 1, b"old.")),
            Ok(message(9, 2, 1, b"none")),
            Ok(done(2 | 16, 1, 0)),
        ],
        // The kernel's last message of this dump (`NLMSG_DONE`) is lost.
        vec![Ok(message(9, 2, 2, b"old."))],
        vec![
            Ok(message(9, 2, 3, b"new.")),
            Ok(message(9, 2, 3, b"none")),
            Ok(message(9, 2, 3, b"two.")),
            Ok(done(2, 3, 0)),
        ],
    ]);
    let picked: DotPayloads = exchange
        .dump_into(8, 0, &|_| (), &is_uninterrupted, &mut pick)
        .unwrap();
    assert_eq!(picked, (vec![b"new.".to_vec(), b"two.".to_vec()], 1));
    assert_eq!(exchange.link.sent.len(), 3);
}

#[test]
fn a_dump_that_the_caller_finds_inconsistent_is_retried() {
    let mut exchange = exchange([
        vec![Ok(message(9, 2, 1, b"old.")), Ok(done(2, 1, 0))],
        vec![Ok(message(9, 2, 2, b"new.")), Ok(done(2, 2, 0))],
    ]);
    let is_new = |all: &DotPayloads, _| all.0 == [b"new."];
    let picked = exchange
        .dump_into(8, 0, &|_| (), &is_new, &mut pick)
        .unwrap();
    assert_eq!(picked, (vec![b"new.".to_vec()], 0));
    assert_eq!(exchange.link.sent.len(), 2);
}

#[test]
fn a_caller_may_accept_the_last_attempt_of_a_dump() {
    let attempts = (1..=DUMP_ATTEMPTS).map(|number| vec![Ok(done(2, number, 0))]);
    let mut exchange = exchange(attempts);
    let is_last = |_: &DotPayloads, attempt: Attempt| attempt.is_last;
    let picked = exchange.dump_into(8, 0, &|_| (), &is_last, &mut pick);
    assert_eq!(picked.unwrap(), DotPayloads::default());
    assert_eq!(exchange.link.sent.len(), 6);
}

#[test]
fn a_caller_may_accept_an_interrupted_dump() {
    let mut exchange = exchange([vec![Ok(message(9, 2, 1, b"one.")), Ok(done(2 | 16, 1, 0))]]);
    let picked: DotPayloads = exchange
        .dump_into(8, 0, &|_| (), &|_, _| true, &mut pick)
        .unwrap();
    assert_eq!(picked, (vec![b"one.".to_vec()], 0));
    assert_eq!(exchange.link.sent.len(), 1);
}

#[test]
fn an_invalid_message_ends_a_dump_and_discards_the_rest() {
    let mut exchange = exchange([vec![
        Ok(message(9, 2, 1, b"one.")),
        Ok(message(9, 2, 1, b"bad.")),
        Ok(message(9, 2, 1, b"two.")),
        Ok(done(2, 1, 0)),
    ]]);
    let failed = exchange.dump_into::<DotPayloads>(8, 0, &|_| (), &is_uninterrupted, &mut pick);
    assert!(matches!(failed, Err(Error::Malformed(_))));
    assert!(exchange.link.queue.is_empty());
    assert_eq!(exchange.link.sent.len(), 1);
}

#[test]
fn a_streamed_dump_needs_the_memory_of_one_datagram() {
    let part = message(9, 2, 1, &vec![7; 30_000]);
    let mut parts: Vec<_> = (0..1_000).map(|_| Ok(part.clone())).collect();
    parts.push(Ok(done(2, 1, 0)));
    let mut exchange = exchange([parts]);
    let before = exchange.datagram.capacity();
    let picked: DotPayloads = exchange
        .dump_into(8, 0, &|_| (), &is_uninterrupted, &mut pick)
        .unwrap();
    assert_eq!(picked, (Vec::new(), 1_000));
    assert_eq!(exchange.datagram.capacity(), before);
}

#[test]
fn a_dump_that_is_always_interrupted_fails() {
    let mut exchange = exchange((1..=6).map(|sequence| vec![Ok(done(16, sequence, 0))]));
    assert!(matches!(
        exchange.dump(8, 0, &|_| ()),
        Err(Error::Interrupted { attempts: 6 })
    ));
    assert_eq!(exchange.link.sent.len(), 6);
}

#[test]
fn a_dump_without_its_last_message_is_repeated() {
    let mut exchange = exchange([
        vec![Ok(message(9, 2, 1, b"part"))],
        vec![Ok(message(9, 2, 2, b"all.")), Ok(done(2, 2, 0))],
    ]);
    assert_eq!(exchange.dump(8, 0, &|_| ()).unwrap().len(), 1);
    assert!(matches!(
        exchange.request(8, 0, &|_| ()),
        Err(Error::LostReply)
    ));
}

#[test]
fn an_error_in_the_done_message_is_returned() {
    let mut exchange = exchange([vec![Ok(message(9, 2, 1, b"part")), Ok(done(2, 1, -2))]]);
    let Err(Error::Refused(refusal)) = exchange.dump(8, 0, &|_| ()) else {
        panic!("no error")
    };
    assert_eq!(refusal.errno, 2);
}

#[test]
fn an_invalid_header_ends_a_dump_and_discards_the_rest() {
    let mut short = message(9, 2, 1, b"part");
    short[..4].copy_from_slice(&99_u32.to_ne_bytes());
    let mut exchange = exchange([vec![Ok(short), Ok(message(9, 2, 1, b"part"))]]);
    assert!(matches!(
        exchange.dump(8, 0, &|_| ()),
        Err(Error::Malformed(Malformed::Message {
            length: 99,
            available: 20
        }))
    ));
    assert!(exchange.link.queue.is_empty());
}

#[test]
fn a_truncated_datagram_counts_as_lost_and_grows_the_buffer() {
    struct Truncating(usize);
    impl Link for Truncating {
        fn send(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn make_room(&mut self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Ok(1 << 20),
                2 => {
                    assert!(buffer.capacity() >= 1 << 20);
                    buffer.extend(verdict(1, 0));
                    Ok(buffer.len())
                }
                _ => Err(ErrorKind::WouldBlock.into()),
            }
        }
    }
    let mut exchange = Exchange::new(Truncating(0), Protocol::Generic);
    assert_eq!(exchange.execute(&batch(1)).unwrap(), [Reply::Done]);
}

proptest! {
    #[test]
    fn arbitrary_datagrams_never_panic_an_exchange(datagrams: Vec<Vec<u8>>) {
        let answers = || [datagrams.iter().cloned().map(Ok).collect::<Vec<_>>()];
        let _ = exchange(answers()).execute(&batch(3));
        let _ = exchange(answers()).request(8, 0, &|_| ());
    }

    #[test]
    fn arbitrary_error_replies_never_panic_an_exchange(kind in 2..4_u16, flags: u16, payload: Vec<u8>) {
        let answer = || [vec![Ok(message(kind, flags, 1, &payload))]];
        let _ = exchange(answer()).execute(&batch(3));
        let _ = exchange(answer()).request(8, 0, &|_| ());
    }
}

#[test]
fn a_transaction_of_any_size_is_sent_in_one_call() {
    let mut large = Batch::new();
    for _ in 0..600 {
        large.push(20, 0, |writer| writer.attr(1, &vec![0; 60_000]));
    }
    large.acknowledge(599);
    large.add_flags(1, NLM_F_ECHO);
    let told = message(23, 0, 2, &[7; 4]);
    let stale = message(23, 0, 7_000, &[7; 4]);
    let answers = vec![
        Ok(verdict(3, EEXIST)),
        Ok([told.clone(), stale].concat()),
        Err(io::Error::from_raw_os_error(ENOBUFS)),
        Ok(verdict(600, 0)),
    ];
    let mut exchange = exchange([answers, vec![Ok(verdict(601, 0))]]);
    exchange.link.takes = Some(1 << 20);
    let found = exchange.transact(&mut large).unwrap();
    let [sent] = &exchange.link.sent[..] else {
        panic!("one send");
    };
    let sent = sequences(sent);
    assert_eq!(
        (sent.len(), sent[0], sent[599]),
        (600, (1, false), (600, true))
    );
    assert_eq!(found.acknowledged, [599]);
    assert_eq!(found.refused.len(), 1);
    assert_eq!((found.refused[0].0, found.refused[0].1.errno), (2, EEXIST));
    assert_eq!(found.echoed.iter().collect::<Vec<_>>(), [(23, &[7; 4][..])]);
    assert!(found.lost);

    // A second attempt of a send uses new sequence numbers.
    let mut small = batch(1);
    let found = exchange.transact(&mut small).unwrap();
    assert_eq!(sequences(&exchange.link.sent[1]), [(601, false)]);
    assert_eq!(found.acknowledged, [0]);
}

#[test]
fn a_transaction_with_an_oversized_message_is_not_sent() {
    let mut void = batch(2);
    void.push(20, 0, |writer| writer.attr(1, &vec![0; 70_000]));
    let mut exchange = exchange([]);
    let answers = exchange.transact(&mut void).unwrap();
    assert_eq!(answers.refused[0].0, 2);
    assert_eq!(answers.refused[0].1.errno, EMSGSIZE);
    assert_eq!(exchange.link.sent, Vec::<Vec<u8>>::new());
}
