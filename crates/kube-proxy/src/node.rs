//! This node: its addresses, what Services take of them, address families, and kernel settings.

pub(crate) mod addresses;
pub(crate) mod external_addresses;
pub(crate) mod kernel_settings;
pub(crate) mod one_family;
pub(crate) mod vanished;
