//! Conversions between values of flags and values of configuration fields.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use flags::go;

use super::{FileVerbosity, Period};

/// Conversion between a flag's value and a field's value. If the flag cannot express a field's
/// value, the error lists the allowed values.
pub(super) trait Spelling<F>: Sized {
    fn to_field(&self) -> F;
    fn from_field(field: F) -> Result<Self, (String, &'static str)>;
}

macro_rules! spelled_alike {
    ($($value:ty),+) => {
        $(impl Spelling<$value> for $value {
            fn to_field(&self) -> $value {
                self.clone()
            }

            fn from_field(field: $value) -> Result<Self, (String, &'static str)> {
                Ok(field)
            }
        })+
    };
}

spelled_alike!(bool, i32, f32, String, Vec<String>);

impl Spelling<Period> for Duration {
    fn to_field(&self) -> Period {
        Period(*self)
    }

    fn from_field(field: Period) -> Result<Self, (String, &'static str)> {
        Ok(field.0)
    }
}

impl Spelling<String> for IpAddr {
    fn to_field(&self) -> String {
        self.to_string()
    }

    fn from_field(field: String) -> Result<Self, (String, &'static str)> {
        go::ip(&field).map_err(|advice| (field, advice))
    }
}

impl Spelling<String> for OsString {
    fn to_field(&self) -> String {
        self.to_string_lossy().into_owned()
    }

    fn from_field(field: String) -> Result<Self, (String, &'static str)> {
        Ok(field.into())
    }
}

impl Spelling<String> for Option<String> {
    fn to_field(&self) -> String {
        self.clone().unwrap_or_default()
    }

    fn from_field(field: String) -> Result<Self, (String, &'static str)> {
        Ok(Some(field).filter(|text| !text.is_empty()))
    }
}

impl Spelling<BTreeMap<String, bool>> for Vec<(String, bool)> {
    fn to_field(&self) -> BTreeMap<String, bool> {
        let named = self.iter().filter(|(name, _)| !name.is_empty());
        named.cloned().collect()
    }

    fn from_field(field: BTreeMap<String, bool>) -> Result<Self, (String, &'static str)> {
        Ok(field.into_iter().collect())
    }
}

/// Conversion between the text of `--vmodule` and the list `logging.vmodule`.
impl Spelling<Vec<FileVerbosity>> for String {
    fn to_field(&self) -> Vec<FileVerbosity> {
        let items = self.split(',').filter_map(|item| {
            let (pattern, verbosity) = item.split_once('=')?;
            Some(FileVerbosity {
                file_pattern: pattern.to_owned(),
                verbosity: verbosity.parse().ok()?,
            })
        });
        items.collect()
    }

    fn from_field(field: Vec<FileVerbosity>) -> Result<Self, (String, &'static str)> {
        let items: Vec<String> = field
            .iter()
            .map(|item| format!("{}={}", item.file_pattern, item.verbosity))
            .collect();
        Ok(items.join(","))
    }
}
