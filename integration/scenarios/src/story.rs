//! Runs tests (`Story`) one after another, each in a new cluster. Reports failures.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::cluster::{self, Cluster};

/// Result of a test. An error means that the test has failed.
pub type Outcome = anyhow::Result<()>;

/// A named test, and the condition under which it can run.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// Name of the test: its expected result, as words joined by underscores.
    pub name: &'static str,
    /// Function that runs the test in its own cluster.
    pub tell: fn(&mut Cluster) -> Outcome,
    /// Function that returns true if the test can run on this kernel.
    pub is_possible: fn() -> bool,
}

/// Creates a list of tests from their functions. A module and a condition are optional:
///
/// - `stories! { one, other if has_nft() }`
/// - `stories! { module: one, other; }`
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

/// Time limit of one test, or three times [`Cluster::patience`] if that is longer. Waits within a
/// test have shorter limits.
const LONGEST: Duration = Duration::from_mins(2);

/// Enters the lab, runs the tests in order, and exits. `limit` is the time for the VM's boot and
/// all tests.
pub fn tell(stories: &[Story], limit: Duration) -> ! {
    // Must come first: in a VM of the lab, this program also runs as init, with other arguments.
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
    // Runs one test at a time, because the VM has one CPU. Keeps the order of the list, because
    // some tests need a kernel that later tests change.
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
