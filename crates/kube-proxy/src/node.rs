//! State of this node: its addresses, the Services that claim them, address families, and kernel
//! settings.

pub(crate) mod addresses;
pub(crate) mod external_addresses;
pub(crate) mod kernel_settings;
pub(crate) mod missing_objects;
pub(crate) mod one_family;
pub(crate) mod unfit_settings;
