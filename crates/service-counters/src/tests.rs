use std::sync::mpsc;

use super::*;

/// A fake reader. Its note is its name. If the reader has a channel, a read waits until the test
/// sends a message to the channel.
struct NamedReader(&'static str, Option<mpsc::Receiver<()>>);

impl ReadCounters for NamedReader {
    fn tell(
        &mut self,
        _: CounterSelection<'_>,
        _: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        if let Some(go_on) = &self.1 {
            go_on.recv()?;
        }
        Ok(())
    }

    fn note(&self) -> Option<&'static str> {
        Some(self.0)
    }
}

#[test]
fn a_reader_that_is_set_during_a_read_is_used_by_the_next_read() {
    let counters = Counters::default();
    let (go_on, waits) = mpsc::channel();
    counters.set(Box::new(NamedReader("first", Some(waits))));
    let (began, begins) = mpsc::channel();
    let reader = counters.clone();
    let reading = std::thread::spawn(move || {
        let read = reader.with(|reader| {
            began.send(()).unwrap();
            reader.tell(CounterSelection::All, &mut |_| {}).unwrap();
            reader.note()
        });
        read.flatten()
    });
    begins.recv().unwrap();
    // This thread must not wait for the read in progress.
    counters.set(Box::new(NamedReader("second", None)));
    counters.set(Box::new(NamedReader("third", None)));
    go_on.send(()).unwrap();
    assert_eq!(reading.join().unwrap(), Some("first"));
    assert_eq!(counters.note().as_deref(), Some("third"));
}

#[test]
fn separate_readers_do_not_wait_for_each_other() {
    let apart = SeparateReaders::default();
    let named = || -> Box<dyn ReadCounters> { Box::new(NamedReader("mode", None)) };
    apart.set([(); 4].map(|()| named()));
    let status = apart.asked.with(|_| {
        let scraped = apart.scraped.note();
        assert_eq!(scraped, apart.own.note());
        apart.status.note()
    });
    assert_eq!(status.flatten().as_deref(), Some("mode"));
}
