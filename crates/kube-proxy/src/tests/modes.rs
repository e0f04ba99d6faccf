use std::collections::BTreeSet;

use clap::CommandFactory as _;
use flags::Flags;
use modes::definition::{Definition, Facts, OwnFlag, Periods};
use modes::settings::ProxyMode;
use modes::sysctl::conntrack;
use modes::sysctl::machine::Machine;
use modes::sysctl::row::WantedSetting;
use modes::sysctl::settings::Conntrack;
use modes::sysctls;

use super::options;
use crate::config;
use crate::config::options::Options;

fn definitions() -> impl Iterator<Item = &'static dyn Definition> {
    ProxyMode::ALL.into_iter().map(ProxyMode::definition)
}

#[test]
fn each_mode_name_selects_its_mode() {
    for mode in ProxyMode::ALL {
        let flags = Flags {
            proxy_mode: mode.name().to_owned(),
            ..Flags::defaults()
        };
        assert_eq!(Options::new(&flags).unwrap().modes.chosen, mode);
    }
    assert_eq!(ProxyMode::ALL.first(), Some(&ProxyMode::default()));
}

#[test]
fn each_mode_specific_flag_and_field_exists() {
    let mut command = Flags::command();
    command.build();
    let flags: Vec<_> = command
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .collect();
    let fields = config::fields();
    let mut heard = BTreeSet::new();
    for mode in definitions() {
        assert!(mode.fields().is_sorted());
        for field in mode.fields() {
            assert!(fields.iter().any(|known| known == field), "{field}");
            let is_heard = |mode: &dyn Definition| mode.fields().contains(field);
            assert!(!definitions().all(is_heard), "{field} is of every mode");
        }
        for flag in mode.flags_without_file() {
            assert!(flags.contains(flag), "--{flag}");
            let field = config::field_of(flag).unwrap();
            assert!(!mode.fields().contains(&field), "--{flag}, {field}");
        }
        for config in ["", "config.conf"] {
            let given = Flags {
                config: config.into(),
                ..Flags::defaults()
            };
            let Periods { sync, min_sync } = mode.periods(&given);
            for flag in [sync.0, min_sync.0] {
                let field = config::field_of(flag).unwrap();
                let is_flag = config.is_empty() && mode.flags_without_file().contains(&flag);
                assert!(
                    is_flag || mode.fields().contains(&field),
                    "--{flag}, {field}"
                );
            }
        }
        for OwnFlag { name, differs } in mode.flags() {
            assert!(flags.contains(name), "--{name}");
            assert_eq!(config::field_of(name), None, "--{name}");
            assert!(heard.insert(*name), "--{name} is of two modes");
            assert!(!differs(&Flags::defaults(), &Flags::defaults()), "--{name}");
        }
    }
}

/// If two modes had the same setting, one mode would restore its original value while the other
/// mode needs it.
#[test]
fn each_kernel_setting_belongs_to_one_mode() {
    let mut all = sysctls(None);
    assert!(all.iter().all(|wanted| wanted.value.is_none()));
    all.extend(conntrack::settings(Conntrack::default(), Machine::this()));
    let mut paths = BTreeSet::new();
    for wanted in all {
        assert!(paths.insert(wanted.row.path), "{}", wanted.row.path);
    }
}

#[test]
fn only_the_chosen_mode_changes_kernel_settings() {
    for mode in ProxyMode::ALL {
        let mut options = options(&["--ipvs-strict-arp"]);
        options.modes.chosen = mode;
        let facts = Facts {
            settings: &options.modes,
            asked: &options.kernel,
            machine: &Machine::this(),
        };
        let valued = |wanted: &[WantedSetting]| {
            let valued = wanted.iter().filter(|wanted| wanted.value.is_some());
            valued.map(|wanted| wanted.row.path).collect::<Vec<_>>()
        };
        let own = valued(&mode.definition().sysctls(Some(&facts)));
        let has_some = matches!(mode, ProxyMode::Ipvs | ProxyMode::Iptables);
        assert_eq!(!own.is_empty(), has_some, "{}", mode.name());
        assert_eq!(valued(&sysctls(Some(&facts))), own, "{}", mode.name());
    }
}

#[test]
fn a_mode_is_reopened_only_for_settings_that_it_reads() {
    for (mode, same) in [("ipvs", true), ("iptables", false)] {
        let settings = |more: &[&str]| {
            let mode = format!("--proxy-mode={mode}");
            let flags: Vec<_> = [&*mode].iter().chain(more).copied().collect();
            options(&flags).modes
        };
        let liberal = settings(&["--conntrack-tcp-be-liberal"]);
        assert_eq!(liberal == settings(&[]), same, "{mode}");
        let lean = settings(&["--ipvs-shim=lean"]);
        assert_eq!(lean == settings(&[]), !same, "{mode}");
    }
}

#[test]
fn service_options_name_existing_modes_and_are_documented() {
    let names = ProxyMode::ALL.map(ProxyMode::name);
    let document = include_str!("../../../../docs/service-options.md");
    for row in proxy::options::ROWS {
        for mode in row.modes {
            assert!(names.contains(mode), "{mode}");
        }
        let line = format!(
            "| `{}` | {} | `{}` | {} | {} |",
            row.annotation,
            (row.allowed)(),
            row.default,
            row.modes.join(", "),
            row.doc
        );
        assert!(
            document.contains(&line),
            "docs/service-options.md lacks {line}"
        );
    }
    let line = format!("| `{}", proxy::options::PREFIX);
    assert_eq!(document.matches(&line).count(), proxy::options::ROWS.len());
}
