//! The page: sections of Markdown, and in them commands with what they print.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Node, Output, Place};

use crate::account::cut;

/// How long somebody who asks waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// A section: what is to be seen, and how.
pub(super) struct Part {
    pub(super) title: &'static str,
    /// Before the commands.
    pub(super) text: &'static str,
    pub(super) looks: &'static [Look],
    /// Then asked with packets: by whom, where, and what is to come of it.
    pub(super) asks: &'static [(&'static str, &'static str, &'static str)],
    /// After the commands; empty if they say it all.
    pub(super) after: &'static str,
}

/// A command, and how it is to end.
pub(super) struct Look {
    /// As it is typed; `$FLAGS` are the daemon's.
    pub(super) command: &'static str,
    pub(super) status: i32,
    /// So many lines of what it prints are shown.
    pub(super) most: usize,
}

/// The first lines of the page.
pub(super) struct Title {
    pub(super) title: &'static str,
    pub(super) text: &'static str,
}

/// Prints as it goes.
pub(super) struct Page<'a> {
    kube_proxy: &'a Path,
    node: Node,
    places: Vec<Place>,
    flags: Vec<String>,
    unexpected: Vec<String>,
}

impl<'a> Page<'a> {
    pub(super) fn new(
        kube_proxy: &'a Path,
        node: &Node,
        places: Vec<Place>,
        flags: Vec<String>,
    ) -> Self {
        Self {
            places,
            kube_proxy,
            node: node.clone(),
            flags,
            unexpected: Vec::new(),
        }
    }

    /// The beginning, and the flags that some commands take.
    pub(super) fn title(&self, title: &Title) {
        println!("# {}\n\n{}", title.title, title.text);
        println!("\n```\nFLAGS=\"{}\"\n```", self.flags.join(" "));
    }

    /// A section.
    pub(super) fn part(&mut self, part: &Part) -> Result<()> {
        self.write(part, None)
    }

    /// A section whose first command may not see what the text tells of: whether it does.
    pub(super) fn part_if_so(&mut self, part: &Part) -> Result<bool> {
        let first = part.looks.first().context("a part without a command")?;
        let output = self.run(first)?;
        let is_so = output.status.code() == Some(first.status);
        if is_so {
            self.write(part, Some(output))?;
        }
        Ok(is_so)
    }

    /// Fails if a command has ended otherwise than its text says.
    pub(super) fn close(self) -> Result<()> {
        let what = self.unexpected.join("\n");
        ensure!(what.is_empty(), "not as the page says:\n{what}");
        Ok(())
    }

    fn write(&mut self, part: &Part, mut seen: Option<Output>) -> Result<()> {
        println!("\n## {}\n\n{}", part.title, part.text);
        for look in part.looks {
            let output = match seen.take() {
                Some(output) => output,
                None => self.run(look)?,
            };
            let status = output.status.code();
            if status != Some(look.status) {
                self.unexpected.push(format!(
                    "{}: {}, and not {}: {}{}",
                    look.command, output.status, look.status, output.stdout, output.stderr
                ));
            }
            println!("\n```\n$ {}", look.command);
            print!("{}", cut(&output.stdout, look.most));
            println!("```");
            if look.status != 0 {
                println!("\nExit status: {}.", look.status);
            }
        }
        for (who, to, wanted) in part.asks {
            let said = self.ask(who, to)?;
            if !said.contains(wanted) {
                self.unexpected
                    .push(format!("{said} It is to be: {wanted}"));
            }
            println!("\n{said}");
        }
        if !part.after.is_empty() {
            println!("\n{}", part.after);
        }
        Ok(())
    }

    /// What comes of one question by packets.
    fn ask(&self, who: &str, to: &str) -> Result<String> {
        let mut places = self.places.iter();
        let from = places.find(|place| place.name() == who);
        let from = from.with_context(|| format!("there is no {who}"))?;
        let asked = Instant::now();
        let answer = from.ask_tcp(to.parse()?, PATIENCE);
        let took = asked.elapsed();
        Ok(match answer {
            Ok(answer) => format!(
                "`{who}` asks {to}: `{}` answers, and sees the client as {}.",
                answer.who,
                answer.seen_source.ip()
            ),
            Err(failure) => format!("`{who}` asks {to}: {failure}, after {took:.1?}."),
        })
    }

    fn run(&self, look: &Look) -> Result<Output> {
        let mut argv = vec![self.kube_proxy.as_os_str().to_owned()];
        for word in look.command.split_whitespace().skip(1) {
            match word {
                "$FLAGS" => argv.extend(self.flags.iter().map(Into::into)),
                word => argv.push(word.into()),
            }
        }
        let output = self.node.run(argv);
        output.with_context(|| format!("cannot run {}", look.command))
    }
}
