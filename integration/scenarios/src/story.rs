//! Runs stories one after the other, each in a cluster of its own, and reports failures.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::cluster::{self, Cluster};

/// Result of a story.
pub type Outcome = anyhow::Result<()>;

/// A story, with its name and whether it can be told here.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// Claim of the story, in words joined by underscores.
    pub name: &'static str,
    /// The story.
    pub tell: fn(&mut Cluster) -> Outcome,
    /// Condition for the story to run in the running kernel.
    pub is_possible: fn() -> bool,
}

/// Stories by the names of their functions, by themselves or by their modules, and where they can be
/// told: `stories! { one, other if has_nft() }`, `stories! { module: one, other; }`.
#[macro_export]
macro_rules! stories {
    ($($module:ident: $($name:ident $(if $possible:expr)?),+;)+) => {
        [$($($crate::Story {
            name: concat!(stringify!($module), "::", stringify!($name)),
            tell: $module::$name,
            is_possible: || true $(&& $possible)?,
        }),+),+]
    };
    ($($name:ident $(if $possible:expr)?),+ $(,)?) => {
        [$($crate::Story {
            name: stringify!($name),
            tell: $name,
            is_possible: || true $(&& $possible)?,
        }),+]
    };
}

/// The longest that one story may take, or the time of three of its waits if that is longer; its waits and
/// asks have shorter limits of their own.
const LONGEST: Duration = Duration::from_mins(2);

/// Enters the lab, tells the stories in order, and exits. `limit` is for all of them, boot
/// included.
pub fn tell(stories: &[Story], limit: Duration) -> ! {
    // In the guest, this program is init first, and its arguments are not ours.
    lab::maybe_init();
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(error) = cluster::kube_proxy()
    {
        eprintln!("scenarios: {error}");
        std::process::exit(1);
    }
    lab::enter(limit);
    let trial = |story: &Story| {
        let Story {
            name,
            tell,
            is_possible,
        } = *story;
        Trial::test(name, move || run(name, tell)).with_ignored_flag(!is_possible())
    };
    // One at a time: there is one CPU, and the first stories change the kernel for those behind
    // them.
    let arguments = Arguments {
        test_threads: Some(1),
        ..arguments
    };
    libtest_mimic::run(&arguments, stories.iter().map(trial).collect()).exit()
}

fn run(name: &str, tell: fn(&mut Cluster) -> Outcome) -> Result<(), Failed> {
    let started = Instant::now();
    let mut cluster = Cluster::new(name).map_err(|error| format!("{error:#}"))?;
    let told = catch_unwind(AssertUnwindSafe(|| tell(&mut cluster)));
    let took = started.elapsed();
    let longest = LONGEST.max(cluster.patience * 3);
    let reason = match told {
        Ok(Ok(())) if took <= longest => {
            println!("    {name}: {took:.1?}");
            return Ok(());
        }
        Ok(Ok(())) => format!("it took {took:.1?}, which is longer than {longest:?}"),
        Ok(Err(error)) => format!("{error:?}"),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("it panicked")
                .to_owned()
        }
    };
    let mut text = format!(
        "{reason}\n\n-- after {took:.1?}; kube-proxy said:\n{}\n\n-- node1 holds:\n",
        cluster.said()
    );
    let _ = match cluster.state() {
        Ok(state) => write!(text, "{state}"),
        Err(error) => write!(text, "{error:#}"),
    };
    Err(text.into())
}
