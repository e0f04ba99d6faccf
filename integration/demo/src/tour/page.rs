//! Prints a Markdown page from a template that contains commands and requests. The printed page has
//! their output instead.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Node, Output, Place};

use crate::account::cut;

/// Timeout for the reply to a request of the page.
const PATIENCE: Duration = Duration::from_secs(2);

/// A printer of a page, which gets the template's lines one by one.
pub(super) struct Page<'a> {
    pub(super) kube_proxy: &'a Path,
    pub(super) node: Node,
    pub(super) places: Vec<Place>,
    pub(super) flags: Vec<String>,
    /// Output of the page's next command if [`Page::has_seen`] has already run it.
    pub(super) seen: Option<Output>,
    pub(super) unexpected: Vec<String>,
}

impl Page<'_> {
    /// Prints the result of a line of the template:
    ///
    /// - `$ exit=STATUS lines=MOST COMMAND`: at most `MOST` lines of the command's output. The
    ///   command must exit with `STATUS`;
    /// - `? WHO TO WANTED`: the result of a request from `WHO` to the address `TO`. The result must
    ///   contain `WANTED`;
    /// - any other line: the line unchanged.
    pub(super) fn line(&mut self, line: &str) -> Result<()> {
        if let Some(look) = line.strip_prefix("$ ") {
            let mut words = look.splitn(3, ' ');
            let mut number = |field: &str| words.next()?.strip_prefix(field)?.parse().ok();
            let (status, most) = (number("exit="), number("lines="));
            let (status, most) = status.zip(most).with_context(|| line.to_owned())?;
            return self.look(words.next().unwrap_or_default(), status, most);
        }
        if let Some(question) = line.strip_prefix("? ") {
            let mut words = question.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default();
            let said = self.ask(word(), word())?;
            let wanted = word();
            if !said.contains(wanted) {
                self.unexpected
                    .push(format!("{said} It is to be: {wanted}"));
            }
            println!("{said}");
            return Ok(());
        }
        println!("{line}");
        Ok(())
    }

    /// Prints a block that defines `FLAGS`, which the page's commands use.
    pub(super) fn flags(&self) {
        println!("```\nFLAGS=\"{}\"\n```", self.flags.join(" "));
    }

    /// Runs a command of the page ahead of its line. If the command exits with `status`, keeps its
    /// output for this line and returns true.
    pub(super) fn has_seen(&mut self, command: &str, status: i32) -> Result<bool> {
        let output = self.run(command)?;
        let is_so = output.status.code() == Some(status);
        self.seen = is_so.then_some(output);
        Ok(is_so)
    }

    /// Fails if the exit status of a command or the result of a request differed from the template.
    pub(super) fn close(self) -> Result<()> {
        let what = self.unexpected.join("\n");
        ensure!(what.is_empty(), "not as the page says:\n{what}");
        Ok(())
    }

    fn look(&mut self, command: &str, status: i32, most: i32) -> Result<()> {
        let output = match self.seen.take() {
            Some(output) => output,
            None => self.run(command)?,
        };
        if output.status.code() != Some(status) {
            self.unexpected.push(format!(
                "{command}: {}, and not {status}: {}{}",
                output.status, output.stdout, output.stderr
            ));
        }
        println!("```\n$ {command}");
        print!("{}", cut(&output.stdout, usize::try_from(most)?));
        println!("```");
        if status != 0 {
            println!("\nExit status: {status}.");
        }
        Ok(())
    }

    /// Sends one TCP request from the node, pod or host `who`, and returns a sentence about the
    /// reply.
    fn ask(&self, who: &str, to: &str) -> Result<String> {
        let mut places = self.places.iter();
        let from = places.find(|place| place.name() == who);
        let from = from.with_context(|| format!("there is no {who}"))?;
        let asked = Instant::now();
        let answer = from.ask_tcp(to.parse()?, PATIENCE);
        let took = asked.elapsed();
        Ok(match answer {
            Ok(answer) => format!(
                "`{who}` connects to {to}: `{}` answers, and sees the client as {}.",
                answer.who,
                answer.seen_source.ip()
            ),
            Err(failure) => format!("`{who}` connects to {to}: {failure}, after {took:.1?}."),
        })
    }

    fn run(&self, command: &str) -> Result<Output> {
        let mut argv = vec![self.kube_proxy.as_os_str().to_owned()];
        for word in command.split_whitespace().skip(1) {
            match word {
                "$FLAGS" => argv.extend(self.flags.iter().map(Into::into)),
                word => argv.push(word.into()),
            }
        }
        let output = self.node.run(argv);
        output.with_context(|| format!("cannot run {command}"))
    }
}
